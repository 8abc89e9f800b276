"""Calibration errors of bins: released code and loops."""

import itertools
import re

import numpy as np
import pytest
from keras import ops
from made_up_probs import loop_bins, made_up, same

from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.bins import bin_index
from keras_calib.functional.calibration_errors import (
    aece,
    average_calibration_error,
    debiased_calibration_error,
    ece,
    mce,
    rmsce,
    smooth_ece,
)
from keras_calib.functional.classwise import classwise_ece
from keras_calib.functional.confidence import (
    mean_confidence,
    overconfidence,
    overconfidence_error,
    underconfidence,
)
from keras_calib.functional.proper import (
    brier_score,
    calibration_decomposition,
    nll,
)
from keras_calib.functional.segmentation import per_image
from keras_calib.metrics import ECE, CalibrationMetrics

# Reference value, without its number of bins, to function and options.
BINNED = {
    "ece": (ece, {}),
    "ece_ceil": (ece, {}),
    "ece_fdshifts": (ece, {}),
    "ece_leftclosed_lr": (ece, {"closed": "left"}),
    "ece_torchmetrics": (ece, {"closed": "left"}),
    "mce": (mce, {}),
    "mce_mukhoti": (mce, {}),
    "mce_torchmetrics": (mce, {"closed": "left"}),
    "ace_avg": (average_calibration_error, {}),
    "oe": (overconfidence_error, {}),
    "aece": (aece, {"edges": "interp"}),
    "aece_tu": (aece, {"ties": "order"}),
    "cece": (
        classwise_ece,
        {"classes": "to_largest_label", "threshold": 1e-37},
    ),
    "sce_mdca": (classwise_ece, {"threshold": 1e-37}),
    "tace0.01": (classwise_ece, {"edges": "rank", "threshold": 0.01}),
}


REFERENCE = {
    f"{name}_{num_bins}": (function, {**options, "num_bins": num_bins})
    for name, (function, options) in BINNED.items()
    for num_bins in (15, 10, 8)
} | {
    "ece_pycalib_100": (ece, {"num_bins": 100, "bin_confidence": "pycalib"}),
    "brier": (brier_score, {}),
    "nll_clip1e-12": (nll, {"clip": 1e-12}),
    "overconfidence": (overconfidence, {}),
    "underconfidence": (underconfidence, {}),
}


DENSE = {
    "nll": (nll, {}),
    "ece": (ece, {}),
    "aece": (aece, {"edges": "interp"}),
    "cece": (classwise_ece, {"classes": "to_largest_label"}),
}


# Values that are not expressed, and why; what can be said of them is tested.
LEFT_OUT = {
    **{
        f"ece_fdshifts_{num_bins}/allcorrect": (
            "data that are all right are counted as all wrong"
        )
        for num_bins in (15, 10, 8)
    },
    "ece_leftclosed_lr_10/edges": (
        "0.5 // 0.1 is 4: rounding moves an edge into the bin below it"
    ),
}


RANKING = re.compile(
    "aurc|augrc|cov_at|risk_at|auroc|sac_|failauc|fpr95|ap_err|ap_suc"
)


def left_out(name, case):
    return name in LEFT_OUT or f"{name}/{case}" in LEFT_OUT


def metric_case(goldens, case):
    return goldens[f"in/m_{case}/labels"], goldens[f"in/m_{case}/probs"]


def reference_values(goldens, name):
    prefix = f"metric/{name}/"
    return {
        key.removeprefix(prefix): value
        for key, value in goldens.items()
        if key.startswith(prefix)
    }


def test_every_reference_value_is_expressed_or_left_out(goldens):
    names = {key.split("/")[1] for key in goldens if key.startswith("metric/")}
    ours = {name for name in names if not RANKING.search(name)}
    dense = {name for name in ours if name.startswith("seg_")}
    whole = {key for key in LEFT_OUT if "/" not in key}
    assert ours - dense - whole == set(REFERENCE)
    assert dense == {
        f"seg_{kind}_{name}"
        for kind, names in (("mbls", DENSE), ("pooled", set(DENSE) - {"nll"}))
        for name in names
    }


@pytest.mark.portable
def test_reference_values_are_reproduced(goldens):
    for name, (function, options) in REFERENCE.items():
        values = reference_values(goldens, name)
        assert len(values) >= 9
        for case, expected in values.items():
            if not left_out(name, case):
                value = function(*metric_case(goldens, case), **options)
                same(value, expected, f"{name} {case}")


def test_faults_of_released_code_are_what_we_say(goldens):
    labels, probs = metric_case(goldens, "allcorrect")
    for num_bins in (15, 10, 8):
        wrong = ece((labels + 1) % 6, probs, num_bins=num_bins)
        same(wrong, goldens[f"metric/ece_fdshifts_{num_bins}/allcorrect"])
    # The only inner edge that a confidence is on is 0.5.
    moved = ece(*metric_case(goldens, "edges"), num_bins=10, closed="right")
    same(moved, goldens["metric/ece_leftclosed_lr_10/edges"])


