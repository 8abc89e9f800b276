"""P-values of many tests, and the largest difference of many estimates."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error

__all__ = ["benjamini_hochberg", "holm", "largest_difference"]


def holm(p_values: Any) -> np.ndarray:
    """P-values after Holm, for any dependence between the tests.

    To reject those of at most alpha rejects a true hypothesis with probability
    at most alpha, however many hypotheses are true. In ascending order

    adjusted_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))

    Args:
        p_values: P-values in [0, 1], `(m,)`. NaN is no test: it stays NaN and
            does not count.

    Reference:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure,
        Scandinavian Journal of Statistics 6, 1979,
        https://www.jstor.org/stable/4615733
    """
    p_values, tested, order = _ordered(p_values)
    count = len(order)
    steps = p_values[order] * np.arange(count, 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(steps), 1.0)
    return _placed(adjusted, tested, order)


def benjamini_hochberg(p_values: Any) -> np.ndarray:
    """P-values after Benjamini and Hochberg, for independent tests.

    To reject those of at most q makes the expected share of true hypotheses
    among the rejected at most q. In ascending order

    adjusted_(i) = min_{j >= i} min(1, m p_(j) / j)

    Args:
        p_values: P-values in [0, 1], `(m,)`. NaN is no test: it stays NaN and
            does not count.

    Reference:
        Benjamini and Hochberg, Controlling the False Discovery Rate, Journal
        of the Royal Statistical Society B 57, 1995,
        https://doi.org/10.1111/j.2517-6161.1995.tb02031.x
    """
    p_values, tested, order = _ordered(p_values)
    count = len(order)
    steps = p_values[order] * count / np.arange(1, count + 1)
    adjusted = np.minimum.accumulate(steps[::-1])[::-1]
    return _placed(np.minimum(adjusted, 1.0), tested, order)


def largest_difference(
    value: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[float, float, float]:
    """Largest difference between two of m estimates, with its interval.

    The interval of a difference comes from those of its two estimates, a and
    b, which are independent:

    a - b - sqrt((a - low_a)^2 + (high_b - b)^2) and
    a - b + sqrt((high_a - a)^2 + (b - low_b)^2)

    The interval of the largest spans from the largest lower end, and at least
    0, to the largest upper end. It covers if those of all pairs do. So the
    estimates need intervals of level 1 - (1 - level) / (m (m - 1) / 2).

    Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Args:
        value, low, high: Estimates and ends of their intervals, `(m,)`.

    Reference:
        Zou and Donner, Construction of Confidence Limits about Effect
        Measures, Statistics in Medicine 2008,
        https://doi.org/10.1002/sim.3095 (the interval of a difference)
    """
    above, below = (high - value) ** 2, (value - low) ** 2
    least, most = 0.0, 0.0
    # One row of pairs at a time, as there may be many groups.
    for i in range(len(value)):
        difference = value[i] - value
        lower = difference - np.sqrt(below[i] + above)
        upper = difference + np.sqrt(above[i] + below)
        lower[i] = upper[i] = 0.0
        least = max(least, float(lower.max()))
        most = max(most, float(upper.max()))
    return float(value.max() - value.min()), least, most


def _ordered(p_values: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P-values, which of them are tests, and these in ascending order."""
    p_values = np.asarray(p_values, "float64")
    tested = ~np.isnan(p_values)
    inside = (p_values[tested] >= 0.0) & (p_values[tested] <= 1.0)
    if p_values.ndim != 1 or not inside.all():
        raise value_error(
            "`p_values` must be one row of numbers in [0, 1], or NaN",
            **{"p_values.shape": p_values.shape},
        )
    places = np.flatnonzero(tested)
    return p_values, tested, places[np.argsort(p_values[places])]


def _placed(
    adjusted: np.ndarray, tested: np.ndarray, order: np.ndarray
) -> np.ndarray:
    found = np.full(len(tested), np.nan)
    found[order] = adjusted
    return found
