"""How an example is cropped: image, boxes and mask in one go."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.boxes import as_boxes
from keras_calib.data.transforms.boxes import crop_boxes
from keras_calib.data.transforms.boxes import flip_boxes
from keras_calib.data.transforms.boxes import resize_boxes
from keras_calib.data.transforms.covered_share import covered_share
from keras_calib.data.transforms.covered_share import known_boxes
from keras_calib.data.transforms.covered_share import objectness_from_mask
from keras_calib.data.transforms.decoding import cut
from keras_calib.data.transforms.decoding import read_window
from keras_calib.data.transforms.painting import paint
from keras_calib.data.transforms.require import require
from keras_calib.data.transforms.validity import check_box_labels
from keras_calib.data.transforms.validity import require_boxes
from keras_calib.data.transforms.validity import same_shape
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import shape_of

__all__ = [
    "Cropping",
    "complete",
    "object_source",
    "read_parts",
    "shown_window",
]

# Draws of a crop, until one lies inside the image.
_TRIES = 10


class Cropping(NamedTuple):
    """How examples are cropped: the arguments of `random_resized_crop`."""

    size: tuple[int, int]
    scale: Sequence[float] | None = None
    ratio: Sequence[float] | None = None
    flip: bool = False
    fraction: float = 1.0
    interpolation: str = "bilinear"
    antialias: bool = False

    def apply(self, example: dict, seed: Any = None) -> dict:
        """Image, mask and flip; boxes stay those of the whole image.

        Returns:
            The example with `image` float32 `(*size, channels)`, `mask`
            `(*size, 1)`, `mask_in_window` (the mask before it was resized),
            `pixels` `[top, left, height, width]`, the part that is shown, of
            an image of `size`, both int32, and `flipped`, a bool scalar.
        """
        if self.scale is None:
            choose, flipped = self._center, tf.constant(False)
        else:
            draws = tf.random.stateless_uniform(
                [3], seed, minval=None, maxval=None, dtype="int32"
            )
            choose, flipped = self._random(draws[:2]), draws[2] < 0
        name = example.get("name", tf.constant(""))
        part, window, size = read_window(example["image"], name, choose)
        if "image_size" in example:
            require(
                same_shape(size, example["image_size"]),
                "Boxes must be of an image of the shape of this one",
                example=name,
                size=size,
                size_in_annotation=example["image_size"],
            )
        part = paint(part, window, size, example)
        image = tf.image.resize(
            part, self.size, self.interpolation, antialias=self.antialias
        )
        out = dict(example)
        if "mask" in example:
            fits = require(
                tf.reduce_all(tf.equal(tf.shape(example["mask"])[:2], size)),
                "`mask` must have the height and width of `image`",
                example=name,
                size=size,
                mask=tf.shape(example["mask"]),
            )
            with tf.control_dependencies([fits]):
                mask = cut(example["mask"], window)
            out["mask_in_window"] = mask
            mask = tf.image.resize(mask, self.size, "nearest")
            out["mask"] = self._flip(mask, flipped)
        return out | {
            "image": self._flip(tf.cast(image, "float32"), flipped),
            "pixels": window,
            "size": size,
            "flipped": flipped,
        }

    def _flip(self, image: Any, flipped: Any) -> Any:
        if not self.flip:
            return image
        return tf.cond(flipped, lambda: image[:, ::-1], lambda: image)

    def _center(self, size: Any) -> Any:
        wanted = tf.constant(self.size, dtype="float32")
        # As high and wide as what is made of it.
        scale = tf.reduce_min(tf.cast(size, "float32") / wanted)
        extent = tf.round(wanted * scale * self.fraction)
        extent = tf.clip_by_value(tf.cast(extent, "int32"), 1, size)
        return tf.concat([(size - extent) // 2, extent], axis=0)

    def _random(self, seed: Any) -> Callable[[Any], Any]:
        """Area and log of the ratio even, the first of ten that fits."""
        (least, most), ratio = self.scale, np.array(self.ratio)
        narrow, wide = 0.5 * np.log(ratio)
        low = np.array([least, narrow, 0.0, 0.0], "float32")
        span = np.array([most - least, wide - narrow, 1.0, 1.0], "float32")

        def choose(size: Any) -> Any:
            draws = tf.random.stateless_uniform([_TRIES, 4], seed) * span + low
            share, root, y, x = tf.unstack(draws, axis=1)
            side, root = tf.sqrt(share), tf.exp(root)
            whole = tf.cast(size, "float32")
            extents = tf.stack([side / root, side * root], axis=1)
            extents = tf.round(extents * tf.sqrt(tf.reduce_prod(whole)))
            fits = tf.reduce_all(extents <= whole, axis=1)
            first = tf.argmax(fits)

            def drawn():
                place = tf.stack([y[first], x[first]])
                return tf.maximum(extents[first], 1.0), place

            def middle():
                # As much of it as has a ratio that is allowed.
                own = tf.clip_by_value(whole[1] / whole[0], *ratio)
                extent = tf.stack([whole[1] / own, whole[0] * own])
                return tf.minimum(tf.round(extent), whole), tf.fill([2], 0.5)

            extent, place = tf.cond(fits[first], drawn, middle)
            room = whole - extent
            corner = tf.minimum(tf.floor(place * (room + 1)), room)
            return tf.cast(tf.concat([corner, extent], axis=0), "int32")

        return choose


def shown_window(pixels: Any, size: Any) -> Any:
    """`[ymin, xmin, ymax, xmax]` `(..., 4)` as shares of the image.

    Args:
        pixels: `[top, left, height, width]` `(..., 4)`.
        size: Height and width of the image `(..., 2)`.
    """
    start, extent = tf.split(pixels, 2, axis=-1)
    corners = tf.concat([start, start + extent], axis=-1)
    sides = tf.concat([size, size], axis=-1)
    return tf.cast(corners, "float32") / tf.cast(sides, "float32")


def object_source(
    parts: dict, objects: str | None, classes: Sequence[int] | None
) -> str | None:
    """Whether boxes or the mask say where objects are; None if neither."""
    check_in("objects", objects, (None, "boxes", "mask"))
    if objects is None:
        objects = next((p for p in ("boxes", "mask") if p in parts), None)
    if objects == "boxes" and classes is not None and "box_labels" not in parts:
        raise ValueError(
            invalid(
                "Examples must have 'box_labels' for `classes`",
                classes=classes,
                parts=sorted(parts),
            )
        )
    if objects is not None and objects not in parts:
        raise ValueError(
            invalid(
                "Examples must have what `objects` names",
                objects=objects,
                parts=sorted(parts),
            )
        )
    return objects


def complete(
    cropping: Cropping,
    example: dict,
    seed: Any,
    classes: Sequence[int] | None,
    objects: str | None,
) -> dict:
    """One example cropped, its boxes moved along, with its objectness."""
    example = read_parts(example)
    source = object_source(example, objects, classes)
    crop = cropping.apply(example, seed)
    mask = crop.pop("mask_in_window", None)
    if source == "mask":
        crop["objectness"] = objectness_from_mask(mask, classes=classes)
    window = shown_window(crop.pop("pixels"), crop.pop("size"))
    crop["window"] = window
    # These speak of the image before it was cropped.
    for part in ("painted", "painted_mask", "fill", "image_size"):
        crop.pop(part, None)
    if "boxes" in example:
        boxes = example["boxes"]
        require_boxes(boxes, example)
        if source == "boxes":
            counted = known_boxes(boxes, classes, example.get("box_labels"))
            crop["objectness"] = covered_share(window, counted)
        boxes = crop_boxes(boxes, window)
        boxes = resize_boxes(boxes, window[2:] - window[:2], (1.0, 1.0))
        if cropping.flip:
            boxes = tf.where(crop["flipped"], flip_boxes(boxes), boxes)
        crop["boxes"] = boxes
    if "boxed" in example and "objectness" in crop:
        share = crop["objectness"]
        crop["objectness"] = tf.where(example["boxed"], share, 1.0)
    if not cropping.flip:
        crop["flipped"] = tf.constant(False)
    return crop


def read_parts(example: dict) -> dict:
    """The example with tensors of the types and shapes that crops need."""
    example = check_box_labels(dict(example))
    for part in ("image", "name", "painted", "painted_mask", "image_size"):
        if part in example:
            example[part] = tf.convert_to_tensor(example[part])
    if "boxes" in example:
        boxes = tf.cast(example["boxes"], "float32")
        if boxes.shape.rank != 2:
            boxes = tf.reshape(boxes, [-1, 4])
        example["boxes"] = as_boxes("boxes", boxes)
    if "mask" in example:
        mask = tf.convert_to_tensor(example["mask"])
        if mask.dtype == tf.bool:
            mask = tf.cast(mask, "uint8")
        if mask.shape.rank != 3 or mask.shape[-1] not in (None, 1):
            raise ValueError(
                invalid(
                    "`mask` must have shape (height, width, 1)",
                    **{"mask.shape": shape_of(mask)},
                )
            )
        if not mask.dtype.is_integer:
            raise ValueError(
                invalid("`mask` must hold integers", dtype=mask.dtype.name)
            )
        example["mask"] = mask
    return example
