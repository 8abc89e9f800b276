"""Bins of confidence: membership and sums per bin.

With `closed="right"`, as in the papers' code, bins are (lo, hi], and the first
also includes its lower edge. With `"left"` bins are [lo, hi), and the last also
includes its upper edge.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from keras import ops

from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import array_namespace, at_least, safe_divide

__all__ = [
    "BinSums",
    "CLOSED",
    "VoteBinSums",
    "bin_index",
    "bin_sums",
    "shifted_midpoints",
]

CLOSED = ("right", "left")


class BinSums(NamedTuple):
    """Sums of the predictions in each bin, arrays `(num_bins,)`.

    Attributes:
        weight: Total weight, which is the number of samples without weights.
        confidence: Weighted sum of the confidences.
        correct: Weight of the correct predictions.
        residual: `confidence - correct`, subtracted before rounding.
        squared_weight: Sum of squared weights. The effective number of
            samples is weight^2 / squared_weight.
    """

    weight: Any
    confidence: Any
    correct: Any
    residual: Any
    squared_weight: Any

    @property
    def accuracy(self) -> Any:
        """Share of correct predictions in each bin, 0 in empty bins."""
        return safe_divide(self.correct, self.weight)

    @property
    def mean_confidence(self) -> Any:
        """Mean confidence in each bin, 0 in empty bins."""
        return safe_divide(self.confidence, self.weight)

    @property
    def gap(self) -> Any:
        """Mean confidence minus accuracy; positive is overconfident."""
        # A difference of the means would lose small gaps in float32.
        return safe_divide(self.residual, self.weight)

    @property
    def squared_residual(self) -> Any:
        """What `VoteBinSums` have; None for classes."""
        return None


class VoteBinSums(BinSums):
    """Sums of each bin where correctness is a share of votes.

    Attributes:
        squared_residual: Weighted sum of (confidence - share of votes)^2.
    """

    _squared_residual: Any

    def __new__(cls, *sums: Any, squared_residual: Any = None) -> Self:
        """Make them of the sums of `BinSums` and the further one."""
        made = super().__new__(cls, *sums)
        made._squared_residual = squared_residual
        return made

    @property
    def squared_residual(self) -> Any:
        """Weighted sum of (confidence - share of votes)^2."""
        return self._squared_residual

    def _replace(self, **changes: Any) -> Self:
        square = changes.pop("squared_residual", self.squared_residual)
        return type(self)(*super()._replace(**changes), squared_residual=square)

    @property
    def residual_variance(self) -> Any:
        """Variance of confidence - share of votes in each bin."""
        gap = self.gap
        square = safe_divide(self.squared_residual, self.weight)
        return at_least(square - gap * gap, 0.0)


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
    sums = BinSums(
        weight=total(weight),
        confidence=total(weight * confidence),
        correct=total(weight * correct),
        residual=total(weight * residual),
        squared_weight=total(weight * weight),
    )
    if votes:
        square = total(weight * residual**2)
        sums = VoteBinSums(*sums, squared_residual=square)
    return sums
