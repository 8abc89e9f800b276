"""Selection: areas, operating points and failure detection."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_calib.formulas import risk_coverage
from keras_calib.formulas import scores
from keras_calib.formulas.operating_points import (
    coverage_at_risk_bounds_of_groups,
)
from keras_calib.formulas.operating_points import coverage_at_risk_of_groups
from keras_calib.formulas.operating_points import failure_fpr95_bounds_of_groups
from keras_calib.formulas.operating_points import failure_fpr95_of_groups
from keras_calib.formulas.operating_points import (
    risk_at_coverage_bounds_of_groups,
)
from keras_calib.formulas.operating_points import risk_at_coverage_of_groups
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.formulas.scores import SCORE_NAMES
from keras_calib.functional.excess_aurc import eaugrc
from keras_calib.functional.excess_aurc import normalized_aurc
from keras_calib.functional.failure_detection import failure_auroc
from keras_calib.functional.failure_detection import failure_average_precision
from keras_calib.functional.failure_detection import failure_fpr95
from keras_calib.functional.risk_coverage import augrc
from keras_calib.functional.risk_coverage import aurc
from keras_calib.functional.risk_coverage import coverage_at_accuracy
from keras_calib.functional.risk_coverage import coverage_at_risk
from keras_calib.functional.risk_coverage import eaurc
from keras_calib.functional.risk_coverage import risk_at_coverage
from keras_calib.functional.risk_coverage import risk_coverage_curve
from keras_calib.metrics import AURC

pytestmark = pytest.mark.portable

ORDER = {"ties": "order"}
ANALYTIC = {"optimum": "analytic"}

# Every reference value of a selective metric: function and its options.
GOLDENS = {
    "aurc_mean": (aurc, ORDER),
    "aurc_crl": (aurc, ORDER),
    "aurc_tieavg": (aurc, {}),
    "aurc_geifman": (aurc, {**ORDER, "convention": "geifman"}),
    "aurc_tu": (aurc, {**ORDER, "convention": "trapezoid"}),
    "aurc_lfpc": (aurc, {**ORDER, "convention": "origin"}),
    "aurc_enstals": (aurc, {**ORDER, "convention": "origin"}),
    "aurc_fdshifts": (aurc, {"convention": "merged"}),
    "aurc_achievable_fdshifts": (aurc, {"convention": "achievable"}),
    "eaurc_exact": (eaurc, ORDER),
    "eaurc_crl": (eaurc, {**ORDER, **ANALYTIC}),
    "eaurc_geifman": (eaurc, {**ORDER, **ANALYTIC, "convention": "geifman"}),
    "eaurc_lfpc": (eaurc, {**ORDER, "convention": "origin"}),
    "eaurc_fdshifts": (eaurc, {**ANALYTIC, "convention": "merged"}),
    "augrc_fdshifts": (augrc, {}),
    "augrc_tu": (augrc, {**ORDER, "convention": "trapezoid"}),
    "eaugrc_fdshifts": (eaugrc, {}),
    "naurc_lfpc": (normalized_aurc, {**ORDER, "convention": "origin"}),
    "auroc_lfpc": (failure_auroc, {}),
    "failauc_fdshifts": (failure_auroc, {}),
    "fpr95_fdshifts": (failure_fpr95, {}),
    "ap_err_fdshifts": (failure_average_precision, {}),
    "ap_suc_fdshifts": (failure_average_precision, {"positive": "success"}),
    "risk_at_80cov_tu": (risk_at_coverage, {**ORDER, "coverage": 0.8}),
    "sac_0.9_lfpc": (coverage_at_accuracy, {**ORDER, "accuracy": 0.9}),
    "sac_0.95_lfpc": (coverage_at_accuracy, {**ORDER, "accuracy": 0.95}),
    **{
        f"cov_at_{percent}risk{suffix}": (
            coverage_at_risk,
            {"risk": percent / 100, "ties": ties},
        )
        for percent in (5, 10, 20)
        for suffix, ties in (
            ("", "order"),
            ("_tu", "order"),
            ("_tie", "average"),
        )
    },
}
# All of it is selective but the optimum, which `eaurc_exact` has in it.
SELECTIVE = ("aurc", "augrc", "cov_at", "risk_at", "sac", "fail", "fpr", "ap_")


@pytest.mark.parametrize("name", GOLDENS)
def test_reference_value_is_reproduced_to_1e_9(goldens, name):
    function, options = GOLDENS[name]
    keys = [k for k in goldens if k.startswith(f"metric/{name}/")]
    assert keys
    for key in keys:
        data = key.split("/")[2]
        labels = goldens[f"in/m_{data}/labels"]
        probs = goldens[f"in/m_{data}/probs"]
        if "geifman" in name:
            # That code ranks ties as its own ascending sort leaves them.
            order = np.argsort(probs.max(-1), kind="heapsort")[::-1]
            labels, probs = labels[order], probs[order]
        value = function(labels, probs, **options)
        limit = 1e-9 * max(abs(goldens[key]), 1e-6)
        assert abs(value - goldens[key]) <= limit, key


def test_every_selective_reference_value_is_in_the_table(goldens):
    names = {k.split("/")[1] for k in goldens if k.startswith("metric/")}
    selective = {
        n for n in names if any(part in n for part in (*SELECTIVE, "auroc"))
    }
    assert selective - {"aurc_oracle"} == set(GOLDENS)


def test_aurc_less_its_excess_is_the_reference_optimum(goldens):
    for key in (k for k in goldens if k.startswith("metric/aurc_oracle/")):
        data = key.split("/")[2]
        inputs = goldens[f"in/m_{data}/labels"], goldens[f"in/m_{data}/probs"]
        assert abs(aurc(*inputs) - eaurc(*inputs) - goldens[key]) < 1e-12


# ------------------------------------------------------------ brute force


def binary(correct, score):
    """Labels and probabilities of these scores in (0.5, 1]."""
    score = np.asarray(score, "float64")
    return np.where(correct, 0, 1), np.stack([score, 1 - score], axis=-1)


def tied_data(seed=0, n=40):
    rng = np.random.default_rng(seed)
    score = 0.5 + rng.integers(1, 9, n) / 16.0
    return rng.random(n) < score, score


def loop_areas(correct, score):
    """AURC, AUGRC, AUROC of samples without ties, by loops."""
    order = sorted(range(len(score)), key=lambda i: -score[i])
    wrong, risks, area, previous = 0.0, [], 0.0, 0.0
    for k, i in enumerate(order, start=1):
        wrong += not correct[i]
        risks.append(wrong / k)
        area += 0.5 * (previous + wrong) / len(order) ** 2
        previous = wrong
    pairs = [
        float(score[i] > score[j]) + 0.5 * (score[i] == score[j])
        for i, j in itertools.product(order, order)
        if correct[i] and not correct[j]
    ]
    return np.mean(risks), area, np.mean(pairs)


def test_areas_equal_a_loop_over_samples():
    rng = np.random.default_rng(3)
    score = 0.5 + 0.5 * rng.permutation(60) / 61
    correct = rng.random(60) < score
    expected_aurc, expected_augrc, expected_auroc = loop_areas(correct, score)
    data = binary(correct, score)
    assert abs(aurc(*data) - expected_aurc) < 1e-12
    assert abs(augrc(*data) - expected_augrc) < 1e-12
    assert abs(failure_auroc(*data) - expected_auroc) < 1e-12
    perfect = loop_areas(correct, np.where(correct, 2.0, 1.0) + score)[0]
    error = 1 - correct.mean()
    expected = (expected_aurc - perfect) / (error - perfect)
    assert abs(normalized_aurc(*data) - expected) < 1e-12
    assert abs(eaurc(*data) - (expected_aurc - perfect)) < 1e-12


def test_tied_areas_are_the_mean_over_orders():
    correct, score = tied_data()
    data = binary(correct, score)
    rng = np.random.default_rng(1)
    totals = np.zeros(4)
    num_orders = 1000
    options = ("mean", "trapezoid", "origin", "geifman")
    labels, probs = data
    samples = []
    for _ in range(num_orders):
        order = rng.permutation(len(score))
        jittered = score[order] + 1e-9 * np.arange(len(score))
        areas = loop_areas(correct[order], jittered)
        totals[:3] += areas
        samples.append(areas[0])
    mean = totals / num_orders
    noise = 5 * np.std(samples) / np.sqrt(num_orders)
    assert abs(aurc(labels, probs) - mean[0]) < noise
    assert abs(augrc(labels, probs) - mean[1]) < noise
    assert abs(failure_auroc(labels, probs) - mean[2]) < 10 * noise
    for convention in options:
        values = []
        for _ in range(200):
            order = rng.permutation(len(score))
            values.append(
                aurc(
                    labels[order],
                    probs[order],
                    ties="order",
                    convention=convention,
                )
            )
        tied = aurc(labels, probs, convention=convention)
        assert abs(tied - np.mean(values)) < 5 * np.std(values) / np.sqrt(200)


def loop_points(correct, score, weight, risk, coverage, tpr):
    """Coverage at risk, risk at coverage and FPR over real thresholds."""
    total, best, at_coverage, fpr = weight.sum(), 0.0, None, None
    good, bad = weight[correct].sum(), weight[~correct].sum()
    previous = (0.0, 0.0)
    for threshold in sorted(set(score), reverse=True):
        kept = score >= threshold
        mass, wrong = weight[kept].sum(), weight[kept & ~correct].sum()
        if wrong <= risk * mass + 1e-12:
            best = mass / total
        if at_coverage is None and mass >= coverage * total - 1e-9:
            wanted = coverage * total
            if (weight == np.floor(weight)).all():
                wanted = np.ceil(wanted - 1e-9)
            share = (wanted - previous[0]) / (mass - previous[0])
            taken = previous[1] + share * (wrong - previous[1])
            at_coverage = taken / wanted
        if fpr is None and mass - wrong >= tpr * good - 1e-9:
            fpr = wrong / bad
        previous = (mass, wrong)
    return best, at_coverage, fpr


@pytest.mark.parametrize("weights", ["ones", "counts", "mass"])
def test_operating_points_equal_a_loop_over_thresholds(weights):
    rng = np.random.default_rng(5)
    for seed in range(5):
        correct, score = tied_data(seed)
        weight = {
            "ones": np.ones(len(score)),
            "counts": rng.integers(0, 4, len(score)).astype(float),
            "mass": rng.gamma(1.0, size=len(score)),
        }[weights]
        labels, probs = binary(correct, score)
        for risk, coverage, tpr in (
            (0.1, 0.5, 0.95),
            (0.25, 0.8, 0.7),
            (0.0, 0.05, 0.2),
            (1.0, 1.0, 1.0),
        ):
            expected = loop_points(correct, score, weight, risk, coverage, tpr)
            w = {"sample_weight": weight}
            got = (
                coverage_at_risk(labels, probs, risk, **w),
                risk_at_coverage(labels, probs, coverage, **w),
                failure_fpr95(labels, probs, tpr=tpr, **w),
            )
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
            accuracy = coverage_at_accuracy(labels, probs, 1 - risk, **w)
            assert accuracy == got[0]


FUNCTIONS = {
    "aurc": (aurc, {}),
    "aurc order": (aurc, {"ties": "order"}),
    "trapezoid": (aurc, {"convention": "trapezoid"}),
    "origin": (aurc, {"convention": "origin"}),
    "geifman": (aurc, {"convention": "geifman"}),
    "merged": (aurc, {"convention": "merged"}),
    "achievable": (aurc, {"convention": "achievable"}),
    "eaurc": (eaurc, {}),
    "eaurc merged": (eaurc, {"convention": "merged"}),
    "eaurc analytic": (eaurc, {"optimum": "analytic"}),
    "normalized_aurc": (normalized_aurc, {}),
    "augrc": (augrc, {}),
    "augrc trapezoid": (augrc, {"convention": "trapezoid"}),
    "eaugrc": (eaugrc, {}),
    "coverage_at_risk": (coverage_at_risk, {"risk": 0.2}),
    "risk_at_coverage": (risk_at_coverage, {"coverage": 0.5}),
    "failure_auroc": (failure_auroc, {}),
    "failure_fpr95": (failure_fpr95, {}),
    "precision": (failure_average_precision, {}),
    "precision success": (failure_average_precision, {"positive": "success"}),
}
ANY_WEIGHTS = [
    name
    for name in FUNCTIONS
    if name not in ("trapezoid", "origin", "geifman", "augrc trapezoid")
    and "merged" not in name
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_whole_weights_equal_repeats(name):
    function, options = FUNCTIONS[name]
    correct, score = tied_data(2)
    labels, probs = binary(correct, score)
    weight = np.random.default_rng(0).integers(0, 4, len(score))
    weighted = function(labels, probs, sample_weight=weight, **options)
    repeated = function(
        np.repeat(labels, weight), np.repeat(probs, weight, axis=0), **options
    )
    assert abs(weighted - repeated) < 1e-12


@pytest.mark.parametrize("name", ANY_WEIGHTS)
def test_mass_is_the_limit_of_many_repeats(name):
    function, options = FUNCTIONS[name]
    correct, score = tied_data(4)
    labels, probs = binary(correct, score)
    weight = np.random.default_rng(6).integers(1, 9, len(score)) / 8.0
    mass = function(labels, probs, sample_weight=weight, **options)
    many = function(labels, probs, sample_weight=weight * 8e6, **options)
    assert abs(mass - many) < 1e-6


def test_conventions_that_count_samples_refuse_mass():
    labels, probs = binary([True, False], [0.9, 0.6])
    weight = [0.5, 1.0]
    for name in ("trapezoid", "origin", "geifman"):
        with pytest.raises(ValueError, match="whole numbers"):
            aurc(labels, probs, convention=name, sample_weight=weight)
    with pytest.raises(ValueError, match="whole numbers"):
        augrc(labels, probs, convention="trapezoid", sample_weight=weight)
    with pytest.raises(ValueError, match="whole numbers"):
        eaurc(labels, probs, convention="merged", sample_weight=weight)


def test_augrc_follows_from_auroc_and_accuracy():
    for seed in range(10):
        data = binary(*tied_data(seed))
        accuracy = np.mean(data[0] == 0)
        auroc = failure_auroc(*data)
        excess = (1 - auroc) * accuracy * (1 - accuracy)
        assert abs(eaugrc(*data) - excess) < 1e-12
        assert abs(augrc(*data) - excess - (1 - accuracy) ** 2 / 2) < 1e-12


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong_give_the_documented_values(right):
    score = np.array([0.9, 0.8, 0.8, 0.6])
    data = binary(np.full(4, right), score)
    assert failure_auroc(*data) == 0.5
    assert failure_fpr95(*data) == 0.0
    assert normalized_aurc(*data) == 0.0
    assert normalized_aurc(*data, convention="merged") == 0.0
    assert eaugrc(*data) == 0.0
    for name in ("mean", "trapezoid", "merged", "achievable"):
        assert abs(aurc(*data, convention=name) - (not right)) < 1e-12
        for optimum in ("finite", "analytic"):
            value = eaurc(*data, convention=name, optimum=optimum)
            assert abs(value) < 1e-12
    precision = failure_average_precision(*data)
    assert precision == float(not right)


def test_one_sample_has_every_area():
    data = binary([False], [0.9])
    for name in ("mean", "trapezoid", "merged", "geifman", "achievable"):
        assert abs(aurc(*data, convention=name) - 1.0) < 1e-12
    assert abs(aurc(*data, convention="origin") - 0.5) < 1e-12
    assert augrc(*data, convention="trapezoid") == 1.0


# ----------------------------------------------------------------- bounds


def group_bounds(groups):
    return {
        "aurc": risk_coverage.aurc_bounds_of_groups(groups),
        "eaurc": risk_coverage.eaurc_bounds_of_groups(groups),
        "naurc": risk_coverage.normalized_aurc_bounds_of_groups(groups),
        "augrc": risk_coverage.augrc_bounds_of_groups(groups),
        "auroc": risk_coverage.failure_auroc_bounds_of_groups(groups),
        "fpr95": failure_fpr95_bounds_of_groups(groups, 0.7),
        "coverage": coverage_at_risk_bounds_of_groups(groups, 0.25),
        "risk": risk_at_coverage_bounds_of_groups(groups, 0.5),
    }


def group_values(groups):
    return {
        "aurc": risk_coverage.aurc_of_groups(groups),
        "eaurc": risk_coverage.eaurc_of_groups(groups),
        "naurc": risk_coverage.normalized_aurc_of_groups(groups),
        "augrc": risk_coverage.augrc_of_groups(groups),
        "auroc": risk_coverage.failure_auroc_of_groups(groups),
        "fpr95": failure_fpr95_of_groups(groups, 0.7),
        "coverage": coverage_at_risk_of_groups(groups, 0.25),
        "risk": risk_at_coverage_of_groups(groups, 0.5),
    }


def group_samples(correct, score, slope=0.0):
    """Groups of samples, surest first, by hand."""
    mass, wrong = [], []
    for value in sorted(set(score), reverse=True):
        mass.append(float(np.sum(score == value)))
        wrong.append(float(np.sum((score == value) & ~correct)))
    mass, wrong = np.array(mass), np.array(wrong)
    mixed = (wrong > 0) & (wrong < mass)
    return RankedGroups(
        mass,
        wrong,
        np.cumsum(mass) - mass,
        np.cumsum(wrong) - wrong,
        np.where(mixed, slope, 0.0),
    )


def values_without_ties(correct):
    """Every quantity of samples in this order, surest first."""
    score = -np.arange(len(correct), dtype=float)
    return group_values(group_samples(correct, score))


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_for_every_order_and_are_attained(seed):
    correct, score = tied_data(seed)
    rng = np.random.default_rng(seed)
    bounds = group_bounds(group_samples(correct, score))
    for slope in (-1 / 3, 0.0, 1 / 3):
        values = group_values(group_samples(correct, score, slope))
        for name, value in values.items():
            low, high = bounds[name]
            assert low - 1e-12 <= value <= high + 1e-12, name
    for _ in range(200):
        order = rng.permutation(len(score))
        order = order[np.argsort(-score[order], kind="stable")]
        for name, value in values_without_ties(correct[order]).items():
            low, high = bounds[name]
            assert low - 1e-12 <= value <= high + 1e-12, name
    best = values_without_ties(correct[np.lexsort((~correct, -score))])
    worst = values_without_ties(correct[np.lexsort((correct, -score))])
    for name, (low, high) in bounds.items():
        if name in ("auroc", "coverage"):
            low, high = high, low
        assert abs(best[name] - low) < 1e-12, name
        if name != "coverage":
            assert abs(worst[name] - high) < 1e-12, name
    # Real ties are what coverage is at its lowest.
    tied = coverage_at_risk_of_groups(group_samples(correct, score), 0.25)
    assert bounds["coverage"][0] == tied


def test_slope_is_that_of_a_risk_linear_in_the_score():
    # 1e6 places in one group, of risk 0.3 + k (u - 1/2) at place u.
    rate, k, n = 0.3, 0.5, 1_000_000
    u = (np.arange(n) + 0.5) / n
    risk = rate + k * (u - 0.5)
    slope = k / 12 / (rate * (1 - rate))
    one = [np.array([v]) for v in (n, rate * n, 0.0, 0.0, slope)]
    values = group_values(RankedGroups(*one))
    accepted = risk[: n // 2].sum() / (n // 2)
    assert abs(values["risk"] - accepted) < 1e-9
    wrong_above = np.cumsum(risk) - risk / 2
    auroc = 1 - np.sum((1 - risk) * wrong_above) / (
        risk.sum() * (1 - risk).sum()
    )
    assert abs(values["auroc"] - auroc) < 1e-9
    area = np.sum(np.cumsum(risk) - risk / 2) / n**2
    assert abs(values["augrc"] - area) < 1e-9


def test_the_slope_of_a_cell_is_no_steeper_than_a_linear_risk_allows():
    metric = AURC(resolution=64)
    # One cell of the histogram, right ones at its upper end, wrong ones
    # (whose confidence is a little smaller) at its lower end.
    edges = metric.summary.lower_confidence()
    widest = np.argmax(np.diff(edges[1:])) + 1
    low, high = edges[widest : widest + 2]
    confidence = np.array([low + 1e-4] * 5 + [high - 1e-4] * 5, "float32")
    metric.update_scores(confidence, np.repeat([0, 1], 5))
    groups = metric.summary.ranked(ops.convert_to_numpy(metric.sums), True)
    np.testing.assert_array_equal(groups.slope[groups.mass > 0], [1 / 3])
    low, high = metric.bounds()
    assert low < float(metric.result()) < high


def test_scores_beyond_the_last_cell_are_tied():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 500)
    logits = 9.0 + rng.normal(size=(500, 4)) + np.eye(4)[labels]
    large = (1e9 * logits).astype("float32")
    rate = np.mean(large.argmax(-1) != labels)
    for options in ({}, {"score": "max_logit"}):
        metric = AURC(from_logits=True, **options)
        metric.update_state(labels, large)
        # Nothing is known of their order: that of real ties.
        with pytest.warns(RuntimeWarning, match="takes 100.0% of all for tied"):
            value = float(metric.result())
        np.testing.assert_allclose(value, rate, rtol=1e-4)
        low, high = metric.bounds()
        assert low <= value <= high


def test_the_order_of_the_classes_breaks_no_ties():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(6, 10)).astype("float32")
    logits = np.stack(
        [rng.permutation(base[i]) for i in rng.integers(6, size=300)]
    )
    guess = rng.integers(10, size=300)
    labels = np.where(rng.random(300) < 0.6, logits.argmax(-1), guess)

    def p_norm(logits):
        return scores.p_norm(logits, p=1.0)

    names = ["msp", "max_logit", "logit_margin", p_norm]
    if keras.backend.backend() != "jax":
        # There these are of float32, too coarse to tell ties by rounding.
        names += ["prob_margin", "neg_entropy", "neg_energy", "gini"]
    for score in names:
        values = []
        for _ in range(4):
            order = rng.permutation(10)
            moved = np.argsort(order)[labels], logits[:, order]
            values.append(aurc(*moved, score=score, from_logits=True))
            curve = risk_coverage_curve(*moved, score=score, from_logits=True)
            # One threshold for each of the six rows at most.
            assert len(curve.threshold) == len(curve.risk) <= 6
        np.testing.assert_allclose(values, values[0], rtol=1e-12)


# ---------------------------------------------------------------- tensors


def random_groups(seed, scale, n=64):
    rng = np.random.default_rng(seed)
    mass = np.floor(rng.gamma(0.3, scale / n, n))
    wrong = rng.binomial(mass.astype(int), np.linspace(0.01, 0.5, n))
    slope = np.where((wrong > 0) & (wrong < mass), 0.2, 0.0)
    return RankedGroups(
        mass,
        wrong.astype(float),
        np.cumsum(mass) - mass,
        np.cumsum(wrong) - wrong.astype(float),
        slope,
    )


def as_tensors(groups):
    arrays = [ops.convert_to_tensor(v, "float32") for v in groups[:5]]
    return RankedGroups(
        *arrays, ops.convert_to_tensor(groups.frequency_weights)
    )


def compiled(function):
    """The function under the compiler of the backend."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


