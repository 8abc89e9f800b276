"""Families of claims: which thresholds are certified, all at once.

P(any certified threshold has a mean loss above its limit) <= `delta`.
Derivation: docs/derivations.md, 'Families of claims'.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.selection.claims import (
    Claim,
    errors,
    first_rank,
    num_testable,
    starts,
)
from keras_calib.selection.ladder import Ladder

# With so many testable groups adaptive walks accept more than Holm's alone.
# They get what is left of delta.
MANY = 10
STEPWISE_PART = 0.3
# A group fails where its p-value is larger. A bad one does so with a
# probability of at least a half.
FAILS_ABOVE = 0.5


class Certified(NamedTuple):
    """What is certified of several ladders.

    Attributes:
        masks: Which thresholds of each ladder are certified.
        tested: Whether each ladder was tested `(num_ladders,)`.
        fewest: The fewest samples that could certify a tested one.
    """

    masks: list[np.ndarray]
    tested: np.ndarray
    fewest: int


def walk(
    p_value: np.ndarray, first: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Which hypotheses are rejected by walks through p-values of any test.

    P-values `(..., num_thresholds)` are in the order of the walk. It starts
    anew at each of the places `first`, ascending, which brings its share of the
    level, `(num_starts,)` or `(..., num_starts)`.
    """
    certified = np.zeros(p_value.shape, bool)
    level = np.zeros(p_value.shape[:-1])
    ends = np.append(first, p_value.shape[-1])
    for k in range(len(first)):
        level = level + shares[..., k]
        part = slice(ends[k], ends[k + 1])
        passed = p_value[..., part] <= level[..., None]
        certified[..., part] = np.logical_and.accumulate(passed, axis=-1)
        level = np.where(passed.all(axis=-1), level, 0.0)
    return certified


def alone(claim: Claim, num_thresholds: int) -> np.ndarray:
    """Which of the thresholds one claim certifies at its level."""
    if claim.passes is None:
        found = walk(claim.p_value, claim.first, claim.shares)
    else:
        found = _walk_of_bets(claim)
    if claim.places is None:
        return found
    certified = np.zeros(num_thresholds, bool)
    certified[claim.places] = found
    return certified


def errors_alone(ladder: Ladder, risk: float, delta: float) -> np.ndarray:
    """Which thresholds of a ladder have a share of errors of at most `risk`."""
    return alone(errors(ladder, risk, delta), len(ladder.threshold))


def _walk_of_bets(claim: Claim) -> np.ndarray:
    """As `walk`, with no test after one that failed until the next start."""
    certified = np.zeros(len(claim.p_value), bool)
    level = 0.0
    ends = np.append(claim.first, len(certified))
    for k, share in enumerate(claim.shares):
        level += share
        for i in range(ends[k], ends[k + 1]):
            if claim.passes is None or not claim.passes(i, level):
                level = 0.0
                break
            certified[i] = True
    return certified


def holm(
    claims: Sequence[Claim], delta: float
) -> tuple[list[np.ndarray], float]:
    """Masks of claims that pass shares on, and the level each ended with.

    Each has an equal share of `delta`, and one that is certified as a whole
    passes its share on to the others. That holds for any dependence.

    Reference:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure,
        Scandinavian Journal of Statistics 6, 1979,
        https://www.jstor.org/stable/4615733
    """
    parts = [x._replace(shares=x.shares / x.shares.sum()) for x in claims]
    completed = [completion_levels(*x[:3]) for x in parts]
    level = shared_level(np.array(completed), delta)
    masks = [walk(x.p_value, x.first, x.shares * level) for x in parts]
    return masks, level


