"""Boxes, windows and masks: pure functions of tensors.

A box or window is `[ymin, xmin, ymax, xmax]`, in pixels or as shares of the
image; a mask is `(..., height, width, 1)`, not 0 where an object is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.examples import check_parts, require
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import check_numbers

# Coordinate of a box that covers nothing.
NO_BOX = -3e38


def clip_boxes(boxes: Any, window: Any) -> Any:
    """Clips boxes to a window.

    Use it to keep only the visible part of boxes; `crop_boxes` also moves
    them.

    Args:
        boxes: Boxes `(..., n, 4)` or one box `(4,)`, in any unit.
        window: Window `(..., 4)` in the same unit.

    Returns:
        Boxes of the shape of `boxes`. A box outside the window becomes a
        line or a point on its border.

    Raises:
        ValueError: If a last axis is not 4.

    Example:

    >>> print(*clip_boxes([0.0, 0.0, 0.5, 1.0], [0.25, 0.5, 1.0, 1.0]).numpy())
    0.25 0.5 0.5 1.0

    Reference:
        Everingham et al., The PASCAL Visual Object Classes Challenge, IJCV
        2010, section 3.2, https://doi.org/10.1007/s11263-009-0275-4
    """
    boxes, window = as_boxes("boxes", boxes), as_boxes("window", window)
    window = tf.cast(window, boxes.dtype)
    if boxes.shape.rank > 1:
        window = window[..., None, :]
    low, high = tf.split(window, 2, axis=-1)
    low, high = tf.concat([low, low], -1), tf.concat([high, high], -1)
    return tf.minimum(tf.maximum(boxes, low), high)


def crop_boxes(boxes: Any, window: Any) -> Any:
    """Moves boxes into an image cropped to a window.

    Use it in augmentations of your own that crop an image.

    Args:
        boxes, window: As for `clip_boxes`.

    Returns:
        Boxes of the shape of `boxes`, clipped and relative to the corner of
        the window, in the same unit. `resize_boxes` rescales them.

    Raises:
        ValueError: If a last axis is not 4.

    Example:

    >>> print(*crop_boxes([0.0, 0.0, 0.5, 1.0], [0.25, 0.5, 1.0, 1.0]).numpy())
    0.0 0.0 0.25 0.5

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 3
    """
    clipped = clip_boxes(boxes, window)
    corner = tf.cast(as_boxes("window", window), clipped.dtype)[..., :2]
    if clipped.shape.rank > 1:
        corner = corner[..., None, :]
    return clipped - tf.concat([corner, corner], -1)


def flip_boxes(
    boxes: Any,
    size: Sequence[float] = (1.0, 1.0),
    direction: str = "horizontal",
) -> Any:
    """Mirrors boxes with their image.

    Use it in augmentations of your own that mirror an image.

    Args:
        boxes: Boxes `(..., 4)`.
        size: Height and width of the image in the unit of the boxes, two
            numbers or a tensor `(2,)`.
        direction: `"horizontal"` exchanges left and right, `"vertical"` top
            and bottom.

    Returns:
        Boxes of the shape of `boxes`.

    Raises:
        ValueError: If the last axis is not 4, or for another `direction`.

    Example:

    >>> print(*flip_boxes([0.0, 0.25, 1.0, 0.5]).numpy())
    0.0 0.5 1.0 0.75

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 2
    """
    check_in("direction", direction, ("horizontal", "vertical"))
    boxes = as_boxes("boxes", boxes)
    size = tf.cast(size, boxes.dtype)
    ymin, xmin, ymax, xmax = tf.unstack(boxes, axis=-1)
    if direction == "horizontal":
        xmin, xmax = size[1] - xmax, size[1] - xmin
    else:
        ymin, ymax = size[0] - ymax, size[0] - ymin
    return tf.stack([ymin, xmin, ymax, xmax], axis=-1)


def resize_boxes(boxes: Any, size: Any, new_size: Any) -> Any:
    """Rescales boxes with their image.

    Use it in augmentations of your own that resize an image, or to change
    the unit of boxes.

    Args:
        boxes: Boxes `(..., 4)`.
        size: Height and width of the image in the unit of the boxes, `(2,)`;
            `(1, 1)` for shares of the image.
        new_size: Height and width afterwards, `(2,)`; `(1, 1)` turns pixels
            into shares.

    Returns:
        Boxes of the shape of `boxes`.

    Raises:
        ValueError: If the last axis is not 4.

    Example:

    >>> print(*resize_boxes([10, 20, 30, 40], (100, 200), (1, 1)).numpy())
    0.1 0.1 0.3 0.2

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 3
    """
    boxes = as_boxes("boxes", boxes)
    size, new_size = tf.cast(size, boxes.dtype), tf.cast(new_size, boxes.dtype)
    size, new_size = (tf.concat([x, x], -1) for x in (size, new_size))
    return boxes / size * new_size


def union_area(boxes: Any, window: Any) -> Any:
    """Exact area of the union of boxes inside a window.

    Use it for the area; `objectness` divides it by that of the window. The
    edges of the n clipped boxes cut the window into at most (2n - 1)^2 cells,
    each covered entirely or not at all.

    Args:
        boxes: Boxes `(..., n, 4)`, in any unit.
        window: Window `(..., 4)` in the same unit.

    Returns:
        Areas `(...)` in the square of that unit. Leading axes broadcast.

    Raises:
        ValueError: If a last axis is not 4, or `boxes` has one axis only.

    Example:

    >>> print(union_area([[0, 0, 2, 2], [1, 1, 3, 3]], [0, 0, 3, 2]).numpy())
    5.0

    Reference:
        Bentley, Algorithms for Klee's Rectangle Problems, 1977; Krothapalli
        and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 3
    """
    boxes = as_boxes("boxes", boxes, several=True)
    window = tf.cast(as_boxes("window", window), boxes.dtype)
    # (..., 2, n): y first, x second, boxes last.
    low, high = tf.split(tf.linalg.matrix_transpose(boxes), 2, axis=-2)
    first, last = tf.split(window[..., None], 2, axis=-2)
    low, high = (tf.minimum(tf.maximum(x, first), last) for x in (low, high))
    if boxes.shape[-2] == 1:
        return tf.reduce_prod(tf.maximum(high - low, 0)[..., 0], axis=-1)
    edges = tf.sort(tf.concat([low, high], axis=-1), axis=-1)
    start, length = edges[..., None, :-1], edges[..., 1:] - edges[..., :-1]
    inside = (low[..., None] <= start) & (start < high[..., None])
    inside = tf.cast(inside, boxes.dtype)
    # Number of boxes that cover each cell.
    cover = tf.matmul(
        inside[..., 0, :, :], inside[..., 1, :, :], transpose_a=True
    )
    widths = tf.linalg.matvec(tf.minimum(cover, 1), length[..., 1, :])
    return tf.reduce_sum(widths * length[..., 0, :], axis=-1)


def boxes_to_mask(boxes: Any, size: Any, touched: bool = False) -> Any:
    """Draws boxes into a mask.

    Use it for augmentations that turn boxes into other shapes, such as
    rotation.

    Args:
        boxes: Boxes `(n, 4)` in pixels.
        size: Height and width of the mask, two integers or a tensor `(2,)`.
        touched: Whether to mark every pixel that a box touches. Otherwise the
            centre of a pixel must lie in a box.

    Returns:
        Mask `(height, width, 1)`, uint8, 1 in the boxes.

    Raises:
        ValueError: If the last axis of `boxes` is not 4, or a corner is NaN.

    Example:

    >>> print(boxes_to_mask([[0, 1, 1, 3]], (2, 3))[..., 0].numpy())
    [[0 1 1]
     [0 0 0]]

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 3
    """
    boxes = as_boxes("boxes", boxes)
    # A box with NaN would silently mark no pixel.
    bad = tf.reduce_any(tf.math.is_nan(boxes))
    require(~bad, "`boxes` must not contain NaN", boxes=boxes)
    ymin, xmin, ymax, xmax = tf.unstack(boxes, axis=-1)

    def inside(low, high, count):
        place = tf.cast(tf.range(count), boxes.dtype)
        low, high = low[:, None], high[:, None]
        if touched:
            # An empty box touches nothing.
            within = (low < place + 1) & (place < high) & (low < high)
        else:
            within = (low <= place + 0.5) & (place + 0.5 < high)
        return tf.cast(within, "float32")

    rows = inside(ymin, ymax, size[0])
    columns = inside(xmin, xmax, size[1])
    cover = tf.matmul(rows, columns, transpose_a=True)
    return tf.cast(cover > 0, "uint8")[..., None]


def mask_area(mask: Any, classes: Sequence[int] | None = None) -> Any:
    """Number of pixels of each mask that belong to an object.

    Use it for the area; `objectness_from_mask` gives the share.

    Args:
        mask: Masks `(..., height, width, 1)` of integers or bool.
        classes: Values that are objects; None takes all but 0.

    Returns:
        Areas `(...)` in pixels, float32.

    Raises:
        ValueError: If the last axis is not 1.

    Example:

    >>> print(mask_area([[[0], [2]], [[1], [2]]]).numpy())
    3.0

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    mask = _tensor("mask", mask)
    shape = mask.shape
    require(
        shape.rank is None or (shape.rank >= 3 and shape[-1] in (1, None)),
        "`mask` must have shape (..., height, width, 1)",
        **{"mask.shape": shape},
    )
    # A third of the time of `count_nonzero`, which counts in int64.
    counted = tf.cast(selected(mask, classes), "int32")
    return tf.cast(tf.reduce_sum(counted, axis=(-3, -2, -1)), "float32")


