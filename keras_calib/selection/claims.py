"""Claims: tests of "the mean loss above this threshold exceeds the limit".

A small p-value rejects a claim. Walks through thresholds, from strict to
lenient, begin at several places that share the level of a claim. With a single
one an error among the surest samples would end the walk. A walk that reaches
the next start takes its share along, as in the fallback procedure.
Derivation: docs/derivations.md, 'Families of claims'.

Reference:
    Angelopoulos et al., Learn then Test, 2021, section 2.3,
    https://arxiv.org/abs/2110.01052; several starts: Bretz et al., Graphical
    Approaches for Multiple Comparison Procedures, Biometrical Journal 53,
    2011, https://doi.org/10.1002/bimj.201000239
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import (
    AcceptedBets,
    accepted_p_values,
    first_rank_by_betting,
)
from keras_calib.formulas.intervals import binomial_p_value, check_inside
from keras_calib.selection.ladder import Ladder

# Betting takes time for each threshold that it tests.
_MOST_TESTED = 256
# By how much a start may miss what it needs: estimated coverages vary.
_MARGIN = 1.2


class Claim(NamedTuple):
    """Tests of the thresholds of a ladder.

    Attributes:
        p_value: P-values `(num_tested,)`; 1 where none was computed.
        first: Where walks begin `(num_starts,)`, ascending.
        shares: Level that each start brings `(num_starts,)`. They sum to the
            level of the claim.
        places: Which thresholds are tested; None for all. The others are not
            certified.
        passes: Whether a tested threshold passes at a level, where p-values
            take long: a walk asks for those alone that it comes to.
    """

    p_value: np.ndarray
    first: np.ndarray
    shares: np.ndarray
    places: np.ndarray | None = None
    passes: Callable[[int, float], bool] | None = None


def first_rank(risk: float, delta: float) -> int:
    """The fewest samples that certify `risk` if all of them are correct."""
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


def errors(
    ladder: Ladder,
    risk: float,
    level: float,
    *,
    least: int = 1,
    factor: float = 2.0,
) -> Claim:
    """Exact binomial tests of the share of errors.

    They are exact for any dependence of risk on score if scores do not tie.
    `level` is the probability of certifying a threshold of a higher risk, and
    `least` and `factor` are as in `starts`.
    """
    accepted = ladder.accepted
    ranks, shares = starts(
        int(accepted[-1]), risk, level, least=least, factor=factor
    )
    p_value = binomial_p_value(ladder.loss, accepted, risk)
    return Claim(p_value, np.searchsorted(accepted, ranks), shares)


def means(
    ladder: Ladder,
    losses: np.ndarray,
    limit: float,
    level: float,
    test: str = "betting",
) -> Claim:
    """Tests of the mean of losses in [0, 1], such as costs and shares.

    Losses `(n,)` are of the surest sample first. Betting tests at most 256
    thresholds, evenly from the first start on, and the starts, and computes no
    p-values. The other `test` is `"hoeffding_bentkus"`.
    """
    accepted = ladder.accepted.astype(int)
    if test != "betting":
        ranks, shares = starts(int(accepted[-1]), limit, level)
        p_value = accepted_p_values(losses, accepted, limit, test=test)
        return Claim(p_value, np.searchsorted(accepted, ranks), shares)
    places, first, shares = places_by_betting(accepted, limit, level)
    if not len(places):
        return Claim(np.ones(0), first, shares, places)
    bets = AcceptedBets(losses, limit, float(shares[0]))

    def passes(place: int, share: float) -> bool:
        return bets.passes(int(accepted[places[place]]), share)

    return Claim(np.ones(len(places)), first, shares, places, passes)


def places_by_betting(
    accepted: np.ndarray,
    limit: float,
    level: float,
    least: int = 1,
    factor: float = 2.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the thresholds to test, and starts and shares among these."""
    count = int(accepted[-1])
    first_of = functools.partial(first_rank_by_betting, most=count)
    ranks, shares = starts(count, limit, level, first_of, least, factor)
    tested = np.arange(len(accepted) if len(ranks) else 0)
    if len(tested) > _MOST_TESTED:
        spread = np.linspace(ranks[0], accepted[-1], _MOST_TESTED)
        wanted = np.floor(np.append(spread, ranks))
        tested = np.unique(np.searchsorted(accepted, wanted))
    return tested, np.searchsorted(accepted[tested], ranks), shares


def starts(
    count: int,
    risk: float,
    level: float,
    first_of: Callable[[float, float], int] = first_rank,
    least: int = 1,
    factor: float = 2.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks where walks begin, and the share of `level` that each brings.

    The first start has half of it. Ranks grow by `factor` from one start to
    the next, and these share the other half. A single start has all.
    `first_of` has the fewest samples that pass at a level if all is well.
    Starts below the rank `least` move there.
    """
    rank = first_of(risk, level / 2.0)
    if 2 * rank > count:
        rank = max(first_of(risk, level), least)
        single = [rank] if rank <= count else []
        return np.array(single, int), np.full(len(single), level)
    # Whole powers of the factor may round to just below one.
    num_more = int(math.log(count / rank) / math.log(factor) + 1e-9)
    shares = np.full(num_more + 1, level / 2.0 / num_more)
    shares[0] = level / 2.0
    ranks = np.floor(rank * factor ** np.arange(num_more + 1) + 1e-9)
    ranks = np.clip(ranks.astype(int), least, count)
    moved = int(np.sum(ranks == least)) - 1
    if moved > 0:
        shares = np.append(shares[: moved + 1].sum(), shares[moved + 1 :])
        ranks = ranks[moved:]
    return ranks, shares


def even_starts(num_thresholds: int, level: float) -> tuple[Any, Any]:
    """Eight starts that are even among the thresholds, with equal shares."""
    spread = np.linspace(0, num_thresholds, 8, endpoint=False)
    first = np.unique(spread.astype(int))
    return first, level * np.full(len(first), 1.0 / len(first))


def starts_at(
    capacity: np.ndarray,
    coverage: np.ndarray,
    needed: Callable[[float], float],
    level: float,
) -> tuple[np.ndarray, np.ndarray]:
    """As `starts`, among given thresholds: their places, and the shares.

    `capacity` is what each threshold could show without errors, ascending; it
    is estimated, as the coverage is, but for the last. `needed` is the capacity
    that a level takes. The coverage doubles from one start to the next. There
    is none if the last threshold could not pass even without errors.
    """
    last = len(capacity) - 1
    first = np.searchsorted(capacity, _MARGIN * needed(level / 2.0))
    wanted, places = float("inf"), []
    if first <= last:
        wanted = coverage[first]
    while wanted <= coverage[-1]:
        places.append(int(np.searchsorted(coverage, wanted)))
        wanted *= 2.0
    places = sorted(set(places))
    if len(places) > 1:
        shares = np.full(len(places), level / 2.0 / (len(places) - 1))
        shares[0] = level / 2.0
        return np.array(places), shares
    if capacity[-1] < needed(level):
        return np.zeros(0, int), np.zeros(0)
    first = np.searchsorted(capacity, _MARGIN * needed(level))
    return np.array([min(first, last)]), np.array([level])


def check_risk_and_delta(risk: Any, delta: Any) -> None:
    """Raises ValueError unless both are inside (0, 1)."""
    for name, value in (("risk", risk), ("delta", delta)):
        if value is None:
            raise value_error(
                f"`{name}` must be given: a guarantee needs `risk` and "
                "`delta`; without one, weights go to `sample_weight`",
                **{name: value},
            )
        check_inside(name, value)
