"""Means and deviations in a window that slides."""

from typing import NamedTuple

import numpy as np

from keras_calib.numerics.arrays import safe_divide

__all__ = ["Windows", "draw_windows", "slide"]


class Windows(NamedTuple):
    """What lies in each window, `(num_windows,)`.

    Attributes:
        center: Middle of the window.
        mean: Mean of the values, NaN where there are too few.
        deviation: Standard deviation of the values, likewise.
        count: Number of values.
    """

    center: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    count: np.ndarray


def slide(
    places: np.ndarray,
    values: np.ndarray,
    centers: np.ndarray,
    width: float,
    at_least: int = 5,
) -> Windows:
    """Mean and deviation of the values whose places are in each window.

    Args:
        places: Where each value is, `(n,)`.
        values: Values `(n,)`.
        centers: Middles of the windows, `(num_windows,)`.
        width: Of a window, both ends inside.
        at_least: Number of values below which there is no mean.
    """
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order].astype("float64")
    middle = values.mean() if len(values) else 0.0
    # Of small numbers, so that differences of sums keep their digits.
    values = values - middle
    first = np.searchsorted(places, centers - width / 2, side="left")
    last = np.searchsorted(places, centers + width / 2, side="right")
    count = last - first

    def sums(x: np.ndarray) -> np.ndarray:
        total = np.concatenate([[0.0], np.cumsum(x)])
        return total[last] - total[first]

    mean = safe_divide(sums(values), count.astype("float64"))
    square = safe_divide(sums(values**2), count.astype("float64"))
    deviation = np.sqrt(np.maximum(square - mean**2, 0.0))
    few = count < at_least
    return Windows(
        centers,
        np.where(few, np.nan, mean + middle),
        np.where(few, np.nan, deviation),
        count,
    )


def draw_windows(
    ax: object, windows: Windows, color: str, style: object, label: str
) -> None:
    """A line of the means in a band of the deviations."""
    low, high = (
        windows.mean - windows.deviation,
        windows.mean + windows.deviation,
    )
    ax.fill_between(
        windows.center, low, high, color=color, alpha=0.2, linewidth=0
    )
    ax.plot(
        windows.center,
        windows.mean,
        color=color,
        linestyle=style,
        linewidth=1.5,
        label=label,
    )