@pytest.fixture(scope="module")
def all_of():
    """Every formula, compiled once."""

    @compiled
    def run(groups):
        groups = RankedGroups(*groups)
        return group_values(groups), group_bounds(groups)

    return run


def test_float32_tensors_agree_with_float64(all_of):
    for seed, scale in itertools.product(range(3), (1e3, 1e5, 1e8)):
        for whole in (True, False):
            groups = random_groups(seed, scale)
            groups = groups._replace(frequency_weights=whole)
            got_values, got_bounds = all_of(tuple(as_tensors(groups)))
            values = group_values(groups)
            bounds = group_bounds(groups)
            for name in values:
                got = [got_values[name], *got_bounds[name]]
                np.testing.assert_allclose(
                    [float(ops.convert_to_numpy(v)) for v in got],
                    [values[name], *bounds[name]],
                    rtol=1e-5,
                    atol=1e-7,
                    err_msg=f"{name} {scale} {whole}",
                )


def test_empty_tensors_give_zero_and_no_information(all_of):
    zeros = as_tensors(RankedGroups(*(np.zeros(64) for _ in range(5))))
    values, _ = all_of(tuple(zeros))
    for name, value in values.items():
        expected = 0.5 if name == "auroc" else 0.0
        assert float(ops.convert_to_numpy(value)) == expected, name


