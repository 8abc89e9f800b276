"""Intervals of the cumulative calibration error: coverage and closed forms."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, norm

import keras_calib as kc
from keras_calib.formulas.cumulative import (
    KINDS,
    brownian_tail,
    cumulative_error,
    cumulative_interval,
)
from keras_calib.formulas.intervals import clopper_pearson

each_kind = pytest.mark.parametrize("kind", KINDS)


def accuracy_of(calibration, confidence):
    log_odds = logit(confidence)
    if calibration == "both signs":
        return expit(1.8 + (log_odds - 1.8) / 1.5)
    return expit(
        log_odds / {"calibrated": 1.0, "overconfident": 1.5}[calibration]
    )


def draw(calibration, n, rng):
    """Confidence in ascending order, accuracy and correctness."""
    confidence = np.sort(0.1 + 0.9 * rng.beta(5.0, 1.2, n))
    if calibration == "sure":
        confidence = np.sort(rng.beta(60.0, 0.6, n))
        calibration = "overconfident"
    accuracy = accuracy_of(calibration, np.minimum(confidence, 1.0 - 1e-9))
    return confidence, accuracy, (rng.random(n) < accuracy).astype("float64")


def walk(confidence, correct):
    return np.cumsum(confidence - correct) / len(confidence)


def interval(confidence, correct, kind, weight=1.0, **options):
    """The interval of samples in ascending order, each a step."""
    weight = weight * np.ones(len(confidence))
    share = weight / weight.sum()
    steps = share * (confidence - correct)
    return cumulative_interval(
        np.cumsum(steps),
        steps**2,
        num_samples=1.0 / np.sum(share**2),
        third=np.sum(steps**3),
        kind=kind,
        **options,
    )


# Of every kind 200 draws, for which 30 are the small sibling.
COVERED = [
    pytest.param("both signs", 300, 30),
    *(
        pytest.param(calibration, n, 200, marks=pytest.mark.slow)
        for calibration in ("calibrated", "overconfident", "both signs")
        for n in (60, 300, 3000, 30_000)
    ),
    pytest.param("sure", 300, 200, marks=pytest.mark.slow),
    pytest.param("sure", 3000, 200, marks=pytest.mark.slow),
]


@each_kind
@pytest.mark.parametrize(("calibration", "n", "draws"), COVERED)
def test_intervals_cover_the_error_of_the_population(
    calibration, n, draws, kind
):
    rng = np.random.default_rng(n)
    many = draw(calibration, 300_000, rng)
    truth = cumulative_error(walk(*many[:2]), kind)
    if calibration == "calibrated":
        truth = 0.0
    hits, widths = 0, []
    for _ in range(draws):
        confidence, _, correct = draw(calibration, n, rng)
        low, high = interval(confidence, correct, kind)
        hits += low <= truth <= high
        widths.append(high - low)
    assert hits >= binom.ppf(1e-3, draws, 0.95)
    # Not by being wide: each difference is known to about 0.4 / sqrt(n).
    assert np.mean(widths) < 2.1 / np.sqrt(n) + 4.0 / n


@each_kind
def test_percentiles_of_a_bootstrap_would_fail_that_test(kind):
    rng = np.random.default_rng(1)
    confidence, _, correct = draw("calibrated", 1000, rng)
    values = []
    for _ in range(60):
        counts = rng.poisson(size=1000)
        steps = counts * (confidence - correct) / counts.sum()
        values.append(cumulative_error(np.cumsum(steps), kind))
    assert np.quantile(values, 0.025) > 0.0
    assert interval(confidence, correct, kind)[0] == 0.0


@each_kind
def test_a_sure_gap_is_known_as_well_as_its_mean(kind):
    # One step of 10,000 tied samples with the gap 0.2.
    n, gap = 10_000, 0.2
    square = 0.3 * 0.9**2 + 0.7 * 0.1**2
    low, high = cumulative_interval(
        np.array([gap]), np.array([square / n]), num_samples=n, kind=kind
    )
    spread = np.sqrt((square - gap**2) / n)
    assert high == pytest.approx(gap + norm.isf(0.025) * spread, abs=1e-5)
    # The lower end leaves out that the gap has a mean of its own.
    spread = np.sqrt(square / n)
    assert low == pytest.approx(gap - norm.isf(0.025) * spread, rel=3e-3)


@pytest.mark.slow
@each_kind
def test_a_calibrated_model_has_the_quantile_of_brownian_motion(kind):
    # A walk of 0 with even noise of variance 1e-4 in all.
    n = 1_000_000
    found = [
        cumulative_interval(
            np.r_[np.zeros(999), size],
            np.full(1000, 1e-7),
            num_samples=n,
            kind=kind,
        )[0]
        for size in np.linspace(0.02, 0.035, 301)
    ]
    # Where the lower end leaves 0, the p-value is half of 1 - level.
    size = np.linspace(0.02, 0.035, 301)[np.flatnonzero(found)[0]]
    assert brownian_tail(size / 0.01, kind) == pytest.approx(0.025, rel=0.25)


@each_kind
def test_no_error_at_all_leaves_a_rate_of_errors_possible(kind):
    low, high = interval(np.ones(100), np.ones(100), kind)
    most = 1.0 - clopper_pearson(100, 100)[0]
    assert low == 0.0 and most < high < 1.3 * most
    nothing = np.zeros(0)
    found = cumulative_interval(nothing, nothing, num_samples=0.0, kind=kind)
    assert found == (0.0, 1.0)


@each_kind
def test_uneven_weights_widen_and_even_ones_do_not(kind):
    rng = np.random.default_rng(4)
    confidence, _, correct = draw("overconfident", 2000, rng)
    plain = interval(confidence, correct, kind)
    even = interval(confidence, correct, kind, weight=7.0)
    np.testing.assert_allclose(even, plain, rtol=1e-9)
    weight = np.where(np.arange(2000) % 5 == 0, 1.0, 1e-3)
    assert np.ptp(interval(confidence, correct, kind, weight)) > 1.5 * np.ptp(
        plain
    )


@each_kind
def test_the_stream_has_the_interval_of_its_samples(kind):
    rng = np.random.default_rng(5)
    confidence, _, correct = draw("overconfident", 3000, rng)
    weight = rng.choice([1.0, 2.0], 3000)
    order = rng.permutation(3000)
    for some in (None, weight):
        metric = kc.ECCE(kind)
        for part in np.split(order, 3):
            metric.update_scores(
                confidence[part].astype("float32"),
                correct[part].astype("int32"),
                None if some is None else some[part],
            )
        wanted = interval(
            confidence, correct, kind, weight=1.0 if some is None else some
        )
        # Cells and the mean of the squared weights.
        assert metric.interval() == pytest.approx(wanted, abs=1.5e-3)


@each_kind
def test_one_vote_each_has_the_interval_of_classes_and_more_a_narrower(kind):
    rng = np.random.default_rng(6)
    confidence, accuracy, correct = draw("overconfident", 800, rng)
    probs = np.stack([confidence, 1.0 - confidence], -1).astype("float32")
    probs[confidence < 0.5] = [0.9, 0.1]
    votes = rng.binomial(9, accuracy)
    found = []
    for labels, rows in (
        ("classes", np.where(correct, 0, 1)),
        ("votes", np.stack([correct, 1.0 - correct], -1)),
        ("votes", np.stack([votes, 9 - votes], -1)),
    ):
        metric = kc.ECCE(kind, labels=labels)
        metric.update_state(rows, probs)
        found.append(metric.interval())
    assert found[1] == pytest.approx(found[0], abs=2e-3)
    assert np.ptp(found[2]) < 0.8 * np.ptp(found[0])


def test_wrong_levels_and_kinds_are_refused():
    step = np.array([0.1])
    for level in (0.0, 1.0):
        with pytest.raises(ValueError, match="`level` must be"):
            cumulative_interval(step, step, num_samples=9, level=level)
    with pytest.raises(ValueError, match="`kind` must be one of"):
        cumulative_interval(step, step, num_samples=9, kind="mean")
