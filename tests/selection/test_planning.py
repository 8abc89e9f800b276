"""Plans: the simulated walk is the selector's, and numbers hold in draws."""

import functools

import numpy as np
import pytest
from ladders import fixed_sequence, ranked
from scipy.stats import binom

import keras_calib as kc
from keras_calib.selection import certification
from keras_calib.selection.certification import (
    Population,
    of_calibrated,
    of_pilot,
)

QUICK = {"max_samples": 2000, "coverages": (0.2, 0.5)}
# A pilot takes less time than a population of an accuracy.
RIGHT = np.arange(400.0), np.ones(400)


@functools.cache
def calibrated(accuracy):
    return of_calibrated(accuracy, 1.0)


def records(n, rng, accuracy=0.93):
    """Scores and correctness of a calibrated network."""
    of = calibrated(accuracy)
    u = rng.random(n)
    rate = of.rate[np.searchsorted(of.coverage[:-1], u)]
    return 1.0 - rate, rng.random(n) >= rate


def thresholds(draws, i, tied, n):
    """Accepted and wrong samples at every threshold of one draw."""
    mine = draws.draw == i
    wrong = np.zeros(n + 1, int)
    wrong[draws.rank[mine]] = draws.wrong[mine]
    wrong = np.maximum.accumulate(wrong)
    allowed, begin = np.zeros(n + 1, bool), 0
    for end, whole in zip(draws.ends[i], tied, strict=True):
        if end > begin:
            allowed[end if whole else begin + 1 : end + 1] = True
        begin = end
    accepted = np.flatnonzero(allowed)
    return accepted, wrong[accepted]


@pytest.mark.parametrize("seed", range(12))
def test_the_simulated_walk_is_that_of_the_selector(seed):
    rng = np.random.default_rng(seed)
    pieces = int(rng.integers(3, 40))
    mass, rate = rng.dirichlet(np.ones(pieces)), 0.1 * rng.random(pieces)
    tied = rng.random(pieces) < rng.choice([0.0, 0.5, 1.0])
    of = Population(mass, rate * rng.choice([0.0, 0.3, 1.0], pieces), tied)
    n, risk = int(rng.integers(50, 3000)), rng.choice([0.02, 0.05, 0.2])
    draws = certification._draw(of, np.repeat(of.rate[None], 20, 0), n, rng)
    found = certification._fixed_sequence(draws, n, risk, 0.1)
    for i in range(20):
        accepted, wrong = thresholds(draws, i, tied, n)
        passed = accepted[fixed_sequence(accepted, wrong, risk, 0.1)]
        assert found[i] == max(passed, default=0)


@pytest.mark.parametrize("levels", [0, 40])
def test_the_power_is_the_frequency_of_certificates(levels):
    rng = np.random.default_rng(0)

    def drawn(n):
        scores, correct = records(n, rng)
        return np.ceil(levels * scores) if levels else scores, correct

    known, _ = of_pilot(ranked(*drawn(200_000)), 1, rng)
    options = known, 1000, 0.02, 0.05, 4000, rng
    predicted = certification.certified_coverage(*options)
    found = []
    for _ in range(500):
        of = ranked(*drawn(1000))
        passed = fixed_sequence(of.accepted, of.loss, 0.02, 0.05)
        found.append(of.coverage[passed][-1] if passed.any() else 0.0)
    # Three standard errors of the difference are 0.07.
    for least in (1e-9, 0.3):
        gap = np.mean(predicted >= least) - np.mean(np.array(found) >= least)
        assert abs(gap) < 0.07
    assert abs(np.mean(predicted) - np.mean(found)) < 0.035


def test_many_errors_are_tested_at_the_ends_of_small_pieces(monkeypatch):
    options = calibrated(0.93), 20_000, 0.05, 0.05, 400
    one, other = (
        certification.certified_coverage(*options, np.random.default_rng(0))
        for _ in range(2)
        if not monkeypatch.setattr(certification, "_MOST_ERRORS", 10 * 3**9 * _)
    )
    assert abs(one.mean() - other.mean()) < 0.01


@pytest.mark.slow
def test_plans_agree_with_the_hard_limit_and_their_seed():
    found = kc.plan(risk=0.05, accuracy=0.95, **QUICK)
    assert found.fewest == 59
    assert found.samples >= 59
    again = kc.plan(risk=0.05, accuracy=0.95, **QUICK)
    assert str(found) == str(again)
    assert found.by_coverage.samples[0] <= found.by_coverage.samples[1]
    # A network without errors among the surest half needs few more.
    sure = kc.plan(risk=0.05, accuracy=1 - 1e-6, coverage=0.5, **QUICK)
    assert sure.samples < 200
    sizes = kc.plan(risk=0.05, accuracy=0.95, sizes=[777], **QUICK).by_samples
    assert 777 in sizes.samples


def test_a_plan_reads_logits_and_records_alike():
    rng = np.random.default_rng(1)
    options = {"risk": 0.08, "coverages": (0.2,), "max_samples": 500}
    scores, correct = records(1000, rng)
    log_odds = np.log(scores) - np.log1p(-scores)
    logits = np.stack([log_odds, np.zeros(1000)], axis=1)
    p = kc.Predictions(1 - correct, logits, from_logits=True)
    of_logits = kc.plan(pilot=p, **options)
    predicted_first = log_odds > 0
    right = np.where(predicted_first, correct, ~correct)
    pilot = (np.abs(log_odds), right)
    assert str(of_logits) == str(kc.plan(pilot=pilot, **options))
    assert of_logits.low <= of_logits.samples <= of_logits.high
    assert of_logits.pilot_size == 1000 and "1,000 samples" in str(of_logits)


def test_no_errors_do_not_prove_a_rate_of_0():
    scores = np.arange(400.0)
    known, others = of_pilot(
        ranked(scores, np.ones(400)),
        2000,
        np.random.default_rng(0),
    )
    np.testing.assert_allclose(known.risk, 1 / 400)
    assert abs(others.risk[:, -1].mean() * 400 - 1.0) < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"risk": 1.5, "accuracy": 0.9}, "`risk` must be < 1"),
        ({"risk": 0.1}, "One of `pilot` and `accuracy`"),
        ({"risk": 0.1, "pilot": 3}, "`pilot` must be"),
        ({"risk": 0.01, "pilot": RIGHT, "max_samples": 200}, "299"),
        ({"risk": 0.1, "pilot": RIGHT, "coverages": [0.0]}, "`coverages`"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        kc.plan(**options)


@pytest.mark.slow
def test_a_risk_out_of_reach_is_refused_with_one_within():
    rng = np.random.default_rng(0)
    scores, wrong = rng.random(3000), rng.random(3000) < 0.3
    with pytest.raises(ValueError, match="ask for `risk=0.3"):
        kc.plan(risk=0.1, pilot=(scores, ~wrong))
    with pytest.raises(ValueError, match="is too small to tell"):
        kc.plan(risk=0.01, pilot=(scores[:50], np.ones(50)))
    with pytest.raises(ValueError, match="raise it, or ask for `risk="):
        kc.plan(risk=0.01, accuracy=0.8, max_samples=500)


def test_fewest_accepted_are_exact():
    for risk, level in ((0.01, 0.0125), (0.05, 0.025), (0.3, 0.4), (0.9, 0.5)):
        fewest = certification._fewest_accepted(300, risk, level)[:-1]
        wrong = np.arange(len(fewest))
        assert (binom.cdf(wrong, fewest, risk) <= level).all()
        assert (
            (binom.cdf(wrong, fewest - 1, risk) > level) | (fewest == wrong + 1)
        ).all()