def test_reference_values_of_dense_predictions_are_reproduced(goldens):
    for case, name in itertools.product(("D", "D0"), DENSE):
        function, options = DENSE[name]
        options = {**options, "from_logits": True, "ignore_class": 255}
        labels = goldens[f"in/{case}/labels"]
        logits = np.moveaxis(goldens[f"in/{case}/logits"], 1, -1)
        value = per_image(function, labels, logits, background=0, **options)
        same(value, goldens[f"metric/seg_mbls_{name}/{case}"], name)
        if name != "nll":
            value = function(labels, logits, **options)
            same(value, goldens[f"metric/seg_pooled_{name}/{case}"], name)


def loop_errors(bins):
    total = sum(n for n, *_ in bins)
    names = ("ece", "rmsce", "oe", "debiased")
    names += ("brier", "brier2", "nll", "nll2")
    errors = dict.fromkeys(names, 0.0)
    for n, c, a, effective in bins:
        w, gap = n / total, c - a
        errors["ece"] += w * abs(gap)
        errors["rmsce"] += w * gap**2
        errors["oe"] += w * c * max(gap, 0)
        if effective > 1.9999:
            errors["debiased"] += w * (gap**2 - a * (1 - a) / (effective - 1))
        errors["brier"] += w * gap**2
        errors["brier2"] += w * a * (1 - a)
        entropy = -xlogx(a) - xlogx(1 - a)
        doubt = max(1 - c, 1e-37)
        cross = -a * np.log(c) - (1 - a) * np.log(doubt)
        errors["nll"] += w * (cross - entropy)
        errors["nll2"] += w * entropy
    errors["rmsce"] = errors["rmsce"] ** 0.5
    errors["debiased"] = max(errors["debiased"], 0) ** 0.5
    errors["mce"] = max(abs(c - a) for _, c, a, _ in bins)
    errors["average"] = np.mean([abs(c - a) for _, c, a, _ in bins])
    return errors


def xlogx(x):
    return x * np.log(x) if x else 0.0


def our_errors(labels, probs, **options):
    brier = calibration_decomposition(labels, probs, **options)
    log = calibration_decomposition(labels, probs, score="nll", **options)
    return {
        "ece": ece(labels, probs, **options),
        "rmsce": rmsce(labels, probs, **options),
        "mce": mce(labels, probs, **options),
        "average": average_calibration_error(labels, probs, **options),
        "oe": overconfidence_error(labels, probs, **options),
        "debiased": debiased_calibration_error(labels, probs, **options),
        "brier": brier.calibration,
        "brier2": brier.refinement,
        "nll": log.calibration,
        "nll2": log.refinement,
    }


def test_ece_of_pycalib_takes_shifted_midpoints_for_confidences():
    # By hand: labels, confidences in the first of K classes, bins, error.
    for labels, confidences, k, num_bins, expected in (
        # Two bins over [1/2, 1], both numbers 3/4: 1 is in the last bin.
        ([0, 0], [0.5, 1.0], 2, 2, 0.25),
        # 3/4 is in the upper of the two, beside 1: half are right.
        ([0, 1, 0, 1], [0.75, 0.75, 1.0, 1.0], 2, 2, 0.25),
        # Three bins over [1/4, 1] have 5/12, 5/8, 5/6, not 3/8, 5/8, 7/8.
        ([0, 1, 0], [0.4, 0.6, 0.8], 4, 3, (7 / 12 + 5 / 8 + 1 / 6) / 3),
    ):
        p = np.array(confidences)[:, None]
        probs = np.hstack([p, np.repeat((1 - p) / (k - 1), k - 1, axis=1)])
        options = {"num_bins": num_bins, "bin_confidence": "pycalib"}
        same(ece(labels, probs, **options), expected)
    labels, probs, weight = made_up()
    confidence, right = probs.max(-1), probs.argmax(-1) == labels
    num_bins, least = 7, 1 / probs.shape[1]
    gaps = 0.0
    for b in range(num_bins):
        low, high = (least + (b + i) * (1 - least) / num_bins for i in range(2))
        inside = (confidence >= low) & ((confidence < high) | (high >= 1))
        step = (1 - least - 1 / num_bins) / (num_bins - 1)
        stated = least + 0.5 / num_bins + b * step
        gaps += abs((weight * (stated - right))[inside].sum())
    value = ece(
        *(labels, probs),
        num_bins=num_bins,
        bin_confidence="pycalib",
        sample_weight=weight,
    )
    same(value, gaps / weight.sum())
    with pytest.raises(ValueError, match="`bin_confidence` must be"):
        ece(labels, probs, bin_confidence="midpoint")


