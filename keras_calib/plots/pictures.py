"""Images and maps of their pixels, on axes."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import to_numpy

__all__ = ["as_picture", "show"]


def as_picture(name: str, image: Any) -> np.ndarray:
    """An image in [0, 1], `(h, w)` or `(h, w, 3)`.

    Values from 0 to 1 are kept, values from 0 to 255 divided by 255, and
    others, such as standardized ones, stretched to their range. Raises
    ValueError if it is no image, or not finite.
    """
    image = to_numpy(image)
    shape, counts = image.shape, image.dtype.kind in "iu"
    image = image.astype("float64")
    if len(shape) == 3 and shape[-1] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or shape[2:] not in ((), (1,), (3,)):
        raise value_error(
            f"`{name}` must have shape (height, width), or (height, "
            "width, channels) with 1 or 3 channels",
            **{f"{name}.shape": shape},
        )
    low, high = image.min(), image.max()
    if not np.isfinite([low, high]).all():
        raise value_error(f"`{name}` must be finite", minimum=low, maximum=high)
    if low >= 0.0 and high <= 255.0:
        return image / 255.0 if counts or high > 1.0 else image
    return (image - low) / max(high - low, 1e-9)


def show(ax: Any, values: np.ndarray, **options: Any) -> Any:
    """Draws pixels as they are, without ticks; returns the image."""
    drawn = ax.imshow(values, interpolation="nearest", **options)
    ax.set(xticks=[], yticks=[])
    return drawn
