"""Dicts with keys that nobody reads, or without those that are needed."""

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.predictions.batches import split_index

beam = pytest.importorskip("keras_calib.beam", exc_type=ImportError)

_BOXES = np.array([[[0.0, 0.0, 10.0, 10.0]]])
_TRUE = {"boxes": _BOXES, "labels": np.array([[0]])}
_FOUND = {**_TRUE, "confidence": np.array([[0.5]])}


def _match(true=_TRUE, found=_FOUND):
    return kc.detection.match(true, found, box_format="xyxy")


def _per_image(boxes):
    return [{k: x[0] for k, x in boxes.items() if k != "num_detections"}]


def _update(true=_TRUE, found=_FOUND):
    metric = kc.detection.DetectionECE(box_format="xyxy")
    metric.update_state(true, found)


_METRIC = kc.ECE()
_STATE = _METRIC.state_dict()
_COMBINE = beam.CalibrationCombineFn(include=["ece"])
_TOP1 = beam.CalibrationCombineFn(include=["ece"], top1=True)
# The reader, what it takes, what that may leave out.
READERS = {
    "truth": (lambda x: _match(true=x), _TRUE, ()),
    "detections": (
        lambda x: _match(found=x),
        {**_FOUND, "num_detections": np.array([1])},
        ("num_detections",),
    ),
    "truth by image": (lambda x: _match(_per_image(x)), _TRUE, ()),
    "detections by image": (
        lambda x: _match(found=_per_image(x)),
        _FOUND,
        (),
    ),
    "truth of a metric": (lambda x: _update(true=x), _TRUE, ()),
    "detections of a metric": (lambda x: _update(found=x), _FOUND, ()),
    "row of a log": (
        lambda x: _COMBINE._read(x),
        {"label": 0, "outputs": [0.5, 0.5], "weight": 1.0},
        ("weight",),
    ),
    "top-1 row of a log": (
        lambda x: _TOP1._read(x),
        {"confidence": 0.5, "correct": 1, "weight": 1.0},
        ("weight",),
    ),
    "state": (_METRIC.load_state_dict, _STATE, ()),
    "state to merge": (_METRIC.merge_state, _STATE, ()),
    "labels with an index": (split_index, {"label": [0], "index": [0]}, ()),
}


@pytest.mark.parametrize("name", READERS)
def test_unknown_and_missing_keys_are_refused(name):
    read, whole, optional = READERS[name]
    read(whole)
    for key in optional:
        read({k: x for k, x in whole.items() if k != key})
    bad = [{**whole, key: np.ones((1, 1))} for key in ("weights", "iscrowd")]
    bad += [
        {k: x for k, x in whole.items() if k != key}
        for key in whole
        if key not in optional
    ]
    for given in bad:
        with pytest.raises(ValueError, match="Received: "):
            read(given)


def test_two_names_of_one_thing_are_refused():
    for twice in ({"scores": [[0.5]]}, {"classes": [[0]]}):
        with pytest.raises(ValueError, match="of the boxes as .* once"):
            _match(found={**_FOUND, **twice})
