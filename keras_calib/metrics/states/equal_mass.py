"""Equal-mass bins from the cells of a histogram, and bounds of their error."""

from typing import Any

import numpy as np

from keras_calib.formulas.bins import BinSums, VoteBinSums
from keras_calib.formulas.equal_mass import equal_mass_edges
from keras_calib.metrics.states.histogram import Cells

__all__ = ["aece_bounds", "equal_mass_bins"]


def equal_mass_bins(
    cells: Cells, num_bins: int, frequency_weights: bool, weight_ratio: float
) -> BinSums:
    """Sums of equal-mass bins; cut cells are shared by mass (NumPy)."""
    through = np.r_[0.0, cells.before + cells.mass]
    ends = equal_mass_edges(through[-1], num_bins, frequency_weights)

    def share(values):
        return np.diff(np.interp(ends, through, np.r_[0.0, np.cumsum(values)]))

    mass = share(cells.mass)
    sums = BinSums(
        weight=mass,
        confidence=share(cells.confidence),
        correct=share(cells.mass - cells.wrong),
        residual=share(cells.confidence_minus_correct),
        squared_weight=mass * weight_ratio,
    )
    if cells.squared_residual is not None:
        square = share(cells.squared_residual)
        sums = VoteBinSums(*sums, squared_residual=square)
    return sums


def aece_bounds(
    cells: Cells,
    lowest: np.ndarray,
    num_bins: int,
    frequency_weights: bool,
    sample: Any = None,
) -> tuple[float, float]:
    """Smallest and largest error over all orders inside cells.

    `lowest` is the smallest confidence that each cell can hold. With the
    `sample` of `equal_mass_edges`, edges can move up to the end of ties.

    Derivation: docs/derivations.md, 'Equal-mass errors from cells'.
    """
    filled = cells.mass > 0
    if not filled.any():
        return 0.0, 0.0
    mass, wrong, before, confidence, residual = (v[filled] for v in cells[:5])
    lowest = lowest[filled]
    total = before[-1] + mass[-1]
    ends = equal_mass_edges(total, num_bins, frequency_weights, sample)
    cut = np.searchsorted(before, ends, side="right") - 1
    x = np.clip(ends - before[cut], 0.0, mass[cut])
    correct = (mass - wrong)[cut]
    below = (np.cumsum(residual) - residual)[cut]
    mean = (confidence / mass)[cut]
    lowest = np.minimum(lowest[cut], mean)
    residual = residual[cut]
    # x of the cell lies below the edge; with `sample` it may be all of it.
    most = x if sample is None else mass[cut]
    at_low, at_high = (np.clip(v[cut], x, most) for v in (mass - wrong, wrong))
    low = at_low * lowest - np.minimum(at_low, correct)
    high = at_high * mean - np.maximum(0.0, at_high - wrong[cut])
    whole_cell = x >= mass[cut]
    low, high = (np.where(whole_cell, residual, v) for v in (low, high))
    low, high = below + low, below + high
    return (
        float(_least_variation(low, high) / total),
        float(_most_variation(low, high) / total),
    )


def _least_variation(low: np.ndarray, high: np.ndarray) -> float:
    """The smallest sum |R_k - R_k-1| of R_k in [low_k, high_k]."""
    start, end, length = low[0], high[0], 0.0
    for a, b in zip(low[1:], high[1:], strict=True):
        # Every R in [start, end] is as good so far; stay if possible.
        if a > end:
            length, start, end = length + a - end, a, a
        elif b < start:
            length, start, end = length + start - b, b, b
        else:
            start, end = max(a, start), min(b, end)
    return length


def _most_variation(low: np.ndarray, high: np.ndarray) -> float:
    """The largest sum, which is reached at the ends of the ranges."""
    at_low = at_high = 0.0
    for k in range(1, len(low)):
        at_low, at_high = (
            max(at_low + abs(x - low[k - 1]), at_high + abs(x - high[k - 1]))
            for x in (low[k], high[k])
        )
    return max(at_low, at_high)
