"""Tests of calibration with labels that are votes of annotators."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom, kstest

import keras_calib as kc
from keras_calib.functional.hypothesis_tests import (
    DrawnLabels,
    intraclass_correlation,
)

_STATISTICS = ("ece", "chi2", "spiegelhalter", "ecce_range", "ecce_maximum")


def _voted(rng, n, rho, gap=0.0, most=50):
    """Counts `(n, 2)` and probabilities of a model that is sure by `gap`."""
    confidence = 0.5 + 0.5 * rng.beta(5.0, 1.2, n)
    agree = confidence - gap
    if rho:
        both = (1.0 - rho) / rho
        agree = rng.beta(both * agree, both * (1.0 - agree))
    total = rng.integers(1, most + 1, n)
    right = rng.binomial(total, agree)
    return (
        np.stack([right, total - right], axis=-1),
        np.stack([confidence, 1.0 - confidence], axis=-1),
    )


@pytest.mark.parametrize(
    ("statistic", "draws"),
    [
        ("spiegelhalter", 100),
        *(
            pytest.param(name, 200, marks=pytest.mark.slow)
            for name in _STATISTICS
        ),
    ],
)
def test_p_values_of_votes_are_uniform_and_find_gaps(statistic, draws):
    rng = np.random.default_rng(3)

    def p_values(*model, n=400):
        return np.array(
            [
                kc.functional.calibration_test(
                    *_voted(rng, n, *model),
                    statistic=statistic,
                    num_draws=99,
                    seed=i,
                    votes=True,
                ).p_value
                for i in range(draws)
            ]
        )

    # Annotators who vote independently, and who are alike about an image.
    for rho in (0.0, 0.6):
        found = p_values(rho)
        # The walk is coarser than Brownian motion, which makes p larger.
        side = "greater" if "ecce" in statistic else "two-sided"
        assert kstest(found, "uniform", alternative=side).pvalue > 1e-3
        assert np.sum(found <= 0.05) <= binom.isf(1e-3, draws, 0.05)
    # Of few images the correlation is uncertain.
    few = np.sum(p_values(0.6, n=30) <= 0.05)
    assert few <= binom.isf(1e-3, draws, 0.1)
    power = [np.mean(p_values(rho, 0.05) <= 0.05) for rho in (0.0, 0.6)]
    assert power[0] > 0.9
    assert 0.3 < power[1] < power[0]


@pytest.mark.parametrize("statistic", _STATISTICS)
@pytest.mark.parametrize("n", [40, 600])
def test_one_vote_each_is_a_class_id(statistic, n):
    counts, probs = _voted(np.random.default_rng(4), n, 0.0, most=1)
    of_votes = kc.functional.calibration_test(
        counts, probs, statistic=statistic, votes=True
    )
    ids = counts.argmax(axis=-1)
    assert of_votes == kc.functional.calibration_test(
        ids, probs, statistic=statistic
    )


@pytest.mark.parametrize("statistic", _STATISTICS)
def test_certain_predictions_allow_no_dissent(statistic):
    sure = np.tile([1.0, 0.0], (50, 1))
    right = np.tile([3, 0], (50, 1))
    found = kc.functional.calibration_test(
        right, sure, statistic=statistic, votes=True
    )
    assert found.p_value == 1.0
    found = kc.functional.calibration_test(
        right - [[1, -1]], sure, statistic=statistic, votes=True
    )
    assert found.p_value < 0.011


def test_the_correlation_is_that_of_pairs_of_votes():
    counts, probs = _voted(np.random.default_rng(5), 60, 0.4, most=6)
    confidence, total = probs[:, 0], counts.sum(axis=-1)
    products, variance = 0.0, 0.0
    for (right, wrong), c in zip(counts, confidence, strict=True):
        votes = [1.0] * right + [0.0] * wrong
        pairs = [(x - c) * (y - c) for x, y in itertools.permutations(votes, 2)]
        if pairs:
            products += np.mean(pairs)
            variance += c * (1.0 - c)
    found = intraclass_correlation(confidence, counts[:, 0] / total, total)
    assert found == pytest.approx(products / variance)
    assert 0.1 < found < 0.9


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_drawn_shares_have_the_mean_and_the_variance_that_are_stated(rho):
    null = DrawnLabels(np.array([0.6, 0.9, 1.0]), np.array([1, 20, 7]), rho)
    drawn = null.draw(np.random.default_rng(6), 100_000)
    np.testing.assert_allclose(drawn.mean(axis=0), null.confidence, atol=0.01)
    np.testing.assert_allclose(drawn.var(axis=0), null.variance, atol=4e-3)
