"""Detections and true boxes of images, in the forms that detectors return.

All forms become arrays padded to one number of boxes: a dict of padded arrays,
as KerasHub's object detectors return it, or a list with a dict for each image.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_in, check_keys
from keras_calib.numerics.arrays import as_array, as_numbers, shape_of

_FORMATS = ("xyxy", "yxyx", "xywh", "center_xywh")
BOX_FORMATS = (*_FORMATS, *(f"rel_{name}" for name in _FORMATS))

_LABELS = ("labels", "classes")
_SCORES = ("confidence", "scores")
# What else truth and detections hold.
_KEYS = {
    False: ("boxes", *_LABELS, "crowd"),
    True: ("boxes", *_LABELS, *_SCORES, "num_detections"),
}


class Boxes(NamedTuple):
    """Boxes of images, padded.

    Attributes:
        corners: Left, top, right and bottom `(images, boxes, 4)`.
        labels: Class ids `(images, boxes)`.
        score: Confidence `(images, boxes)` in [0, 1]; 1 of true boxes.
        crowd: Bool `(images, boxes)`, True for regions of many objects.
        valid: Bool `(images, boxes)`, False for padding.
        most: Most boxes that an image can have; None if nothing says so.
    """

    corners: np.ndarray
    labels: np.ndarray
    score: np.ndarray
    crowd: np.ndarray
    valid: np.ndarray
    most: int | None


def read_boxes(
    boxes: Any, name: str, box_format: str, *, scored: bool
) -> Boxes:
    """Read boxes of images, a dict of padded arrays or a list of dicts.

    They hold `"boxes"`, `"labels"` (or `"classes"`) and, if `scored`, as
    detections are, `"confidence"` (or `"scores"`), and nothing that is not
    read. `name` is that of the argument, for errors.
    """
    check_in("box_format", box_format, BOX_FORMATS)
    by_image = isinstance(boxes, list | tuple)
    if not by_image and not isinstance(boxes, Mapping):
        raise type_error(
            f"`{name}` must be a dict of padded arrays or a list of dicts, "
            "one for each image",
            type=type(boxes).__name__,
        )
    check = name, _KEYS[scored], 3
    columns = _padded(boxes, name, scored) if by_image else _read(boxes, *check)
    given, labels, score, crowd = columns
    shape = labels.shape
    within = np.ones(shape, bool)
    if not by_image and "num_detections" in boxes:
        count = as_array(boxes["num_detections"], f'{name}["num_detections"]')
        count = _fitting(count.reshape(-1), shape[:1], name)
        if not np.all((count >= 0) & (count <= shape[1])):
            raise value_error(
                f'`{name}["num_detections"]` must be between 0 and the number '
                "of boxes",
                smallest=int(count.min()),
                largest=int(count.max()),
                boxes=shape[1],
            )
        within = np.arange(shape[1]) < count[:, None]
    found = Boxes(
        _corners(given, box_format),
        labels,
        score.astype("float64"),
        crowd.astype(bool),
        # Negative labels pad an image.
        within & (labels >= 0),
        None if by_image else shape[1],
    )
    _check_values(name, found, within)
    return found


def read_entries(detections: Any) -> tuple[dict, str, str]:
    """Detections of a call, and the names of their labels and confidence.

    Lists become arrays. Values are not checked, as they may be symbolic.
    """
    if not isinstance(detections, Mapping):
        raise type_error(
            "`detections` must be a dict of padded arrays, such as `predict` "
            "of a detector returns before `match`",
            type=type(detections).__name__,
        )
    found, names = dict(detections), []
    for keys, what in ((_LABELS, "class ids"), (_SCORES, "confidence")):
        array = _key(found, "detections", keys, what, keep_tensors=True)
        names.append(next(key for key in keys if key in found))
        found[names[-1]] = as_numbers(array, f'detections["{names[-1]}"]')
    shapes = [shape_of(found[name]) for name in names]
    if len(shapes[0]) != len(shapes[1]) or any(
        None not in sides and len(sides) > 1
        for sides in map(set, zip(*shapes, strict=True))
    ):
        raise value_error(
            "`detections` must have one confidence and one class id for each "
            "box",
            **dict(zip(names, shapes, strict=True)),
        )
    for name, x in found.items():
        if isinstance(x, list | tuple):
            found[name] = as_array(x, f'detections["{name}"]')
    return found, names[0], names[1]


def relative_sizes(
    box_format: str, image_shape: Any, num_images: int
) -> np.ndarray | None:
    """Width, height, width, height of images `(images or 1, 4)`, or None.

    Boxes divided by them are relative to their image.
    """
    if box_format.startswith("rel_"):
        return np.ones((1, 4))
    if image_shape is None:
        return None
    sizes = as_array(image_shape, "image_shape", "float64")
    if sizes.shape not in ((2,), (num_images, 2)):
        raise value_error(
            "`image_shape` must be (height, width), or have a row of these "
            "for each image",
            images=num_images,
            **{"image_shape.shape": sizes.shape},
        )
    if not np.all(np.isfinite(sizes) & (sizes > 0.0)):
        raise value_error(
            "`image_shape` must be finite and > 0", smallest=sizes.min()
        )
    height, width = sizes.reshape(-1, 2).T
    return np.stack([width, height, width, height], axis=-1)


def _key(
    boxes: Any,
    name: str,
    keys: tuple[str, ...],
    what: str,
    shape: tuple | None = None,
    *,
    keep_tensors: bool = False,
) -> Any:
    """The array of the one of `keys` that is there, of this shape.

    With `keep_tensors`, what a backend computes with stays as it is.
    """
    if not isinstance(boxes, Mapping):
        raise type_error(
            f"`{name}` must hold a dict for each image",
            type=type(boxes).__name__,
        )
    there = [key for key in keys if key in boxes]
    if len(there) != 1:
        once = ", once" if there else ""
        raise value_error(
            f'`{name}` must have the {what} of the boxes as "{keys[0]}"{once}',
            keys=sorted(map(str, boxes)),
        )
    found = boxes[there[0]]
    if keep_tensors and not isinstance(found, np.ndarray | list | tuple):
        return found
    found = as_array(found, f'{name}["{there[0]}"]')
    return found if shape is None else _fitting(found, shape, name)


def _read(
    boxes: Any, name: str, known: tuple[str, ...], axes: int
) -> tuple[np.ndarray, ...]:
    """Coordinates, class ids, confidence and crowds of one image or all.

    Coordinates have so many `axes`; detections are no crowds, and true boxes
    have a confidence of 1.
    """
    given = _key(boxes, name, ("boxes",), "coordinates")
    check_keys(name, boxes, known)
    if axes == 2 and given.size == 0:
        given = given.reshape(0, 4)
    if given.ndim != axes or given.shape[-1] != 4:
        told = f'`{name}["boxes"]` must have shape (images, boxes, 4)'
        if axes == 2:
            told = f'"boxes" of each image in `{name}` must have shape (n, 4)'
        raise value_error(told, shape=given.shape)
    shape = given.shape[:-1]
    labels = _key(boxes, name, _LABELS, "class ids", shape)
    score, crowd = np.ones(shape), np.zeros(shape, bool)
    if _SCORES[0] in known:
        score = _key(boxes, name, _SCORES, "confidence", shape)
    elif "crowd" in boxes:
        crowd = _key(boxes, name, ("crowd",), "crowds", shape)
    return given, labels, score, crowd


def _padded(boxes: Any, name: str, scored: bool) -> list[np.ndarray]:
    """The same of a list with a dict for each image, padded."""
    known = tuple(x for x in _KEYS[scored] if x != "num_detections")
    images = [_read(image, name, known, 2) for image in boxes]
    width = max((len(x[1]) for x in images), default=0)
    tables = [np.zeros((len(boxes), width, 4))]
    tables += [np.full((len(boxes), width), pad) for pad in (-1.0, 0.0, 0.0)]
    for place, image in enumerate(images):
        for table, rows in zip(tables, image, strict=True):
            table[place, : len(rows)] = rows
    return tables


def _fitting(x: np.ndarray, shape: tuple, name: str) -> np.ndarray:
    """An array of numbers with a value for each box."""
    if x.size == 0 and 0 in shape:
        x = np.zeros(shape)
    if x.shape != shape:
        raise value_error(
            f"arrays of `{name}` must have one value for each box",
            expected=shape,
            shape=x.shape,
        )
    if x.dtype.kind not in "biuf":
        raise type_error(
            f"arrays of `{name}` must be numbers", dtype=x.dtype.name
        )
    return x


def _corners(boxes: np.ndarray, box_format: str) -> np.ndarray:
    """Left, top, right and bottom of boxes `(..., 4)`, in float64."""
    boxes = boxes.astype("float64")
    name = box_format.removeprefix("rel_")
    if name == "yxyx":
        return boxes[..., [1, 0, 3, 2]]
    if name == "xyxy":
        return boxes
    low, extent = boxes[..., :2], boxes[..., 2:]
    if name == "center_xywh":
        low = low - 0.5 * extent
    return np.concatenate([low, low + extent], axis=-1)


def _check_values(name: str, found: Boxes, within: np.ndarray) -> None:
    """Raise ValueError unless the values of all boxes are possible."""
    corners, labels, score = found.corners, found.labels, found.score
    good = np.isfinite(corners).all(axis=-1)
    good &= (corners[..., 2:] >= corners[..., :2]).all(axis=-1)
    whole = np.isfinite(labels) & (labels == np.floor(labels))
    whole &= (labels >= -1) & (labels < 2**31)
    whole |= ~within & ~np.isnan(labels.astype("float64"))
    rules = (
        (
            "class ids must be whole numbers in [0, 2^31), or -1 for padding",
            whole,
            labels,
        ),
        (
            "boxes must be finite, with right >= left and bottom >= top: "
            "give the `box_format` that they have",
            good | ~found.valid,
            corners,
        ),
        (
            "confidence must lie in [0, 1]: take the sigmoid of logits, and "
            "divide percent by 100",
            (score >= 0.0) & (score <= 1.0) | ~found.valid,
            score,
        ),
    )
    for rule, kept, values in rules:
        bad = ~kept
        if bad.any():
            image, box = np.argwhere(bad)[0]
            raise value_error(
                f"`{name}`: {rule}",
                image=int(image),
                box=int(box),
                value=values[image, box].tolist(),
            )
