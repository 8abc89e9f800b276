"""Intervals of means, of ranks and of few errors."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

import keras_calib as kc
from keras_calib.formulas.bootstrap import poisson_interval
from keras_calib.formulas.intervals import (
    Moments,
    clopper_pearson,
    mean_interval,
    poisson_binomial_tails,
)
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    augrc_of_groups,
    aurc_of_groups,
)
from keras_calib.metrics.gap_estimates import GapEstimate, gap_estimate
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.reporting.verdict import direction


def enough(hits, draws, level=0.95):
    """Whether so many hits could come from coverage of at least `level`."""
    return hits >= binom.ppf(1e-3, draws, level)


def moments(values, weight=None):
    """The sums of an interval, of values `(n,)` with weights `(n,)`."""
    x = np.asarray(values, "float64")
    w = np.ones_like(x) if weight is None else np.asarray(weight, "float64")
    return Moments.of(x, w)


def test_mean_interval_is_students_without_weights_and_skewness():
    x = np.array([1.0, 2.0, 6.0, 7.0])
    low, high = mean_interval(moments(x), level=0.9)
    reach = 2.3533634348018264 * x.std(ddof=1) / 2  # t of 3, 95 %
    np.testing.assert_allclose([low, high], [4 - reach, 4 + reach])
    repeated = mean_interval(moments(x, np.full(4, 5.0)), level=0.9)
    np.testing.assert_allclose(repeated, [low, high])
    assert [v.item() for v in mean_interval(moments([3.0]))] == [
        -np.inf,
        np.inf,
    ]
    assert [v.item() for v in mean_interval(moments([0.3] * 9))] == (
        pytest.approx([0.3, 0.3])
    )


def test_mean_interval_inverts_halls_transformation():
    x = np.random.default_rng(0).exponential(size=50) ** 2
    low, high = mean_interval(moments(x), level=0.9)
    a = np.mean((x - x.mean()) ** 3) / x.std() ** 3 / np.sqrt(50)
    for end, sign in ((low, 1), (high, -1)):
        t = (x.mean() - end) / (x.std(ddof=1) / np.sqrt(50))
        z = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
        assert abs(z - sign * 1.6765508919142635) < 1e-9  # t of 49, 95 %
    assert high - x.mean() > 1.5 * (x.mean() - low)


@pytest.mark.parametrize(("num", "rate"), [(300, 0.03), (3000, 0.004)])
def test_mean_intervals_cover_with_rare_large_losses(num, rate):
    rng = np.random.default_rng(6)
    hits = 0
    for _ in range(400):
        large = rng.random(num) < rate
        x = np.where(large, 2.0 + rng.exponential(size=num), 0.01)
        low, high = mean_interval(moments(x))
        hits += low <= 3.0 * rate + 0.01 * (1 - rate) <= high
    assert enough(hits, 400)


def test_mean_intervals_cover_weighted_means():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(200):
        # Weights that go with the values: the mean is a ratio.
        u = rng.random(200)
        low, high = mean_interval(moments(u, u * rng.exponential(size=200)))
        hits += low <= 2 / 3 <= high
    assert enough(hits, 200) and hits < 200


def ranked(right, wrong):
    return RankedGroups.of(right + wrong, wrong)


def aurc(right, wrong):
    return float(aurc_of_groups(ranked(right, wrong)))


def augrc(right, wrong):
    return float(augrc_of_groups(ranked(right, wrong)))


def error_rate(right, wrong):
    return wrong.sum() / (right.sum() + wrong.sum())


@pytest.mark.parametrize(
    ("function", "errors", "draws"),
    [
        (aurc, 150, 20),
        *(
            pytest.param(function, errors, 200, marks=pytest.mark.slow)
            for function, errors in ((aurc, 2), (aurc, 150), (augrc, 150))
        ),
    ],
)
def test_poisson_intervals_cover_rank_metrics(function, errors, draws):
    cells, n = 30, 1000
    rate = 3.0 * ((np.arange(cells) + 0.5) / cells) ** 2 * errors / n
    truth = function(1e9 * (1 - rate) / cells, 1e9 * rate / cells)
    rng = np.random.default_rng(6)
    hits, widths, estimates = 0, [], []
    for i in range(draws):
        mass = rng.multinomial(n, np.full(cells, 1 / cells))
        wrong = rng.binomial(mass, rate).astype("float64")
        low, high = poisson_interval(
            function, (mass - wrong, wrong), num_draws=100, seed=i
        )
        hits += low <= truth <= high
        widths.append(high - low)
        estimates.append(function(mass - wrong, wrong))
    assert enough(hits, draws)
    if draws > 100 and errors > 100:
        spread = np.subtract(*np.quantile(estimates, [0.975, 0.025]))
        assert np.mean(widths) < 1.3 * spread


def test_poisson_interval_without_errors_is_the_rule_of_three():
    right, none = np.array([400.0, 600.0]), np.zeros(2)
    low, high = poisson_interval(error_rate, (right, none), num_draws=4000)
    assert low == 0.0
    assert high == pytest.approx(clopper_pearson(0, 1000)[1], rel=0.06)
    low, high = poisson_interval(error_rate, (none, right), num_draws=4000)
    assert high == 1.0
    assert low == pytest.approx(clopper_pearson(1000, 1000)[0], abs=3e-4)
    assert all(np.isnan(poisson_interval(error_rate, (none, none))))


def test_poisson_intervals_of_weights_and_seeds():
    right, wrong = np.array([300.0, 200.0]), np.array([10.0, 90.0])
    ends = {
        ratio: np.array(
            poisson_interval(
                error_rate, (ratio * right, ratio * wrong), weight_ratio=ratio
            )
        )
        for ratio in (1.0, 8.0)
    }
    # Weights of 8 and sums of 8 times as much: the same predictions.
    np.testing.assert_allclose(ends[8.0], ends[1.0], rtol=1e-12)
    fewer = poisson_interval(error_rate, (right, wrong), weight_ratio=4.0)
    assert np.ptp(fewer) > 1.5 * np.ptp(ends[1.0])
    wider = poisson_interval(error_rate, (right, wrong), level=0.99)
    assert wider[0] < ends[1.0][0] and wider[1] > ends[1.0][1]
    other = poisson_interval(error_rate, (right, wrong), seed=1)
    assert other != tuple(ends[1.0])


def test_tails_of_a_sum_of_unequal_trials():
    rng = np.random.default_rng(0)
    for n in (1, 7, 60):
        p = rng.random(n) ** 3
        exact = np.ones(1)
        for x in p:
            exact = np.convolve(exact, [1 - x, x])
        for k in range(n + 1):
            found = poisson_binomial_tails(k, p, np.ones(n))
            expected = exact[: k + 1].sum(), exact[k:].sum()
            np.testing.assert_allclose(found, expected, atol=1e-12)
    # By the Fourier transform, and beyond by the normal distribution.
    for n in (3_000, 30_000, 3_000_000):
        k = int(n * 0.01 + 2.0 * np.sqrt(n * 0.01))
        found = poisson_binomial_tails(k, np.array([0.01]), np.array([n]))
        expected = binom.cdf(k, n, 0.01), binom.sf(k - 1, n, 0.01)
        np.testing.assert_allclose(found, expected, atol=3e-4)


@pytest.mark.parametrize(
    ("doubt", "n"),
    [(0.1, 20), (0.1, 100), (0.01, 300), (0.002, 100), (0.002, 1000)],
)
def test_calibrated_networks_are_rarely_called_over_or_underconfident(doubt, n):
    # Every number of errors that may come, with its probability.
    share = {"over": 0.0, "under": 0.0, "few": 0.0, "even": 0.0}
    for errors in range(int(binom.ppf(1 - 1e-4, n, doubt)) + 1):
        gap = gap_estimate(
            np.array([n - 0.0]), np.array([errors]), np.array([doubt])
        )
        share[direction(gap)[0]] += binom.pmf(errors, n, doubt)
        assert gap.low <= gap.value <= gap.high
    assert max(share["over"], share["under"]) <= 0.025
    # Where no error at all proves nothing, no verdict says "neither".
    assert (share["even"] == 0) == ((1 - doubt) ** n > 0.025)


def test_an_overconfident_network_is_still_called_so():
    rng = np.random.default_rng(0)
    log_odds = np.sort(rng.gamma(2.0, 2.0, 400))
    wrong = (rng.random(400) > expit(log_odds / 2)).astype("float64")
    gap = gap_estimate(np.ones(400), wrong, expit(-log_odds))
    assert direction(gap) == ("over", "Overconfident")
    truth = np.mean(expit(-log_odds / 2) - expit(-log_odds))
    assert gap.low < truth < gap.high < gap.value + 0.06
    # Equal weights change nothing, unequal ones leave Clopper and Pearson's.
    for weight, bound in ((2.0, 1e-9), (rng.uniform(0.9, 1.1, 400), 0.02)):
        ratio = np.sum(np.square(weight * np.ones(400))) / np.sum(
            weight * np.ones(400)
        )
        other = gap_estimate(
            weight * np.ones(400),
            weight * wrong,
            expit(-log_odds),
            weight_ratio=ratio,
        )
        for end in ("value", "low", "high"):
            found, wanted = getattr(other, end), getattr(gap, end)
            np.testing.assert_allclose(found, wanted, atol=bound)
    nothing = gap_estimate(np.zeros(3), np.zeros(3), np.full(3, 0.5))
    assert nothing == GapEstimate(0.0, -1.0, 1.0, "errors")


def test_accuracy_has_the_interval_of_clopper_and_pearson():
    covered = 0.0
    for errors in range(12):
        metric = kc.Accuracy()
        correct = (np.arange(60) >= errors).astype("int32")
        metric.update_scores(np.full(60, 0.9, "float32"), correct)
        low, high = metric.interval()
        expected = clopper_pearson(60 - errors, 60)
        np.testing.assert_allclose((low, high), expected, atol=1e-9)
        covered += binom.pmf(errors, 60, 0.01) * (low <= 0.99 <= high)
        table = kc.CalibrationMetrics(include=["accuracy"])
        table.update_scores(np.full(60, 0.9, "float32"), correct)
        np.testing.assert_allclose(
            table.interval()["accuracy"], expected, atol=1e-9
        )
    assert covered >= 0.95


def test_intervals_without_errors_hold_all_that_is_possible():
    names = ["failure_auroc", "failure_fpr95", "overconfidence", "nll"]
    for n in (1, 40):
        probs = np.tile(np.array([[0.9, 0.1]], "float32"), (n, 1))
        metric = kc.CalibrationMetrics(include=[*names, "underconfidence"])
        metric.update_state(np.zeros(n, "int32"), probs)
        found = metric.interval()
        for name in names[:3]:
            assert found[name] == (0.0, 1.0), name
        # One loss more, of the largest size that counts.
        assert np.isfinite(found["nll"]).all()
        assert found["nll"][1] > 85.0 / (n + 1)
        low, high = found["underconfidence"]
        assert 0.0 <= low < 0.1 < high <= 1.0
    # Nor do the ties of a few errors show where others lie.
    for num_errors, width in ((1, 0.95), (5, 0.4), (39, 0.95)):
        metric = kc.CalibrationMetrics(include=names[:2])
        metric.update_state(1 * (np.arange(40) < num_errors), probs)
        for low, high in metric.interval().values():
            assert high - low > width


@pytest.mark.parametrize("n", [20, 1000])
def test_intervals_of_few_and_rare_values_cover(n):
    def draw(rng, n):
        log_odds = rng.gamma(2.0, 3.0, n) + 2.0
        return expit(log_odds), rng.random(n) < expit(log_odds / 1.3)

    c, right = draw(np.random.default_rng(1), 300_000)
    truth = np.mean(c[~right]), np.mean(1 - c[right]), np.mean((c - right) ** 2)
    rng = np.random.default_rng(0)
    hits, share = np.zeros(3), QUANTITIES["overconfidence"]
    for _ in range(200):
        c, right = draw(rng, n)
        for i, x in enumerate((c[~right], 1 - c[right], (c - right) ** 2)):
            low, high = share.interval_of(moments(x), 0.95, False)
            hits[i] += low <= truth[i] <= high
    assert all(enough(h, 200, 0.93) for h in hits)