# ----------------------------------------------------------------- scores


def scored_logits(seed=0, n=40):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (n, 5))
    labels = np.where(
        rng.random(n) < 0.6, logits.argmax(-1), rng.integers(0, 5, n)
    )
    return labels, logits


def reference_scores(z):
    """Every score of float64 logits, by NumPy."""
    p = np.exp(z - z.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    by_logit, by_prob = np.sort(z, -1), np.sort(p, -1)
    v = z - z.mean(-1, keepdims=True)
    return {
        "msp": p.max(-1),
        "max_logit": z.max(-1),
        "logit_margin": by_logit[:, -1] - by_logit[:, -2],
        "prob_margin": by_prob[:, -1] - by_prob[:, -2],
        "neg_entropy": np.sum(p * np.log(p), -1),
        "neg_energy": np.log(np.sum(np.exp(z), -1)),
        "gini": np.sum(p**2, -1),
        "p_norm": v.max(-1) / np.sum(np.abs(v) ** 4, -1) ** 0.25,
    }


@pytest.mark.parametrize("name", SCORE_NAMES)
def test_each_score_ranks_as_its_formula(name):
    labels, logits = scored_logits()
    score = reference_scores(logits)[name]
    correct = labels == logits.argmax(-1)
    expected = loop_areas(correct, score)
    options = {"score": name, "from_logits": True}
    got = (
        aurc(labels, logits, **options),
        augrc(labels, logits, **options),
        failure_auroc(labels, logits, **options),
    )
    np.testing.assert_allclose(got, expected, atol=1e-12)


# The energy of log p is 0: rounding alone would rank.
@pytest.mark.parametrize("name", sorted({*SCORE_NAMES} - {"neg_energy"}))
def test_probabilities_are_scored_by_their_logarithm(name):
    labels, logits = scored_logits(1)
    probs = np.exp(logits) / np.sum(np.exp(logits), -1, keepdims=True)
    score = reference_scores(np.log(probs))[name]
    expected = loop_areas(labels == probs.argmax(-1), score)[2]
    assert abs(failure_auroc(labels, probs, score=name) - expected) < 1e-12


@pytest.mark.parametrize("name", FUNCTIONS)
def test_monotone_transforms_of_a_score_change_nothing(name):
    function, options = FUNCTIONS[name]
    labels, logits = scored_logits(2)

    def margin(z):
        return np.round(np.sort(z, -1)[:, -1] - np.sort(z, -1)[:, -2], 1)

    options = {**options, "from_logits": True}
    plain = function(labels, logits, score=margin, **options)
    other = function(
        labels, logits, score=lambda z: np.exp(margin(z)) - 7, **options
    )
    assert plain == other
    reversed_score = function(
        labels, logits, score=lambda z: -margin(z), **options
    )
    assert plain != reversed_score


def test_a_score_of_keras_ops_and_its_thresholds():
    labels, logits = scored_logits(3)
    curve = risk_coverage_curve(
        labels,
        logits,
        score=lambda z: ops.max(z, axis=-1),
        from_logits=True,
    )
    expected = np.sort(logits.max(-1))[::-1]
    np.testing.assert_allclose(curve.threshold, expected, rtol=1e-6)


def test_bad_scores_are_refused():
    labels, logits = scored_logits(4)
    options = {"from_logits": True}
    with pytest.raises(ValueError, match="`score` must be a function or one"):
        aurc(labels, logits, score="entropy", **options)
    with pytest.raises(ValueError, match="`score` must be a function or one"):
        scores.get(3)
    with pytest.raises(ValueError, match="finite"):
        aurc(labels, logits, score=lambda z: z[:, 0] * np.inf, **options)
    with pytest.raises(ValueError, match="one value per sample"):
        aurc(labels, logits, score=lambda z: z, **options)


@pytest.mark.parametrize(
    ("function", "options", "argument"),
    [
        (aurc, {"convention": "median"}, "convention"),
        (augrc, {"convention": "mean"}, "convention"),
        (normalized_aurc, {"convention": "median"}, "convention"),
        (eaurc, {"optimum": "best"}, "optimum"),
        (aurc, {"ties": "random"}, "ties"),
        (augrc, {"ties": "random"}, "ties"),
        (coverage_at_accuracy, {"accuracy": 1.5}, "accuracy"),
        (coverage_at_accuracy, {"accuracy": -0.5}, "accuracy"),
        (failure_fpr95, {"tpr": 0.0}, "tpr"),
        (failure_fpr95, {"tpr": 1.5}, "tpr"),
        (failure_average_precision, {"positive": "wrong"}, "positive"),
    ],
)
def test_bad_options_are_refused(function, options, argument):
    labels, probs = binary([True, False], [0.9, 0.6])
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        function(labels, probs, **options)
