"""Tests of bounded means: formulas, validity by simulation, and power."""

import numpy as np
import pytest
from scipy.stats import binom

from keras_calib.formulas.bounded_means import (
    TESTS,
    accepted_p_values,
    betting_p_value,
    bounded_losses,
    first_rank_by_betting,
    hoeffding_bentkus_p_value,
)

# Losses (repeats, n) with mean m; all are extreme in some way.
LAWS = {
    "0 or 1": lambda rng, shape, m: (rng.random(shape) < m) * 1.0,
    "0 or 1/2": lambda rng, shape, m: (rng.random(shape) < 2 * m) * 0.5,
    "beta": lambda rng, shape, m: rng.beta(5 * m, 5 * (1 - m), shape),
    "nearly constant": lambda rng, shape, m: m + rng.uniform(-m, m, shape) / 9,
}


def p_value(losses, limit, test, **options):
    if test == "betting":
        return betting_p_value(losses, limit, **options)
    return hoeffding_bentkus_p_value(losses.sum(), len(losses), limit)


def test_hoeffding_bentkus_is_its_formula():
    total, count, limit = 3.4, 100, 0.1
    mean = total / count
    kl = mean * np.log(mean / limit)
    kl += (1 - mean) * np.log((1 - mean) / (1 - limit))
    tail = sum(binom.pmf(k, count, limit) for k in range(5))
    expected = min(np.exp(-count * kl), np.e * tail)
    found = hoeffding_bentkus_p_value(total, count, limit)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # Sums of tenths round to 3.0000000000000004 and to 0.9999999999999999.
    for total in (sum([0.1] * 30), sum([0.1] * 10)):
        rounded = hoeffding_bentkus_p_value(round(total), 40, 0.2)
        found = hoeffding_bentkus_p_value(total, 40, 0.2)
        np.testing.assert_allclose(found, rounded, rtol=1e-12)
    assert hoeffding_bentkus_p_value(0.0, 0, 0.1) == 1.0
    assert hoeffding_bentkus_p_value(50.0, 100, 0.1) == 1.0


def test_betting_is_the_loop_over_bets():
    losses = np.random.default_rng(0).beta(0.5, 8, 200)
    limit, delta, n = 0.1, 0.05, len(losses)
    order = np.random.default_rng(3).permutation(n)
    capital, best, past = 1.0, 1.0, []
    squares = 0.0
    for x in losses[order]:
        variance = (0.25 + squares) / (len(past) + 1)
        bet = np.sqrt(2 * np.log(1 / delta) / (n * variance))
        capital *= 1 + min(bet, 0.9 / (1 - limit)) * (limit - x)
        best = max(best, capital)
        past.append(x)
        squares += (x - (0.5 + sum(past)) / (len(past) + 1)) ** 2
    found = betting_p_value(losses, [limit, 0.001], delta=delta, seed=3)
    np.testing.assert_allclose(found, [1 / best, 1.0], rtol=1e-9)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(("n", "mean"), [(40, 0.3), (300, 0.05)])
def test_p_values_are_valid(law, test, n, mean):
    """P(p <= u) <= u where the mean is just at the limit."""
    repeats = 1500
    rng = np.random.default_rng([n, TESTS.index(test)])
    losses = LAWS[law](rng, (repeats, n), mean)
    found = np.array([p_value(x, mean, test) for x in losses])
    for u in (0.01, 0.05, 0.2):
        allowed = u + 3 * np.sqrt(u * (1 - u) / repeats)
        assert np.mean(found <= u) <= allowed


