"""Boxes are calibrated, kept or left out as their threshold says."""

import json
import re

import keras
import numpy as np
import pytest
from cases import array
from scored_boxes import images, padded, records

import keras_calib as kc


def _numbers(found):
    return {k: keras.ops.convert_to_numpy(x) for k, x in found.items()}


def _expected(found, threshold, most):
    """Rows (image, label, confidence, box) that are kept, in order."""
    rows = []
    for i, number in enumerate(found["num_detections"]):
        own = np.argsort(-found["confidence"][i, :number], kind="stable")
        seen = dict.fromkeys(range(9), 0)
        for j in own:
            label = int(found["labels"][i, j])
            group = label if np.ndim(threshold) else 0
            seen[group] += 1
            cut = np.append(threshold, np.inf)[group]
            if seen[group] <= most and found["confidence"][i, j] >= cut:
                place = found["confidence"][i, j], *found["boxes"][i, j]
                rows.append([i, label, *place])
    return np.array(rows)


@pytest.mark.portable
def test_a_box_without_finite_sides_is_not_kept():
    boxes = np.ones((1, 3, 4), "float32")
    boxes[0, 0, 1], boxes[0, 1, 3] = np.nan, np.inf
    found = {"boxes": boxes, "labels": [[0] * 3], "confidence": [[0.9] * 3]}
    kept = _numbers(kc.detection.DetectionSelector(threshold=0.5)(found))
    assert kept["num_detections"].tolist() == [1]
    assert np.isfinite(kept["boxes"]).all()


@pytest.mark.portable
@pytest.mark.parametrize("threshold", [0.4, [0.3, np.inf, 0.0]])
def test_kept_boxes_come_first_and_the_others_are_padding(threshold):
    found = padded(images("found"), 40)
    found["confidence"] = found["confidence"].astype("float32")
    selector = kc.detection.DetectionSelector(threshold=threshold, max_boxes=3)
    kept = _numbers(selector(found))
    assert kept["labels"].shape == (60, 40)
    inside = np.arange(40) < kept["num_detections"][:, None]
    for name in ("labels", "confidence", "boxes"):
        assert np.all(kept[name][~inside] == -1)
    rows = _expected(found, threshold, 3)
    assert 60 < len(rows) < found["num_detections"].sum()
    image, place = np.nonzero(inside)
    got = np.column_stack(
        [
            image,
            kept["labels"][image, place],
            kept["confidence"][image, place],
            kept["boxes"][image, place],
        ]
    )
    if np.ndim(threshold):
        got, rows = (x[np.lexsort(x.T[::-1])] for x in (got, rows))
    np.testing.assert_allclose(got, rows, rtol=1e-6)


def test_a_choice_keeps_the_boxes_that_its_guarantee_is_for():
    found, true = padded(images("found"), 40), images("true", crowds=False)
    scaling = kc.detection.DetectionScaling(4, by_class=False).fit(records())
    scaled = kc.detection.match(true, _numbers(scaling(found)))
    chosen = kc.detection.choose_detection_threshold(
        scaled, precision=0.15, max_boxes=3, thresholds=[0.5, 0.25, 0.1]
    )
    selector = kc.detection.DetectionSelector(scaling, chosen)
    kept = kc.detection.match(true, _numbers(selector(found)))
    assert len(kept.groups["class"]) == round(
        60 * chosen.facts["boxes_per_image"]
    )
    assert kept.correct.mean() == pytest.approx(chosen.facts["precision"])


@pytest.mark.portable
def test_no_box_slips_below_a_threshold_by_rounding():
    # The float32 next to 0.7 is smaller.
    found = {"scores": np.float32([[0.7]]), "classes": np.array([[0]])}
    assert not _numbers(kc.detection.DetectionSelector(threshold=0.7)(found))[
        "num_detections"
    ].any()
    kept = kc.detection.DetectionSelector(threshold=np.float32(0.7))(found)
    assert _numbers(kept)["classes"] == [[0]]


class Decoder(keras.layers.Layer):
    """Detections of anything, as KerasHub's decoders return them."""

    bounding_box_format = "xyxy"
    max_detections = 3

    def call(self, boxes, scores, images=None):
        return {
            "boxes": boxes,
            "confidence": keras.ops.max(scores, axis=-1),
            "labels": keras.ops.cast(keras.ops.argmax(scores, -1), "int32"),
            "num_detections": keras.ops.full(scores.shape[:1], 3, "int32"),
        }


