"""Detections with values of the released code of several authors."""

from functools import cache

import numpy as np
from paths import TESTS

import keras_calib as kc

SIZE = 480, 640


@cache
def stored():
    """Arrays of tests/data/detections.npz."""
    with np.load(TESTS / "data" / "detections.npz") as arrays:
        return dict(arrays)


def images(kind, crowds=True):
    """The `"true"` or `"found"` boxes of 60 images, a dict for each."""
    arrays = {
        name.removeprefix(f"{kind}/"): x
        for name, x in stored().items()
        if name.startswith(f"{kind}/")
    }
    image = arrays.pop("image")
    kept = np.ones(len(image), bool) if crowds else ~arrays["crowd"]
    return [
        {k: x[(image == i) & kept] for k, x in arrays.items()}
        for i in range(60)
    ]


@cache
def records(min_overlap=0.5, crowds=True):
    return kc.detection.match(
        images("true", crowds),
        images("found"),
        min_overlap=min_overlap,
        image_shape=SIZE,
    )


def padded(boxes, width):
    """A list of dicts as KerasHub's detectors return it."""
    result = {"num_detections": np.array([len(x["labels"]) for x in boxes])}
    for name in boxes[0]:
        shape = (len(boxes), width, *boxes[0][name].shape[1:])
        result[name] = np.full(shape, -1.0)
        for i, row in enumerate(boxes):
            result[name][i, : len(row[name])] = row[name]
    result["labels"] = result["labels"].astype("int32")
    return result


def made(confidence, right, image, *, label=0, num_images, most):
    """Boxes `(n,)`, whose overlap is 1 if they are right."""
    return kc.detection.BoxPredictions(
        right,
        confidence,
        classes=np.broadcast_to(label, confidence.shape),
        images=image,
        overlap=right * 1.0,
        true_boxes=np.bincount(image[right], minlength=num_images),
        max_detections=most,
    )


def changed(found, **columns):
    """The same boxes with other columns."""
    given = {
        **{x: getattr(found, x) for x in ("correct", "confidence")},
        **{x: getattr(found, x) for x in ("overlap", "features")},
        "classes": found.groups["class"],
        "images": found.units,
        "true_boxes": np.ones(found.num_images),
        "max_detections": found.max_detections,
    }
    return kc.detection.BoxPredictions(**given | columns)
