"""Intervals of calibration errors: coverage and closed forms."""

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, norm

from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.intervals import clopper_pearson

each_norm = pytest.mark.parametrize("norm", ("l1", "l2", "max", "average"))


NORMS = ("l1", "l2", "max", "average")


NUM_BINS = 15


def enough(hits, draws, level=0.95):
    """Whether so many hits could come from coverage of at least `level`."""
    return hits >= binom.ppf(1e-3, draws, level)


def sums_of(gaps, counts, confidence):
    """Bin sums with the given gaps, without rounding to whole counts."""
    counts = np.asarray(counts, "float64")
    residual = counts * gaps
    total = counts * confidence
    return BinSums(counts, total, total - residual, residual, counts)


def accuracy_of(kind, confidence):
    if kind == "overconfident":
        return expit(logit(confidence) / 1.5)
    if kind == "one bad bin":
        return confidence - 0.25 * (bin_index(confidence, NUM_BINS) == 11)
    return confidence


def draw(kind, n, rng):
    """Confidence, accuracy and correctness of n predictions."""
    if kind == "sure":
        confidence = np.minimum(rng.beta(60.0, 0.6, n), 1 - 1e-9)
        kind = "overconfident"
    else:
        confidence = 0.1 + 0.9 * rng.beta(5.0, 1.2, n)
    accuracy = accuracy_of(kind, confidence)
    correct = (rng.random(n) < accuracy).astype("float64")
    return confidence, accuracy, correct


def error(norm, sums):
    filled = sums.weight > 0
    share = sums.weight[filled] / sums.weight.sum()
    gap = np.abs(sums.residual[filled]) / sums.weight[filled]
    return {
        "l1": np.sum(share * gap),
        "l2": np.sqrt(np.sum(share * gap**2)),
        "max": gap.max(),
        "average": gap.mean(),
    }[norm]


# Of every kind 200 draws, for which 30 are the small sibling.
COVERED = [
    pytest.param("overconfident", 300, False, 30),
    *(
        pytest.param(kind, n, mass, 200, marks=pytest.mark.slow)
        for kind in ("calibrated", "overconfident", "one bad bin", "sure")
        for n in (300, 3000)
        for mass in (False, True)
    ),
]


@pytest.mark.parametrize(("kind", "n", "mass", "draws"), COVERED)
def test_error_intervals_cover_the_error_of_the_population(
    kind, n, mass, draws
):
    rng = np.random.default_rng(n)

    def index_of(confidence):
        if not mass:
            return bin_index(confidence, NUM_BINS)
        index = np.empty(len(confidence), int)
        order = np.argsort(confidence)
        index[order] = np.arange(len(order)) * NUM_BINS // len(order)
        return index

    confidence, accuracy, _ = draw(kind, 300_000, rng)
    truth = bin_sums(confidence, accuracy, index_of(confidence), NUM_BINS)
    hits = dict.fromkeys(NORMS, 0)
    widths = []
    for _ in range(draws):
        confidence, _, correct = draw(kind, n, rng)
        sums = bin_sums(confidence, correct, index_of(confidence), NUM_BINS)
        # Only non-empty bins are spoken of.
        seen = BinSums(*(v * (sums.weight > 0) for v in truth.parts()))
        for name in NORMS:
            low, high = error_interval(sums, norm=name)
            # What sampling leaves of a true error of 0.
            hits[name] += low <= error(name, seen) + 1e-9 and (
                error(name, seen) <= high
            )
            if name == "l1":
                widths.append(high - low)
    assert all(enough(v, draws) for v in hits.values()), hits
    # Not by being wide: 15 bins of n / 15 are known to about 1 / sqrt(n).
    assert np.mean(widths) < 2.5 / np.sqrt(n)


def test_percentiles_of_a_bootstrap_would_fail_this_test():
    rng = np.random.default_rng(0)
    confidence, _, correct = draw("calibrated", 1000, rng)
    index = bin_index(confidence, NUM_BINS)
    replicates = []
    for _ in range(60):
        weight = rng.poisson(size=1000).astype("float64")
        sums = bin_sums(confidence, correct, index, NUM_BINS, weight)
        replicates.append(error("l1", sums))
    assert np.quantile(replicates, 0.025) > 0.0
    sums = bin_sums(confidence, correct, index, NUM_BINS)
    assert error_interval(sums)[0] == 0.0


