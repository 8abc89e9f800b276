"""Evidence is at most 1 in the mean, by enumeration of all streams."""

import itertools

import numpy as np
import pytest

from keras_calib.monitoring import watch as watches
from keras_calib.monitoring.watch import (
    CalibrationHolds,
    CoverageHolds,
    RiskHolds,
    Watch,
)

LENGTH = 6
STREAMS = np.array(list(itertools.product([0.0, 1.0], repeat=LENGTH)))
CONFIDENCE = np.array([0.3, 0.95, 1.0, 0.6, 0.995, 0.0])
CASES = {
    "risk": (RiskHolds(0.1), 0.1),
    "risk below": (RiskHolds(0.1), 0.03),
    "coverage, low end": (CoverageHolds(0.4, 0.6), 0.4),
    "coverage, high end": (CoverageHolds(0.4, 0.6), 0.6),
    "calibration": (CalibrationHolds(0.0), CONFIDENCE),
    "calibration, upper end": (
        CalibrationHolds(0.05),
        np.minimum(CONFIDENCE + 0.05, 1.0),
    ),
    "calibration, lower end": (
        CalibrationHolds(0.05),
        np.maximum(CONFIDENCE - 0.05, 0.0),
    ),
}


def factors_of(holds, outcomes):
    if isinstance(holds, CalibrationHolds):
        return holds.log_factors(CONFIDENCE[: len(outcomes)], outcomes)
    return holds.log_factors(outcomes)


def path(holds, outcomes):
    """Evidence after each outcome."""
    watch, found = Watch(holds.prior, np.inf), []
    for row in factors_of(holds, outcomes):
        watch.add(row[None], np.zeros((1, 2)))
        found.append(np.exp(watch.log_evidence))
    return found


@pytest.mark.parametrize("name", CASES)
def test_evidence_never_grows_in_the_mean_given_the_past(name, monkeypatch):
    """So no time of stopping makes the mean exceed 1, in a block or not."""
    monkeypatch.setattr(watches, "BLOCK", 3)
    monkeypatch.setattr(watches, "SCALE", 2.0)
    monkeypatch.setattr(watches, "HORIZON", 7.0)
    holds, probability = CASES[name]
    probability = np.broadcast_to(probability, LENGTH)
    paths = np.array([path(holds, stream) for stream in STREAMS])
    for t in range(LENGTH):
        before = paths[:, t - 1] if t else np.ones(len(paths))
        for past in {tuple(s) for s in STREAMS[:, :t]}:
            here = (STREAMS[:, :t] == past).all(axis=1)
            hit = here & (STREAMS[:, t] == 1.0)
            p = probability[t]
            after = p * paths[hit, t][0]
            after += (1 - p) * paths[here & ~hit, t][0]
            assert after <= before[here][0] * (1 + 1e-6)


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
def test_no_factor_of_a_confidence_is_beyond_the_extremes(tolerance):
    holds = CalibrationHolds(tolerance)
    near = 10.0 ** -np.arange(1.0, 17.0)
    confidence = np.r_[0.0, near, np.linspace(0.0, 1.0, 999), 1.0 - near, 1.0]
    for outcome in (0, 1):
        found = holds.log_factors(confidence, np.full(len(confidence), outcome))
        least, most = (x[outcome] for x in holds.extremes)
        assert (found >= least).all() and (found <= most).all()
        if not tolerance:
            # Alternatives of all confidences come as far as that.
            reached = np.abs(found).max(axis=0)[:13]
            np.testing.assert_allclose(reached, most[:13], rtol=2e-3)


def test_the_mass_of_all_starts_is_at_most_one():
    watch = Watch(np.ones(1), np.inf)
    rng = np.random.default_rng(0)
    for count in rng.integers(1, 20_000, size=200):
        watch.add_sum(np.zeros(1), int(count), np.zeros(2))
        assert watch._spent <= 1.0 + 1e-12
        assert watch.log_evidence == pytest.approx(0.0, abs=1e-9)
    assert watch._spent == pytest.approx(1.0)


def test_the_likeliest_start_is_that_of_the_change():
    holds = RiskHolds(0.01)
    wrong = np.zeros(3000)
    wrong[2000::10] = 1.0
    watch = Watch(holds.prior, np.log(40.0))
    watch.add(holds.log_factors(wrong), holds.facts(wrong))
    _, before, facts = watch.likeliest()
    assert before == 2000
    assert facts.tolist() == [1000.0, 100.0, 0.0]


@pytest.mark.parametrize("piece", [1, 37, 5000])
def test_later_outcomes_do_not_change_what_an_alarm_says(piece):
    holds = RiskHolds(0.01)
    wrong = np.zeros(5000)
    wrong[2000:4000:10] = 1.0
    watch = Watch(holds.prior, np.log(40.0))
    until = None
    for start in range(0, 5000, piece):
        part = wrong[start : start + piece]
        watch.add(holds.log_factors(part), holds.facts(part))
        if until is None and watch.alarm_at > 0:
            until = Watch(holds.prior, np.inf)
            part = wrong[: watch.alarm_at]
            until.add(holds.log_factors(part), holds.facts(part))
    assert 2000 < watch.alarm_at < 4000
    for found, then in zip(watch.at_alarm(), until.likeliest(), strict=True):
        np.testing.assert_array_equal(found, then)
