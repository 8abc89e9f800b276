"""The least limit within reach, for errors that name it."""

import math
from collections.abc import Callable, Sequence

import numpy as np

__all__ = ["advice_on_risk", "count_to_take", "two_digits", "within_reach"]


def advice_on_risk(
    certified: Callable[[float], np.ndarray],
    limit: float,
    coverage: np.ndarray,
    where: str = "here",
) -> str:
    """What to ask for where a limit is out of reach.

    `certified` says which thresholds are at a risk, and `coverage` is theirs
    `(num_thresholds,)`, on the data that `where` names.
    """
    reach = within_reach(certified, two_digits(limit, 1.0))
    if reach is None:
        return "a larger `risk` or `delta`"
    return (
        f"ask for `risk={reach[0]:g}`, with which coverage would be "
        f"{coverage[reach[1]]:.3f} {where} (a risk that these data chose is "
        "guaranteed on other data only)"
    )


def within_reach(
    certified: Callable[[float], np.ndarray], limits: Sequence[float]
) -> tuple[float, int] | None:
    """The least of ascending limits that is certified.

    `certified` says which thresholds are, `(num_thresholds,)` bool. Returns
    the limit and the place of its most lenient threshold, or None.
    """
    low, high, last = 0, len(limits), -1
    while low < high:
        middle = (low + high) // 2
        places = np.flatnonzero(certified(limits[middle]))
        if len(places):
            high, last = middle, int(places[-1])
        else:
            low = middle + 1
    return None if last < 0 else (limits[high], last)


def two_digits(least: float, below: float) -> list[float]:
    """Numbers of two digits between two positive numbers, ascending."""
    first = math.floor(math.log10(least)) - 1
    last = math.floor(math.log10(below))
    return [
        value
        for exponent in range(first, last + 1)
        for digits in range(10, 100)
        if least < (value := float(f"{digits}e{exponent}")) < below
    ]


def count_to_take(count: float) -> int:
    """At most two digits, not below the number."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit
