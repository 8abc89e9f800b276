"""Calibration error of equal-mass bins, from sorted values or cells.

The functions take NumPy arrays or tensors, unless their types say otherwise.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.formulas.bins import BinSums, bin_sums
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import (
    array_namespace,
    safe_divide,
    sum_products,
)

__all__ = [
    "equal_mass_edges",
    "equal_mass_error",
    "interpolated_bins",
    "sorted_mass_error",
]


def sorted_mass_error(
    score: np.ndarray,
    residual: np.ndarray,
    num_bins: int,
    *,
    weight: np.ndarray | None = None,
    ties: str = "average",
) -> float:
    """Equal-mass calibration error of samples `(n,)` in any order.

    `residual` is the confidence minus the outcome of each sample, `ties` is
    that of `adaptive_ece`.
    """
    frequency_weights = are_frequency_weights(weight)
    order = np.argsort(score, kind="stable")
    score, residual = score[order], residual[order]
    weight = np.ones(len(order)) if weight is None else weight[order]
    residual = weight * residual
    if ties == "average":
        starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])
        weight = np.add.reduceat(weight, starts)
        residual = np.add.reduceat(residual, starts)
    before = np.cumsum(weight) - weight
    return float(
        equal_mass_error(before, weight, residual, num_bins, frequency_weights)
    )


def equal_mass_edges(
    total: Any, num_bins: int, frequency_weights: Any, sample: Any = None
) -> Any:
    """Masses at which equal-mass bins end, `(num_bins + 1, ...)`.

    Derivation: docs/derivations.md, 'Equal-mass errors from cells'.

    With frequency weights, edges lie between samples: the first
    `total mod num_bins` bins hold one more. `sample`, the mass of one, gives
    the edges `"interp"` of samples without ties. A bin then ends with the
    sample past k / num_bins of all, and the first sample is in no bin.
    """
    xp = array_namespace(total)
    index = np.arange(num_bins + 1.0).reshape(-1, *[1] * len(total.shape))
    if xp is ops:
        index = ops.convert_to_tensor(index.astype("float32"))
    if sample is not None:
        # Rounding must not move a whole number to the one below.
        count = xp.round(safe_divide(total, sample))
        past = xp.floor(index * (count / num_bins) * (1 + 3e-7)) + 1.0
        return xp.minimum(past, count) * safe_divide(total, count)
    size = xp.floor(total / num_bins)
    counted = index * size + xp.minimum(index, total - num_bins * size)
    return xp.where(frequency_weights, counted, index * (total / num_bins))


def equal_mass_error(
    before: Any,
    mass: Any,
    residual: Any,
    num_bins: int,
    frequency_weights: Any,
    sample: Any = None,
) -> Any:
    """Equal-mass calibration error of groups `(..., n)` in ascending order.

    Derivation: docs/derivations.md, 'Equal-mass errors from cells'.

    `before` is the mass of all groups before a group. `residual` is its mass
    times (mean confidence - accuracy). A group that an edge cuts is shared in
    proportion.
    """
    xp = array_namespace(mass)
    if xp is np and mass.ndim > 1:
        # All rows at once would need arrays num_bins times as large.
        rows = zip(before, mass, residual, strict=True)
        return np.array(
            [
                equal_mass_error(*row, num_bins, frequency_weights, sample)
                for row in rows
            ]
        )
    total = before[..., -1] + mass[..., -1]
    ends = equal_mass_edges(total, num_bins, frequency_weights, sample)
    if xp is np:
        below = np.interp(
            ends,
            np.r_[0.0, before + mass],
            np.r_[0.0, np.cumsum(residual)],
        )
        gaps = np.diff(below)
    else:
        share = safe_divide(xp.expand_dims(ends, -1) - before, mass)
        share = xp.clip(share, 0.0, 1.0)
        # Shares are subtracted before the sums: a difference of two long sums
        # would lose digits.
        gaps = sum_products(share[1:] - share[:-1], residual)
    return safe_divide(xp.sum(xp.abs(gaps), axis=0), total)


def interpolated_bins(
    confidence: np.ndarray, correct: np.ndarray, num_bins: int
) -> tuple[np.ndarray, BinSums]:
    """Edges `(num_bins + 1,)` and sums of bins as in the papers' code.

    Edges are interpolated between the sorted confidences `(n,)`. Bins are
    (lo, hi], so the smallest confidence is in no bin.
    """
    confidence = confidence.astype("float64")
    count = len(confidence)
    edges = np.interp(
        np.linspace(0, count, num_bins + 1),
        np.arange(count),
        np.sort(confidence),
    )
    # Confidences at or below the first edge are in no bin.
    index = np.searchsorted(edges, confidence, side="left")
    sums = bin_sums(confidence, correct, index, num_bins + 2)
    inside = slice(1, num_bins + 1)
    return edges, BinSums(*(part[inside] for part in sums))
