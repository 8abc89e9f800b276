"""Smooth calibration error of points."""

from typing import Any

import numpy as np
import scipy.fft
from keras import ops

from keras_calib.numerics.arrays import array_namespace

# Number of cells of the grid for single samples.
EXACT_CELLS = 2**14
# Each round tries 32 widths and leaves a 32nd of the interval.
_WIDTHS = 32
_ROUNDS = {"numpy": 6, "tensor": 4}


def smooth_error_of_points(
    position: Any, residual: Any, num_cells: int = 2048
) -> Any:
    """Smooth calibration error of points `(n,)` (array-agnostic).

    The kernel is a Gaussian on the confidence, reflected at 0 and 1. Cosines
    diagonalise it. So smoothing on a grid of [0, 1] is a cosine transform, a
    factor per frequency, and a transform back.

    A residual is a share of the total weight times (confidence - accuracy).
    `num_cells` is a power of two. Widths below two cells are not resolved.
    """
    xp = array_namespace(residual)
    frequency = np.pi * np.arange(num_cells + 1)
    # In the trapezoidal rule the nodes at the ends have half a cell.
    share = np.full(num_cells + 1, 1.0 / num_cells)
    share[[0, -1]] /= 2.0
    steps = np.arange(1, _WIDTHS) / _WIDTHS
    if xp is ops:
        frequency, share, steps = (
            ops.convert_to_tensor(x.astype("float32"))
            for x in (frequency, share, steps)
        )
    density = _spread(position, residual, num_cells) / share
    coefficients = _cosines(density) / (2 * num_cells)

    def smoothed(width):
        """E at each width, `(k,)`."""
        damping = xp.exp(-0.5 * xp.square(width[:, None] * frequency))
        density = _cosines(coefficients * damping)
        return xp.sum(xp.abs(density) * share, axis=-1)

    low, span = 0.0, 1.0
    for _ in range(_ROUNDS["numpy" if xp is np else "tensor"]):
        width = low + span * steps
        # E falls as the width grows, so these widths are too narrow.
        narrow = smoothed(width) > width
        narrow = xp.where(narrow, xp.ones_like(width), xp.zeros_like(width))
        span = span / _WIDTHS
        low = low + span * xp.sum(narrow)
    return smoothed(xp.reshape(low + 0.5 * span, (1,)))[0]


def _spread(position: Any, residual: Any, num_cells: int) -> Any:
    """Residuals on the nodes of a grid of [0, 1], `(num_cells + 1,)`.

    Each residual is shared by the two nodes around it, so that their mean
    position is that of the residual.
    """
    xp = array_namespace(residual)
    place = xp.clip(position, 0.0, 1.0) * num_cells
    below = xp.clip(xp.floor(place), 0, num_cells - 1)
    above = (place - below) * residual
    values = xp.concatenate([residual - above, above])
    if xp is np:
        node = below.astype("int64")
        node = np.concatenate([node, node + 1])
        return np.bincount(node, weights=values, minlength=num_cells + 1)
    node = ops.cast(below, "int32")
    node = ops.concatenate([node, node + 1])
    return ops.segment_sum(values, node, num_cells + 1)


def _cosines(values: Any) -> Any:
    """sum_j v_j cos(pi k j / m), inner v_j twice, `(..., m + 1)`.

    Applied twice, it gives 2 m times the values.
    """
    if array_namespace(values) is np:
        return scipy.fft.dct(values, type=1, axis=-1)
    mirrored = ops.concatenate(
        [values, ops.flip(values[..., 1:-1], axis=-1)], axis=-1
    )
    return ops.rfft(mirrored)[0]