def completion_levels(
    p_value: np.ndarray, first: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """The least levels at which all tested thresholds are certified `(...)`.

    Arguments are those of `walk`; `shares` have the sum 1. A walk that never
    failed has, in part i, a level of a times the sum of shares up to i.
    """
    ends = np.append(first, p_value.shape[-1])
    least = np.zeros(p_value.shape[:-1])
    for k, share in enumerate(np.cumsum(shares)):
        if ends[k] < ends[k + 1]:
            part = p_value[..., ends[k] : ends[k + 1]]
            least = np.maximum(least, part.max(axis=-1) / share)
    return least


def shared_level(completed: np.ndarray, delta: float) -> float:
    """The level of each claim after those that completed passed theirs on.

    It is `delta` over the number of claims that do not complete at this level,
    at most `delta`. `completed` are their completion levels `(num_claims,)`.
    """
    count = len(completed)
    # Holm's step-down: as many as complete one after the other.
    passed = np.sort(completed) <= delta / np.arange(count, 0, -1)
    done = int(np.logical_and.accumulate(passed).sum())
    return delta / max(count - done, 1)


def each(ladders: Sequence[Ladder], risk: float, delta: float) -> Certified:
    """The risk of each of several independent groups, of any sizes.

    They share `delta` as `holm` says. If 10 groups are large enough for an
    equal share, most of it goes to `adaptively_certified`.
    """
    sizes = np.array([int(one.accepted[-1]) for one in ladders])
    least = first_rank(risk, delta)
    p_values = [_p_values(one, risk, least) for one in ladders]
    if num_testable(sizes, risk, delta) < MANY:
        return _stepwise(ladders, p_values, risk, delta)
    one = _stepwise(ladders, p_values, risk, STEPWISE_PART * delta)
    other = adaptively_certified(
        ladders, p_values, risk, (1.0 - STEPWISE_PART) * delta
    )
    masks = [x | y for x, y in zip(one.masks, other.masks, strict=True)]
    fewest = min(one.fewest, other.fewest)
    return Certified(masks, one.tested | other.tested, fewest)


def dependent(
    ladders: Sequence[Ladder], risk: float, delta: float
) -> Certified:
    """The risk of each of several groups of the same examples.

    Labels of one example depend on each other: each has an equal share of
    `delta`, which none passes on.
    """
    found, level = _none_yet(ladders, risk, delta)
    for i in np.flatnonzero(found.tested).tolist():
        found.masks[i] = errors_alone(ladders[i], risk, level)
    return found


def separate(ladders: Sequence[Ladder], risk: float, delta: float) -> Certified:
    """The risk of each group at all of `delta`, with no promise for all."""
    masks = [errors_alone(one, risk, delta) for one in ladders]
    every = np.ones(len(ladders), bool)
    return Certified(masks, every, first_rank(risk, delta))


def _p_values(one: Ladder, risk: float, least: int) -> np.ndarray:
    """P-values of the thresholds that accept enough; 1 of the others."""
    found = np.ones(len(one.threshold))
    rest = slice(int(np.searchsorted(one.accepted, least)), None)
    found[rest] = binomial_p_value(one.loss[rest], one.accepted[rest], risk)
    return found


def _none_yet(
    ladders: Sequence[Ladder], risk: float, delta: float
) -> tuple[Certified, float]:
    """Nothing certified, which groups are tested, and an equal share."""
    sizes = np.array([int(one.accepted[-1]) for one in ladders])
    count = num_testable(sizes, risk, delta)
    level = delta / max(count, 1)
    return _largest(ladders, sizes, count, first_rank(risk, level)), level


def _largest(
    ladders: Sequence[Ladder], sizes: np.ndarray, count: int, fewest: int
) -> Certified:
    tested = np.zeros(len(ladders), bool)
    tested[np.argsort(-sizes, kind="stable")[:count]] = True
    masks = [np.zeros(len(one.threshold), bool) for one in ladders]
    return Certified(masks, tested, fewest)


def _stepwise(
    ladders: Sequence[Ladder],
    p_values: Sequence[np.ndarray],
    risk: float,
    delta: float,
) -> Certified:
    """Walks at equal shares, which complete groups pass on (Holm)."""
    found, level = _none_yet(ladders, risk, delta)
    tested = np.flatnonzero(found.tested).tolist()
    claims = []
    for i in tested:
        accepted = ladders[i].accepted
        ranks, shares = starts(int(accepted[-1]), risk, level)
        first = np.searchsorted(accepted, ranks)
        claims.append(Claim(p_values[i], first, shares))
    if claims:
        for i, mask in zip(tested, holm(claims, delta)[0], strict=True):
            found.masks[i] = mask
    return found


def adaptively_certified(
    ladders: Sequence[Ladder],
    p_values: Sequence[np.ndarray],
    risk: float,
    delta: float,
) -> Certified:
    """Walks of many groups, whose level falls only where groups turn out bad.

    Where no group fails at a coverage or before, all are tested there as if
    about one of them could be bad.

    Reference:
        Guo, A Note on Adaptive Bonferroni and Holm Procedures under
        Dependence, Biometrika 96, 2009, https://doi.org/10.1093/biomet/asp048
    """
    sizes = np.array([int(one.accepted[-1]) for one in ladders])
    count, fewest = num_adaptive(sizes, risk, delta)
    found = _largest(ladders, sizes, count, fewest)
    tested = np.flatnonzero(found.tested).tolist()
    failed_at = np.full(len(ladders), np.inf)
    for i in tested:
        fails = p_values[i] > FAILS_ABOVE
        fails &= ladders[i].accepted >= fewest
        if fails.any():
            failed_at[i] = ladders[i].coverage[fails.argmax()]
    ordered = np.sort(failed_at[tested])
    levels = delta * level_shares(count)
    for i in tested:
        one = ladders[i]
        num_failed = np.searchsorted(ordered, one.coverage, side="right")
        level = levels[np.minimum(num_failed, count - 1)]
        first, shares, relative = adaptive_walk(
            one.accepted, level, risk, fewest
        )
        # A level that its own failure lowered must not choose its starts.
        if len(first) and failed_at[i] > max(0.5, one.coverage[first[0]]):
            found.masks[i] = walk(p_values[i] / relative, first, shares)
    return found


def adaptive_walk(
    accepted: np.ndarray, level: np.ndarray, risk: float, fewest: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where walks start, what each brings, and the level over the first one.

    `level` is that of each threshold, not ascending, and `fewest` the first
    rank at which a walk may start.
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


def num_adaptive(
    sizes: np.ndarray, risk: float, delta: float
) -> tuple[int, int]:
    """How many groups are tested, the larger ones, and the first rank.

    The smallest must pass at a share of `delta` over the root of their number
    if it has no error. That depends on sizes alone.
    """
    count = max(num_testable(sizes, risk, delta, math.sqrt), 1)
    return count, first_rank(risk, delta / math.sqrt(count))


def level_shares(count: int) -> np.ndarray:
    """Parts of delta by how many groups failed, from none on `(count,)`.

    The part after n failures is proportional to 1 / (n + 1)^2.
    """
    failed = np.arange(count)
    part = 1.0 / (failed + 1.0) ** 2
    # How often n of the bad groups before one fail, over all bad groups.
    times = binom.sf(failed, count, 1.0 - FAILS_ABOVE) / (1.0 - FAILS_ABOVE)
    return part / np.sum(times * part)
