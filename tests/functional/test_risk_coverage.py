"""Areas and operating points of whole data sets: released code and loops."""

import itertools

import numpy as np
import pytest
from scored import binary, loop_areas, tied_data

import keras_calib as kc
from keras_calib.functional.ranking import (
    failure_auroc,
    failure_average_precision,
    failure_fpr95,
)
from keras_calib.functional.risk_coverage import (
    augrc,
    aurc,
    coverage_at_accuracy,
    coverage_at_risk,
    eaugrc,
    eaurc,
    naurc,
    risk_at_coverage,
)

ORDER = {"ties": "order"}


ANALYTIC = {"optimum": "analytic"}


# How NumPy 2.4 sorted two sets with ties when their values were made; NumPy 1
# leaves equal rows in another order.
TIED = """
0203010004055c5a3639564a46420d0e29242d2f1d14455206074f4b0c081118
333a22273b3f505f2a233c301f1a1519595857510b2026212b3538404e434755
091b1713342e2c283249543e5d5b48410f1c1e3d4d253153444c5e371012160a
"""
TIED_ROWS = {
    "edges": np.array(list(bytes.fromhex(TIED))),
    "onehot": np.arange(60)[::-1],
}


# Every reference value of a selective metric: function and its options.
GOLDENS = {
    "aurc_mean": (aurc, ORDER),
    "aurc_crl": (aurc, ORDER),
    "aurc_tieavg": (aurc, {}),
    "aurc_geifman": (aurc, {**ORDER, "area": "geifman"}),
    "aurc_tu": (aurc, {**ORDER, "area": "trapezoid"}),
    "aurc_lfpc": (aurc, {**ORDER, "area": "origin"}),
    "aurc_enstals": (aurc, {**ORDER, "area": "origin"}),
    "aurc_fdshifts": (aurc, {"area": "merged"}),
    "aurc_achievable_fdshifts": (aurc, {"area": "achievable"}),
    "eaurc_exact": (eaurc, ORDER),
    "eaurc_crl": (eaurc, {**ORDER, **ANALYTIC}),
    "eaurc_geifman": (eaurc, {**ORDER, **ANALYTIC, "area": "geifman"}),
    "eaurc_lfpc": (eaurc, {**ORDER, "area": "origin"}),
    "eaurc_fdshifts": (eaurc, {**ANALYTIC, "area": "merged"}),
    "augrc_fdshifts": (augrc, {}),
    "augrc_tu": (augrc, {**ORDER, "area": "trapezoid"}),
    "eaugrc_fdshifts": (eaugrc, {}),
    "naurc_lfpc": (naurc, {**ORDER, "area": "origin"}),
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


@pytest.mark.portable
def test_reference_values_are_reproduced_to_1e_9(goldens):
    for name, (function, options) in GOLDENS.items():
        keys = [k for k in goldens if k.startswith(f"metric/{name}/")]
        assert keys, name
        for key in keys:
            data = key.split("/")[2]
            labels = goldens[f"in/m_{data}/labels"]
            probs = goldens[f"in/m_{data}/probs"]
            if "geifman" in name:
                # That code ranks ties as its own ascending sort leaves them.
                order = np.argsort(probs.max(-1), kind="heapsort")[::-1]
                order = TIED_ROWS.get(data, order)
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
    assert abs(naurc(*data) - expected) < 1e-12
    assert abs(eaurc(*data) - (expected_aurc - perfect)) < 1e-12


def loop_conventions(wrong):
    """AURC of these flags, surest first, as other libraries integrate it."""
    n, errors = len(wrong), np.cumsum(wrong)
    risk, place = errors / (np.arange(n) + 1), np.arange(n) + 1
    return {
        "mean": risk.mean(),
        "trapezoid": np.sum(risk[1:] + risk[:-1]) / 2 / (n - 1),
        "origin": np.sum(risk + np.r_[0, risk[:-1]]) / 2 / n,
        "geifman": np.sum(errors / np.minimum(place + 1, n)) / n,
    }


def test_tied_areas_are_the_mean_over_all_orders():
    flags = [0, 0, 1], [0, 1, 1], [1], [0, 0, 0, 1]
    each = [sorted(set(itertools.permutations(f))) for f in flags]
    found = []
    for parts in itertools.product(*each):
        wrong = np.concatenate(parts)
        areas = loop_areas(wrong == 0, -np.arange(len(wrong)))
        values = dict(zip(("aurc", "augrc", "auroc"), areas, strict=True))
        found.append({**values, **loop_conventions(wrong)})
    score = np.repeat([0.9, 0.8, 0.7, 0.6], [len(f) for f in flags])
    data = binary(np.concatenate(flags) == 0, score)
    tied = {
        "aurc": aurc(*data),
        "augrc": augrc(*data),
        "auroc": failure_auroc(*data),
    }
    for name in ("mean", "trapezoid", "origin", "geifman"):
        tied[name] = aurc(*data, area=name)
    mean = {name: np.mean([v[name] for v in found]) for name in tied}
    assert tied == pytest.approx(mean, rel=1e-12)


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
                coverage_at_risk(labels, probs, risk=risk, **w),
                risk_at_coverage(labels, probs, coverage=coverage, **w),
                failure_fpr95(labels, probs, tpr=tpr, **w),
            )
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
            accuracy = coverage_at_accuracy(
                labels, probs, accuracy=1 - risk, **w
            )
            assert accuracy == got[0]