@pytest.mark.parametrize(
    ("law", "n", "mean", "limit", "least"),
    [
        # Of 0 and 1 the binomial test is best: 0.74 of data sets pass.
        ("0 or 1", 1000, 0.035, 0.05, {"betting": 0.4, "binomial": 0.65}),
        ("beta", 1000, 0.27, 0.3, {"betting": 0.95}),
        ("nearly constant", 800, 0.04, 0.05, {"betting": 0.99}),
    ],
)
def test_betting_has_the_power_that_small_variance_allows(
    law, n, mean, limit, least
):
    rng = np.random.default_rng(1)
    losses = LAWS[law](rng, (200, n), mean)
    pass_rate = {
        test: np.mean([p_value(x, limit, test) <= 0.05 for x in losses])
        for test in TESTS
    }
    totals = losses.sum(axis=1)
    pass_rate["binomial"] = np.mean(binom.cdf(totals, n, limit) <= 0.05)
    for test, rate in least.items():
        assert pass_rate[test] >= rate
    if law == "0 or 1":
        assert pass_rate["hoeffding_bentkus"] <= pass_rate["binomial"]
        assert pass_rate["betting"] <= pass_rate["binomial"]
    else:
        assert pass_rate["betting"] > pass_rate["hoeffding_bentkus"] + 0.2


@pytest.mark.parametrize("test", TESTS)
def test_p_values_fall_as_the_limit_rises(test):
    losses = LAWS["beta"](np.random.default_rng(2), 150, 0.2)
    limits = np.linspace(0.01, 0.99, 99)
    assert np.all(np.diff(p_value(losses, limits, test)) <= 1e-15)


def test_p_values_of_the_accepted_are_those_of_their_losses():
    rng = np.random.default_rng(4)
    losses = rng.random(50) * np.linspace(0, 1, 50)
    counts = np.array([0, 5, 20, 50])
    for test in TESTS:
        found = accepted_p_values(losses, counts, 0.4, test=test)
        assert found[0] == 1.0
        assert found[-1] == p_value(losses, 0.4, test)
        for count, value in zip(counts[1:], found[1:], strict=True):
            expected = hoeffding_bentkus_p_value(
                losses[:count].sum(), count, 0.4
            )
            if test == "betting":
                order = np.random.default_rng(0).permutation(50)
                expected = slow_betting(losses[order[order < count]], 0.4, 0.05)
            np.testing.assert_allclose(value, expected, rtol=1e-12)


def slow_betting(losses, limit, delta):
    """Capital of a gambler who knows only the losses before each bet."""
    capital = best = 1.0
    for i, loss in enumerate(losses):
        past, centre, spread = losses[:i], 0.5, 0.25
        for k in range(i):
            centre = (0.5 + past[: k + 1].sum()) / (k + 2)
            spread += (past[k] - centre) ** 2
        variance = spread / (i + 1)
        bet = np.sqrt(2 * np.log(1 / delta) / (len(losses) * variance))
        capital *= 1 + min(bet, 0.9 / (1 - limit)) * (limit - loss)
        best = max(best, capital)
    return 1 / best


def test_order_of_ranks_does_not_order_the_bets():
    """Losses that rise with the rank make betting in their order invalid."""
    rng = np.random.default_rng(5)
    n, repeats, wrong = 200, 400, 0
    for _ in range(repeats):
        u = np.sort(rng.random(n))
        losses = (rng.random(n) < u**8) * 1.0
        limit = 1.0 / 9.0
        wrong += accepted_p_values(losses, [n], limit)[0] <= 0.05
    assert wrong / repeats <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize(("limit", "delta"), [(0.01, 0.05), (0.3, 0.01)])
def test_first_rank_by_betting_is_the_fewest_that_pass(limit, delta):
    count = first_rank_by_betting(limit, delta)
    options = {"delta": delta}
    assert betting_p_value(np.zeros(count), limit, **options) <= delta
    assert betting_p_value(np.zeros(count - 1), limit, **options) > delta
    # More than there are is told without trying them.
    assert first_rank_by_betting(limit, delta, most=count) == count
    assert first_rank_by_betting(1e-12, delta, most=count) > count


def test_losses_outside_their_range_are_refused():
    for bad in ([0.5, 1.5], [np.nan], [-0.1]):
        with pytest.raises(ValueError, match="divide them and their limit"):
            bounded_losses(bad)
    with pytest.raises(ValueError, match=r"shape \(n,\)"):
        bounded_losses([[0.5]])
