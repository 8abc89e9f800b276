"""Guarantees by exact binomial tests, from the strictest threshold on.

A test rejects the hypothesis that the true risk of a threshold exceeds `risk`
by a small p-value P(Bin(accepted, risk) <= wrong). Losses other than errors
have a test of their mean instead.
"""

import math
from collections.abc import Callable

import numpy as np

from keras_calib.formulas.bounded_means import (
    AcceptedBets,
    accepted_p_values,
    first_rank_by_betting,
)
from keras_calib.formulas.intervals import binomial_p_value

__all__ = [
    "METHODS",
    "first_rank",
    "fixed_sequence",
    "fixed_sequence_of_means",
    "means_by_betting",
    "num_testable",
    "sgr",
    "starts",
    "walk",
]

# Betting takes time for each threshold that it tests.
_MOST_TESTED = 256


def first_rank(risk: float, delta: float) -> int:
    """The fewest samples that certify `risk` if all of them are correct.

    Derivation: docs/derivations.md, 'Intervals and guarantees'.
    """
    count = max(math.ceil(math.log(delta) / math.log1p(-risk)), 1)
    # The logarithms may round to just below a whole number.
    while binomial_p_value(0, count, risk) > delta:
        count += 1
    return count


def num_testable(
    sizes: np.ndarray,
    risk: float,
    delta: float,
    parts: Callable[[int], float] = float,
) -> int:
    """Most groups that can be tested at an equal share of `delta` each.

    The larger ones are tested. A smaller one could not be certified even if
    all its samples were correct, so it gets no share. `parts` says into how
    many shares `delta` is divided for so many groups.
    """
    ordered = np.sort(np.asarray(sizes))[::-1]
    # Tried from all groups on: fewer groups need fewer samples each.
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high + 1) // 2
        if ordered[middle - 1] >= first_rank(risk, delta / parts(middle)):
            low = middle
        else:
            high = middle - 1
    return low


def fixed_sequence(
    accepted: np.ndarray,
    wrong: np.ndarray,
    risk: float,
    delta: float,
    least: int = 1,
    factor: float = 2.0,
) -> np.ndarray:
    """Learn then Test: which thresholds are certified, from strict to lenient.

    Several starts share `delta` (see `starts`); with one start an error among
    the surest samples would end the walk. A walk that reaches the next start
    takes its share along, as in the fallback procedure. The test is exact for
    any dependence of risk on score if scores do not tie. Derivation:
    docs/derivations.md, 'Intervals and guarantees'.

    Args:
        accepted: Counts of accepted samples `(num_thresholds,)`, ascending;
            the last is all.
        wrong: Counts of wrong samples among them `(num_thresholds,)`.
        risk: Risk to certify, in (0, 1).
        delta: Probability of certifying a threshold whose risk is higher, in
            (0, 1).
        least: The fewest accepted samples of a threshold that is of use.
        factor: By which ranks grow from one start to the next.

    Reference:
        Angelopoulos et al., Learn then Test, 2021, section 2.3,
        https://arxiv.org/abs/2110.01052; several starts: Bretz et al.,
        Graphical Approaches for Multiple Comparison Procedures, Biometrical
        Journal 53, 2011, https://doi.org/10.1002/bimj.201000239
    """
    count = int(accepted[-1])
    ranks, shares = starts(count, risk, delta, least=least, factor=factor)
    p_value = binomial_p_value(wrong, accepted, risk)
    return walk(p_value, np.searchsorted(accepted, ranks), shares)


def walk(
    p_value: np.ndarray, first: np.ndarray, shares: np.ndarray
) -> np.ndarray:
    """Which hypotheses are rejected by walks through p-values of any test.

    Args:
        p_value: P-values in the order of the walk `(..., num_thresholds)`.
        first: Index where each walk starts `(num_starts,)`, ascending.
        shares: Level that each start brings, `(num_starts,)` or
            `(..., num_starts)`; they sum to at most delta.
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


def fixed_sequence_of_means(
    accepted: np.ndarray,
    losses: np.ndarray,
    limit: float,
    delta: float,
    test: str = "betting",
) -> np.ndarray:
    """Learn then Test for a mean loss: thresholds certified, strictest first.

    It is `fixed_sequence` with a test of bounded means. Betting tests at most
    256 thresholds, evenly from the first start on, and the starts. It does not
    certify the others.

    Args:
        accepted: Counts of accepted samples `(num_thresholds,)`, ascending;
            the last is all.
        losses: Losses `(n,)` in [0, 1], of the surest sample first.
        limit: Mean loss of the accepted to certify, in (0, 1).
        delta: Probability of certifying a threshold whose mean is higher.
        test: `"betting"` or `"hoeffding_bentkus"`.
    """
    if test != "betting":
        ranks, shares = starts(int(accepted[-1]), limit, delta)
        p_value = accepted_p_values(losses, accepted, limit, test=test)
        return walk(p_value, np.searchsorted(accepted, ranks), shares)
    certified = np.zeros(len(accepted), bool)
    tested, first, shares = _tested_by_betting(accepted, limit, delta)
    if len(tested):
        bets = AcceptedBets(losses, limit, float(shares[0]))
        certified[tested] = _walk_of_bets(bets, accepted[tested], first, shares)
    return certified


def means_by_betting(
    accepted: np.ndarray,
    losses: np.ndarray,
    limit: float,
    delta: float,
    least: int,
    factor: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The same by betting, with p-values, which take longer.

    `least` and `factor` are those of `starts`. Returns which thresholds are
    certified, and p-values, which are 1 where none was computed.
    """
    certified, p_value = np.zeros(len(accepted), bool), np.ones(len(accepted))
    tested, first, shares = _tested_by_betting(
        accepted, limit, delta, least, factor
    )
    if len(tested):
        p_value[tested] = accepted_p_values(
            losses, accepted[tested], limit, delta=float(shares[0])
        )
        certified[tested] = walk(p_value[tested], first, shares)
    return certified, p_value


