"""Equal-mass bins and cumulative differences from cells of a histogram."""

from typing import Any

import numpy as np

from keras_calib.formulas.bins import BinSums, equal_mass_edges
from keras_calib.formulas.cumulative import (
    CumulativeCurve,
    cumulative_error,
    cumulative_interval,
)
from keras_calib.metrics.states.histogram import Cells
from keras_calib.numerics.arrays import (
    array_namespace,
    running_sum,
    safe_divide,
)


def equal_mass_bins(
    cells: Cells, num_bins: int, frequency_weights: bool, weight_ratio: float
) -> BinSums:
    """Sums of equal-mass bins; cut cells are shared by mass (NumPy)."""
    through = np.r_[0.0, cells.before + cells.mass]
    ends = equal_mass_edges(through[-1], num_bins, frequency_weights)

    def share(values):
        return np.diff(np.interp(ends, through, np.r_[0.0, np.cumsum(values)]))

    mass, square = share(cells.mass), cells.squared_residual
    return BinSums(
        weight=mass,
        confidence=share(cells.confidence),
        correct=share(cells.mass - cells.wrong),
        residual=share(cells.confidence_minus_correct),
        squared_weight=mass * weight_ratio,
        squared_residual=None if square is None else share(square),
    )


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


def cell_differences(cells: Cells) -> Any:
    """Differences C through each cell, `(num_cells,)` (array-agnostic)."""
    xp, residual = array_namespace(cells.mass), cells.confidence_minus_correct
    # Shares first, as the sums of many samples would lose digits.
    residual = safe_divide(residual, xp.sum(cells.mass))
    return xp.squeeze(running_sum(xp.expand_dims(residual, -1)), axis=-1)


def differences_of_cells(
    cells: Cells, frequency_weights: bool, weight_ratio: float
) -> CumulativeCurve:
    """Differences through the filled cells, each a group of ties (NumPy)."""
    filled = cells.mass > 0
    mass, confidence = cells.mass[filled], cells.confidence[filled]
    total = mass.sum()
    variance = np.sum(confidence * (1.0 - np.minimum(confidence / mass, 1.0)))
    if not frequency_weights:
        variance = variance * weight_ratio
    return CumulativeCurve(
        share=safe_divide(np.cumsum(mass), total),
        difference=cell_differences(cells)[filled],
        deviation=float(safe_divide(np.sqrt(variance), total)),
    )


def ecce_bounds(cells: Cells, kind: str) -> tuple[float, float]:
    """Smallest and largest error over all orders inside cells (NumPy).

    Derivation: docs/derivations.md, 'Cumulative errors'.
    """
    end, total = cell_differences(cells), cells.mass.sum()
    low = float(cumulative_error(end, kind))
    start = np.r_[0.0, end[:-1]]
    # Right predictions lower a difference, wrong ones raise it.
    lowest = start - safe_divide(cells.correct_one_minus_confidence, total)
    highest = end + start - lowest
    if kind == "maximum":
        return low, float(max(highest.max(), -lowest.min()))
    # From a place in an earlier cell, or from the start of the same one.
    least = np.minimum.accumulate(np.r_[0.0, lowest[:-1]])
    most = np.maximum.accumulate(np.r_[0.0, highest[:-1]])
    rise = highest - np.minimum(least, start)
    fall = np.maximum(most, start) - lowest
    return low, float(max(rise.max(), fall.max()))


def ecce_interval(
    cells: Cells, kind: str, weight_ratio: np.ndarray, level: float
) -> tuple[float, float]:
    """Confidence interval of the error, from the filled cells (NumPy).

    `weight_ratio` is the sum of squared weights over that of weights, by cell.
    """
    filled, total = cells.mass > 0, cells.mass.sum()
    squares, cubes = _powers_of_residuals(cells)
    difference, scale = cell_differences(cells), weight_ratio / max(total, 1e-9)
    share = safe_divide(cells.mass, total)
    return cumulative_interval(
        difference[filled],
        (scale * safe_divide(squares, total))[filled],
        num_samples=float(safe_divide(1.0, np.sum(scale * share))),
        third=float(np.sum(scale**2 * safe_divide(cubes, total))),
        kind=kind,
        level=level,
    )


def _powers_of_residuals(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """Sums of weight times (confidence - correct)^2 and ^3, by cell."""
    residual, squares = cells.confidence_minus_correct, cells.squared_residual
    if squares is not None:
        gap = safe_divide(residual, cells.mass)
        # As if shares were symmetric about their mean.
        return squares, gap * (3.0 * squares - 2.0 * gap * residual)
    fall, right = cells.correct_one_minus_confidence, cells.mass - cells.wrong
    rise, wrong = residual + fall, cells.wrong
    up, down = safe_divide(rise, wrong), safe_divide(fall, right)
    return up * rise + down * fall, up**2 * rise - down**2 * fall
