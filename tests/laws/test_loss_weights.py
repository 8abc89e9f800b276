"""Laws of the base of losses: what weights, ignored labels and masks mean."""

import numpy as np
import pytest
from cases import array
from keras import ops
from loss_batches import REPRESENTATIVES

from keras_calib.backend.gradients import value_and_grad

portable = pytest.mark.portable


# It is tried on one loss of each kind.


def dense():
    """Logits and labels of images, with two labels to be ignored."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4, 5)).astype("float32") * 4
    labels = rng.integers(5, size=(2, 3, 4))
    return labels, logits, rng.uniform(0.5, 2, size=labels.shape)


def test_reductions_of_weighted_pixels_are_those_of_kept_pixels():
    labels, logits, weights = dense()
    labels[0, 0, 1] = labels[1, 2, 3] = -100
    kept = labels != -100
    logits[~kept] = np.nan
    for case in REPRESENTATIVES:
        y = case.labels(labels)
        for weight, reduction in (
            (None, "mean_with_sample_weight"),
            (weights, "mean_with_sample_weight"),
            (weights, "sum"),
            (weights, "sum_over_batch_size"),
        ):
            of_kept = None if weight is None else weight[kept]
            plain = case.make(reduction=reduction)
            loss = case.make(reduction=reduction, ignore_class=-100)
            value, gradient = value_and_grad(
                lambda z, f=loss, y=y, w=weight: f(y, z, w), logits
            )
            expected, slopes = value_and_grad(
                lambda z, f=plain, y=y, w=of_kept: f(y[kept], z, w),
                logits[kept],
            )
            np.testing.assert_allclose(
                float(value), float(expected), rtol=1e-6, err_msg=str(case)
            )
            gradient = array(gradient)
            np.testing.assert_allclose(
                gradient[kept], array(slopes), atol=1e-6, err_msg=str(case)
            )
            assert (gradient[~kept] == 0).all(), case


def test_a_weight_of_zero_is_a_dropped_row_in_each_reduction():
    labels, logits, _ = dense()
    labels, logits = labels.ravel(), logits.reshape(-1, 5)
    weight = np.random.default_rng(3).integers(0, 2, size=len(labels))
    kept = weight > 0
    for case in REPRESENTATIVES:
        y = case.labels(labels)
        for reduction in ("sum", "mean_with_sample_weight", "none"):
            loss = case.make(reduction=reduction)
            weighted = array(loss(y, logits, weight))
            if reduction == "none":
                assert (weighted[~kept] == 0).all()
                weighted = weighted[kept]
            dropped = array(loss(y[kept], logits[kept]))
            np.testing.assert_allclose(weighted, dropped, rtol=1e-6)


@portable
def test_one_weight_per_image_spreads_over_its_pixels():
    labels, logits, _ = dense()
    weight = np.array([0.5, 2.0], "float32")
    spread = np.broadcast_to(weight[:, None, None], labels.shape)
    for case in REPRESENTATIVES:
        y = case.labels(labels)
        for reduction in (
            "sum_over_batch_size",
            "sum",
            "mean_with_sample_weight",
        ):
            loss = case.make(reduction=reduction)
            np.testing.assert_allclose(
                float(loss(y, logits, weight)),
                float(loss(y, logits, spread)),
                rtol=1e-6,
            )


@portable
def test_classes_on_another_axis_agree_with_moved_classes():
    labels, logits, _ = dense()
    moved = np.moveaxis(logits, -1, 1)
    for case in REPRESENTATIVES:
        expected = float(case.make()(case.labels(labels), logits))
        loss = case.make(axis=1)
        value = float(loss(case.labels(labels), moved))
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        if not case.objectness:
            value = float(loss(labels[:, None], moved))
            np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_binary_outputs_are_the_second_of_two_classes():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(16, 1)).astype("float32") * 3
    ids = rng.integers(2, size=16)
    two = np.concatenate([np.zeros_like(z), z], axis=-1)
    for case in REPRESENTATIVES:
        loss = case.make()
        expected = float(loss(case.labels(ids), two))
        forms = [case.labels(ids)]
        if not case.objectness:
            forms += [ids[:, None], ids[:, None].astype("float32")]
        for form in forms:
            value = float(loss(form, ops.convert_to_tensor(z)))
            np.testing.assert_allclose(value, expected, rtol=1e-6)
