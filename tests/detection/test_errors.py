"""Detections are matched and measured as the authors' code does it."""

import re

import numpy as np
import pytest
from scored_boxes import SIZE, images, made, padded, records, stored

import keras_calib as kc

OVERLAPS = (0.0, 0.1, 0.5)
ALL = ("center_x", "center_y", "width", "height")
NETCAL = {
    "dece": ((), 10),
    "dece_20": ((), 20),
    "dece_cx": (("center_x",), (10, 6)),
    "dece_all": (ALL, (8, 5, 5, 4, 4)),
}


@pytest.mark.parametrize("least", OVERLAPS)
def test_matches_are_those_of_the_coco_evaluation(least):
    found = records(least)
    for label in range(4):
        own = found.groups["class"] == label
        order = np.argsort(-found.confidence[own], kind="stable")
        expected = stored()[f"detection_calibration/overlap/{least}/{label}"]
        np.testing.assert_allclose(
            found.overlap[own][order], expected, atol=1e-12
        )
    if least:
        np.testing.assert_array_equal(found.correct, found.overlap >= least)


@pytest.mark.parametrize("name", NETCAL)
@pytest.mark.parametrize("min_count", [1, 3])
def test_d_ece_is_that_of_netcal(name, min_count):
    features, num_bins = NETCAL[name]
    found = kc.detection.detection_ece(
        records(),
        num_bins=num_bins,
        features=features,
        min_count=min_count,
        closed="left",
    )
    expected = stored()[f"netcal/{name}/{min_count}"]
    np.testing.assert_allclose(found.value, expected, rtol=1e-9)


@pytest.mark.parametrize("least", OVERLAPS)
def test_errors_are_those_of_detection_calibration(least):
    expected = {
        name: stored()[f"detection_calibration/{name}/{least}"]
        for name in ("dece", "laece", "laace")
    }
    found = {
        "dece": kc.detection.detection_ece(records(least), num_bins=25),
        "laece": kc.detection.localization_aware_ece(records(least)),
        "laace": kc.detection.adaptive_localization_error(
            records(least, crowds=False)
        ),
    }
    for name, error in found.items():
        np.testing.assert_allclose(error.value, expected[name], rtol=1e-9)


@pytest.mark.parametrize("least", [0.1, 0.5])
def test_laece_is_that_of_saod(least):
    found = kc.detection.localization_aware_ece(records(least), closed="left")
    expected = stored()[f"saod/laece/{least}"]
    np.testing.assert_allclose(found.value, expected, rtol=1e-9)
    by_class = stored()[f"saod/laece_by_class/{least}"]
    np.testing.assert_allclose(list(found.by_class.values()), by_class)


def _changed(boxes, name):
    """Boxes `(n, 4)` of left, top, right, bottom in another format."""
    low, high = boxes[:, :2], boxes[:, 2:]
    if name.startswith("rel_"):
        low, high = low / SIZE[::-1], high / SIZE[::-1]
    return {
        "xyxy": np.concatenate([low, high], -1),
        "yxyx": np.concatenate([low[:, ::-1], high[:, ::-1]], -1),
        "xywh": np.concatenate([low, high - low], -1),
        "center_xywh": np.concatenate([0.5 * (low + high), high - low], -1),
    }[name.removeprefix("rel_")]


FORMS = ("xyxy", "yxyx", "xywh", "center_xywh")


@pytest.mark.parametrize("name", [*FORMS, *(f"rel_{name}" for name in FORMS)])
def test_box_formats_and_padding_do_not_change_records(name):
    true, found = (
        [x | {"boxes": _changed(x["boxes"], name)} for x in images(kind)]
        for kind in ("true", "found")
    )
    true, found = padded(true, 9), padded(found, 40)
    del true["num_detections"]
    true["crowd"] = true["crowd"] > 0
    size = None if name.startswith("rel_") else SIZE
    one = kc.detection.match(true, found, box_format=name, image_shape=size)
    assert one.max_detections == 40
    for name in ("confidence", "correct", "units", "overlap", "features"):
        own, other = (getattr(x, name) for x in (one, records()))
        np.testing.assert_allclose(own, other, atol=1e-12)
    np.testing.assert_array_equal(
        *(x.groups["class"] for x in (one, records()))
    )


def test_detectors_that_are_calibrated_lie_within_the_interval():
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(40):
        # All boxes of an image are right or wrong together.
        confidence = rng.uniform(size=80)
        right = rng.uniform(size=80) < confidence
        image = np.arange(80)
        boxes = (np.repeat(x, 12) for x in (confidence, right, image))
        one = made(*boxes, num_images=80, most=100)
        inside.append(kc.detection.detection_ece(one).low == 0.0)
    assert np.mean(inside) > 0.9


TRUE = {"boxes": [[0, 0, 4, 4]], "labels": [0]}
FOUND = TRUE | {"confidence": [0.5]}
REFUSED = {
    "no scores": ([TRUE], [TRUE], {}, "must have the confidence of the boxes"),
    "no class": (
        [{"boxes": [[0, 0, 4, 4]]}],
        [FOUND],
        {},
        "must have the class ids of the boxes",
    ),
    "logits": (
        [TRUE],
        [TRUE | {"scores": [2.0]}],
        {},
        "confidence must lie in [0, 1]",
    ),
    "number": (
        {"boxes": np.zeros((1, 2, 4)), "labels": np.zeros((1, 2))},
        {
            "boxes": np.zeros((1, 2, 4)),
            "labels": np.zeros((1, 2)),
            "confidence": np.zeros((1, 2)),
            "num_detections": np.array([3]),
        },
        {},
        "between 0 and the number of boxes",
    ),
    "nan": (
        [TRUE],
        [FOUND | {"confidence": [np.nan]}],
        {},
        "divide percent by 100",
    ),
    "strings": ([TRUE], [FOUND | {"labels": ["cat"]}], {}, "numbers"),
    "corners": (
        [TRUE],
        [FOUND | {"boxes": [[4, 4, 0, 0]]}],
        {},
        "give the `box_format` that they have",
    ),
    "shape": ([TRUE], [FOUND | {"boxes": [[4, 4, 0]]}], {}, "shape (n, 4)"),
    "images": ([TRUE, TRUE], [FOUND], {}, "must have the same images"),
    "format": ([TRUE], [FOUND], {"box_format": "yx"}, "`box_format`"),
    "size": ([TRUE], [FOUND], {"image_shape": (4, 4, 3)}, "`image_shape`"),
    "table": ([TRUE], np.zeros((1, 4)), {}, "`detections` must be a dict"),
    "part": (
        [TRUE],
        [FOUND | {"confidence": [0.5, 0.5]}],
        {},
        "one value for each box",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_boxes_that_cannot_be_are_refused(name):
    true, found, options, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        kc.detection.match(true, found, **options)


def test_records_that_tell_nothing_are_refused():
    empty = kc.detection.match([TRUE], [FOUND], min_confidence=0.9)
    with pytest.raises(ValueError, match="must have a detection"):
        kc.detection.detection_ece(empty)
    with pytest.raises(TypeError, match="match"):
        kc.detection.localization_aware_ece([0.5])
    plain = kc.detection.match([TRUE], [FOUND])
    with pytest.raises(TypeError, match="must be a list of names"):
        kc.detection.detection_ece(plain, features="width")
    with pytest.raises(TypeError, match="num_bins='10'"):
        kc.detection.detection_ece(plain, num_bins="10")
    with pytest.raises(ValueError, match="image_shape"):
        kc.detection.detection_ece(plain, features=["width"])
