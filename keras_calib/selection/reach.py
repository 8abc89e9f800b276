"""The least risk within reach, for errors that name it."""

import math
from collections.abc import Callable

import numpy as np

__all__ = ["risk_within_reach"]


def risk_within_reach(
    certified: Callable[[float], np.ndarray], limit: float
) -> tuple[float, int] | None:
    """The least risk of two digits above a limit that is certified.

    `certified` says which thresholds are, `(num_thresholds,)` bool. Returns
    the risk and the place of its most lenient threshold, or None.
    """
    first = math.floor(math.log10(limit)) - 1
    risks = [
        risk
        for exponent in range(first, -1)
        for digits in range(10, 100)
        if (risk := round(digits * 10.0**exponent, 12)) > limit
    ]
    low, high, last = 0, len(risks), -1
    while low < high:
        middle = (low + high) // 2
        places = np.flatnonzero(certified(risks[middle]))
        if len(places):
            high, last = middle, int(places[-1])
        else:
            low = middle + 1
    return None if last < 0 else (risks[high], last)
