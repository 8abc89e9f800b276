"""Painting over objects, to leave one of them or only the context."""

from collections.abc import Sequence
from typing import Any

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import boxes_to_mask, selected
from keras_calib.data.examples import (
    check_parts,
    cut,
    decode,
    name_of,
    named_like,
    require,
    without,
)
from keras_calib.data.validity import has_objects, read_parts, required_boxes

# Pixel mean of ImageNet's training images, per channel, in [0, 255].
IMAGENET_MEAN = (123.675, 116.28, 103.53)

# Shares of an image are rounded, so corners this near to a pixel's edge lie
# on it.
_ROUNDING = 1e-3


def object_examples(
    dataset: Any, *, fill: Sequence[float] = IMAGENET_MEAN
) -> Any:
    """Makes one example of each object: the paper's 'mask' data set.

    Use it to train on single objects of detection data. The label of an
    example is that of its box. When it is cropped, all other boxes are
    painted over, except where they overlap with it.

    Args:
        dataset: Examples with `boxes`, and with `box_labels` unless all boxes
            are of the class `label`.
        fill: The pixel mean, per channel, in the unit of the images.
            Defaults to that of ImageNet.

    Returns:
        A `tf.data.Dataset` of examples with one box in `boxes`, and `painted`
        and `fill`. Examples without boxes are left out.

    Raises:
        ValueError: If examples have no boxes, no labels of them, or an index.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. 4.1
    """
    spec = dataset.element_spec
    check_parts(spec, "boxes")
    if "box_labels" not in spec:
        check_parts(spec, "label")
    require(
        "index" not in spec,
        "Examples must not have an index yet: call `with_index` after "
        "`object_examples`",
        parts=sorted(spec),
    )

    def split(example: dict) -> Any:
        example = read_parts(example)
        boxes = example["boxes"]
        count = tf.shape(boxes)[0]
        labels = example.get("box_labels")
        if labels is None:
            labels = tf.fill([count], example["label"])

        def alone(place: Any) -> dict:
            own = tf.cast(place, "int32")
            others = tf.concat([boxes[:own], boxes[own + 1 :]], axis=0)
            return {
                # The mask shows all objects.
                **without(example, "mask"),
                "label": labels[own],
                "boxes": boxes[own][None],
                "box_labels": labels[own][None],
                "painted": others,
                "fill": tf.constant(fill, dtype="float32"),
            }

        return tf.data.Dataset.range(tf.cast(count, "int64")).map(alone)

    return named_like(with_objects(dataset).flat_map(split), dataset)


def context_examples(
    dataset: Any,
    *,
    fill: Sequence[float] = IMAGENET_MEAN,
    classes: Sequence[int] | None = None,
) -> Any:
    """Paints all objects out: the paper's 'context' data set.

    Use it to measure how much a model relies on context, by its accuracy and
    confidence on these images. Labels are kept.

    Args:
        dataset: Examples with `boxes`, or else with `mask`.
        fill: As for `object_examples`.
        classes: Values of the mask that are objects; None takes all but 0. All
            boxes are painted over, whatever their class.

    Returns:
        A `tf.data.Dataset` of examples whose objects are painted over when
        they are cropped. They have objectness 0 and the flag `context`, which
        makes their training target uniform. Examples without objects are left
        out.

    Raises:
        ValueError: If examples have neither boxes nor masks.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432,
        sections 4.1 and 4.2, table 1
    """
    context = with_objects(dataset, classes).map(
        lambda example: without_objects(example, fill, classes)
    )
    return named_like(context, dataset)


def without_objects(
    example: dict, fill: Sequence[float], classes: Sequence[int] | None = None
) -> dict:
    """One example of the 'context' data set."""
    if "boxes" not in example:
        check_parts(example, "mask")
    context = {
        **example,
        "context": tf.constant(True),
        "fill": tf.constant(fill, dtype="float32"),
    }
    if "boxes" in example:
        boxes = example["boxes"]
        if "painted" in example:
            boxes = tf.concat([boxes, example["painted"]], axis=0)
        context |= {"boxes": example["boxes"][:0], "painted": boxes}
        if "box_labels" in example:
            context["box_labels"] = example["box_labels"][:0]
    if "mask" in example:
        objects = selected(example["mask"], classes)
        if "painted_mask" in example:
            objects |= tf.cast(example["painted_mask"], "bool")
        context["mask"] = tf.zeros_like(example["mask"])
        context["painted_mask"] = tf.cast(objects, "uint8")
    return context


def paint(part: Any, window: Any, size: Any, example: dict) -> Any:
    """The window of an image, in pixels, with objects painted over."""
    if "painted" not in example and "painted_mask" not in example:
        return part
    fill, channels = example["fill"], part.shape[-1]
    require(
        channels is None or fill.shape[0] in (None, 1, channels),
        "`fill` must have one value, or one per channel",
        fill=fill.shape[0],
        channels=channels,
    )
    shape = tf.shape(part)[:2]
    over = tf.constant(False)
    if "painted" in example:
        painted = required_boxes(example["painted"], example)
        kept = _pixels(example["boxes"], window, size, shape)
        over = _pixels(painted, window, size, shape) & ~kept
    if "painted_mask" in example:
        over |= selected(cut(example["painted_mask"], window), None)
    if not part.dtype.is_floating:
        fill = tf.round(fill)
    return tf.where(over, tf.cast(fill, part.dtype), part)


def pixel_mean(dataset: Any, *, max_examples: int | None = None) -> tuple:
    """Mean of the pixels of each channel, for the `fill` of painted objects."""

    def sums(example: dict) -> tuple[Any, Any]:
        image = example["image"]
        if image.dtype == tf.string:
            image = decode(image, name_of(example))
        count = tf.size(image[..., 0])
        image = tf.cast(image, "float64")
        return tf.reduce_sum(image, axis=(0, 1)), tf.cast(count, "float64")

    if max_examples is not None:
        dataset = dataset.take(max_examples)
    total: Any = 0.0
    pixels = 0.0
    for values, count in dataset.map(sums, tf.data.AUTOTUNE):
        total, pixels = total + values.numpy(), pixels + count.numpy()
    require(pixels > 0, "`dataset` must have images", pixels=pixels)
    return tuple((total / pixels).tolist())


def with_objects(dataset: Any, classes: Sequence[int] | None = None) -> Any:
    """The examples that have an object."""
    if {"boxes", "mask"}.isdisjoint(dataset.element_spec):
        return dataset
    return dataset.filter(lambda example: has_objects(example, classes))


def _pixels(boxes: Any, window: Any, size: Any, shape: Any) -> Any:
    """Pixels of the window that boxes of the image touch, `(h, w, 1)`."""
    size = tf.cast(tf.concat([size, size], 0), boxes.dtype)
    corner = tf.cast(tf.concat([window[:2], window[:2]], 0), boxes.dtype)
    low, high = tf.split(boxes * size - corner, 2, axis=-1)
    whole = [tf.floor(low + _ROUNDING), tf.math.ceil(high - _ROUNDING)]
    return tf.cast(boxes_to_mask(tf.concat(whole, axis=-1), shape), "bool")
