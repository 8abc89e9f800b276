"""One crop, resize and flip for image, boxes and mask alike."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, Self, TypedDict, Unpack

import numpy as np

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.boxes import (
    covered_share,
    crop_boxes,
    flip_boxes,
    known_boxes,
    object_source,
    objectness_from_mask,
    resize_boxes,
)
from keras_calib.data.examples import (
    cut,
    name_of,
    read_window,
    require,
    required,
    without,
)
from keras_calib.data.painting import paint
from keras_calib.data.validity import read_parts, required_boxes, same_shape
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_at_most,
    check_integer,
    check_share,
)
from keras_calib.inputs.options import filled

# Draws of a crop, until one lies inside the image.
_TRIES = 10


class Cropped(TypedDict, total=False):
    """Options of crops: what counts as an object, and how to resize."""

    classes: Sequence[int] | None
    objects: str | None
    interpolation: Annotated[str, "bilinear"]
    antialias: Annotated[bool, False]


def random_resized_crop(
    example: dict,
    size: int | Sequence[int],
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    seed: Any = None,
    *,
    flip: bool = True,
    **options: Unpack[Cropped],
) -> dict:
    """Crops an example at random and resizes it, with its boxes and mask.

    Use it in pipelines of your own; `training_pipeline` calls it. It draws
    the area of the window uniformly from `scale` and the logarithm of its
    aspect ratio from `ratio` until the window fits. After ten draws it takes
    the largest part of the middle with an allowed ratio. Boxes and mask are
    cut, resized and mirrored with the image. Only the window of a JPEG is
    decoded.

    Args:
        example: A dict with `image`: the bytes of a JPEG or other image file,
            or pixels `(height, width, channels)` in [0, 255]. Optional are
            `boxes` `(n, 4)`, `[ymin, xmin, ymax, xmax]` as shares of the
            image, their `box_labels` `(n,)`, a `mask` `(height, width, 1)` of
            integers, a `label` and a `name`. Other parts are kept.
        size: Height and width of the result, or one number for both.
        scale: Smallest and largest area of the window, as shares of the
            image.
        ratio: Smallest and largest width over height of the window.
        seed: Two integers, or an integer tensor `(2,)`; the same seed makes
            the same crop.
        flip: Whether to mirror half of the images.
        classes: Ids of the classes that count as objects, of `box_labels` or
            in the mask; None for all boxes, and all values but 0.
        objects: `"boxes"` or `"mask"`, the source of objectness; None takes
            boxes, or without boxes the mask.
        interpolation: A method of `tf.image.resize`; `"bicubic"` can overshoot
            the range of the pixels. Masks take the nearest pixel. Defaults to
            `"bilinear"`.
        antialias: Whether to filter before an image is shrunk. Defaults to
            `False`.

    Returns:
        The example with `image` float32 `(height, width, channels)` in the
        unit it had, `boxes` as shares of the crop (of area 0 if outside) and
        `mask` `(height, width, 1)`. It gains `objectness`, the float32 share
        of the window that objects cover, `window`, `[ymin, xmin, ymax, xmax]`
        as shares of the image, and `flipped`.

    Raises:
        ValueError: If an argument is out of its range. With the name of the
            example, if image and mask differ in size, a box is invalid, or
            the image cannot be read. Inside a graph this is a
            `tf.errors.InvalidArgumentError` when it runs.

    Example:

    >>> import numpy as np
    >>> image = np.zeros((20, 20, 3), "uint8")
    >>> example = {"image": image, "boxes": [[0.0, 0.0, 1.0, 1.0]]}
    >>> crop = random_resized_crop(example, 8, seed=(0, 1))
    >>> print(crop["image"].shape, crop["objectness"].numpy())
    (8, 8, 3) 1.0

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, sections 3
        and A.2, https://arxiv.org/abs/2009.06432; Szegedy et al., Going
        Deeper with Convolutions, CVPR 2015, section 6,
        https://arxiv.org/abs/1409.4842
    """
    given = filled("random_resized_crop", options, Cropped)
    cropping = Cropping.random(size, scale, ratio, flip, given)
    return cropping.complete(example, check_seed(seed))


def center_crop(
    example: dict,
    size: int | Sequence[int],
    fraction: float = 0.875,
    **options: Unpack[Cropped],
) -> dict:
    """Crops the middle of an example and resizes it, with its boxes and mask.

    Use it for evaluation in pipelines of your own; `validation_pipeline`
    calls it.

    Args:
        example, size: As for `random_resized_crop`.
        fraction: Share of the shorter side of the image to keep.
        classes, objects, interpolation, antialias: As for
            `random_resized_crop`.

    Returns:
        The example with the parts that `random_resized_crop` returns.

    Raises:
        ValueError: As for `random_resized_crop`.

    Example:

    >>> import numpy as np
    >>> image = np.zeros((16, 32, 3), "uint8")
    >>> example = {"image": image, "boxes": [[0.0, 0.0, 1.0, 0.5]]}
    >>> print(center_crop(example, 8, 1.0)["objectness"].numpy())
    0.5

    Reference:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016,
        section 4.1, https://arxiv.org/abs/1512.03385
    """
    given = filled("center_crop", options, Cropped)
    return Cropping.center(size, fraction, given).complete(example)


class Cropping(NamedTuple):
    """Checked arguments of `random_resized_crop` or `center_crop`."""

    size: tuple[int, int]
    # Options of `Cropped`.
    options: Any
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    flip: bool = False
    fraction: float = 1.0

    @classmethod
    def random(
        cls, size: Any, scale: Any, ratio: Any, flip: bool, options: Any
    ) -> Self:
        """Checks the arguments of `random_resized_crop`."""
        scale, ratio = _range("scale", scale), _range("ratio", ratio)
        check_at_most("scale[1]", scale[1], 1.0)
        return cls(_size(size), options, scale, ratio, flip)

    @classmethod
    def center(cls, size: Any, fraction: float, options: Any) -> Self:
        """Checks the arguments of `center_crop`."""
        check_share("fraction", fraction, positive=True)
        return cls(_size(size), options, fraction=fraction)

    def complete(self, example: dict, seed: Any = None) -> dict:
        """Crops one example, moves its boxes along, and adds its objectness."""
        example, classes = read_parts(example), self.options.classes
        source = object_source(example, self.options.objects, classes)
        crop = self.cut(example, seed)
        if source is not None:
            share = share_of_objects(example, crop, source, classes)
            crop["objectness"] = share
        crop["window"] = window = _shown_window(crop)
        if "boxes" in example:
            boxes = required_boxes(example["boxes"], example)
            boxes = crop_boxes(boxes, window)
            boxes = resize_boxes(boxes, window[2:] - window[:2], (1.0, 1.0))
            if self.flip:
                boxes = tf.where(crop["flipped"], flip_boxes(boxes), boxes)
            crop["boxes"] = boxes
        # These parts refer to the image before the crop.
        return without(
            crop,
            *("mask_in_window", "pixels", "size", "image_size"),
            *("painted", "painted_mask", "fill"),
        )

    def cut(self, example: dict, seed: Any = None) -> dict:
        """Crops image and mask; boxes stay relative to the whole image.

        Adds `mask_in_window` (the mask before it was resized), `pixels` (the
        window `[top, left, height, width]`), `size` of the image, `flipped`.
        """
        choose, flipped = self._center, tf.constant(False)
        if self.scale is not None:
            draws = random_bits([3], seed)
            choose = partial(self._random, self.scale, draws[:2])
            flipped = draws[2] < 0 if self.flip else flipped
        name = name_of(example)
        part, window, size = read_window(example["image"], name, choose)
        if "image_size" in example:
            require(
                same_shape(size, example["image_size"]),
                "Boxes must be of this image: its size must be that of the "
                "annotation",
                example=name,
                size=size,
                size_in_annotation=example["image_size"],
            )
        part = paint(part, window, size, example)
        image = tf.image.resize(
            part,
            self.size,
            self.options.interpolation,
            antialias=self.options.antialias,
        )
        out = dict(example)
        if "mask" in example:
            own = tf.shape(example["mask"])
            mask = required(
                example["mask"],
                tf.reduce_all(tf.equal(own[:2], size)),
                "`mask` must have the height and width of `image`",
                example=name,
                size=size,
                mask=own,
            )
            out["mask_in_window"] = mask = cut(mask, window)
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
        # The window has the aspect ratio of the result.
        scale = tf.reduce_min(tf.cast(size, "float32") / wanted)
        extent = tf.round(wanted * scale * self.fraction)
        extent = tf.clip_by_value(tf.cast(extent, "int32"), 1, size)
        return tf.concat([(size - extent) // 2, extent], axis=0)

    def _random(self, scale: tuple, seed: Any, size: Any) -> Any:
        """The first of ten windows that fits, uniform in area and log ratio."""
        (least, most), ratio = scale, np.array(self.ratio)
        narrow, wide = 0.5 * np.log(ratio)
        low = np.array([least, narrow, 0.0, 0.0], "float32")
        span = np.array([most - least, wide - narrow, 1.0, 1.0], "float32")
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
            # A small share of a small image can round to no pixel.
            return tf.maximum(extents[first], 1.0), place

        def middle():
            # The largest window with an allowed ratio.
            own = tf.clip_by_value(whole[1] / whole[0], *ratio)
            extent = tf.stack([whole[1] / own, whole[0] * own])
            return tf.minimum(tf.round(extent), whole), tf.fill([2], 0.5)

        extent, place = tf.cond(fits[first], drawn, middle)
        room = whole - extent
        corner = tf.minimum(tf.floor(place * (room + 1)), room)
        return tf.cast(tf.concat([corner, extent], axis=0), "int32")


def share_of_objects(
    example: dict, cut: dict, source: str, classes: Sequence[int] | None
) -> Any:
    """Objectness of what `Cropping.cut` left of an example."""
    if source == "mask":
        share = objectness_from_mask(cut["mask_in_window"], classes=classes)
    else:
        boxes = required_boxes(example["boxes"], example)
        boxes = known_boxes(boxes, classes, example.get("box_labels"))
        share = covered_share(_shown_window(cut), boxes)
    return of_boxed(example, share)


def of_boxed(example: dict, share: Any) -> Any:
    """A share of objects, or 1 of an example that is kept without boxes."""
    if "boxed" not in example:
        return share
    return tf.where(example["boxed"], share, 1.0)


def _shown_window(crop: dict) -> Any:
    """The window of a crop as shares of the image, `(4,)`."""
    start, extent = tf.split(crop["pixels"], 2)
    corners = tf.concat([start, start + extent], axis=0)
    sides = tf.concat([crop["size"], crop["size"]], axis=0)
    return tf.cast(corners, "float32") / tf.cast(sides, "float32")


def check_seed(seed: Any) -> Any:
    """An integer tensor `(2,)`."""
    tensor = None if seed is None else tf.convert_to_tensor(seed)
    require(
        tensor is not None and tensor.shape.is_compatible_with([2]),
        "`seed` must be two integers, one pair per crop",
        seed=seed,
    )
    return tensor


def random_bits(shape: Sequence[int], seed: Any) -> Any:
    """Integers of 32 random bits: seeds, or signs with even odds."""
    return tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype="int32"
    )


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    require(
        np.shape(size) in ((), (2,)),
        "`size` must be one integer or two",
        size=size,
    )
    height, width = np.broadcast_to(size, 2).tolist()
    check_integer("size", height, 1)
    check_integer("size", width, 1)
    return height, width


def _range(name: str, bounds: Sequence[float]) -> tuple[float, float]:
    require(
        np.shape(bounds) == (2,),
        f"`{name}` must be two numbers",
        **{name: bounds},
    )
    low, high = bounds
    check_above(f"{name}[0]", low, 0.0)
    check_at_least(f"{name}[1]", high, low)
    return float(low), float(high)
