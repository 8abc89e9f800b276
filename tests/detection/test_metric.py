"""Streamed errors of detections are those of all detections at once."""

import re

import keras
import numpy as np
import pytest
from scored_boxes import SIZE, images, padded, records

import keras_calib as kc

CASES = {
    "D-ECE": (
        kc.detection.DetectionECE,
        {},
        lambda: kc.detection.detection_ece(records()),
    ),
    "D-ECE of places": (
        kc.detection.DetectionECE,
        {
            "num_bins": (8, 5, 4),
            "features": ("center_x", "height"),
            "image_shape": SIZE,
            "num_classes": 4,
            "average": "macro",
        },
        lambda: kc.detection.detection_ece(
            records(),
            num_bins=(8, 5, 4),
            features=("center_x", "height"),
            average="macro",
        ),
    ),
    "LaECE": (
        kc.detection.LocalizationAwareECE,
        {"num_classes": 5},
        lambda: kc.detection.localization_aware_ece(records(0.1)),
    ),
    "LaECE of all": (
        kc.detection.LocalizationAwareECE,
        {"num_classes": None, "average": "pooled", "min_overlap": 0.0},
        lambda: kc.detection.localization_aware_ece(
            records(0.0), average="pooled"
        ),
    ),
}


def _streamed(name, parts):
    cls, options, _ = CASES[name]
    # JAX has no float64 by default.
    dtype = "float32" if keras.backend.backend() == "jax" else "float64"
    metrics = [cls(**options, dtype=dtype) for _ in parts]
    for metric, part in zip(metrics, parts, strict=True):
        metric.update_state(*part)
    metrics[0].merge_state(metrics[1:])
    return metrics[0]


def _parts(*ends):
    true, found = images("true"), images("found")
    ends = (0, *ends, len(true))
    return [
        (true[a:b], found[a:b])
        for a, b in zip(ends[:-1], ends[1:], strict=True)
    ]


@pytest.mark.parametrize("name", CASES)
def test_streams_give_the_exact_error_and_interval(name):
    metric, exact = _streamed(name, _parts(1, 30)), CASES[name][2]()
    value = keras.ops.convert_to_numpy(metric.result())
    rtol = 1e-9 if value.dtype == "float64" else 1e-6
    np.testing.assert_allclose(value, exact.value, rtol=rtol)
    ends = exact.low, exact.high
    np.testing.assert_allclose(metric.interval(), ends, rtol=1e-6, atol=1e-9)
    if metric.num_classes:
        found = metric.by_class()
        assert found.keys() == exact.by_class.keys()
        np.testing.assert_allclose(
            [*found.values()], [*exact.by_class.values()], rtol=1e-8
        )


@pytest.mark.parametrize("name", CASES)
def test_splits_and_orders_give_the_same_state(name):
    one, other = (
        _streamed(name, parts).state_dict()
        for parts in (_parts(), _parts(7, 20, 21)[::-1])
    )
    np.testing.assert_array_equal(one["sums"], other["sums"])


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_made_anew_from_their_configuration(name):
    cls, options, _ = CASES[name]
    metric = cls(**options)
    assert float(metric.result()) == 0.0
    assert metric.interval() == (0.0, 1.0)
    made = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert made.get_config() == metric.get_config()


def test_padded_tensors_are_read():
    true, found = padded(images("true"), 9), padded(images("found"), 40)
    true["crowd"] = true["crowd"] > 0
    del true["num_detections"]
    tensors = [
        {k: keras.ops.convert_to_tensor(x) for k, x in boxes.items()}
        for boxes in (true, found)
    ]
    metric = kc.detection.DetectionECE()
    metric.update_state(*tensors)
    arrays = [
        {k: keras.ops.convert_to_numpy(x) for k, x in boxes.items()}
        for boxes in tensors
    ]
    exact = kc.detection.detection_ece(kc.detection.match(*arrays))
    np.testing.assert_allclose(float(metric.result()), exact.value, rtol=1e-6)


REFUSED = {
    "weights": (
        lambda: kc.detection.DetectionECE().update_state([], [], [1.0]),
        "`sample_weight` must be None",
    ),
    "classes": (
        lambda: (
            _streamed("LaECE", _parts()).__class__(2).update_records(records())
        ),
        "`labels` of detections must be < `num_classes`",
    ),
    "macro": (
        lambda: kc.detection.DetectionECE(average="macro"),
        "`num_classes` must be given",
    ),
    "bins": (
        lambda: kc.detection.DetectionECE((5, 5)),
        "`num_bins` must have a number",
    ),
    "feature": (
        lambda: kc.detection.DetectionECE(features=["area"]),
        "`features` must be one of",
    ),
    "size": (
        lambda: kc.detection.DetectionECE(features=["width"]).update_state(
            *_parts()[0]
        ),
        "pass `image_shape`",
    ),
    "records": (
        lambda: kc.detection.DetectionECE().update_records([0.5]),
        "detection.match",
    ),
    "by class": (
        lambda: kc.detection.DetectionECE().by_class(),
        "errors by class",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_streamed_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
