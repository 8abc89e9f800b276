"""Calibration error smoothed by a kernel of the right width, without bins.

The kernel is a Gaussian on the confidence, reflected at 0 and 1. Cosines
diagonalise it: smoothing on a grid of [0, 1] is a cosine transform, a factor
per frequency, and a transform back.
"""

from typing import Any

import numpy as np
import scipy.fft
from keras import ops

from keras_calib.inputs.top_label import top_label
from keras_calib.numerics.arrays import namespace

__all__ = ["smooth_ece", "smooth_error_of_points"]

_EXACT_CELLS = 2**14
# Widths are tried 32 at a time; each round leaves a 32nd of the interval.
_WIDTHS = 32
_ROUNDS = {"numpy": 6, "tensor": 4}


def smooth_ece(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Smooth calibration error of the predicted class, in float64.

    E(s) = integral over t in [0, 1] of |mean_n K_s(t, c_n) (c_n - a_n)|,
    with confidence c, correctness a and the reflected Gaussian kernel K_s of
    width s. smECE is the s with E(s) = s: no bins and nothing to choose, and
    within constant factors of the distance to the nearest predictions that
    are calibrated.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`, read as their largest class.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.

    Returns:
        Error in [0, 1].

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(smooth_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 3)
    0.208

    Reference:
        Blasiok and Nakkiran, Smooth ECE: Principled Reliability Diagrams via
        Kernel Smoothing, ICLR 2024, https://arxiv.org/abs/2309.12236

    Differs:
        The authors' package steps the width by 2^-10, samples E(s) at 200
        points, stops below 0.001, and counts confidences of exactly 0 and 1
        half; this solves E(s) = s to 1e-6 with all of them.
    """
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    residual = top.confidence.astype("float64") - top.correct
    if top.weight is None:
        residual = residual / len(residual)
    else:
        residual = residual * (top.weight / top.weight.sum())
    return float(smooth_error_of_points(top.confidence, residual, _EXACT_CELLS))


def smooth_error_of_points(
    position: Any, residual: Any, num_cells: int = 2048
) -> Any:
    """smECE of points with residuals (either).

    Args:
        position: Mean confidence of each point, in [0, 1], `(n,)`. A point
            may stand for many samples that are near each other.
        residual: Share of the total weight times (confidence - accuracy) of
            each point, `(n,)`.
        num_cells: Cells of the grid on [0, 1], a power of two. Widths below
            about two cells are not resolved.

    Returns:
        A scalar in [0, 1]; 0 where there is no residual.
    """
    xp = namespace(residual)
    frequency = np.pi * np.arange(num_cells + 1)
    # Of the trapezoidal rule: the nodes at the ends have half a cell.
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
        # E falls as the width grows: these are still too narrow.
        narrow = smoothed(width) > width
        narrow = xp.where(narrow, xp.ones_like(width), xp.zeros_like(width))
        span = span / _WIDTHS
        low = low + span * xp.sum(narrow)
    return smoothed(xp.reshape(low + 0.5 * span, (1,)))[0]


def _spread(position: Any, residual: Any, num_cells: int) -> Any:
    """Residuals on the nodes of a grid of [0, 1], `(num_cells + 1,)`.

    Each is shared by the two nodes about it so that its place is their mean.
    """
    xp = namespace(residual)
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
    """sum_j v_j cos(pi k j / m), inner v_j twice, `(..., m + 1)` (either).

    Takes a function on the nodes to 2 m times the coefficients of its
    cosines, and these back to the function.
    """
    if namespace(values) is np:
        return scipy.fft.dct(values, type=1, axis=-1)
    mirrored = ops.concatenate(
        [values, ops.flip(values[..., 1:-1], axis=-1)], axis=-1
    )
    return ops.rfft(mirrored)[0]
