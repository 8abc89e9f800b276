"""Scaling of the confidence of detections, by class."""

import re

import keras
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit
from scored_boxes import changed, records

import keras_calib as kc


def _boxes():
    return {
        "confidence": np.array([[0.9, 0.3, -1.0], [0.2, 1.0, 0.0]], "float32"),
        "labels": np.array([[0, 3, -1], [2, 1, -1]]),
        "boxes": np.zeros((2, 3, 4), "float32"),
    }


def _optimum(method, target, own):
    """(a, b) that minimise the NLL of the detections, in float64."""
    found = records()
    s = logit(found.confidence[own])
    y = (found.overlap if target == "overlap" else found.correct * 1.0)[own]

    def loss(point):
        z = point[0] * s + (point[1] if len(point) > 1 else 0.0)
        return np.mean(np.logaddexp(0.0, z) - y * z)

    start = np.zeros(2 if method == "platt" else 1)
    best = minimize(loss, start, tol=1e-12).x
    return np.append(best, np.zeros(2 - len(best)))


@pytest.mark.parametrize("method", ["platt", "temperature"])
@pytest.mark.parametrize("target", ["correct", "overlap"])
def test_fits_are_the_optimum_of_each_class(method, target):
    scaling = kc.detection.DetectionScaling(6, method=method, target=target)
    table = scaling.fit(records()).coefficients
    everything = _optimum(method, target, slice(None))
    for k in range(6):
        expected = (
            _optimum(method, target, records().groups["class"] == k)
            if k < 4
            else everything
        )
        if expected[0] <= 0.0 or (
            method == "temperature" and expected[0] < 0.02
        ):
            continue
        np.testing.assert_allclose(table[k], expected, rtol=2e-4, atol=2e-4)


def test_confidence_follows_the_formula_and_padding_stays():
    table = np.array([[0.5, 1.0], [1.0, 0.0], [2.0, -1.0], [0.1, 0.2]])
    scaling = kc.detection.DetectionScaling(4, coefficients=table)
    found = scaling(_boxes())
    expected = _boxes()["confidence"]
    for i, j in ((0, 0), (0, 1), (1, 0)):
        a, b = table[_boxes()["labels"][i, j]]
        expected[i, j] = expit(a * logit(float(expected[i, j])) + b)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(found["confidence"]), expected, atol=1e-6
    )
    assert set(found) == set(_boxes())
    assert repr(scaling) == "DetectionScaling(coefficients.shape=(4, 2))"
    assert (
        repr(kc.detection.DetectionScaling(4)) == "DetectionScaling(not fitted)"
    )


def test_layers_are_saved_and_loaded(tmp_path):
    inputs = {
        "confidence": keras.Input((3,), name="confidence"),
        "labels": keras.Input((3,), dtype="int32", name="labels"),
    }
    scaling = kc.detection.DetectionScaling(4).fit(records())
    model = keras.Model(inputs, scaling(inputs))
    boxes = {name: _boxes()[name] for name in inputs}
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(
        keras.tree.flatten(model.predict_on_batch(boxes)),
        keras.tree.flatten(loaded.predict_on_batch(boxes)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_scaling_lowers_the_d_ece_of_its_own_detections():
    found = records()
    scaling = kc.detection.DetectionScaling(4, by_class=False).fit(found)
    after = scaling(
        {"confidence": found.confidence, "labels": found.groups["class"]}
    )
    after = keras.ops.convert_to_numpy(after["confidence"])
    after = changed(found, confidence=after.astype("float64"))
    assert (
        kc.detection.detection_ece(after).value
        < kc.detection.detection_ece(found).value / 2
    )


REFUSED = {
    "unfitted": (
        lambda: kc.detection.DetectionScaling(4)(_boxes()),
        "must be fitted",
    ),
    "classes": (
        lambda: kc.detection.DetectionScaling(2).fit(records()),
        "must be < `num_classes`",
    ),
    "records": (
        lambda: kc.detection.DetectionScaling(2).fit([1]),
        "detection.match",
    ),
    "all right": (
        lambda: kc.detection.DetectionScaling(4).fit(
            changed(records(), correct=np.ones(len(records().groups["class"])))
        ),
        "right detections and wrong ones",
    ),
    "unknown class": (
        lambda: kc.detection.DetectionScaling(3, coefficients=[[1, 0]] * 3)(
            _boxes()
        ),
        "`labels` of detections must be whole numbers < `num_classes`",
    ),
    "array": (
        lambda: kc.detection.DetectionScaling(1, coefficients=[[1, 0]])(
            np.ones((1, 2))
        ),
        "must be a dict",
    ),
    "list": (
        lambda: kc.detection.DetectionScaling(1, coefficients=[[1, 0]])(
            [_boxes()]
        ),
        "must be a dict",
    ),
    "strings": (
        lambda: kc.detection.DetectionScaling(1, coefficients=[[1, 0]])(
            _boxes() | {"labels": [["cat"]]}
        ),
        "map names to class ids",
    ),
    "shapes": (
        lambda: kc.detection.DetectionScaling(1, coefficients=[[1, 0]])(
            _boxes() | {"labels": np.zeros((2, 2))}
        ),
        "one confidence and one class id",
    ),
    "nan": (
        lambda: kc.detection.DetectionScaling(1, coefficients=[[np.nan, 0]]),
        "must be finite",
    ),
    "labels": (
        lambda: kc.detection.DetectionScaling(1, coefficients=[[1, 0]])(
            {"confidence": np.ones((1, 2))}
        ),
        'as "labels"',
    ),
    "table": (
        lambda: kc.detection.DetectionScaling(2, coefficients=[[1, 0]]),
        "(num_classes, 2)",
    ),
    "method": (
        lambda: kc.detection.DetectionScaling(2, method="beta"),
        "`method` must be one of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_scaled_is_refused(name):
    call, message = REFUSED[name]
    errors = RuntimeError, TypeError, ValueError
    with pytest.raises(errors, match=re.escape(message)):
        call()


def test_confidence_that_falls_where_boxes_are_right_is_warned_of():
    found = records()
    found = changed(found, confidence=1.0 - found.confidence)
    with pytest.warns(RuntimeWarning, match="`box_format` and the class ids"):
        kc.detection.DetectionScaling(4).fit(found)
