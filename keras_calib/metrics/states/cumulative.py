"""Cumulative differences from the cells of a histogram, and their bounds."""

from typing import Any

import numpy as np

from keras_calib.formulas.cumulative import (
    CumulativeDifferences,
    cumulative_error,
)
from keras_calib.formulas.cumulative_intervals import cumulative_interval
from keras_calib.metrics.states.histogram import Cells
from keras_calib.numerics.arrays import (
    array_namespace,
    running_sum,
    safe_divide,
)

__all__ = [
    "cell_differences",
    "differences_of_cells",
    "ecce_bounds",
    "ecce_interval",
]


def cell_differences(cells: Cells) -> Any:
    """Differences C through each cell, `(num_cells,)` (array-agnostic)."""
    xp, residual = array_namespace(cells.mass), cells.confidence_minus_correct
    # Shares first, as the sums of many samples would lose digits.
    residual = safe_divide(residual, xp.sum(cells.mass))
    return xp.squeeze(running_sum(xp.expand_dims(residual, -1)), axis=-1)


def differences_of_cells(
    cells: Cells, frequency_weights: bool, weight_ratio: float
) -> CumulativeDifferences:
    """Differences through the filled cells, each a group of ties (NumPy)."""
    filled = cells.mass > 0
    mass, confidence = cells.mass[filled], cells.confidence[filled]
    total = mass.sum()
    variance = np.sum(confidence * (1.0 - np.minimum(confidence / mass, 1.0)))
    if not frequency_weights:
        variance = variance * weight_ratio
    return CumulativeDifferences(
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