FUNCTIONS = {
    "aurc": (aurc, {}),
    "aurc order": (aurc, {"ties": "order"}),
    "trapezoid": (aurc, {"area": "trapezoid"}),
    "origin": (aurc, {"area": "origin"}),
    "geifman": (aurc, {"area": "geifman"}),
    "merged": (aurc, {"area": "merged"}),
    "achievable": (aurc, {"area": "achievable"}),
    "eaurc": (eaurc, {}),
    "eaurc merged": (eaurc, {"area": "merged"}),
    "eaurc analytic": (eaurc, {"optimum": "analytic"}),
    "naurc": (naurc, {}),
    "augrc": (augrc, {}),
    "augrc trapezoid": (augrc, {"area": "trapezoid"}),
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


def test_whole_weights_equal_repeats():
    correct, score = tied_data(2)
    labels, probs = binary(correct, score)
    weight = np.random.default_rng(0).integers(0, 4, len(score))
    repeated = np.repeat(labels, weight), np.repeat(probs, weight, axis=0)
    for name, (function, options) in FUNCTIONS.items():
        weighted = function(labels, probs, sample_weight=weight, **options)
        assert abs(weighted - function(*repeated, **options)) < 1e-12, name


def test_mass_is_the_limit_of_many_repeats():
    correct, score = tied_data(4)
    labels, probs = binary(correct, score)
    weight = np.random.default_rng(6).integers(1, 9, len(score)) / 8.0
    for name in ANY_WEIGHTS:
        function, options = FUNCTIONS[name]
        mass, many = (
            function(labels, probs, sample_weight=w, **options)
            for w in (weight, weight * 8e6)
        )
        assert abs(mass - many) < 1e-6, name


def test_conventions_that_count_samples_refuse_mass():
    labels, probs = binary([True, False], [0.9, 0.6])
    weight = [0.5, 1.0]
    for name in ("trapezoid", "origin", "geifman"):
        with pytest.raises(ValueError, match="whole numbers"):
            aurc(labels, probs, area=name, sample_weight=weight)
    with pytest.raises(ValueError, match="whole numbers"):
        augrc(labels, probs, area="trapezoid", sample_weight=weight)
    with pytest.raises(ValueError, match="whole numbers"):
        eaurc(labels, probs, area="merged", sample_weight=weight)


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
    assert naurc(*data) == 0.0
    assert naurc(*data, area="merged") == 0.0
    assert eaugrc(*data) == 0.0
    for name in ("mean", "trapezoid", "merged", "achievable"):
        assert abs(aurc(*data, area=name) - (not right)) < 1e-12
        for optimum in ("finite", "analytic"):
            value = eaurc(*data, area=name, optimum=optimum)
            assert abs(value) < 1e-12
    precision = failure_average_precision(*data)
    assert precision == float(not right)


def test_one_sample_has_every_area():
    data = binary([False], [0.9])
    for name in ("mean", "trapezoid", "merged", "geifman", "achievable"):
        assert abs(aurc(*data, area=name) - 1.0) < 1e-12
    assert abs(aurc(*data, area="origin") - 0.5) < 1e-12
    assert augrc(*data, area="trapezoid") == 1.0


def test_the_curve_ends_at_the_error_rate(goldens):
    labels, probs = goldens["in/m_over/labels"], goldens["in/m_over/probs"]
    curve = kc.functional.risk_coverage_curve(labels, probs)
    error = np.mean(probs.argmax(-1) != labels)
    assert curve.coverage[-1] == 1.0
    assert abs(curve.risk[-1] - error) < 1e-12
    assert (np.diff(curve.coverage) > 0).all()
    assert (np.diff(curve.threshold) < 0).all()
    k = 300
    accepted = probs.max(-1) >= curve.threshold[k]
    assert abs(curve.coverage[k] - accepted.mean()) < 1e-12
    wrong = (probs.argmax(-1) != labels)[accepted]
    assert abs(curve.risk[k] - wrong.mean()) < 1e-12
