"""Intervals of metrics of votes: samples are independent, votes are not."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from keras_calib.formulas.binned_intervals import (
    accuracy_interval,
    error_interval,
)
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.bootstrap import poisson_interval
from keras_calib.metrics.gap_estimates import gap_estimate_of_votes

_NORMS = ("l1", "l2", "max", "average")
_DRAWS = 60


def _population(rng, n, apart):
    """Confidences, and probabilities that an annotator agrees."""
    confidence = 0.5 + 0.5 * rng.beta(4.0, 1.0, n)
    mean = confidence - 0.04
    if not apart:
        return confidence, mean
    return confidence, rng.beta(3.0 * mean, 3.0 * (1.0 - mean))


def _sums(confidence, share):
    return bin_sums(
        confidence, share, bin_index(confidence, 15), 15, votes=True
    )


def _error(sums, filled, norm):
    gap, share = np.abs(sums.confidence_gap)[filled], sums.weight[filled]
    if norm == "max":
        return gap.max()
    if norm == "average":
        return gap.mean()
    power = 1 if norm == "l1" else 2
    return np.average(gap**power, weights=share) ** (1 / power)


@pytest.mark.parametrize("votes", [1, 50])
@pytest.mark.parametrize("apart", [False, True])
def test_intervals_cover_and_know_how_many_votes_there_are(votes, apart):
    rng = np.random.default_rng(votes)
    whole = _sums(*_population(rng, 300_000, apart))
    hits, widths = dict.fromkeys(_NORMS, 0), []
    for _ in range(_DRAWS):
        confidence, q = _population(rng, 400, apart)
        sums = _sums(confidence, rng.binomial(votes, q) / votes)
        for name in _NORMS:
            low, high = error_interval(sums, norm=name)
            truth = _error(whole, sums.weight > 0, name)
            hits[name] += low <= truth <= high
        as_classes = error_interval(BinSums(*sums.parts()[:5]))
        widths.append(np.diff([error_interval(sums), as_classes])[:, 0])
    assert min(hits.values()) >= 0.9 * _DRAWS, hits
    width, of_classes = np.mean(widths, axis=0)
    # One vote each is one class each.
    expected = (0.95, 1.1) if votes == 1 else (0.1, 0.4 + 0.4 * apart)
    assert expected[0] < width / of_classes < expected[1]


@pytest.mark.parametrize("apart", [False, True])
def test_accuracies_of_bins_are_covered_by_shorter_bars(apart):
    rng = np.random.default_rng(7)
    whole = _sums(*_population(rng, 300_000, apart))
    hits, ratios = [], []
    for _ in range(_DRAWS):
        confidence, q = _population(rng, 400, apart)
        sums = _sums(confidence, rng.binomial(20, q) / 20)
        filled = sums.weight > 0
        low, high = accuracy_interval(sums)
        hits += [*((low <= whole.accuracy) & (whole.accuracy <= high))[filled]]
        as_classes = np.subtract(*accuracy_interval(BinSums(*sums.parts()[:5])))
        ratios.append(np.mean((low - high)[filled] / as_classes[filled]))
        assert not low[~filled].any() and high[~filled].all()
    assert np.mean(hits) > 0.94
    assert 0.2 < np.mean(ratios) < 0.8


@pytest.mark.parametrize("shares", ["alike", "apart", "classes"])
def test_the_bootstrap_of_cells_has_the_spread_of_samples(shares):
    rng = np.random.default_rng(0)
    values = {
        "alike": rng.uniform(0.6, 0.7, 4000),
        "apart": rng.beta(2.0, 1.0, 4000),
        "classes": rng.integers(0, 2, 4000).astype("float64"),
    }[shares].reshape(40, 100)
    right = values.sum(axis=-1)
    low, high = poisson_interval(
        lambda right, wrong: right.sum() / (right + wrong).sum(),
        (right, 100.0 - right),
        variance=values.var(axis=-1),
        num_draws=2000,
    )
    reach = norm.isf(0.025) * values.std() / np.sqrt(values.size)
    # The further prediction adds one part in 4,000 on each side.
    assert low <= values.mean() <= high
    assert high - low == pytest.approx(2.0 * reach, rel=0.1, abs=6e-4)


def test_the_gap_of_votes_has_the_interval_of_a_mean():
    rng = np.random.default_rng(0)
    residual = rng.normal(0.02, 0.1, 4000)
    ones = np.ones(4000)
    found = gap_estimate_of_votes(ones, residual, residual**2)
    error = residual.std() / np.sqrt(4000)
    assert found.value == pytest.approx(residual.mean())
    assert found.low == pytest.approx(found.value - 1.96 * error, abs=4e-4)
    assert found.high == pytest.approx(found.value + 1.96 * error, abs=4e-4)
    nothing = gap_estimate_of_votes(*np.zeros((3, 4)))
    assert (nothing.value, nothing.low, nothing.high) == (0.0, -1.0, 1.0)


def test_sums_of_votes_are_copied_whole():
    rng = np.random.default_rng(0)
    sums = _sums(*_population(rng, 50, True))
    made = copy.deepcopy(sums), pickle.loads(pickle.dumps(sums))
    for again in (*made, replace(sums, weight=sums.weight)):
        np.testing.assert_array_equal(
            again.squared_residual, sums.squared_residual
        )
    assert BinSums(*sums.parts()[:5]).squared_residual is None
