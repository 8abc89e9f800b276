"""Proper scores, confidences and deviations of whole data sets."""

import numpy as np
import pytest
from made_up_probs import made_up, same

from keras_calib import BrierScore
from keras_calib.functional.calibration_errors import ece, mce, rmsce
from keras_calib.functional.classwise import classwise_ece
from keras_calib.functional.confidence import (
    accuracy,
    mean_confidence,
    objectness_deviation,
    overconfidence,
    overconfidence_error,
    underconfidence,
)
from keras_calib.functional.proper import (
    brier_decomposition,
    brier_score,
    calibration_decomposition,
    nll,
)
from keras_calib.functional.segmentation import per_image


def test_confidences_equal_a_loop():
    labels, probs, weight = made_up()
    total, wrong, right, hits = np.zeros((4, 2)).tolist()
    for label, p, w in zip(labels, probs, weight, strict=True):
        c = p.max()
        for sums, here, value in (
            (total, True, c),
            (wrong, p.argmax() != label, c),
            (right, p.argmax() == label, 1 - c),
            (hits, True, p.argmax() == label),
        ):
            sums[0] += w * here * value
            sums[1] += w * here
    for function, sums in (
        (mean_confidence, total),
        (overconfidence, wrong),
        (underconfidence, right),
        (accuracy, hits),
    ):
        same(function(labels, probs, sample_weight=weight), sums[0] / sums[1])


def test_overconfidence_of_nothing_wrong_is_0(goldens):
    assert overconfidence(*metric_case(goldens, "allcorrect")) == 0
    assert underconfidence(*metric_case(goldens, "allwrong")) == 0


def metric_case(goldens, case):
    return goldens[f"in/m_{case}/labels"], goldens[f"in/m_{case}/probs"]


def test_objectness_deviation_leaves_out_the_ignored_class():
    probs = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]
    same(
        objectness_deviation([0, 1, 0], probs, objectness=[0.9, 0.5, 0.3]), 0.2
    )
    for labels in ([0, 7, 0], [[0], [7], [0]]):
        value = objectness_deviation(
            labels, probs, objectness=[0.9, 99.0, 0.3], ignore_class=7
        )
        same(value, 0.15)
    value = objectness_deviation(
        [0, 1, 0], probs, objectness=[0.9, 0.5, 0.3], sample_weight=[1, 1, 0]
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
    same(parts.calibration + parts.refinement, brier_score(labels, probs) / 2)
    parts = calibration_decomposition(labels, probs, score="nll", num_bins=10)
    same(parts.calibration + parts.refinement, nll(labels, probs))


def loop_parts(truth, probs, weight, num_bins):
    """Parts of the Brier score, with the terms within bins as they stand."""
    weight, parts = weight / weight.sum(), np.zeros(5)
    for y, p in zip(truth.T, probs.T, strict=True):
        base = weight @ y
        parts[2] += weight @ (y - base) ** 2
        index = np.maximum(np.ceil(p * num_bins - 1e-12).astype(int) - 1, 0)
        for b in range(num_bins):
            w = weight * (index == b)
            if not (total := w.sum()):
                continue
            mean_p, mean_y = w @ p / total, w @ y / total
            covariance = w @ ((p - mean_p) * (y - mean_y))
            parts[0] += total * (mean_p - mean_y) ** 2
            parts[1] += total * (mean_y - base) ** 2
            parts[3] += w @ (p - mean_p) ** 2
            parts[4] += 2 * covariance
    return parts


@pytest.mark.parametrize("kind", ["ids", "soft"])
def test_parts_of_the_brier_score_are_those_of_a_loop(kind):
    labels, probs, weight = made_up()
    truth = np.eye(4)[labels]
    if kind == "soft":
        truth = 0.7 * truth + 0.3 * truth[::-1]
    given = labels if kind == "ids" else truth
    for some in (None, weight):
        each = np.ones(len(labels)) if some is None else some
        found = brier_decomposition(
            given, probs, num_bins=5, sample_weight=some
        )
        parts = [*vars(found).values()]
        wanted = loop_parts(truth, probs, each, 5)
        np.testing.assert_allclose(parts, wanted, atol=1e-12)
        score = brier_score(given, probs, sample_weight=some)
        same([1, -1, 1, 1, -1] @ np.array(parts), score)
        same(found.within_bins, parts[3] - parts[4])


def test_streamed_parts_of_the_brier_score_are_the_exact_ones():
    labels, probs, weight = made_up()
    probs = probs.astype("float32")
    for some in (None, weight):
        metric = BrierScore(num_classes=4, num_bins=5)
        for rows in (slice(100), slice(100, None)):
            part = None if some is None else some[rows]
            metric.update_state(labels[rows], probs[rows], part)
        exact = brier_decomposition(
            labels, probs, num_bins=5, sample_weight=some
        )
        found = [*vars(metric.murphy()).values()]
        wanted = [*vars(exact).values()]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        total = [1, -1, 1, 1, -1] @ np.array(found)
        # The result is rounded to float32.
        assert total == pytest.approx(float(metric.result()), rel=6e-8)
    with pytest.raises(ValueError, match="`num_classes` must be given"):
        BrierScore().murphy()
    with pytest.raises(ValueError, match="`num_classes` must be >= 2"):
        BrierScore(num_classes=1)
    with pytest.raises(ValueError, match="`num_classes` must be the number"):
        BrierScore(num_classes=3).update_state(labels, probs)


def test_sure_and_wrong_is_finite():
    labels, probs = [0, 1, 1], [[1.0, 0.0]] * 3
    parts = calibration_decomposition(labels, probs, score="nll")
    # The forecast of what happened is clipped relative to its share.
    same(parts.calibration + parts.refinement, -2 / 3 * np.log(2 / 3 * 1e-37))
    assert np.isfinite([parts.calibration, parts.refinement]).all()
    same(mce(labels, probs), 2 / 3)
    same(mce([0, 0], [[1.0, 0.0]] * 2), 0)


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
        objectness_deviation(labels, probs, objectness=[0.5])
    with pytest.raises(ValueError, match="`y_true` must hold an objectness"):
        objectness_deviation(labels, probs, objectness=np.full(20, 1.5))
    with pytest.raises(ValueError, match="`labels` must be class ids"):
        per_image(ece, labels[:-1].reshape(1, -1), probs[None])
    with pytest.raises(ValueError, match="a class that is neither ignored"):
        per_image(ece, np.zeros((1, 20), int), probs[None], background=0)
    with pytest.raises(TypeError, match="pixels have equal weight"):
        per_image(ece, labels[None], probs[None], sample_weight=weight[None])
