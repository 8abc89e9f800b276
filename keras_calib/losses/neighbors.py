"""Labels in the neighbourhood of each pixel or voxel.

Derivation: docs/derivations.md, 'Labels around a pixel'.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_integer, check_rows
from keras_calib.inputs.values import read_mask
from keras_calib.losses.base import PerSampleLoss
from keras_calib.numerics.arrays import shape_of

__all__ = ["SpatialLoss", "blurred_labels", "box_shares", "check_kernel"]


class SpatialLoss(PerSampleLoss):
    """Abstract base of losses that read the labels around each pixel.

    `fn` takes the keyword argument `mask`: bool `(batch, ..., )`, False for
    pixels without a label, or None.
    """

    def beside_of(self, batch):
        return {"mask": batch.counted}


def check_kernel(kernel_size: int) -> None:
    """Raise unless the size is odd and at least 3."""
    check_integer("kernel_size", kernel_size, 3)
    if kernel_size % 2 == 0:
        raise value_error(
            "`kernel_size` must be odd, so that each pixel has a centre",
            kernel_size=kernel_size,
        )


def blurred_labels(rows: Any, mask: Any, sigma: float, kernel_size: int) -> Any:
    """Half the label, half a Gaussian mean of the labels around it.

    Rows and result have the shape `(batch, ..., num_classes)`. Pixels beyond
    the edge repeat the last one; those outside of `mask` have no part.

    Derivation: docs/derivations.md, 'Labels around a pixel'.
    """
    offsets = np.arange(kernel_size) - kernel_size // 2
    weights = np.exp(-0.5 * np.square(offsets / sigma))
    weights = weights / weights.sum()
    axes = _axes_of_space(rows)
    centre = float(weights[kernel_size // 2]) ** len(axes)
    if centre == 1.0:
        # A kernel so narrow that its neighbours have rounded to 0.
        raise value_error(
            "`sigma` must be large enough to reach the next pixel",
            sigma=sigma,
        )

    def neighbors(x):
        whole = _convolved(x, axes, weights, _repeated)
        return (whole - centre * x) / (1.0 - centre)

    if mask is None:
        return 0.5 * (rows + neighbors(rows))
    shown = _shown(mask, rows)
    rows = rows * shown
    total = ops.where(shown > 0, 1.0 + neighbors(shown), ops.ones_like(shown))
    return (rows + neighbors(rows)) / total


def box_shares(rows: Any, mask: Any, kernel_size: int, edges: str) -> Any:
    """Share of each class in the box around each pixel, rows as above.

    With `edges="background"` pixels beyond the edge are of class 0, else they
    repeat the last one.

    Derivation: docs/derivations.md, 'Labels around a pixel'.
    """
    axes = _axes_of_space(rows)
    weights = np.full(kernel_size, 1.0 / kernel_size)

    def beyond(x, axis, width):
        if edges == "replicate":
            return _repeated(x, axis, width)
        classes = ops.arange(x.shape[-1], dtype="int32")
        background = ops.cast(ops.equal(classes, 0), x.dtype)
        end = ops.zeros_like(_cut(x, axis, 0, 1)) + background
        return [end] * width, [end] * width

    if mask is None:
        return _convolved(rows, axes, weights, beyond)
    shown = _shown(mask, rows)
    shares = _convolved(rows * shown, axes, weights, beyond)
    total = _convolved(shown, axes, weights, beyond)
    return shares / ops.where(shown > 0, total, ops.ones_like(total))


def _shown(mask: Any, rows: Any) -> Any:
    """A mask as 1 and 0 `(batch, ..., 1)`."""
    mask = read_mask(mask)
    check_rows("mask", mask, rows)
    return ops.cast(ops.expand_dims(mask, -1), rows.dtype)


def _axes_of_space(rows: Any) -> range:
    if len(rows.shape) < 3:
        raise value_error(
            "`logits` must have axes of space, (batch, ..., num_classes), "
            "such as height and width; reshape rows of pixels to images",
            **{"logits.shape": shape_of(rows)},
        )
    return range(1, len(rows.shape) - 1)


def _convolved(x: Any, axes: range, weights: np.ndarray, beyond: Any) -> Any:
    """The mean by a separable kernel, one axis after another."""
    width = len(weights) // 2
    for axis in axes:
        before, after = beyond(x, axis, width)
        padded = ops.concatenate([*before, x, *after], axis=axis)
        parts = (
            float(weight) * _cut(padded, axis, i, i - 2 * width)
            for i, weight in enumerate(weights)
        )
        x = next(parts)
        for part in parts:
            x = x + part
    return x


def _repeated(x: Any, axis: int, width: int) -> tuple[list, list]:
    """What lies before and after x along an axis: its ends."""
    first, last = _cut(x, axis, 0, 1), _cut(x, axis, -1, 0)
    return [first] * width, [last] * width


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """A slice along an axis; a `stop` of 0 is the end."""
    places = [slice(None)] * axis
    return x[(*places, slice(start, stop or None))]
