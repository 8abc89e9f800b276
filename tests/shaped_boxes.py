"""Public callables of boxes of images, for the battery."""

import functools

import numpy as np
from odd_inputs import INF, NAN, _first
from shaped_case import Shaped

import keras_calib as kc

# Boxes of four images, in both forms.
_IMAGES = 4
_CORNERS = np.tile(
    np.array([[0, 0, 10, 10], [20, 0, 30, 10], [5, 5, 9, 9]], "float32"),
    (_IMAGES, 1, 1),
)
_IDS = np.tile(np.array([0, 1, -1]), (_IMAGES, 1))
_FOUND = _CORNERS.copy()
_FOUND[2, 0] += 50
_SCORES = np.linspace(0.9, 0.3, 3 * _IMAGES).astype("float32").reshape(-1, 3)
_BOXES = {
    "labels.boxes": _CORNERS,
    "labels.labels": _IDS,
    "detections.boxes": _FOUND,
    "detections.labels": np.abs(_IDS),
    "detections.confidence": _SCORES,
}
_OF_BOXES = {
    "infinite": lambda b: _first(b, INF),
    "NaN": lambda b: _first(b, NAN),
    "three corners": lambda b: b[..., :3],
    "right of left": lambda b: b[..., [2, 3, 0, 1]],
    "of one image": lambda b: b[0],
    "missing": "missing",
}
_OF_IDS = {
    "half an id": lambda y: y + 0.5,
    "NaN": lambda y: _first(y, NAN),
    "inf": lambda y: _first(y, INF),
    "a box too few": lambda y: y[:, :-1],
    "missing": "missing",
}
_OF_SCORES = {
    "percent": lambda p: 100 * p,
    "NaN": lambda p: _first(p, NAN),
    "logits": lambda p: np.log(p),
    "a box too few": lambda p: p[:, :-1],
    "missing": "missing",
}
_ODD_BOXES = {
    "labels.boxes": _OF_BOXES,
    "labels.labels": _OF_IDS,
    "detections.boxes": _OF_BOXES,
    "detections.labels": _OF_IDS,
    "detections.confidence": _OF_SCORES,
}


def _nested(arrays):
    """Dicts of entries with a dot; `"missing"` leaves one out."""
    found = {}
    for name, array in arrays.items():
        first, _, key = name.partition(".")
        part = found.setdefault(first, {})
        if not (isinstance(array, str) and array == "missing"):
            part[key] = array
    return found


def _image(boxes, i):
    """The boxes of one image; what has no images is of each."""
    rows = {}
    for key, value in boxes.items():
        try:
            rows[key] = value[i]
        except (TypeError, KeyError, IndexError):
            rows[key] = value
    return rows


def _of_boxes(function, as_list=False, every=1):
    def call(**arrays):
        given = _nested(arrays)
        if as_list:
            given = {
                k: [_image(v, i) for i in range(_IMAGES)]
                for k, v in given.items()
            }
        return function(**given)

    # Lists of too many or too few entries have four images all the same.
    fine = [
        f"{name} {kind}"
        for name in _BOXES
        for kind in ("too long", "too short", "objects", "of one image")
    ]
    return Shaped(
        call, _BOXES, _ODD_BOXES, tuple(fine) if as_list else (), every=every
    )


def _matched(**boxes):
    p = kc.detection.match(**boxes)
    return p.correct, p.confidence, p.overlap


def _detection_metric(make):
    def call(labels, detections):
        metric = make()
        metric.update_state(labels, detections)
        return metric.result()

    return call


@functools.cache
def _records():
    return kc.detection.match(**_nested(_BOXES))


def _of_records(function):
    """What takes matched boxes alone."""
    none = kc.detection.match(**_nested(_BOXES), min_confidence=1.0)
    odd = {"no detection": none, "a tuple": lambda p: (p.correct, p.confidence)}
    kinds = {
        "labels": _IDS,
        "strings": "boxes",
        "None": None,
        "boxes": _nested(_BOXES)["detections"],
    }
    return Shaped(
        function, {"predictions": _records()}, {"predictions": odd | kinds}
    )


def _scaled(**arrays):
    layer = kc.detection.DetectionScaling(
        2, coefficients=[[0.5, 0.0], [1.0, 0.1]]
    )
    return layer(_nested(arrays)["found"])


def _scaling(predictions):
    return (
        kc.detection.DetectionScaling(2, min_count=1)
        .fit(predictions)
        .coefficients
    )


BOXES = {
    "match": _of_boxes(_matched),
    "match, list": _of_boxes(_matched, as_list=True),
    "DetectionECE": _of_boxes(
        _detection_metric(kc.detection.DetectionECE), every=4
    ),
    "LocalizationAwareECE": _of_boxes(
        _detection_metric(lambda: kc.detection.LocalizationAwareECE(2)), every=4
    ),
    "detection_ece": _of_records(kc.detection.detection_ece),
    "localization_aware_ece": _of_records(kc.detection.localization_aware_ece),
    "adaptive_localization_error": _of_records(
        kc.detection.adaptive_localization_error
    ),
    "choose_detection_threshold": _of_records(
        lambda predictions: kc.detection.choose_detection_threshold(
            predictions,
            precision=0.01,
            delta=0.9,
            max_boxes=1,
            thresholds=[0.5],
        )
    ),
    "DetectionScaling": _of_records(_scaling),
    "DetectionScaling, call": Shaped(
        _scaled,
        {"found.confidence": _SCORES, "found.labels": _IDS},
        {"found.confidence": _OF_SCORES, "found.labels": _OF_IDS},
    ),
}
