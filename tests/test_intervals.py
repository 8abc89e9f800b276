"""Intervals and tests: coverage by simulation, closed forms, edge cases."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.special import logit
from scipy.stats import binom
from scipy.stats import chi2
from scipy.stats import kstest
from scipy.stats import norm

import keras_calib as kc
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.bins import bin_index
from keras_calib.formulas.bins import bin_sums
from keras_calib.formulas.bootstrap import poisson_interval
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.intervals import mean_interval
from keras_calib.formulas.intervals import moments
from keras_calib.formulas.intervals import poisson_binomial_tails
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.formulas.risk_coverage import augrc_of_groups
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.functional.hypothesis_tests import calibration_test
from keras_calib.functional.hypothesis_tests import compare
from keras_calib.metrics.mean_gap import mean_gap
from keras_calib.metrics.registry import confidence_interval
from keras_calib.reporting.verdicts import direction

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


@pytest.mark.parametrize("mass", [False, True], ids=["width", "mass"])
@pytest.mark.parametrize(
    "kind", ["calibrated", "overconfident", "one bad bin", "sure"]
)
@pytest.mark.parametrize("n", [300, 3000])
def test_error_intervals_cover_the_error_of_the_population(kind, n, mass):
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
    hits, draws = dict.fromkeys(NORMS, 0), 200
    widths = []
    for _ in range(draws):
        confidence, _, correct = draw(kind, n, rng)
        sums = bin_sums(confidence, correct, index_of(confidence), NUM_BINS)
        # Only non-empty bins are spoken of.
        seen = BinSums(*(v * (sums.weight > 0) for v in truth))
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
    for _ in range(200):
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


@pytest.mark.parametrize("norm", NORMS)
def test_intervals_hold_the_estimate_when_gaps_are_sure(norm):
    gaps = np.array([0.2, -0.3, 0.1, 0.25])
    sums = sums_of(gaps, [4e4, 3e4, 2e4, 1e4], np.array([0.5, 0.6, 0.7, 0.9]))
    low, high = error_interval(sums, norm=norm)
    assert low < error(norm, sums) < high < low + 0.05


@pytest.mark.parametrize("norm", NORMS)
def test_a_higher_level_gives_a_wider_interval(norm):
    confidence, _, correct = draw(
        "overconfident", 500, np.random.default_rng(3)
    )
    sums = bin_sums(confidence, correct, bin_index(confidence, 10), 10)
    ends = [error_interval(sums, norm=norm, level=v) for v in (0.5, 0.9, 0.99)]
    assert ends[0][0] >= ends[1][0] >= ends[2][0]
    assert ends[0][1] < ends[1][1] < ends[2][1]


@pytest.mark.parametrize("norm", NORMS)
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


@pytest.mark.parametrize("norm", NORMS)
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
    for _ in range(400):
        # Weights that go with the values: the mean is a ratio.
        u = rng.random(200)
        low, high = mean_interval(moments(u, u * rng.exponential(size=200)))
        hits += low <= 2 / 3 <= high
    assert enough(hits, 400) and hits < 0.99 * 400


def ranked(right, wrong):
    mass = right + wrong
    before, wrong_before = np.cumsum(mass) - mass, np.cumsum(wrong) - wrong
    return RankedGroups(mass, wrong, before, wrong_before, np.zeros_like(mass))


def aurc(right, wrong):
    return float(aurc_of_groups(ranked(right, wrong)))


def augrc(right, wrong):
    return float(augrc_of_groups(ranked(right, wrong)))


def error_rate(right, wrong):
    return wrong.sum() / (right.sum() + wrong.sum())


@pytest.mark.parametrize(
    ("function", "errors"), [(aurc, 2), (aurc, 150), (augrc, 150)]
)
def test_poisson_intervals_cover_rank_metrics(function, errors):
    cells, n, draws = 30, 1000, 200
    rate = 3.0 * ((np.arange(cells) + 0.5) / cells) ** 2 * errors / n
    truth = function(1e9 * (1 - rate) / cells, 1e9 * rate / cells)
    rng = np.random.default_rng(6)
    hits, widths, estimates = 0, [], []
    for i in range(draws):
        mass = rng.multinomial(n, np.full(cells, 1 / cells))
        wrong = rng.binomial(mass, rate).astype("float64")
        low, high = poisson_interval(
            function, mass - wrong, wrong, num_replicates=100, seed=i
        )
        hits += low <= truth <= high
        widths.append(high - low)
        estimates.append(function(mass - wrong, wrong))
    assert enough(hits, draws)
    if errors > 100:
        spread = np.subtract(*np.quantile(estimates, [0.975, 0.025]))
        assert np.mean(widths) < 1.3 * spread


def test_poisson_interval_without_errors_is_the_rule_of_three():
    right, none = np.array([400.0, 600.0]), np.zeros(2)
    low, high = poisson_interval(error_rate, right, none, num_replicates=4000)
    assert low == 0.0
    assert high == pytest.approx(clopper_pearson(0, 1000)[1], rel=0.06)
    low, high = poisson_interval(error_rate, none, right, num_replicates=4000)
    assert high == 1.0
    assert low == pytest.approx(clopper_pearson(1000, 1000)[0], abs=3e-4)
    assert all(np.isnan(poisson_interval(error_rate, none, none)))


def test_poisson_intervals_of_weights_and_seeds():
    right, wrong = np.array([300.0, 200.0]), np.array([10.0, 90.0])
    ends = {
        ratio: np.array(
            poisson_interval(
                error_rate, ratio * right, ratio * wrong, weight_ratio=ratio
            )
        )
        for ratio in (1.0, 8.0)
    }
    # Weights of 8 and sums of 8 times as much: the same predictions.
    np.testing.assert_allclose(ends[8.0], ends[1.0], rtol=1e-12)
    fewer = poisson_interval(error_rate, right, wrong, weight_ratio=4.0)
    assert np.ptp(fewer) > 1.5 * np.ptp(ends[1.0])
    wider = poisson_interval(error_rate, right, wrong, level=0.99)
    assert wider[0] < ends[1.0][0] and wider[1] > ends[1.0][1]
    other = poisson_interval(error_rate, right, wrong, seed=1)
    assert other != tuple(ends[1.0])
    with pytest.raises(ValueError, match=r"must have one shape"):
        poisson_interval(error_rate, right, wrong[:1])
    with pytest.raises(ValueError, match=r"`weight_ratio` must be > 0"):
        poisson_interval(error_rate, right, wrong, weight_ratio=0.0)


STATISTICS = ("ece", "chi2", "spiegelhalter")


def two_classes(n, temperature, rng):
    """Labels, and probabilities that are too sharp by `temperature`."""
    confidence = 0.5 + 0.5 * rng.beta(5.0, 1.2, n)
    accuracy = expit(logit(confidence) / temperature)
    labels = (rng.random(n) > accuracy).astype("int32")
    return labels, np.stack([confidence, 1.0 - confidence], axis=1)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_p_values_are_uniform_and_power_grows(statistic):
    rng = np.random.default_rng(7)
    rejected = []
    for temperature in (1.0, 1.15, 1.4):
        p_values = [
            calibration_test(
                *two_classes(1000, temperature, rng),
                statistic=statistic,
                num_samples=199,
                seed=i,
            ).p_value
            for i in range(200)
        ]
        if temperature == 1.0:
            assert kstest(p_values, "uniform").pvalue > 1e-3
        rejected.append(np.mean(np.array(p_values) <= 0.05))
    assert rejected[0] < 0.1
    assert rejected[1] > rejected[0] + 0.1
    assert rejected[2] > 0.8


def test_statistics_of_a_small_case_by_hand():
    confidence = np.array([0.6, 0.7, 0.8, 0.9])
    correct = np.array([1.0, 0.0, 1.0, 1.0])
    probs = np.stack([confidence, 1 - confidence], axis=1)
    labels = (1 - correct).astype("int32")
    tests = {
        name: calibration_test(labels, probs, statistic=name, num_bins=2)
        for name in STATISTICS
    }
    assert tests["ece"].statistic == pytest.approx(
        kc.ece(labels, probs, num_bins=2)
    )
    # All four in one bin, where confidence and accuracy agree.
    assert tests["chi2"].statistic == pytest.approx(0)
    assert tests["chi2"].p_value == pytest.approx(1)
    many = calibration_test(
        np.tile(labels, 40),
        np.tile(probs, (40, 1)),
        statistic="chi2",
        num_bins=2,
    )
    gaps = 40 * np.array([1 - 1.3, 2 - 1.7])
    variances = 40 * np.array([0.24 + 0.21, 0.16 + 0.09])
    value = np.sum(gaps**2 / variances)
    assert many.statistic == pytest.approx(value)
    assert many.p_value == pytest.approx(chi2.sf(value, 2))
    lean = 1 - 2 * confidence
    z = np.sum((correct - confidence) * lean)
    z /= np.sqrt(np.sum(lean**2 * confidence * (1 - confidence)))
    assert tests["spiegelhalter"].statistic == pytest.approx(z)
    p_value = 2 * norm.sf(abs(z))
    assert tests["spiegelhalter"].p_value == pytest.approx(p_value)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_certain_predictions(statistic):
    sure = np.tile([1.0, 0.0], (50, 1))
    right = calibration_test(np.zeros(50, int), sure, statistic=statistic)
    assert right.p_value == 1.0
    wrong = calibration_test(np.ones(50, int), sure, statistic=statistic)
    assert wrong.p_value < 0.002


def test_ece_is_resampled_in_blocks_that_do_not_matter(monkeypatch):
    data = two_classes(1000, 1.1, np.random.default_rng(8))
    whole = calibration_test(*data, num_samples=300)
    monkeypatch.setattr("keras_calib.functional.hypothesis_tests._BLOCK", 7000)
    assert calibration_test(*data, num_samples=300) == whole


def test_calibration_test_reads_as_the_metrics_do():
    labels, probs = two_classes(300, 1.2, np.random.default_rng(9))
    plain = calibration_test(labels, probs)
    logits = np.log(probs)
    from_logits = calibration_test(labels, logits, from_logits=True)
    assert from_logits.p_value == plain.p_value
    more = np.r_[labels, np.full(50, -1)]
    padded = np.r_[probs, probs[:50]]
    assert calibration_test(more, padded, ignore_class=-1) == plain
    with pytest.raises(ValueError, match=r"`sample_weight` must be None"):
        calibration_test(labels, probs, sample_weight=np.ones(300))
    with pytest.raises(ValueError, match=r"`statistic` must be one of"):
        calibration_test(labels, probs, statistic="hl")


def networks(n, rng):
    """Labels, probabilities of a good network and of a noisier, sharper one."""
    labels = rng.integers(0, 3, n)
    evidence = 2.0 * np.eye(3)[labels] + rng.normal(size=(n, 3))
    noisy = evidence + 0.7 * rng.normal(size=(n, 3))
    outputs = []
    for logits in (2.0 * evidence, 2.6 * noisy):
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        outputs.append(powers / powers.sum(axis=1, keepdims=True))
    return labels, *outputs


def quick(formula):
    """A metric without the reading of arguments, which takes the time."""

    def metric(labels, probs, *, sample_weight, from_logits, ignore_class):
        correct = (probs.argmax(axis=1) == labels).astype("float64")
        weight = (
            np.ones(len(labels)) if sample_weight is None else sample_weight
        )
        return formula(labels, probs, correct, weight)

    return metric


@quick
def quick_ece(labels, probs, correct, weight):
    confidence = probs.max(axis=1)
    index = bin_index(confidence, 10)
    return error("l1", bin_sums(confidence, correct, index, 10, weight))


@quick
def quick_aurc(labels, probs, correct, weight):
    order = np.argsort(-probs.max(axis=1))
    weight, correct = weight[order], correct[order]
    return aurc(weight * correct, weight * (1.0 - correct))


@quick
def quick_nll(labels, probs, correct, weight):
    chosen = probs[np.arange(len(labels)), labels]
    return -np.sum(weight * np.log(chosen)) / weight.sum()


@pytest.mark.parametrize(
    ("metric", "exact"),
    [(quick_ece, kc.ece), (quick_aurc, kc.aurc), (quick_nll, kc.nll)],
    ids=["ece", "aurc", "nll"],
)
def test_comparisons_cover_the_difference(metric, exact):
    rng = np.random.default_rng(10)
    n, draws = 500, 200
    labels, probs, _ = networks(n, rng)
    options = {"num_bins": 10} if metric is quick_ece else {}
    value = metric(
        labels, probs, sample_weight=None, from_logits=False, ignore_class=None
    )
    assert value == pytest.approx(exact(labels, probs, **options), rel=1e-9)
    results = [
        compare(*networks(n, rng), metric, num_replicates=50, seed=i)
        for i in range(draws)
    ]
    # ECE is biased at any n: the difference to expect at this one.
    truth = np.mean([r.difference for r in results])
    hits = sum(r.low <= truth <= r.high for r in results)
    assert enough(hits, draws, 0.94)
    spread = 2 * 1.96 * np.std([r.difference for r in results])
    width = np.mean([r.high - r.low for r in results])
    assert 0.8 < width / spread < 1.3


def test_comparison_of_a_network_with_itself_and_of_weights():
    labels, good, bad = networks(200, np.random.default_rng(11))
    same = compare(labels, good, good, kc.aurc, num_replicates=10)
    assert same.difference == same.low == same.high == 0.0
    assert same.p_value == 1.0
    ab = compare(labels, good, bad, kc.nll, num_replicates=50)
    ba = compare(labels, bad, good, kc.nll, num_replicates=50)
    assert ab.a == ba.b == kc.nll(labels, good)
    assert ab.low == pytest.approx(-ba.high) and ab.p_value == ba.p_value
    # Rows of weight 0 are not there.
    weight = (np.arange(200) < 150).astype("float64")
    kept = compare(labels, good, bad, kc.ece, sample_weight=weight, num_bins=10)
    assert kept.a == kc.ece(labels[:150], good[:150], num_bins=10)
    with pytest.raises(ValueError, match=r"`probs_b` must have as many rows"):
        compare(labels, good, bad[:10], kc.ece)


def test_dense_predictions_are_resampled_by_image():
    rng = np.random.default_rng(12)
    # Four pixels of an image say the same: worth one.
    labels, good, bad = networks(60, rng)
    dense = [np.repeat(v, 4, axis=0) for v in (labels, good, bad)]
    images = [v.reshape(60, 4, *v.shape[1:]) for v in dense]
    one = compare(labels, good, bad, kc.nll, num_replicates=50)
    four = compare(*images, kc.nll, num_replicates=50)
    assert four.low == pytest.approx(one.low, rel=1e-6)
    assert four.high == pytest.approx(one.high, rel=1e-6)
    pixels = compare(*dense, kc.nll, num_replicates=50)
    assert pixels.high - pixels.low < 0.7 * (one.high - one.low)


# ------------------------------------------------- few errors, small samples


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
        gap = mean_gap(
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
    gap = mean_gap(np.ones(400), wrong, expit(-log_odds))
    assert direction(gap) == ("over", "Overconfident")
    truth = np.mean(expit(-log_odds / 2) - expit(-log_odds))
    assert gap.low < truth < gap.high < gap.value + 0.06
    # Equal weights change nothing, unequal ones leave Clopper and Pearson's.
    for weight, bound in ((2.0, 1e-9), (rng.uniform(0.9, 1.1, 400), 0.02)):
        ratio = np.sum(np.square(weight * np.ones(400))) / np.sum(
            weight * np.ones(400)
        )
        other = mean_gap(
            weight * np.ones(400),
            weight * wrong,
            expit(-log_odds),
            weight_ratio=ratio,
        )
        np.testing.assert_allclose(other[:3], gap[:3], atol=bound)
    nothing = mean_gap(np.zeros(3), np.zeros(3), np.full(3, 0.5))
    assert nothing == (0.0, -1.0, 1.0, "errors")


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

    c, right = draw(np.random.default_rng(1), 1_000_000)
    truth = np.mean(c[~right]), np.mean(1 - c[right]), np.mean((c - right) ** 2)
    rng = np.random.default_rng(0)
    hits = np.zeros(3)
    for _ in range(200):
        c, right = draw(rng, n)
        for i, x in enumerate((c[~right], 1 - c[right], (c - right) ** 2)):
            low, high = confidence_interval("", moments(x), 0.95)
            hits[i] += low <= truth[i] <= high
    assert all(enough(h, 200, 0.93) for h in hits)


@pytest.mark.parametrize(("n", "doubt"), [(60, 0.1), (300, 0.01)])
def test_chi_square_keeps_its_level_with_few_errors(n, doubt):
    rng = np.random.default_rng(0)
    rejected = 0
    for _ in range(200):
        c = np.clip(1 - doubt * rng.exponential(size=n), 0.5, 1 - 1e-6)
        labels = (rng.random(n) > c).astype(int)
        probs = np.stack([c, 1 - c], axis=-1)
        test = calibration_test(labels, probs, statistic="chi2")
        rejected += test.p_value < 0.01
    assert rejected <= binom.isf(1e-3, 200, 0.015)
    # What is clearly wrong is still found.
    labels = (rng.random(n) > 0.5).astype(int)
    assert calibration_test(labels, probs, statistic="chi2").p_value < 0.01
