"""Calibration errors, confidences and proper scores of whole data sets.

The released code of many papers gave the reference values; loops written
here give the rest.
"""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_calib.formulas import binned_errors
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.bins import bin_index
from keras_calib.formulas.bins import bin_sums
from keras_calib.formulas.proper import brier_losses
from keras_calib.formulas.proper import log_losses
from keras_calib.formulas.smooth import smooth_error_of_points
from keras_calib.functional import classwise
from keras_calib.functional.binned import average_calibration_error
from keras_calib.functional.binned import debiased_calibration_error
from keras_calib.functional.binned import ece
from keras_calib.functional.binned import mce
from keras_calib.functional.binned import rmsce
from keras_calib.functional.classwise import classwise_ece
from keras_calib.functional.confidence import mean_confidence
from keras_calib.functional.confidence import objectness_deviation
from keras_calib.functional.confidence import overconfidence
from keras_calib.functional.confidence import overconfidence_error
from keras_calib.functional.confidence import underconfidence
from keras_calib.functional.equal_mass import adaptive_ece
from keras_calib.functional.proper import brier_score
from keras_calib.functional.proper import calibration_decomposition
from keras_calib.functional.proper import nll
from keras_calib.functional.segmentation import per_image
from keras_calib.functional.smooth import smooth_ece
from keras_calib.metrics import ECE
from keras_calib.metrics import CalibrationMetrics

pytestmark = pytest.mark.portable

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
    "aece": (adaptive_ece, {"edges": "interp"}),
    "aece_tu": (adaptive_ece, {"ties": "order"}),
    "cece": (classwise_ece, {"classes": "to_largest_label"}),
    "sce_mdca": (classwise_ece, {}),
    "tace0.01": (classwise_ece, {"edges": "rank", "threshold": 0.01}),
}
REFERENCE = {
    f"{name}_{num_bins}": (function, {**options, "num_bins": num_bins})
    for name, (function, options) in BINNED.items()
    for num_bins in (15, 10, 8)
} | {
    "brier": (brier_score, {}),
    "nll_clip1e-12": (nll, {"clip": 1e-12}),
    "overconfidence": (overconfidence, {}),
    "underconfidence": (underconfidence, {}),
}
DENSE = {
    "nll": (nll, {}),
    "ece": (ece, {}),
    "aece": (adaptive_ece, {"edges": "interp"}),
    "cece": (classwise_ece, {"classes": "to_largest_label"}),
}
# Values that are not expressed, and why; what can be said of them is tested.
LEFT_OUT = {
    "ece_pycalib_100": (
        "midpoints of shifted bins in place of the mean confidence: no "
        "calibration error"
    ),
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


def same(value, expected):
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-15)


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


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_value_is_reproduced(goldens, name):
    function, options = REFERENCE[name]
    values = reference_values(goldens, name)
    assert len(values) >= 9
    for case, expected in values.items():
        if not left_out(name, case):
            same(function(*metric_case(goldens, case), **options), expected)


def test_faults_of_released_code_are_what_we_say(goldens):
    labels, probs = metric_case(goldens, "allcorrect")
    for num_bins in (15, 10, 8):
        wrong = ece((labels + 1) % 6, probs, num_bins=num_bins)
        same(wrong, goldens[f"metric/ece_fdshifts_{num_bins}/allcorrect"])
    # The only inner edge that a confidence is on is 0.5.
    moved = ece(*metric_case(goldens, "edges"), num_bins=10, closed="right")
    same(moved, goldens["metric/ece_leftclosed_lr_10/edges"])


@pytest.mark.parametrize("case", ["D", "D0"])
@pytest.mark.parametrize("name", DENSE)
def test_reference_value_of_dense_predictions_is_reproduced(
    goldens, name, case
):
    function, options = DENSE[name]
    options = {**options, "from_logits": True}
    labels = goldens[f"in/{case}/labels"]
    logits = np.moveaxis(goldens[f"in/{case}/logits"], 1, -1)
    value = per_image(
        function, labels, logits, background=0, ignore_class=255, **options
    )
    same(value, goldens[f"metric/seg_mbls_{name}/{case}"])
    if name != "nll":
        value = function(labels, logits, ignore_class=255, **options)
        same(value, goldens[f"metric/seg_pooled_{name}/{case}"])


