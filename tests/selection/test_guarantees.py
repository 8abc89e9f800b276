"""The guarantees: exact tests, against loops and by simulation.

In the simulations a score is 1 - u, with u uniform, so that the true coverage
of a threshold is known, and the true risk is the mean of a given function of
u up to there.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ladders import fixed_sequence, fixed_sequence_of_means
from scipy.stats import binom

import keras_calib as kc
from keras_calib.formulas.bounded_means import (
    TESTS,
    AcceptedBets,
    accepted_p_values,
)
from keras_calib.formulas.intervals import (
    binomial_p_value,
    binomial_upper_bound,
)
from keras_calib.selection.claims import first_rank, starts

DELTA = 0.05
POINTS = (np.arange(100_000) + 0.5) / 100_000
# Error probability by u, the share of surer samples.
POPULATIONS = {
    "rising": 0.3 * POINTS**3,
    "just too high": np.full(len(POINTS), 0.0501),
    # The mean so far crosses 0.05 up and down again and again.
    "wavy": 0.05 + 0.05 * np.cos(20.0 * np.log(POINTS)),
    "noise among the surest": np.where(POINTS < 0.02, 0.2, 0.3 * POINTS**3),
}

# Choosers by scores, correctness, groups and delta.
INFINITE = {
    "ltt": lambda s, y, g, d: kc.choose_threshold(s, y, risk=0.05, delta=d),
    "groups": lambda s, y, g, d: kc.choose_threshold(
        s, y, g, risk=0.05, delta=d
    ),
    "mixtures": lambda s, y, g, d: kc.selection.choose_threshold_for_mixtures(
        s, y, g, risk=0.05, delta=d
    ),
    "prior": lambda s, y, g, d: kc.selection.choose_threshold_for_prior(
        s, y, g, target_prior=[0.4, 0.3, 0.2, 0.1], risk=0.05, delta=d
    ),
    "cost": lambda s, y, g, d: kc.choose_threshold(
        s, cost=1.0 - y, max_cost=0.05, delta=d
    ),
}


def draw(risk, n, rng):
    """Scores and correctness of n samples."""
    index = rng.integers(0, len(POINTS), n)
    correct = (rng.random(n) >= risk[index]).astype("float64")
    return 1.0 - POINTS[index], correct


def outcome(chosen, risk):
    """True coverage and true risk of a threshold."""
    count = int(np.sum(chosen.threshold <= 1.0 - POINTS))
    return count / len(POINTS), risk[:count].mean() if count else 0.0


def simulate(name, *, n, limit, fits, seed=0, **options):
    """Mean true coverage, and the share of fits whose true risk exceeds."""
    rng = np.random.default_rng([seed, n])
    risk = POPULATIONS[name]
    coverages, violations = [], 0
    for _ in range(fits):
        scores, correct = draw(risk, n, rng)
        try:
            chosen = kc.choose_threshold(scores, correct, risk=limit, **options)
        except ValueError:
            coverages.append(0.0)
            continue
        coverage, true = outcome(chosen, risk)
        coverages.append(coverage)
        violations += true > limit
    return np.mean(coverages), violations / fits


def optimum(name, limit):
    """The largest coverage whose true risk is at most the limit."""
    mean = np.cumsum(POPULATIONS[name]) / np.arange(1, len(POINTS) + 1)
    return (np.flatnonzero(mean <= limit)[-1] + 1) / len(POINTS)


@settings(max_examples=20, deadline=None)
@given(
    trials=st.integers(1, 5000),
    share=st.floats(0.0, 1.0),
    risk=st.floats(0.001, 0.5),
)
def test_p_values_and_bounds_are_those_of_the_binomial(trials, share, risk):
    errors = round(share * trials)
    value = binomial_p_value(errors, trials, risk)
    expected = binom.cdf(errors, trials, risk)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-300)
    bound = binomial_upper_bound(errors, trials, level=0.9)
    if errors < trials:
        assert abs(binom.cdf(errors, trials, bound) - 0.1) < 1e-9
    else:
        assert bound == 1.0


def test_nothing_can_be_certified_with_fewer_samples():
    # ln(0.05) / ln(0.99) = 298.07.
    assert first_rank(0.01, 0.05) == 299
    for count, works in ((298, False), (299, True)):
        scores, correct = np.arange(count), np.ones(count)
        options = {"risk": 0.01, "delta": 0.05}
        if works:
            chosen = kc.choose_threshold(scores, correct, **options)
            assert chosen.coverage == 1.0
        else:
            with pytest.raises(ValueError, match="takes 299 samples"):
                kc.choose_threshold(scores, correct, **options)
    for risk, delta in ((0.5, 0.25), (0.5, 0.125), (0.1, 0.9**7)):
        count = first_rank(risk, delta)
        assert (1 - risk) ** count <= delta * (1 + 1e-12)
        assert (1 - risk) ** (count - 1) > delta * (1 - 1e-12)


def slow_fixed_sequence(accepted, wrong, risk, delta):
    """One threshold after the other."""
    ranks, shares = starts(accepted[-1], risk, delta)
    waiting = dict(zip(ranks, shares, strict=True))
    level, certified = 0.0, []
    for m, errors in zip(accepted, wrong, strict=True):
        for rank in [r for r in waiting if r <= m]:
            level += waiting.pop(rank)
        passes = 0 < level >= binom.cdf(errors, m, risk)
        certified.append(passes)
        level = level if passes else 0.0
    return certified


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n=st.integers(1, 800),
    tied=st.booleans(),
    risk=st.sampled_from([0.02, 0.05, 0.3]),
)
def test_the_walk_is_the_loop_over_thresholds(seed, n, tied, risk):
    rng = np.random.default_rng(seed)
    mass = rng.integers(1, 40, n) if tied else np.ones(n, int)
    rate = rng.choice([0.2, 0.7, 1.5]) * risk
    wrong = np.cumsum(rng.binomial(mass, rate))
    accepted = np.cumsum(mass)
    found = fixed_sequence(accepted, wrong, risk, 0.1)
    assert found.tolist() == slow_fixed_sequence(accepted, wrong, risk, 0.1)


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(1, 100_000),
    risk=st.floats(0.001, 0.9),
    delta=st.floats(0.001, 0.5),
)
def test_the_starts_share_delta_and_the_first_can_pass(count, risk, delta):
    ranks, shares = starts(count, risk, delta)
    assert len(ranks) == len(shares)
    assert (len(ranks) > 0) == (first_rank(risk, delta) <= count)
    if len(ranks):
        assert abs(shares.sum() - delta) < 1e-12
        assert ranks[-1] <= count
        assert binomial_p_value(0, ranks[0], risk) <= shares[0]


@pytest.mark.parametrize(
    ("count", "least", "factor", "ranks", "shares"),
    [
        # 42 right ones pass 0.1 at 0.0125.
        (300, 1, 2.0, [42, 84, 168], [0.0125, 0.00625, 0.00625]),
        (300, 100, 2.0, [100, 168], [0.01875, 0.00625]),
        (300, 84, 2.0, [84, 168], [0.01875, 0.00625]),
        (300, 250, 2.0, [250], [0.025]),
        (170, 1, 2**0.5, [42, 59, 84, 118, 168], [0.0125, *[0.003125] * 4]),
        (60, 50, 2.0, [50], [0.025]),
    ],
)
def test_starts_below_the_least_move_there(count, least, factor, ranks, shares):
    found = starts(count, 0.1, 0.025, least=least, factor=factor)
    assert found[0].tolist() == ranks
    np.testing.assert_allclose(found[1], shares)


def test_one_error_among_the_surest_does_not_end_everything():
    correct = np.ones(5000)
    correct[-1] = 0.0
    scores = np.arange(5000)
    chosen = kc.choose_threshold(scores, correct, risk=0.01, delta=DELTA)
    assert chosen.coverage == 1.0


FITS = 400
ALLOWED = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / FITS)


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_guarantee_holds(name):
    for n in (300, 3000):
        _, violations = simulate(name, n=n, limit=0.05, fits=FITS, delta=DELTA)
        assert violations <= ALLOWED, n


def test_the_guarantee_holds_in_a_small_simulation():
    _, violations = simulate("rising", n=300, limit=0.05, fits=100, delta=DELTA)
    assert violations <= ALLOWED


def test_without_delta_the_risk_holds_on_the_data_alone():
    # What the guarantee is for: the same simulation without it.
    _, violations = simulate("rising", n=300, limit=0.05, fits=100)
    assert violations > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("choose", INFINITE.values(), ids=INFINITE)
def test_samples_with_infinite_scores_buy_no_certificate(choose):
    # They have no errors, the others just more than the limit: as accepted
    # samples they would halve the risk.
    false, draws, delta = 0, 60, 0.1
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        scores, kind = rng.normal(size=1500), rng.random(1500)
        scores[kind < 0.4] = -np.inf
        scores[kind < 0.2] = np.inf
        correct = (kind < 0.4) | (rng.random(1500) >= 0.0505)
        groups = rng.integers(0, 4, 1500)
        try:
            found = choose(scores, correct, groups, delta)
        except ValueError:
            continue
        false += found.coverage > 0.0
    assert false <= binom.ppf(0.999, draws, delta)


@pytest.mark.slow
def test_the_test_level_is_used_up():
    # A procedure that is too careful would pass the tests above.
    _, violations = simulate(
        "just too high", n=300, limit=0.05, fits=2000, delta=DELTA
    )
    assert violations > 0.02


@pytest.mark.slow
def test_ltt_comes_close_to_the_optimum():
    coverage, violations = simulate(
        "rising", n=20_000, limit=0.02, fits=100, delta=DELTA
    )
    assert coverage >= 0.85 * optimum("rising", 0.02)
    assert violations <= DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / 100)


@pytest.mark.slow
def test_choosing_a_score_on_the_same_data_breaks_the_guarantee():
    # Ten scores that know nothing, and the risk just too high at each.
    rng = np.random.default_rng(0)
    limit, n, violations = 0.05, 300, 0
    for _ in range(FITS):
        correct = (rng.random(n) >= 0.0501).astype("float64")
        for _ in range(10):
            try:
                kc.choose_threshold(
                    rng.random(n), correct, risk=limit, delta=DELTA
                )
            except ValueError:
                continue
            violations += 1
            break
    assert violations / FITS > ALLOWED


@pytest.mark.parametrize("test", TESTS)
def test_walk_of_means_certifies_no_mean_above_the_limit(test):
    """Losses of mean 3/4 u^2 at u have a mean of u^2 / 4 up to u."""
    rng = np.random.default_rng(6)
    fits, n, limit, delta = 60, 1500, 0.08, 0.1
    reached, wrong = [], 0
    accepted = np.arange(1, n + 1)
    for _ in range(fits):
        u = np.sort(rng.random(n))
        losses = rng.uniform(0.5, 1.0, n) * u**2
        found = fixed_sequence_of_means(accepted, losses, limit, delta, test)
        last = np.flatnonzero(found)[-1] if found.any() else 0
        reached.append(u[last])
        wrong += np.any(found & (0.25 * u**2 > limit))
    assert wrong / fits <= delta + 3 * np.sqrt(delta * (1 - delta) / fits)
    # The limit is reached at u = 0.566; betting comes close.
    assert np.mean(reached) > (0.53 if test == "betting" else 0.4)


@pytest.mark.parametrize("n", [1, 300, 30_000])
def test_a_test_of_bets_that_stops_early_decides_as_the_whole_one(n):
    rng = np.random.default_rng(n)
    share = np.linspace(0.0, rng.random(), n)
    losses = (rng.random(n) < share) * rng.choice([0.2, 1.0], n)
    accepted = np.unique(np.linspace(1, n, 40).astype(int))
    bets = AcceptedBets(losses, 0.2, 0.05)
    p_value = accepted_p_values(losses, accepted, 0.2, delta=0.05)
    for level in (1e-3, 0.05, 0.5):
        found = [bets.passes(int(x), level) for x in accepted]
        np.testing.assert_array_equal(found, p_value <= level)
