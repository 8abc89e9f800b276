"""Bins of confidence, of equal width and of equal mass: membership and sums.

With `closed="right"`, as in the papers' code, bins are (lo, hi], and the first
also includes its lower edge. With `"left"` bins are [lo, hi), and the last also
includes its upper edge.

Derivation: docs/derivations.md, 'Equal-mass errors from cells'.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.inputs.checks import check_in
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import (
    array_namespace,
    at_least,
    safe_divide,
    sum_products,
)
from keras_calib.numerics.results import Result

CLOSED = ("right", "left")


class BinSums(Result):
    """Sums of the predictions in each bin, arrays `(num_bins,)`.

    Attributes:
        weight: Total weight, which is the number of samples without weights.
        confidence: Weighted sum of the confidences.
        correct: Weight of the correct predictions.
        residual: `confidence - correct`, subtracted before rounding.
        squared_weight: Sum of squared weights. The effective number of
            samples is weight^2 / squared_weight.
        squared_residual: With votes, the weighted sum of (confidence - share
            of votes)^2; else None.
    """

    weight: Any
    confidence: Any
    correct: Any
    residual: Any
    squared_weight: Any
    squared_residual: Any = None

    @property
    def accuracy(self) -> Any:
        """Share of correct predictions in each bin, 0 in empty bins."""
        return safe_divide(self.correct, self.weight)

    @property
    def mean_confidence(self) -> Any:
        """Mean confidence in each bin, 0 in empty bins."""
        return safe_divide(self.confidence, self.weight)

    @property
    def confidence_gap(self) -> Any:
        """Mean confidence minus accuracy; positive is overconfident."""
        # A difference of the means would lose small gaps in float32.
        return safe_divide(self.residual, self.weight)

    @property
    def residual_variance(self) -> Any:
        """Variance of confidence - share of votes in each bin."""
        gap = self.confidence_gap
        square = safe_divide(self.squared_residual, self.weight)
        return at_least(square - gap * gap, 0.0)

    def parts(self) -> tuple:
        """The sums in order, without those that only votes have."""
        return tuple(x for x in vars(self).values() if x is not None)


def bin_index(confidence: Any, num_bins: int, closed: str = "right") -> Any:
    """Index of the equal-width bin of each confidence (array-agnostic).

    Edges are k / num_bins, rounded to the type of the confidence.
    """
    check_in("closed", closed, CLOSED)
    xp = array_namespace(confidence)
    edges = np.arange(num_bins + 1) / num_bins
    # The confidence is compared with the nearest edge itself, because a
    # product such as 0.28 x 25 may round across it.
    nearest = xp.round(confidence * num_bins)
    if xp is np:
        dtype = confidence.dtype if confidence.dtype.kind == "f" else "float64"
        nearest = np.clip(np.nan_to_num(nearest), 0, num_bins).astype("int64")
        edge = edges.astype(dtype)[nearest]
    else:
        nearest = ops.clip(ops.cast(nearest, "int32"), 0, num_bins)
        edges = ops.convert_to_tensor(edges, dtype=confidence.dtype)
        edge = ops.take(edges, nearest)
    past = confidence > edge if closed == "right" else confidence >= edge
    index = nearest - 1 + (past if xp is np else ops.cast(past, "int32"))
    return xp.clip(index, 0, num_bins - 1)


def shifted_midpoints(
    confidence: np.ndarray, num_bins: int, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """Values of pycalib in place of the confidences `(n,)`, and their bins.

    The B bins [lo, hi) have equal width over [`least`, 1]. The values run from
    `least` + 1 / (2 B) to 1 - 1 / (2 B), so they are not the midpoints.
    """
    edges = np.linspace(least, 1.0, num_bins + 1)
    index = np.searchsorted(edges, confidence, side="right") - 1
    index = np.clip(index, 0, num_bins - 1)
    half = 0.5 / num_bins
    return np.linspace(least + half, 1.0 - half, num_bins)[index], index


def bin_sums(
    confidence: np.ndarray,
    correct: np.ndarray,
    index: np.ndarray,
    num_bins: int,
    weight: np.ndarray | None = None,
    votes: bool = False,
) -> BinSums:
    """Exact sums per bin of NumPy arrays `(n,)`, in float64.

    With `votes`, `correct` holds shares of votes.
    """
    weight = np.ones(len(confidence)) if weight is None else weight

    def total(values):
        return np.bincount(index, weights=values, minlength=num_bins)

    residual = confidence - correct
    return BinSums(
        weight=total(weight),
        confidence=total(weight * confidence),
        correct=total(weight * correct),
        residual=total(weight * residual),
        squared_weight=total(weight * weight),
        squared_residual=total(weight * residual**2) if votes else None,
    )


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
    that of `aece`.
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
            ends, np.r_[0.0, before + mass], np.r_[0.0, np.cumsum(residual)]
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
    return edges, BinSums(*(part[inside] for part in sums.parts()))
