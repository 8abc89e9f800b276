"""One crop, resize and flip for image, boxes and mask alike.

An example is a dict:

- `image`: the bytes of a JPEG (any other image file works, slower), a string
  scalar, or pixels `(height, width, channels)` in [0, 255];
- `boxes`: `(n, 4)`, `[ymin, xmin, ymax, xmax]` as shares of the image, with
  `box_labels` `(n,)` where objects of several classes are marked;
- `mask`: `(height, width, 1)` of integers, instead of boxes or beside them;
- `label`: the class id; `name`: a string, for errors; anything else is kept.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from keras_calib.checks import check_above
from keras_calib.checks import check_at_least
from keras_calib.checks import check_at_most
from keras_calib.checks import check_in
from keras_calib.checks import check_integer
from keras_calib.checks import invalid
from keras_calib.data.boxes import crop_boxes
from keras_calib.data.boxes import flip_boxes
from keras_calib.data.boxes import resize_boxes
from keras_calib.data.image_reading import read_window
from keras_calib.data.object_share import objectness
from keras_calib.data.object_share import objectness_from_mask
from keras_calib.data.painting import paint
from keras_calib.data.requirements import require
from keras_calib.data.validity import same_shape
from keras_calib.extras import tensorflow as tf

__all__ = [
    "Cropping",
    "center_crop",
    "check_range",
    "check_seed",
    "complete",
    "object_source",
    "random_resized_crop",
    "read_size",
    "shown_window",
]


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
            require(
                tf.reduce_all(tf.equal(tf.shape(example["mask"])[:2], size)),
                "`mask` must have the height and width of `image`",
                example=name,
                size=size,
                mask=tf.shape(example["mask"]),
            )
            begin = tf.concat([window[:2], [0]], axis=0)
            extent = tf.concat([window[2:], [1]], axis=0)
            mask = tf.slice(example["mask"], begin, extent)
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
        side = tf.cast(tf.reduce_min(size), "float32") * self.fraction
        # As high and wide as what is made of it.
        wanted = tf.constant(self.size, dtype="float32")
        extent = side * wanted / tf.reduce_min(wanted)
        extent = tf.minimum(tf.cast(tf.round(extent), "int32"), size)
        extent = tf.maximum(extent, 1)
        return tf.concat([(size - extent) // 2, extent], axis=0)

    def _random(self, seed: Any) -> Callable[[Any], Any]:
        def choose(size: Any) -> Any:
            begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
                tf.concat([size, [1]], axis=0),
                tf.zeros([1, 0, 4]),
                seed,
                min_object_covered=0.0,
                aspect_ratio_range=list(self.ratio),
                area_range=list(self.scale),
                max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            )
            return tf.concat([begin[:2], extent[:2]], axis=0)

        return choose


def random_resized_crop(
    example: dict,
    size: int | Sequence[int],
    scale: Sequence[float] = (0.08, 1.0),
    ratio: Sequence[float] = (3 / 4, 4 / 3),
    seed: Any = None,
    *,
    flip: bool = True,
    classes: Sequence[int] | None = None,
    objects: str | None = None,
    interpolation: str = "bilinear",
    antialias: bool = False,
) -> dict:
    """A random part of an image at the size wanted, with all that is in it.

    A window of random area and aspect ratio is cut out (of a JPEG only this
    part is decoded), resized, and mirrored in half of the cases; boxes and
    mask go the same way. `objectness` is the share of the window that objects
    cover, computed before anything is resized.

    Args:
        example: A dict with `image`, and `boxes` or `mask` or neither; see
            the head of this module.
        size: Height and width of the result, or one number for both.
        scale: Smallest and largest area of the window, as shares of the
            image.
        ratio: Smallest and largest width over height of the window.
        seed: Two integers, or an integer tensor `(2,)`: the same seed makes
            the same crop.
        flip: Whether to mirror half of the images.
        classes: Ids of the classes that count as objects: of `box_labels`,
            or values of the mask. By default all boxes, and all values but 0.
        objects: `"boxes"` or `"mask"`, what objectness is computed from; by
            default boxes where there are some to have.
        interpolation: As in `tf.image.resize`; masks take the nearest pixel.
        antialias: As in `tf.image.resize`.

    Returns:
        The example with `image` float32 `(height, width, channels)` in the
        unit it had, `boxes` as shares of the crop (without area where outside
        of it), `mask` `(height, width, 1)`, `objectness`, a float32 scalar,
        `window`, the part of the image as shares of it, and `flipped`.

    Raises:
        ValueError: If an argument is out of its range. With the name of the
            example: if image and mask differ in size, a box is not finite or
            inverted, or the image cannot be read; inside a graph,
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
        Deeper with Convolutions, CVPR 2015, section 6 (the crop),
        https://arxiv.org/abs/1409.4842
    """
    cropping = Cropping(
        read_size(size),
        check_range("scale", scale, most=1.0),
        check_range("ratio", ratio),
        flip=flip,
        interpolation=interpolation,
        antialias=antialias,
    )
    return complete(cropping, example, check_seed(seed), classes, objects)


def center_crop(
    example: dict,
    size: int | Sequence[int],
    fraction: float = 0.875,
    *,
    classes: Sequence[int] | None = None,
    objects: str | None = None,
    interpolation: str = "bilinear",
    antialias: bool = False,
) -> dict:
    """The middle of an image at the size wanted, with all that is in it.

    Args:
        example: As in `random_resized_crop`.
        size: Height and width of the result, or one number for both.
        fraction: Share of the shorter side of the image that is shown.
        classes: As in `random_resized_crop`.
        objects: As in `random_resized_crop`.
        interpolation: As in `random_resized_crop`.
        antialias: As in `random_resized_crop`.

    Returns:
        As `random_resized_crop`.

    Raises:
        ValueError: As `random_resized_crop`.

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
    check_above("fraction", fraction, 0.0)
    check_at_most("fraction", fraction, 1.0)
    cropping = Cropping(
        read_size(size),
        fraction=fraction,
        interpolation=interpolation,
        antialias=antialias,
    )
    return complete(cropping, example, None, classes, objects)


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


