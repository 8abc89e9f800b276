"""Equal-mass calibration error from the cells of a histogram.

An edge between two equal-mass bins cuts a cell, and how right and wrong
predictions are ordered inside it is not known. Only the cut cells matter:
`aece_bounds` is what their orders can change.
"""

from typing import Any

import numpy as np

from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.equal_mass import equal_mass_edges
from keras_calib.formulas.equal_mass import equal_mass_error
from keras_calib.metrics.states.histogram import Cells
from keras_calib.metrics.states.histogram import HistogramSummary

__all__ = [
    "aece_bounds",
    "aece_of_cells",
    "equal_mass_bins",
    "histogram_aece_bounds",
]

# What float32 leaves undecided in a value of [0, 1].
_ROUNDING = 1e-6


def aece_of_cells(
    cells: Cells, num_bins: int, frequency_weights: Any, edges: str = "mass"
) -> Any:
    """Equal-mass calibration error of the cells (array-agnostic)."""
    return equal_mass_error(
        cells.before,
        cells.mass,
        cells.confidence_minus_correct,
        num_bins,
        frequency_weights,
        edges,
    )


def equal_mass_bins(
    cells: Cells, num_bins: int, frequency_weights: bool, weight_ratio: float
) -> BinSums:
    """Sums of equal-mass bins, cells shared by mass; NumPy, float64.

    Args:
        cells: Cells in float64.
        num_bins: Number of bins.
        frequency_weights: Whether weights are counts.
        weight_ratio: Sum of squared weights over that of weights.

    Returns:
        BinSums of arrays `(num_bins,)`.
    """
    through = np.r_[0.0, cells.before + cells.mass]
    ends = equal_mass_edges(through[-1], num_bins, frequency_weights)

    def share(values):
        return np.diff(np.interp(ends, through, np.r_[0.0, np.cumsum(values)]))

    mass = share(cells.mass)
    return BinSums(
        weight=mass,
        confidence=share(cells.confidence),
        correct=share(cells.mass - cells.wrong),
        residual=share(cells.confidence_minus_correct),
        squared_weight=mass * weight_ratio,
    )


def aece_bounds(
    cells: Cells,
    lowest: np.ndarray,
    num_bins: int,
    frequency_weights: bool,
    edges: str = "mass",
) -> tuple[float, float]:
    """What the equal-mass error can be, whatever the order inside cells.

    Of the mass x of a cut cell below the edge, as few or as many are correct
    as can be, and the mean confidence lies between the lowest of the cell
    and its mean. That gives a range of the residual R_k below each edge, and
    the error is sum_k |R_k - R_k-1| over all edges: within an uncertain edge
    what one bin gains the next one loses, so that where both have gaps of
    one sign nothing is uncertain.

    Derivation: docs/derivations.md, 'Equal-mass errors from cells'.

    Args:
        cells: Cells in float64.
        lowest: The smallest confidence each cell can hold, `(num_cells,)`.
        num_bins: Number of equal-mass bins.
        frequency_weights: Whether weights are counts.
        edges: `"mass"` or `"interp"`. The latter moves an edge up to the
            end of the samples that tie with it.

    Returns:
        `(lower, upper)`; both 0 when empty.
    """
    filled = cells.mass > 0
    if not filled.any():
        return 0.0, 0.0
    mass, wrong, before, confidence, residual, _ = (v[filled] for v in cells)
    lowest = lowest[filled]
    total = before[-1] + mass[-1]
    ends = equal_mass_edges(total, num_bins, frequency_weights, edges)
    cut = np.searchsorted(before, ends, side="right") - 1
    x = np.clip(ends - before[cut], 0.0, mass[cut])
    correct = (mass - wrong)[cut]
    below = (np.cumsum(residual) - residual)[cut]
    mean = (confidence / mass)[cut]
    lowest = np.minimum(lowest[cut], mean)
    residual = residual[cut]
    # How much of the cell lies below: x, or by "interp" up to all of it.
    most = mass[cut] if edges == "interp" else x
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


def histogram_aece_bounds(
    histogram: HistogramSummary,
    cells: Cells,
    num_bins: int,
    frequency_weights: bool,
    edges: str = "mass",
) -> tuple[float, float]:
    """`aece_bounds` of a histogram, with room for rounding, in [0, 1]."""
    lowest = histogram.lower_confidence()
    low, high = aece_bounds(cells, lowest, num_bins, frequency_weights, edges)
    room = _ROUNDING + histogram.confidence_room
    return max(0.0, low - room), min(1.0, high + room)


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
    """The largest; it is reached at the ends of the ranges."""
    at_low = at_high = 0.0
    for k in range(1, len(low)):
        at_low, at_high = (
            max(at_low + abs(x - low[k - 1]), at_high + abs(x - high[k - 1]))
            for x in (low[k], high[k])
        )
    return max(at_low, at_high)
