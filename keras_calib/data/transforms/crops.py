"""One crop, resize and flip for image, boxes and mask alike.

An example is a dict:

- `image`: the bytes of a JPEG (any other image file works, slower), a string
  scalar, or pixels `(height, width, channels)` in [0, 255];
- `boxes`: `(n, 4)`, `[ymin, xmin, ymax, xmax]` as shares of the image, with
  `box_labels` `(n,)` where objects of several classes are marked;
- `mask`: `(height, width, 1)` of integers, instead of boxes or beside them;
- `label`: the class id; `name`: a string, for errors; anything else is kept.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.cropping import Cropping
from keras_calib.data.transforms.cropping import complete
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_at_most
from keras_calib.inputs.checks import check_integer

__all__ = [
    "center_crop",
    "check_range",
    "check_seed",
    "random_resized_crop",
    "read_size",
]


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

    A window is cut out (of a JPEG only this part is decoded), resized, and
    mirrored in half of the cases; boxes and mask go the same way. Its area is
    drawn evenly from `scale`, the logarithm of its aspect ratio from `ratio`,
    until it fits; after ten draws it is the largest part of the middle whose
    ratio is allowed. `objectness` is the share of the window that objects
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
        unit it had, with what was to be painted over painted, `boxes` as
        shares of the crop (without area where outside of it), `mask`
        `(height, width, 1)`, `objectness`, a float32 scalar, `window`, the
        part of the image as shares of it, and `flipped`.

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
        Deeper with Convolutions, CVPR 2015, section 6 (the crop, in the form
        that ImageNet recipes have given it), https://arxiv.org/abs/1409.4842
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


def read_size(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, checked."""
    if np.shape(size) not in ((), (2,)):
        raise ValueError(
            invalid("`size` must be one integer or two", size=size)
        )
    sides = (size, size) if np.ndim(size) == 0 else tuple(size)
    for side in sides:
        check_integer("size", side, 1)
    return int(sides[0]), int(sides[1])


def check_range(
    name: str, bounds: Sequence[float], most: float | None = None
) -> tuple[float, float]:
    """The two ends of a range of positive numbers, checked."""
    if np.shape(bounds) != (2,):
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