def selected(values: Any, classes: Sequence[int] | None) -> Any:
    """Which integers are among the classes; with None, which are not 0."""
    if classes is None:
        return tf.cast(values, "bool")
    require(
        np.ndim(classes) == 1,
        "`classes` must be a sequence of class ids",
        classes=classes,
    )
    among = tf.constant(list(classes), dtype=values.dtype)
    return tf.reduce_any(tf.equal(values[..., None], among), axis=-1)


def as_boxes(name: str, boxes: Any, several: bool = False) -> Any:
    """A float tensor `(..., 4)`, or `(..., n, 4)`; integers become float32."""
    boxes = _tensor(name, boxes)
    if not boxes.dtype.is_floating:
        boxes = tf.cast(boxes, "float32")
    shape, axes = boxes.shape, "(..., n, 4)" if several else "(..., 4)"
    require(
        shape.rank is None
        or (shape.rank > int(several) and shape[-1] in (4, None)),
        f"`{name}` must have shape {axes}: [ymin, xmin, ymax, xmax] on the "
        "last axis",
        **{f"{name}.shape": shape},
    )
    return boxes


def _tensor(name: str, x: Any) -> Any:
    """A tensor of TensorFlow, on every backend."""
    if isinstance(x, np.ndarray):
        check_numbers(name, x)
    return tf.convert_to_tensor(x)


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
        mask, classes: As for `mask_area`.

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