# Loops.


def made_up(seed=0, count=300, num_classes=4, sharpness=2.0):
    """Overconfident predictions, some of them on edges of bins."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(count, num_classes))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    truth = probs**0.6 / np.sum(probs**0.6, axis=-1, keepdims=True)
    labels = np.array([rng.choice(num_classes, p=p) for p in truth])
    on_edge = np.arange(0, count, 10)
    sure = rng.integers(0, num_classes, len(on_edge))
    probs[on_edge] = np.eye(num_classes)[sure]
    probs[on_edge[::2]] = 0.5 * probs[on_edge[::2]] + 0.5 / num_classes
    weight = rng.choice([0.0, 0.5, 1.7, 3.0], size=count)
    return labels, probs, weight


def loop_bins(confidence, outcome, weight, num_bins, closed):
    """Mass, mean confidence, mean outcome and effective number by bin."""
    edges = np.arange(num_bins + 1) / num_bins
    bins = []
    for b in range(num_bins):
        low, high = edges[b], edges[b + 1]
        if closed == "right":
            inside = (confidence > low) & (confidence <= high)
            inside |= (b == 0) & (confidence == 0)
        else:
            inside = (confidence >= low) & (confidence < high)
            inside |= (b == num_bins - 1) & (confidence == 1)
        w = weight[inside]
        if w.sum() > 0:
            c = (w * confidence[inside]).sum() / w.sum()
            a = (w * outcome[inside]).sum() / w.sum()
            bins.append((w.sum(), c, a, w.sum() ** 2 / (w**2).sum()))
    return bins


def xlogx(x):
    return x * np.log(x) if x else 0.0


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


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_bins", [1, 4, 16])
def test_errors_of_bins_equal_a_loop(closed, weighted, num_bins):
    labels, probs, weight = made_up()
    weight = weight if weighted else np.ones(len(labels))
    confidence, right = probs.max(-1), probs.argmax(-1) == labels
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
    forecasts = sum(n * ((c - a) ** 2 + a * (1 - a)) for n, c, a, _ in bins)
    same(ours["brier"] + ours["brier2"], forecasts / weight.sum())


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
        adaptive_ece,
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
        np.testing.assert_allclose(
            weighted, function(*repeated), rtol=1e-9, err_msg=function.__name__
        )
    weighted = classwise_ece(labels, probs, edges="mass", sample_weight=weight)
    same(weighted, classwise_ece(*repeated, edges="mass"))


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


def test_debiasing_removes_the_noise_of_labels():
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(400):
        confidence = rng.uniform(size=200)
        right = rng.uniform(size=200) < confidence
        index = bin_index(confidence, 10)
        sums = bin_sums(confidence, right.astype("float64"), index, 10)
        squares.append(
            (
                binned_errors.debiased_squared_error(sums),
                binned_errors.calibration_error(sums, "l2") ** 2,
            )
        )
    debiased, plain = np.mean(squares, axis=0)
    noise = np.std(squares, axis=0)[0] / 20
    assert abs(debiased) < 4 * noise < plain / 5


# Every class.


def loop_classwise(labels, probs, weight, num_bins, closed, threshold=0.0):
    total = 0.0
    for k in range(probs.shape[1]):
        p, y = probs[:, k], labels == k
        keep = p >= threshold
        if closed == "right":
            keep &= p > 0
        bins = loop_bins(p[keep], y[keep], weight[keep], num_bins, closed)
        total += sum(n * abs(c - a) for n, c, a, _ in bins)
    return total / weight.sum() / probs.shape[1]


@pytest.mark.parametrize("closed", ["right", "left"])
@pytest.mark.parametrize("threshold", [0.0, 0.1])
def test_classwise_error_equals_a_loop(monkeypatch, closed, threshold):
    labels, probs, weight = made_up(num_classes=5)
    options = {"num_bins": 8, "closed": closed, "threshold": threshold}
    value = classwise_ece(labels, probs, sample_weight=weight, **options)
    expected = loop_classwise(labels, probs, weight, 8, closed, threshold)
    same(value, expected)
    for block in (1, 700):
        monkeypatch.setattr(classwise, "_BLOCK", block)
        again = classwise_ece(labels, probs, sample_weight=weight, **options)
        same(again, value)


def test_classwise_error_of_logits_is_that_of_their_softmax(monkeypatch):
    labels, _, weight = made_up(num_classes=5)
    logits = np.random.default_rng(0).normal(size=(len(labels), 5))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for block in (classwise._BLOCK, 700):
        monkeypatch.setattr(classwise, "_BLOCK", block)
        for options in ({}, {"edges": "mass"}, {"sample_weight": weight}):
            value = classwise_ece(
                labels, logits + 3.0, from_logits=True, **options
            )
            same(value, classwise_ece(labels, probs, **options))


def test_classwise_error_of_two_classes_counts_both():
    labels, probs, weight = made_up(num_classes=2)
    keep = probs.max(-1) < 1
    labels, probs = labels[keep], probs[keep]
    # A gap of one class is the opposite gap of the other.
    sums = loop_bins(probs[:, 1], labels == 1, np.ones(len(labels)), 7, "right")
    expected = sum(n * abs(c - a) for n, c, a, _ in sums) / len(labels)
    same(classwise_ece(labels, probs[:, 1:], num_bins=7), expected)


def test_classwise_error_of_equal_mass_is_the_adaptive_one_of_each_class():
    labels, probs, weight = made_up(num_classes=3)
    for used in (None, weight):
        value = classwise_ece(
            labels, probs, edges="mass", num_bins=6, sample_weight=used
        )
        one_by_one = [
            loop_mass(probs[:, k], labels == k, used, 6) for k in range(3)
        ]
        same(value, np.mean(one_by_one))


def loop_mass(p, y, weight, num_bins):
    """Equal-mass error by sharing each tied group between bins."""
    if weight is None:
        y = y.astype("float64")
        for value in np.unique(p):
            y[p == value] = y[p == value].mean()
        parts = np.array_split((p - y)[np.argsort(p, kind="stable")], num_bins)
        return sum(abs(part.sum()) for part in parts) / len(p)
    values = np.unique(p)
    mass = np.array([weight[p == v].sum() for v in values])
    residual = np.array([(weight * (p - y))[p == v].sum() for v in values])
    total, error = mass.sum(), 0.0
    for b in range(num_bins):
        low, high = b * total / num_bins, (b + 1) * total / num_bins
        gap, start = 0.0, 0.0
        for m, r in zip(mass, residual, strict=True):
            shared = max(0.0, min(high, start + m) - max(low, start))
            gap += r * shared / m if m else 0.0
            start += m
        error += abs(gap)
    return error / total


def test_threshold_leaves_out_small_probabilities_of_equal_mass():
    labels, probs, _ = made_up(num_classes=3)
    expected = 0.0
    for k in range(3):
        keep = probs[:, k] >= 0.2
        expected += keep.sum() * loop_mass(
            probs[keep, k], labels[keep] == k, None, 5
        )
    value = classwise_ece(
        labels, probs, edges="mass", num_bins=5, threshold=0.2
    )
    same(value, expected / len(labels) / 3)
    below = 0.9 * probs + 0.1 / 3
    assert classwise_ece(labels, below, edges="mass", threshold=1.0) == 0


def test_fewer_samples_than_bins_are_no_error():
    labels, probs, _ = made_up(count=3)
    for edges in ("width", "mass", "rank"):
        value = classwise_ece(labels, probs, edges=edges, num_bins=20)
        assert 0 <= value <= 1


# Smooth error.


def loop_smooth(confidence, residual, tolerance=1e-6):
    """The width at which the integral of the smoothed residual equals it."""
    t = (np.arange(2000) + 0.5) / 2000

    def error(width):
        density = 0.0
        for k in range(-int(5 * width) - 2, int(5 * width) + 3):
            for mirrored in (2 * k + confidence, 2 * k - confidence):
                z = (t[:, None] - mirrored) / width
                density = density + np.exp(-0.5 * z * z) @ residual
        return np.abs(density).mean() / (width * np.sqrt(2 * np.pi))

    low, high = 0.0, 1.0
    while high - low > tolerance:
        middle = (low + high) / 2
        wide = error(middle) <= middle
        low, high = (low, middle) if wide else (middle, high)
    return (low + high) / 2


def test_smooth_error_equals_direct_integration():
    for seed, sharpness in ((0, 2.0), (1, 0.5), (2, 6.0)):
        labels, probs, weight = made_up(seed, 150, sharpness=sharpness)
        confidence = probs.max(-1)
        residual = confidence - (probs.argmax(-1) == labels)
        expected = loop_smooth(confidence, residual / len(labels))
        assert abs(smooth_ece(labels, probs) - expected) < 3e-6
        expected = loop_smooth(confidence, residual * weight / weight.sum())
        value = smooth_ece(labels, probs, sample_weight=weight)
        assert abs(value - expected) < 3e-6


def test_smooth_error_of_the_documented_example():
    expected = loop_smooth(np.array([0.8, 0.6]), np.array([-0.1, 0.3]))
    value = smooth_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    assert abs(value - expected) < 3e-6


def test_smooth_error_of_one_confidence_is_its_gap():
    # However the kernel is shaped, it keeps the mass.
    for confidence in (0.5, 0.77, 1.0):
        probs = np.tile([confidence, 1 - confidence], (50, 1))
        labels = np.arange(50) % 5 == 0
        gap = abs(confidence - 0.8)
        assert abs(smooth_ece(labels.astype(int), probs) - gap) < 1e-6


def test_smooth_error_without_residual_is_0():
    assert smooth_error_of_points(np.array([0.2, 1.0]), np.zeros(2)) == 0
    points = ops.convert_to_tensor(np.array([0.2, 1.0], "float32"))
    assert float(smooth_error_of_points(points, 0.0 * points)) == 0


# Tensors.


def compiled(function):
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    return function


def tensors(sums):
    return BinSums(
        *(ops.convert_to_tensor(part.astype("float32")) for part in sums)
    )


def formulas(sums):
    """Everything that is made of bin sums, as a flat list."""
    return [
        *(
            binned_errors.calibration_error(sums, norm)
            for norm in binned_errors.NORMS
        ),
        binned_errors.average_error(sums),
        binned_errors.overconfidence_error(sums),
        binned_errors.debiased_squared_error(sums),
        binned_errors.debiased_error(sums, True),
        binned_errors.debiased_error(sums, False),
        *binned_errors.brier_decomposition(sums),
        *binned_errors.nll_decomposition(sums),
    ]


def test_formulas_agree_on_tensors_and_arrays():
    in_graph = compiled(formulas)
    for seed in range(4):
        labels, probs, weight = made_up(seed)
        confidence = np.where(probs.max(-1) == 1, 0.99, probs.max(-1))
        right = (probs.argmax(-1) == labels).astype("float64")
        weight = None if seed < 2 else weight
        sums = bin_sums(
            confidence, right, bin_index(confidence, 20), 20, weight
        )
        expected = np.array(formulas(sums))
        for function in (formulas, in_graph):
            values = [float(value) for value in function(tensors(sums))]
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)


def test_small_gaps_of_large_sums_survive_float32():
    count, gap = 1e8, 1e-6
    sums = BinSums(
        *(
            np.array([x])
            for x in (
                count,
                count * 0.75,
                count * (0.75 - gap),
                count * gap,
                count,
            )
        )
    )
    for norm in binned_errors.NORMS:
        value = float(binned_errors.calibration_error(tensors(sums), norm))
        np.testing.assert_allclose(value, gap, rtol=1e-5)


def test_empty_bins_add_nothing():
    nothing = BinSums(*(np.zeros(5) for _ in range(5)))
    for value in formulas(nothing) + formulas(tensors(nothing)):
        assert float(value) == 0
    sums = BinSums(*(np.array([0.0, x, 0.0]) for x in (4, 3.2, 2, 1.2, 4)))
    alone = BinSums(*(part[1:2] for part in sums))
    same(formulas(sums), formulas(alone))


def test_sure_and_wrong_is_finite():
    labels, probs = [0, 1, 1], [[1.0, 0.0]] * 3
    parts = calibration_decomposition(labels, probs, score="nll")
    # The forecast of what happened is clipped relative to its share.
    same(parts.calibration + parts.refinement, -2 / 3 * np.log(2 / 3 * 1e-37))
    assert np.isfinite(parts).all()
    same(mce(labels, probs), 2 / 3)
    same(mce([0, 0], [[1.0, 0.0]] * 2), 0)


def test_smooth_error_agrees_on_tensors_and_arrays():
    in_graph = compiled(smooth_error_of_points)
    rng = np.random.default_rng(0)
    position = np.sort(rng.uniform(0.1, 1.0, 500))
    position[-3:] = 1.0
    for power in (0.3, 1.0, 4.0):
        right = rng.uniform(size=500) < position**power
        residual = (position - right) / 500
        expected = smooth_error_of_points(position, residual, 2**14)
        points = [
            ops.convert_to_tensor(x.astype("float32"))
            for x in (position, residual)
        ]
        for function in (smooth_error_of_points, in_graph):
            assert abs(float(function(*points)) - expected) < 1e-5


def test_scores_of_samples_agree_on_tensors_and_arrays():
    labels, probs, _ = made_up(count=40)
    logits = np.random.default_rng(0).normal(size=probs.shape)
    soft = np.eye(4)[labels] * 0.9 + 0.025
    for losses in (log_losses, brier_losses):
        for outputs, from_logits in ((probs, False), (logits, True)):
            for truth, dtype in ((labels, "int32"), (soft, "float32")):
                expected = losses(truth, outputs, from_logits=from_logits)
                assert expected.shape == labels.shape
                values = losses(
                    ops.convert_to_tensor(truth.astype(dtype)),
                    ops.convert_to_tensor(outputs.astype("float32")),
                    from_logits=from_logits,
                )
                np.testing.assert_allclose(
                    ops.convert_to_numpy(values), expected, rtol=1e-5, atol=1e-6
                )


# Confidences and proper scores.


def test_confidences_equal_a_loop():
    labels, probs, weight = made_up()
    total, wrong, right = [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for label, p, w in zip(labels, probs, weight, strict=True):
        c = p.max()
        for sums, here, value in (
            (total, True, c),
            (wrong, p.argmax() != label, c),
            (right, p.argmax() == label, 1 - c),
        ):
            sums[0] += w * here * value
            sums[1] += w * here
    for function, sums in (
        (mean_confidence, total),
        (overconfidence, wrong),
        (underconfidence, right),
    ):
        same(function(labels, probs, sample_weight=weight), sums[0] / sums[1])


def test_overconfidence_of_nothing_wrong_is_0(goldens):
    assert overconfidence(*metric_case(goldens, "allcorrect")) == 0
    assert underconfidence(*metric_case(goldens, "allwrong")) == 0


def test_objectness_deviation_leaves_out_the_ignored_class():
    probs = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]
    same(objectness_deviation([0, 1, 0], probs, [0.9, 0.5, 0.3]), 0.2)
    for labels in ([0, 7, 0], [[0], [7], [0]]):
        value = objectness_deviation(
            labels, probs, [0.9, 99.0, 0.3], ignore_class=7
        )
        same(value, 0.15)
    value = objectness_deviation(
        [0, 1, 0], probs, [0.9, 0.5, 0.3], sample_weight=[1, 1, 0]
    )
    same(value, 0.15)


def test_brier_score_equals_a_loop():
    labels, probs, weight = made_up()
    expected = np.average(
        [
            sum((p[k] - (k == y)) ** 2 for k in range(4))
            for y, p in zip(labels, probs, strict=True)
        ],
        weights=weight,
    )
    same(brier_score(labels, probs, sample_weight=weight), expected)
    one_hot = np.eye(4)[labels]
    same(brier_score(one_hot, probs, sample_weight=weight), expected)
    # Of two classes it counts both.
    same(brier_score([1], [[0.7]]), 2 * 0.3**2)


def test_decomposition_of_one_bin_per_confidence_is_the_score():
    rng = np.random.default_rng(0)
    confidence = rng.choice([0.55, 0.65, 0.75, 0.85, 0.95], size=400)
    probs = np.stack([confidence, 1 - confidence], axis=-1)
    labels = (rng.uniform(size=400) > confidence**2).astype(int)
    parts = calibration_decomposition(labels, probs, num_bins=10)
    same(sum(parts), brier_score(labels, probs) / 2)
    parts = calibration_decomposition(labels, probs, score="nll", num_bins=10)
    same(sum(parts), nll(labels, probs))


# Images.


def test_images_count_by_their_pixels():
    labels, probs, _ = made_up(count=60)
    labels, probs = labels.reshape(3, 4, 5), probs.reshape(3, 4, 5, 4)
    labels[0, :, :2] = 255
    labels[1] = 255
    values, counts = [], []
    for y, p in zip(labels, probs, strict=True):
        keep = (y != 255) & (y != 2)
        if keep.any():
            values.append(ece(y[keep], p[keep], num_bins=5))
            counts.append(keep.sum())
    assert len(values) == 2
    value = per_image(
        ece, labels, probs, background=2, ignore_class=255, num_bins=5
    )
    same(value, np.average(values, weights=counts))
    pooled = ece(labels, probs, ignore_class=255)
    assert per_image(ece, labels, probs, ignore_class=255) >= pooled


def test_wrong_arguments_are_told():
    labels, probs, weight = made_up(count=20)
    for function in (ece, mce, rmsce, classwise_ece, overconfidence_error):
        with pytest.raises(ValueError, match="`closed` must be one of"):
            function(labels, probs, closed="both")
        with pytest.raises(ValueError, match="`num_bins` must be >= 1"):
            function(labels, probs, num_bins=0)
    for options, message in (
        ({"edges": "even"}, "`edges` must be one of"),
        ({"classes": "some"}, "`classes` must be one of"),
        ({"threshold": 1.5}, "`threshold` must be <= 1"),
        ({"edges": "mass", "closed": "left"}, "`closed` needs `edges="),
        ({"edges": "rank", "sample_weight": weight}, "`sample_weight` needs"),
    ):
        with pytest.raises(ValueError, match=message):
            classwise_ece(labels, probs, **options)
    with pytest.raises(ValueError, match="`norm` must be one of"):
        ece(labels, probs, norm="l3")
    with pytest.raises(ValueError, match="`score` must be one of"):
        calibration_decomposition(labels, probs, score="auc")
    with pytest.raises(ValueError, match="`objectness` must have the shape"):
        objectness_deviation(labels, probs, [0.5])
    with pytest.raises(ValueError, match="`y_true` must hold an objectness"):
        objectness_deviation(labels, probs, np.full(20, 1.5))
    with pytest.raises(ValueError, match="`labels` must be class ids"):
        per_image(ece, labels[:-1].reshape(1, -1), probs[None])
    with pytest.raises(ValueError, match="a class that counts"):
        per_image(ece, np.zeros((1, 20), int), probs[None], background=0)
    with pytest.raises(TypeError, match="pixels count alike"):
        per_image(ece, labels[None], probs[None], sample_weight=weight[None])