def object_source(parts: dict, objects: str | None) -> str | None:
    """Whether boxes or the mask say where objects are; None if neither."""
    check_in("objects", objects, (None, "boxes", "mask"))
    if objects is None:
        return next((p for p in ("boxes", "mask") if p in parts), None)
    if objects not in parts:
        raise ValueError(
            invalid(
                "Examples must have what `objects` names",
                objects=objects,
                parts=sorted(parts),
            )
        )
    return objects


def read_size(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, checked."""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2:
        raise ValueError(
            invalid("`size` must be one integer or two", size=size)
        )
    for side in sides:
        check_integer("size", side, 1)
    return sides


def check_range(name: str, bounds: Sequence[float], most: float | None = None):
    """The two ends of a range of positive numbers, checked."""
    if len(bounds) != 2:
        raise ValueError(
            invalid(f"`{name}` must be two numbers", **{name: bounds})
        )
    low, high = bounds
    check_above(f"{name}[0]", low, 0.0)
    check_at_least(f"{name}[1]", high, low)
    if most is not None:
        check_at_most(f"{name}[1]", high, most)
    return float(low), float(high)


def check_seed(seed: Any) -> Any:
    """An integer tensor `(2,)`."""
    shape = None if seed is None else tf.convert_to_tensor(seed).shape
    if seed is None or not shape.is_compatible_with([2]):
        raise ValueError(
            invalid("`seed` must be two integers, one pair per crop", seed=seed)
        )
    return tf.convert_to_tensor(seed)


def complete(
    cropping: Cropping,
    example: dict,
    seed: Any,
    classes: Sequence[int] | None,
    objects: str | None,
) -> dict:
    """One example cropped, its boxes moved along, with its objectness."""
    example = {k: tf.convert_to_tensor(v) for k, v in example.items()}
    source = object_source(example, objects)
    crop = cropping.apply(example, seed)
    mask = crop.pop("mask_in_window", None)
    if source == "mask":
        crop["objectness"] = objectness_from_mask(mask, classes=classes)
    window = shown_window(crop.pop("pixels"), crop.pop("size"))
    crop["window"] = window
    if "boxes" in example:
        boxes = example["boxes"]
        if source == "boxes":
            labels = None if classes is None else example["box_labels"]
            crop["objectness"] = objectness(
                window, boxes, classes=classes, box_labels=labels
            )
        boxes = crop_boxes(boxes, window)
        boxes = resize_boxes(boxes, window[2:] - window[:2], (1.0, 1.0))
        if cropping.flip:
            boxes = tf.where(crop["flipped"], flip_boxes(boxes), boxes)
        crop["boxes"] = boxes
    if not cropping.flip:
        crop["flipped"] = tf.constant(False)
    return crop
