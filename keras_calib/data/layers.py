"""Augmentation layers of Keras for images with objects."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import (
    boxes_to_mask,
    check_mask_classes,
    known_boxes,
    object_source,
    objectness_from_mask,
    resize_boxes,
    selected,
)
from keras_calib.data.examples import require, without

# Value of objects in the mask, with which no layer fills uncovered pixels.
_OBJECT = -65536.0
# The base class of layers that take masks has no public name.
_TAKES_MASKS = keras.layers.RandomRotation.__mro__[1]


def apply_layers(
    example: dict,
    *layers: Any,
    moves: bool = True,
    objects: str | None = None,
    classes: Sequence[int] | None = None,
) -> dict:
    """Applies Keras augmentation layers to image and objects of an example.

    Use it in `augment` of `training_pipeline`. Boxes are drawn into a mask,
    which the layers transform like the image. Objectness is the share of its
    pixels, which differs from the exact share by at most a pixel's perimeter.

    Args:
        example: An example that `random_resized_crop` returned.
        *layers: Keras image augmentation layers, such as
            `keras.layers.RandomRotation(0.1)`, or a `keras.layers.Pipeline`
            of them. Make them once, outside the function that calls this. For
            repeatable numbers, give them a seed and the pipeline
            `num_parallel_calls=1`.
        moves: Whether the layers move objects. If not (colours, noise,
            rescaling), only the image goes through them, and any layer will
            do.
        objects, classes: As for `random_resized_crop`.

    Returns:
        The example with `image`, `mask` (where an object is, 1 or the largest
        of `classes`) and `objectness`, and without boxes if these were moved.
        Layers that erase a part of the image leave the mask as it is.

    Raises:
        ValueError: If an argument is invalid. With `moves`, also for layers
            that take only images, without masks, or if `classes` of a mask
            include 0.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432, sec. A.2
    """
    example = dict(example)
    source = object_source(example, objects, classes)
    if not moves or source is None:
        for layer in layers:
            example["image"] = layer(example["image"], training=True)
        return example
    if source == "mask":
        check_mask_classes(classes)
        kind = tf.convert_to_tensor(example["mask"]).dtype
        mask = selected(example["mask"], classes)
    else:
        size = example["image"].shape[:2]
        labels = example.get("box_labels")
        boxes = known_boxes(example["boxes"], classes, labels)
        boxes = resize_boxes(boxes, (1.0, 1.0), size)
        mask, kind = boxes_to_mask(boxes, size), tf.int32
    mask = tf.cast(mask, "uint8")
    for layer in _each(layers):
        example["image"], mask = _moved(layer, example["image"], mask)
    share = objectness_from_mask(mask)
    # A value among `classes`, so that later steps find the objects.
    objects = 1 if classes is None else max(1, *classes)
    example["mask"] = tf.cast(mask, kind) * tf.cast(objects, kind)
    if "boxed" in example:
        share = tf.where(example["boxed"], share, 1.0)
    example["objectness"] = share
    return without(example, "boxes", "box_labels")


def _each(layers: Sequence[Any]) -> Iterator[Any]:
    for layer in layers:
        if isinstance(layer, (keras.layers.Pipeline, keras.Sequential)):
            yield from _each(layer.layers)
        else:
            yield layer


def _moved(layer: Any, image: Any, mask: Any) -> tuple[Any, Any]:
    """Image and mask, 1 where an object is, after one layer."""
    if isinstance(layer, keras.layers.RandomElasticTransform):
        return _distorted(layer, image, mask)
    require(
        isinstance(layer, _TAKES_MASKS),
        "Layers must be Keras' image augmentation layers, or else do "
        "their work in another call, with `moves=False`",
        layer=layer,
    )
    if isinstance(layer, keras.layers.RandomGrayscale):
        # This layer takes no masks, but moves nothing.
        return layer(image, training=True), mask
    marked = tf.cast(mask, "float32") * _OBJECT
    parts = layer(
        {"images": image, "segmentation_masks": marked}, training=True
    )
    found = parts["segmentation_masks"] < 0.5 * _OBJECT
    return parts["images"], tf.cast(found, mask.dtype)


def _distorted(layer: Any, image: Any, mask: Any) -> tuple[Any, Any]:
    """Image and mask after a layer that would distort them differently.

    The mask goes through as a channel of the image, beside one that shows
    which pixels were filled.
    """
    low, high = layer.value_range
    nothing = tf.fill(tf.shape(mask), tf.cast(low, image.dtype))
    marked = nothing + tf.cast(mask, image.dtype) * (high - low)
    stacked = tf.concat([image, marked, nothing], axis=-1)
    moved = layer(stacked, training=True)
    image, marked, filled = tf.split(moved, [image.shape[-1], 1, 1], axis=-1)
    found = marked - filled > 0.5 * (high - low)
    return image, tf.cast(found, mask.dtype)
