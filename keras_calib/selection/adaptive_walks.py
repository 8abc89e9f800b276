"""Walks of many groups, whose level falls only where groups turn out bad.

Derivation: docs/derivations.md, 'Thresholds by group'.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import binom

from keras_calib.selection.candidates import Candidates
from keras_calib.selection.guarantees import (
    first_rank,
    num_testable,
    starts,
    walk,
)

__all__ = [
    "FAILS_ABOVE",
    "adaptive_walk",
    "adaptively_certified",
    "level_shares",
    "num_adaptive",
]

# A group fails where its p-value is larger. A bad one does so with a
# probability of at least a half.
FAILS_ABOVE = 0.5


def adaptively_certified(
    found: Sequence[Candidates],
    p_values: Sequence[np.ndarray],
    risk: float,
    delta: float,
) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Which thresholds of many independent groups are certified, all at once.

    Where no group fails at a coverage or before, all are tested there as if
    about one of them could be bad. P(any certified threshold of any group has
    a true risk above `risk`) <= `delta`. Derivation: docs/derivations.md,
    'Thresholds by group'.

    Returns:
        A mask of the candidates of each group, whether each group was tested,
        and the fewest samples that could certify a tested one.
    """
    sizes = np.array([int(one.accepted[-1]) for one in found])
    certified = [np.zeros(len(one.threshold), bool) for one in found]
    count, fewest = num_adaptive(sizes, risk, delta)
    was_tested = np.zeros(len(found), bool)
    tested = np.argsort(-sizes, kind="stable")[:count]
    was_tested[tested] = True
    failed_at = np.full(len(found), np.inf)
    for i in tested:
        fails = p_values[i] > FAILS_ABOVE
        fails &= found[i].accepted >= fewest
        if fails.any():
            failed_at[i] = found[i].coverage[fails.argmax()]
    ordered = np.sort(failed_at[tested])
    levels = delta * level_shares(count)
    for i in tested:
        one = found[i]
        num_failed = np.searchsorted(ordered, one.coverage, side="right")
        level = levels[np.minimum(num_failed, count - 1)]
        first, shares, relative = adaptive_walk(
            one.accepted, level, risk, fewest
        )
        # A level that its own failure lowered must not choose its starts.
        if len(first) and failed_at[i] > max(0.5, one.coverage[first[0]]):
            certified[i] = walk(p_values[i] / relative, first, shares)
    return certified, was_tested, fewest


def adaptive_walk(
    accepted: np.ndarray, level: np.ndarray, risk: float, fewest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where walks start, what each brings, and the level over the first one.

    Args:
        accepted: Counts of accepted samples `(num_thresholds,)`, ascending.
        level: Level of each threshold, not ascending.
        risk: Risk to certify.
        fewest: The first rank at which a walk may start.
    """
    count = int(accepted[-1])
    place = int(np.searchsorted(accepted, fewest))
    relative = level / level[place]
    lowest = accepted * math.log1p(-risk) - np.log(relative)
    lowest[:place] = np.inf

    def first_of(_: float, level: float) -> int:
        passes = lowest <= math.log(level)
        return int(accepted[passes.argmax()]) if passes.any() else count + 1

    ranks, shares = starts(count, risk, float(level[place]), first_of)
    return np.searchsorted(accepted, ranks), shares, relative


def level_shares(count: int) -> np.ndarray:
    """Parts of delta by how many groups failed, from none on `(count,)`.

    The part after n failures is proportional to 1 / (n + 1)^2. Derivation:
    docs/derivations.md, 'Thresholds by group'.
    """
    failed = np.arange(count)
    part = 1.0 / (failed + 1.0) ** 2
    # How often n of the bad groups before one fail, over all bad groups.
    times = binom.sf(failed, count, 1.0 - FAILS_ABOVE) / (1.0 - FAILS_ABOVE)
    return part / np.sum(times * part)


def num_adaptive(
    sizes: np.ndarray, risk: float, delta: float
) -> tuple[int, int]:
    """How many groups are tested, the larger ones, and the first rank.

    The smallest must pass at a share of `delta` over the root of their number
    if it has no error. That depends on sizes alone.
    """
    count = max(num_testable(sizes, risk, delta, math.sqrt), 1)
    return count, first_rank(risk, delta / math.sqrt(count))
