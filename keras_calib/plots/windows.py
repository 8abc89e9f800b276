"""Means and deviations in a window that slides."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.numerics.arrays import safe_divide

__all__ = ["Windows", "draw_windows", "slide"]


class Windows(NamedTuple):
    """What lies in each window, arrays `(num_windows,)`.

    The mean and the standard deviation are NaN where there are too few values.
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

    Windows of a width around the centers, both ends inside; of fewer than
    `at_least` values there is no mean.
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


def draw_windows(ax: Any, windows: Windows, label: str, **style: Any) -> None:
    """A line of the means in a band of the deviations."""
    mean, deviation = windows.mean, windows.deviation
    ax.fill_between(
        windows.center,
        mean - deviation,
        mean + deviation,
        color=style["color"],
        alpha=0.2,
        linewidth=0,
    )
    ax.plot(windows.center, mean, label=label, **style)