def test_a_sure_gap_is_known_as_well_as_its_binomial_says():
    # One bin and a gap of 40 standard errors: nothing is biased.
    n, accuracy, confidence = 10_000, 0.7, 0.9
    sums = sums_of(np.array([0.2]), [n], np.array([confidence]))
    error = np.sqrt(accuracy * (1 - accuracy) / n)
    for name in ("l1", "l2", "average"):
        low, high = error_interval(sums, norm=name)
        # The lower end of "l1" spends its tail on two limits.
        reach = norm.isf(0.025 if name == "l2" else 0.01) * error
        assert low == pytest.approx(0.2 - reach, abs=0.04 * error), name
        reach = norm.isf(0.025) * error
        assert high == pytest.approx(0.2 + reach, abs=0.04 * error), name
    accuracies = clopper_pearson(7000, n)
    expected = confidence - accuracies[1], confidence - accuracies[0]
    low, high = error_interval(sums, norm="max")
    assert high == pytest.approx(expected[1], abs=1e-12)
    # One-sided as well, at the same tail: one bin, but both signs.
    low_at = confidence - clopper_pearson(7000, n, level=0.975)[1]
    assert low == pytest.approx(low_at, abs=1e-12)


@each_norm
def test_intervals_hold_the_estimate_when_gaps_are_sure(norm):
    gaps = np.array([0.2, -0.3, 0.1, 0.25])
    sums = sums_of(gaps, [4e4, 3e4, 2e4, 1e4], np.array([0.5, 0.6, 0.7, 0.9]))
    low, high = error_interval(sums, norm=norm)
    assert low < error(norm, sums) < high < low + 0.05


@each_norm
def test_a_higher_level_gives_a_wider_interval(norm):
    confidence, _, correct = draw(
        "overconfident", 500, np.random.default_rng(3)
    )
    sums = bin_sums(confidence, correct, bin_index(confidence, 10), 10)
    ends = [error_interval(sums, norm=norm, level=v) for v in (0.5, 0.9, 0.99)]
    assert ends[0][0] >= ends[1][0] >= ends[2][0]
    assert ends[0][1] < ends[1][1] < ends[2][1]


@each_norm
def test_only_ratios_of_weights_matter_and_uneven_ones_widen(norm):
    rng = np.random.default_rng(4)
    confidence, _, correct = draw("overconfident", 2000, rng)
    index = bin_index(confidence, NUM_BINS)

    def interval(weight):
        sums = bin_sums(confidence, correct, index, NUM_BINS, weight)
        return np.array(error_interval(sums, norm=norm))

    plain = interval(None)
    np.testing.assert_allclose(interval(np.full(2000, 7.0)), plain, rtol=1e-9)
    # A fifth of the samples carries nearly all weight. The widths of the
    # others are those of the smallest bins, which hardly change.
    uneven = interval(np.where(np.arange(2000) % 5 == 0, 1.0, 1e-3))
    least = 1.3 if norm in ("l1", "l2") else 1.0
    assert np.ptp(uneven) > least * np.ptp(plain)


@each_norm
def test_intervals_of_extreme_bins(norm):
    empty = BinSums(*np.zeros((5, 3)))
    assert error_interval(empty, norm=norm) == (0.0, 1.0)
    one = sums_of(np.array([-0.1]), [1], np.array([0.9]))
    low, high = error_interval(one, norm=norm)
    assert low == 0.0 and high > 0.5
    right = sums_of(np.array([0.0]), [100], np.array([1.0]))
    low, high = error_interval(right, norm=norm)
    # No error among 100: the rate may still be that of Clopper and Pearson.
    most = 1.0 - clopper_pearson(100, 100)[0]
    assert low == 0.0 and 0.99 * most < high < 1.5 * most
    wrong = sums_of(np.array([1.0]), [100], np.array([1.0]))
    low, high = error_interval(wrong, norm=norm)
    assert 0.85 < low < 1.0 and high == 1.0


def test_error_interval_names_what_is_wrong():
    sums = sums_of(np.array([0.1]), [10], np.array([0.9]))
    with pytest.raises(ValueError, match=r"`norm` must be one of"):
        error_interval(sums, norm="l3")
    for level in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"`level` must be"):
            error_interval(sums, level=level)