def _tested_by_betting(
    accepted: np.ndarray,
    limit: float,
    delta: float,
    least: int = 1,
    factor: float = 2.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the thresholds to test, and starts and shares among these."""
    ranks, shares = starts(
        int(accepted[-1]), limit, delta, first_rank_by_betting, least, factor
    )
    tested = np.arange(len(accepted) if len(ranks) else 0)
    if len(tested) > _MOST_TESTED:
        spread = np.linspace(ranks[0], accepted[-1], _MOST_TESTED)
        wanted = np.floor(np.append(spread, ranks))
        tested = np.unique(np.searchsorted(accepted, wanted))
    return tested, np.searchsorted(accepted[tested], ranks), shares


def _walk_of_bets(
    bets: AcceptedBets,
    accepted: np.ndarray,
    first: np.ndarray,
    shares: np.ndarray,
) -> np.ndarray:
    """As `walk`, with no test after one that failed until the next start."""
    certified = np.zeros(len(accepted), bool)
    level = 0.0
    ends = np.append(first, len(accepted))
    for k, share in enumerate(shares):
        level += share
        for i in range(ends[k], ends[k + 1]):
            if not bets.passes(int(accepted[i]), level):
                level = 0.0
                break
            certified[i] = True
    return certified


def starts(
    count: int,
    risk: float,
    delta: float,
    first_of: Callable[[float, float], int] = first_rank,
    least: int = 1,
    factor: float = 2.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks where walks begin, and the share of `delta` that each brings.

    The first start has half of `delta`. Ranks grow by `factor` from one start
    to the next, and these share the other half. A single start has all.
    `first_of` has the fewest samples that pass at a level if all is well.
    Starts below the rank `least` move there.
    """
    rank = first_of(risk, delta / 2.0)
    if 2 * rank > count:
        rank = max(first_of(risk, delta), least)
        single = [rank] if rank <= count else []
        return np.array(single, int), np.full(len(single), delta)
    # Whole powers of the factor may round to just below one.
    num_more = int(math.log(count / rank) / math.log(factor) + 1e-9)
    shares = np.full(num_more + 1, delta / 2.0 / num_more)
    shares[0] = delta / 2.0
    ranks = np.floor(rank * factor ** np.arange(num_more + 1) + 1e-9)
    ranks = np.clip(ranks.astype(int), least, count)
    moved = int(np.sum(ranks == least)) - 1
    if moved > 0:
        shares = np.append(shares[: moved + 1].sum(), shares[moved + 1 :])
        ranks = ranks[moved:]
    return ranks, shares


def sgr(
    accepted: np.ndarray, wrong: np.ndarray, risk: float, delta: float
) -> np.ndarray:
    """Selection with guaranteed risk: a binary search over coverage.

    Every step tests one threshold at `delta` / ceil(log2 n). Arguments are
    those of `fixed_sequence`. The paper returns the last threshold tested;
    this returns certified ones only.

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, algorithm 2, https://arxiv.org/abs/1705.08500
    """
    certified = np.zeros(len(accepted), bool)
    count = int(accepted[-1])
    steps = max(math.ceil(math.log2(count)), 1)
    strict, lenient = 1, count
    for _ in range(steps):
        rank = (strict + lenient + 1) // 2
        tested = np.searchsorted(accepted, rank)
        p_value = binomial_p_value(wrong[tested], accepted[tested], risk)
        if p_value <= delta / steps:
            certified[tested] = True
            strict = rank
        else:
            lenient = rank
    return certified


METHODS = {"ltt": fixed_sequence, "sgr": sgr}
