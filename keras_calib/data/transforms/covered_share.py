"""The share of a crop that objects cover: from boxes, or from a mask."""

from collections.abc import Sequence
from typing import Any

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import (
    NO_BOX,
    as_boxes,
    mask_area,
    selected,
    union_area,
)
from keras_calib.data.transforms.examples import check_parts, require
from keras_calib.inputs.checks import check_in

__all__ = [
    "check_mask_classes",
    "covered_share",
    "known_boxes",
    "object_source",
    "objectness",
    "objectness_from_mask",
]


def objectness(
    window: Any,
    boxes: Any,
    *,
    classes: Sequence[int] | None = None,
    box_labels: Any = None,
) -> Any:
    """Computes the share of a window that boxes cover, exactly.

    Use it in pipelines of your own; `random_resized_crop` calls it for each
    crop.

    Args:
        window: Window `(..., 4)`, `[ymin, xmin, ymax, xmax]`.
        boxes: Boxes `(..., n, 4)` in the same unit, clipped to the window.
        classes: Ids of the classes that count as objects; None for all.
        box_labels: Class ids of the boxes `(..., n)`, for `classes`.

    Returns:
        Shares `(...)` in [0, 1]; 0 without boxes.

    Raises:
        ValueError: If the window is empty, or a box inverted or not finite.
            Inside a graph, `tf.errors.InvalidArgumentError` when it runs.

    Example:

    >>> print(objectness([0, 0, 10, 10], [[0, 0, 5, 5], [0, 4, 5, 20]]).numpy())
    0.5

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, section 3,
        https://arxiv.org/abs/2009.06432
    """
    window = as_boxes("window", window)
    boxes = as_boxes("boxes", boxes, several=True)
    require(
        (classes is None) == (box_labels is None),
        "`classes` and `box_labels` must be given together",
        classes=classes,
        box_labels=box_labels,
    )
    ordered = tf.reduce_all(boxes[..., :2] <= boxes[..., 2:])
    require(
        tf.reduce_all(tf.math.is_finite(boxes)) & ordered,
        "`boxes` must be finite, with ymin <= ymax and xmin <= xmax",
        boxes=boxes,
    )
    size = window[..., 2:] - window[..., :2]
    require(
        tf.reduce_all((size > 0) & tf.math.is_finite(size)),
        "`window` must have a height and a width above 0, finite",
        window=window,
    )
    return covered_share(window, known_boxes(boxes, classes, box_labels))


def covered_share(window: Any, boxes: Any) -> Any:
    """`objectness` of boxes and windows that are known to be valid."""
    size = window[..., 2:] - window[..., :2]
    area = union_area(boxes, window)
    share = area / tf.cast(tf.reduce_prod(size, axis=-1), area.dtype)
    # Rounding in the sum of cells can exceed 1.
    return tf.minimum(share, 1)


def known_boxes(
    boxes: Any, classes: Sequence[int] | None, box_labels: Any
) -> Any:
    """Boxes `(..., n, 4)`, with those of other classes emptied."""
    if classes is None:
        return boxes
    counted = selected(tf.convert_to_tensor(box_labels), classes)
    return tf.where(counted[..., None], boxes, tf.cast(NO_BOX, boxes.dtype))


def object_source(
    parts: dict, objects: str | None, classes: Sequence[int] | None
) -> str | None:
    """Source of objectness, "boxes" or "mask"; None if there is neither."""
    check_in("objects", objects, (None, "boxes", "mask"))
    if objects is None:
        objects = next((p for p in ("boxes", "mask") if p in parts), None)
    else:
        check_parts(parts, objects, hint=": `objects` names it")
    if objects == "boxes" and classes is not None:
        check_parts(parts, "box_labels", hint=" for `classes`")
    return objects


def check_mask_classes(classes: Sequence[int] | None) -> None:
    """Raises ValueError if 0 is a class: layers use it for no object."""
    require(
        classes is None or 0 not in classes,
        "`classes` of masks must be above 0 where layers move them",
        classes=classes,
    )


def objectness_from_mask(
    mask: Any, *, classes: Sequence[int] | None = None
) -> Any:
    """Computes the share of a mask that belongs to objects.

    Use it for data with masks, and for augmentations that turn boxes into
    other shapes.

    Args:
        mask: Masks `(..., height, width, 1)` of integers or bool.
        classes: Values that are objects; None takes all but 0.

    Returns:
        Shares `(...)` in [0, 1], float32.

    Raises:
        ValueError: If the last axis is not 1, or a mask has no pixels.

    Example:

    >>> print(objectness_from_mask([[[0], [2]], [[1], [2]]]).numpy())
    0.75

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    area = mask_area(mask, classes)
    shape = tf.shape(mask)
    pixels = tf.reduce_prod(shape[-3:-1])
    require(pixels > 0, "`mask` must have pixels", shape=shape)
    return area / tf.cast(pixels, "float32")