@pytest.mark.portable
def test_decoders_are_saved_and_loaded_with_their_selection(tmp_path):
    scaling = kc.detection.DetectionScaling(2, coefficients=[[1, 0], [0.5, -1]])
    selector = kc.detection.DetectionSelector(
        scaling, [0.3, np.inf], max_boxes=2
    )
    decoder = kc.detection.CalibratedDecoder(Decoder(), selector)
    assert decoder.max_detections == 3
    inputs = keras.Input((3, 4)), keras.Input((3, 2))
    model = keras.Model(inputs, decoder(*inputs))
    model.save(tmp_path / "decoder.keras")
    with keras.saving.custom_object_scope({"Decoder": Decoder}):
        loaded = keras.models.load_model(tmp_path / "decoder.keras")
    rng = np.random.default_rng(0)
    given = [rng.random((5, 3, n)).astype("float32") for n in (4, 2)]
    one, other = (
        {name: array(value) for name, value in x(given).items()}
        for x in (model, loaded)
    )
    assert 0 < one["num_detections"].sum() < 15
    assert set(one["labels"].ravel()) == {-1, 0}
    compiled = loaded.predict_on_batch(given)
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value)
        np.testing.assert_allclose(compiled[name], value, rtol=1e-6)


REFUSED = {
    "calibrator": (
        lambda: kc.detection.DetectionSelector(kc.TemperatureScaling()),
        "must be a DetectionScaling",
    ),
    "unfitted": (
        lambda: kc.detection.DetectionSelector(
            kc.detection.DetectionScaling(2)
        ),
        "must be fitted",
    ),
    "threshold": (
        lambda: kc.detection.DetectionSelector(threshold=1.5),
        "`threshold` must be a number in [0, 1]",
    ),
    "nan": (
        lambda: kc.detection.DetectionSelector(threshold=[0.5, np.nan]),
        "`threshold` must be a number in [0, 1]",
    ),
    "word": (
        lambda: kc.detection.DetectionSelector(threshold="high"),
        "`threshold`",
    ),
    "boxes": (
        lambda: kc.detection.DetectionSelector(max_boxes=0),
        "`max_boxes` must be >= 1",
    ),
    "array": (
        lambda: kc.detection.DetectionSelector()(np.ones((2, 2))),
        "must be a dict",
    ),
    "labels": (
        lambda: kc.detection.DetectionSelector()(
            {"confidence": np.ones((1, 2))}
        ),
        'as "labels"',
    ),
    "list": (
        lambda: kc.detection.DetectionSelector()(
            [{"confidence": 1, "labels": 0}]
        ),
        "must be a dict",
    ),
    "percent": (
        lambda: kc.detection.DetectionSelector(threshold=50.0),
        "`threshold` must be a number in [0, 1]",
    ),
    "decoder": (
        lambda: kc.detection.CalibratedDecoder("nms"),
        "`decoder` must be",
    ),
    "twice": (
        lambda: kc.detection.CalibratedDecoder(
            kc.detection.CalibratedDecoder(Decoder())
        ),
        "its attribute `decoder`",
    ),
    "selector": (
        lambda: kc.detection.CalibratedDecoder(
            Decoder(), kc.detection.DetectionScaling(2)
        ),
        "DetectionSelector(scaling, threshold)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_selects_no_boxes_is_refused(name):
    call, message = REFUSED[name]
    errors = RuntimeError, TypeError, ValueError
    with pytest.raises(errors, match=re.escape(message)):
        call()


def test_the_boxes_of_a_choice_are_its_own():
    chosen = kc.detection.choose_detection_threshold(
        records(), precision=0.15, max_boxes=3, thresholds=[0.5]
    )
    with pytest.raises(ValueError, match="`max_boxes` must be left out"):
        kc.detection.DetectionSelector(threshold=chosen, max_boxes=5)


def test_facts_of_a_choice_hold_until_its_calibrator_is_fitted_again():
    scaling = kc.detection.DetectionScaling(4, by_class=False).fit(records())
    options = {"precision": 0.1, "max_boxes": 2, "thresholds": [0.5, 0.1]}
    for chosen, group in (
        (kc.detection.choose_detection_threshold(records(), **options), None),
        (
            kc.detection.choose_detection_threshold(
                records(), num_classes=4, **options, delta=0.9
            ),
            0,
        ),
    ):
        selector = kc.detection.DetectionSelector(scaling, chosen)
        np.testing.assert_allclose(selector.threshold, chosen.threshold)
        assert selector.chosen.table(group).threshold.tolist() == [0.5, 0.1]
        assert "max_boxes=2" in repr(selector)
        stored = json.loads(
            json.dumps(keras.saving.serialize_keras_object(selector))
        )
        again = keras.saving.deserialize_keras_object(stored)
        assert again.max_boxes == 2 and again.chosen.delta == chosen.delta
        assert again.chosen.facts["average"] == "boxes"
        np.testing.assert_array_equal(again.threshold, selector.threshold)
        scaling.fit(records())
        with pytest.raises(RuntimeError, match="fitted again"):
            selector(padded(images("found"), 40))
        again(padded(images("found"), 40))
