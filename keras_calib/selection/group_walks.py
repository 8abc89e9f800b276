"""Tests of all groups at once: walks that share delta, as Holm's procedure.

Derivation: docs/derivations.md, 'Thresholds by group'.
"""

from collections.abc import Sequence

import numpy as np

from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.selection.adaptive_walks import adaptively_certified
from keras_calib.selection.candidates import Candidates
from keras_calib.selection.guarantees import (
    METHODS,
    first_rank,
    num_testable,
    starts,
    walk,
)

__all__ = [
    "MANY",
    "STEPWISE_PART",
    "certified_by_group",
    "completion_levels",
    "dependent_groups",
    "shared_level",
]

# With so many testable groups adaptive walks accept more than Holm's alone.
# They get what is left of delta.
MANY = 10
STEPWISE_PART = 0.3


def certified_by_group(
    found: Sequence[Candidates], risk: float, delta: float, method: str
) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Which thresholds of each group are certified, all at once.

    P(any certified threshold of any group has a true risk above `risk`) <=
    `delta`, for any number of groups of any sizes. If 10 groups are large
    enough for an equal share, most of `delta` goes to `adaptively_certified`.
    Derivation: docs/derivations.md, 'Thresholds by group'.

    Returns:
        A mask of the candidates of each group, whether each group was tested,
        and the fewest samples that could certify a tested one.
    """
    sizes = np.array([int(one.accepted[-1]) for one in found])
    if method != "ltt":
        return _split(found, sizes, risk, delta, method)
    least = first_rank(risk, delta)
    p_values = [_p_values(one, risk, least) for one in found]
    if num_testable(sizes, risk, delta) < MANY:
        return _stepwise(found, p_values, risk, delta)
    one = _stepwise(found, p_values, risk, STEPWISE_PART * delta)
    other = adaptively_certified(
        found, p_values, risk, (1.0 - STEPWISE_PART) * delta
    )
    certified = [x | y for x, y in zip(one[0], other[0], strict=True)]
    return certified, one[1] | other[1], min(one[2], other[2])


def dependent_groups(
    found: Sequence[Candidates], risk: float, delta: float, method: str
) -> list[np.ndarray]:
    """As the masks of `certified_by_group`, for groups of the same examples.

    Labels of one example depend on each other: each has an equal share of
    `delta`. Derivation: docs/derivations.md, 'Thresholds by label'.
    """
    sizes = np.array([int(one.accepted[-1]) for one in found])
    return _split(found, sizes, risk, delta, method)[0]


def _p_values(one: Candidates, risk: float, least: int) -> np.ndarray:
    """P-values of the thresholds that accept enough; 1 of the others."""
    found = np.ones(len(one.threshold))
    rest = slice(int(np.searchsorted(one.accepted, least)), None)
    found[rest] = binomial_p_value(one.wrong[rest], one.accepted[rest], risk)
    return found


def _split(
    found: Sequence[Candidates],
    sizes: np.ndarray,
    risk: float,
    delta: float,
    method: str,
) -> tuple[list[np.ndarray], np.ndarray, int]:
    """The method of one group, at an equal share of `delta` for each."""
    certified, tested, level = _none_yet(found, sizes, risk, delta)
    for i in np.flatnonzero(tested).tolist():
        one = found[i]
        certified[i] = METHODS[method](one.accepted, one.wrong, risk, level)
    return certified, tested, first_rank(risk, level)


def _none_yet(
    found: Sequence[Candidates], sizes: np.ndarray, risk: float, delta: float
) -> tuple[list[np.ndarray], np.ndarray, float]:
    """Nothing certified, which groups are tested, and an equal share."""
    count = num_testable(sizes, risk, delta)
    tested = np.zeros(len(found), bool)
    tested[np.argsort(-sizes, kind="stable")[:count]] = True
    certified = [np.zeros(len(one.threshold), bool) for one in found]
    return certified, tested, delta / max(count, 1)


def _stepwise(
    found: Sequence[Candidates],
    p_values: Sequence[np.ndarray],
    risk: float,
    delta: float,
) -> tuple[list[np.ndarray], np.ndarray, int]:
    """Walks at equal shares, which complete groups pass on (Holm)."""
    sizes = np.array([int(one.accepted[-1]) for one in found])
    certified, tested, level = _none_yet(found, sizes, risk, delta)
    fewest = first_rank(risk, level)
    if not tested.any():
        return certified, tested, fewest
    walks = {}
    for i in np.flatnonzero(tested).tolist():
        ranks, shares = starts(int(sizes[i]), risk, level)
        first = np.searchsorted(found[i].accepted, ranks)
        walks[i] = p_values[i], first, shares / level
    completed = [completion_levels(*one) for one in walks.values()]
    level = shared_level(np.array(completed), delta)
    for i, (p_value, first, shares) in walks.items():
        certified[i] = walk(p_value, first, shares * level)
    return certified, tested, fewest


def completion_levels(
    p_value: np.ndarray, first: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """The least levels at which all tested thresholds are certified `(...)`.

    Arguments are those of `walk`; `shares` are the parts of a level that the
    starts bring `(num_starts,)`, with sum 1. A walk that never failed has, in
    part i, a level of a times the sum of shares up to i. Derivation:
    docs/derivations.md, 'Thresholds by group'.
    """
    ends = np.append(first, p_value.shape[-1])
    least = np.zeros(p_value.shape[:-1])
    for k, share in enumerate(np.cumsum(shares)):
        if ends[k] < ends[k + 1]:
            part = p_value[..., ends[k] : ends[k + 1]]
            least = np.maximum(least, part.max(axis=-1) / share)
    return least


def shared_level(completed: np.ndarray, delta: float) -> np.ndarray:
    """The level of each group after those that completed passed theirs on.

    Derivation: docs/derivations.md, 'Thresholds by group'.

    Args:
        completed: Levels at which all tested thresholds of each group are
            certified `(..., num_groups)`.
        delta: What the groups share.

    Returns:
        `delta` / (groups that do not complete at this level), at most `delta`,
        `(...)`.
    """
    count = completed.shape[-1]
    levels = delta / np.arange(count, 0, -1)
    # Holm's step-down: as many as complete one after the other.
    passed = np.sort(completed, axis=-1) <= levels
    done = np.logical_and.accumulate(passed, axis=-1).sum(axis=-1)
    return delta / np.maximum(count - done, 1)
