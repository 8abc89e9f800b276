"""The least risk within reach, for errors that name it."""

import math
from collections.abc import Callable

import numpy as np

__all__ = ["advice_on_risk"]


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
    reach = _within_reach(certified, limit)
    if reach is None:
        return "a larger `risk` or `delta`"
    return (
        f"ask for `risk={reach[0]:g}`, with which coverage would be "
        f"{coverage[reach[1]]:.3f} {where} (a risk that these data chose is "
        "guaranteed on other data only)"
    )


def _within_reach(
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