@pytest.mark.parametrize("closed", ["right", "left"])
def test_errors_of_bins_equal_a_loop(closed):
    labels, probs, weights = made_up()
    confidence, right = probs.max(-1), probs.argmax(-1) == labels
    for weighted, num_bins in itertools.product((False, True), (1, 4, 16)):
        weight = weights if weighted else np.ones(len(labels))
        bins = loop_bins(confidence, right, weight, num_bins, closed)
        ours = our_errors(
            labels,
            probs,
            num_bins=num_bins,
            closed=closed,
            sample_weight=weight if weighted else None,
        )
        expected = loop_errors(bins)
        assert set(ours) == set(expected)
        for name, value in ours.items():
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-9, atol=1e-12, err_msg=name
            )
        assert ours["ece"] <= ours["rmsce"] <= ours["mce"]
        brier = sum(n * ((c - a) ** 2 + a * (1 - a)) for n, c, a, _ in bins)
        same(ours["brier"] + ours["brier2"], brier / weight.sum())


def test_whole_weights_are_repeats():
    labels, probs, _ = made_up(seed=1, count=120)
    weight = np.random.default_rng(2).integers(0, 4, len(labels))
    again = np.repeat(np.arange(len(labels)), weight)
    repeated = labels[again], probs[again]
    functions = (
        ece,
        mce,
        rmsce,
        average_calibration_error,
        overconfidence_error,
        aece,
        classwise_ece,
        smooth_ece,
        nll,
        brier_score,
        mean_confidence,
        overconfidence,
        underconfidence,
        calibration_decomposition,
    )
    for function in functions:
        weighted = function(labels, probs, sample_weight=weight)
        found, wanted = (
            [*vars(x).values()] if isinstance(x, Decomposition) else x
            for x in (weighted, function(*repeated))
        )
        np.testing.assert_allclose(
            found, wanted, rtol=1e-9, err_msg=function.__name__
        )
    weighted = classwise_ece(labels, probs, edges="mass", sample_weight=weight)
    same(weighted, classwise_ece(*repeated, edges="mass"))
    # Of fractions only ratios count, and no square is 0.
    found = [
        debiased_calibration_error(labels, probs, sample_weight=scale * weight)
        for scale in (0.3, 0.3e-165)
    ]
    same(*found)
    for scale in (1e-310, 1e307):
        with pytest.raises(ValueError, match="largest in .1e-290, 1e290"):
            ece(labels, probs, sample_weight=np.full(len(labels), scale))


def test_closed_sides_differ_on_edges_alone():
    labels, probs, _ = made_up()
    inside = probs.max(-1) * 8 % 1 != 0
    assert 0 < inside.sum() < len(inside)
    left, right = (
        ece(labels, probs, num_bins=8, closed=closed)
        for closed in ("left", "right")
    )
    assert left != right
    for function in (ece, mce, rmsce, classwise_ece):
        left, right = (
            function(labels[inside], probs[inside], num_bins=8, closed=closed)
            for closed in ("left", "right")
        )
        assert left == right


def test_decimal_confidences_on_an_edge_are_in_their_bin():
    thousandths = np.arange(1001)
    for num_bins in (10, 20, 25, 50, 100, 1000):
        right = np.maximum(-(-thousandths * num_bins // 1000) - 1, 0)
        left = np.minimum(thousandths * num_bins // 1000, num_bins - 1)
        for closed, expected in (("right", right), ("left", left)):
            for dtype in ("float32", "float64"):
                c = (thousandths / 1000).astype(dtype)
                found = bin_index(c, num_bins, closed)
                np.testing.assert_array_equal(found, expected)
            c = ops.convert_to_tensor(c.astype("float32"))
            found = ops.convert_to_numpy(bin_index(c, num_bins, closed))
            np.testing.assert_array_equal(found, expected)
    # Streaming states too, also that of the fine histogram.
    c = (thousandths / 1000).astype("float32")
    for num_bins in (20, 25, 100):
        counts = np.bincount(np.maximum(-(-thousandths * num_bins // 1000), 1))
        for metric in (
            ECE(num_bins=num_bins),
            CalibrationMetrics(["ece"], num_bins=num_bins),
        ):
            metric.update_scores(c, np.ones(1001, "int32"))
            np.testing.assert_array_equal(metric.bins().weight, counts[1:])
    assert bin_index(np.array([np.nan, -1.0, 2.0]), 5).tolist() == [0, 0, 4]


def test_norms_are_one_family():
    labels, probs, weight = made_up()
    for norm, function in (("l1", ece), ("l2", rmsce), ("max", mce)):
        value = ece(labels, probs, norm=norm, sample_weight=weight)
        assert value == function(labels, probs, sample_weight=weight)
