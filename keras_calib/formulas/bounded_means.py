"""Tests of the mean of losses in [0, 1].

Losses with other bounds are divided by their bound first, and so is the limit.
Two tests reject the hypothesis that the mean exceeds a limit.
That of Hoeffding and Bentkus needs the sum of the losses alone. Betting adapts
to their variance, so that it is far stronger where losses vary less than losses
of 0 or 1.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import rel_entr
from scipy.stats import binom

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import (
    check_in,
    check_not_empty,
    generator,
    located,
)
from keras_calib.numerics.arrays import as_array, safe_divide

TESTS = "betting", "hoeffding_bentkus"

# A bet of the whole capital would end with the first loss of 1.
_LARGEST_BET = 0.9
# Losses of the first block of bets; each block is as long as all before it.
_BLOCK = 4096


def bounded_losses(losses: Any, name: str = "losses") -> np.ndarray:
    """Losses `(n,)` in float64; raises ValueError outside [0, 1]."""
    x = as_array(losses, name, "float64")
    if x.ndim != 1:
        raise value_error(
            f"`{name}` must have one value per sample, shape (n,)",
            shape=x.shape,
        )
    check_not_empty(name, x)
    bad = ~((x >= 0.0) & (x <= 1.0))
    if bad.any():
        raise value_error(
            f"`{name}` must lie in [0, 1]: divide them and their limit by "
            "the largest loss that is possible",
            **located(bad),
            value=float(x[bad][0]),
        )
    return x


def hoeffding_bentkus_p_value(total: Any, count: Any, limit: Any) -> np.ndarray:
    """P-value of Hoeffding and Bentkus that a mean exceeds `limit`.

    It needs only the sum of the losses. With the mean m of n losses,

    p = min(exp(-n KL(min(m, limit), limit)), e P(Bin(n, limit) <= ceil(n m)))

    The limit lies in (0, 1). Without losses the p-value is 1.

    Reference:
        Bates et al., Distribution-Free, Risk-Controlling Prediction Sets,
        Journal of the ACM 68, 2021, https://arxiv.org/abs/2101.02703
    """
    total, count = np.asarray(total, "float64"), np.asarray(count, "float64")
    limit = np.asarray(limit, "float64")
    mean = np.minimum(safe_divide(total, count), limit)
    exponent = rel_entr(mean, limit) + rel_entr(1.0 - mean, 1.0 - limit)
    # A sum of whole numbers may be rounded to just above one.
    whole = np.ceil(total - 1e-12 * np.maximum(total, 1.0))
    bentkus = np.e * binom.cdf(whole, count, limit)
    return np.minimum(np.exp(-count * exponent), np.minimum(bentkus, 1.0))


def betting_p_value(
    losses: np.ndarray, limit: Any, *, delta: float = 0.05, seed: int = 0
) -> np.ndarray:
    """P-value by betting that a mean exceeds `limit`.

    A gambler starts with 1 and bets on losses below the limit. If the mean
    exceeds it, the capital is a supermartingale, and by Ville's inequality
    it reaches 1 / p with a probability of at most p:

    p = 1 / max over t of prod over s <= t of (1 + b_s (limit - x_s))
    b_s = min(sqrt(2 log(1 / delta) / (n v_s)), 0.9 / (1 - limit))

    v_s is the variance of the losses before s, with a first value of 1/4. The
    losses come in an order that `seed` alone fixes, so that sorted data do no
    harm. The p-value decreases with the limit.

    It is strongest at the level `delta`, and valid at all.

    Reference:
        Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables
        by Betting, Journal of the Royal Statistical Society B 86, 2024,
        https://arxiv.org/abs/2010.09686
    """
    limit = np.asarray(limit, "float64")
    found = [
        AcceptedBets(losses, float(x), delta, seed).p_value(len(losses))
        for x in limit.reshape(-1)
    ]
    return np.reshape(found, limit.shape)


def first_rank_by_betting(
    limit: float, delta: float, loss: float = 0.0, most: int | None = None
) -> int:
    """The fewest equal losses whose p-value by betting is at most `delta`.

    `loss` must be below `limit`. Above `most` it is a lower bound, as a tiny
    limit needs more losses than the memory holds.
    """
    # What the capital grows by with each, if no bet is smaller than the first.
    growth = np.log1p(_LARGEST_BET * (limit - loss) / (1.0 - limit))
    fewest = int(np.ceil(np.log(1.0 / delta) / growth))
    if most is not None and fewest > most:
        return fewest

    def enough(count: int) -> bool:
        bets = AcceptedBets(np.full(count, loss), limit, delta)
        return bets.passes(count, delta)

    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def accepted_p_values(
    losses: np.ndarray,
    accepted: np.ndarray,
    limit: float,
    *,
    test: str = "betting",
    delta: float = 0.05,
    seed: int = 0,
) -> np.ndarray:
    """P-values that the mean loss of accepted samples exceeds a limit.

    Losses `(n,)` are those of the surest sample first, of which the first
    `accepted` `(num_thresholds,)` are accepted. Betting takes time for each
    threshold.
    """
    check_in("test", test, TESTS)
    accepted = np.asarray(accepted, int)
    if test == "hoeffding_bentkus":
        totals = np.append(0.0, np.cumsum(losses))[accepted]
        return hoeffding_bentkus_p_value(totals, accepted, limit)
    bets = AcceptedBets(losses, limit, delta, seed)
    return np.array([bets.p_value(m) for m in accepted], "float64")


class AcceptedBets:
    """Tests by betting of the mean loss of accepted samples, as they are asked.

    Losses are those of the surest sample first. Whether a p-value is at most a
    level is often known long before the last bet.
    """

    def __init__(
        self, losses: np.ndarray, limit: float, delta: float, seed: int = 0
    ):
        # Within the accepted, ranks must not order the bets: losses rise with
        # them.
        self._ranks = generator(seed).permutation(len(losses))
        self._ordered = losses[self._ranks]
        self._limit = limit
        self._delta = delta

    def p_value(self, accepted: int) -> float:
        """The p-value of so many accepted."""
        return min(self._p_values(accepted), default=1.0)

    def passes(self, accepted: int, level: float) -> bool:
        """Whether the p-value of so many accepted is at most `level`."""
        return any(p <= level for p in self._p_values(accepted))

    def _p_values(self, accepted: int) -> Iterator[float]:
        """Those of the bets so far, block by block; the least one counts."""
        limit, largest = self._limit, _LARGEST_BET / (1.0 - self._limit)
        aim = 2.0 * np.log(1.0 / self._delta) / max(accepted, 1)
        # Sums are those of one block, to the last bit: each goes on from the
        # sum before it.
        total = squares = capital = 0.0
        count, before = 0, 0.25
        start, stop = 0, _BLOCK
        while start < len(self._ordered):
            kept = self._ranks[start:stop] < accepted
            x = self._ordered[start:stop][kept]
            start, stop = stop, 2 * stop
            if not len(x):
                continue
            index = np.arange(count + 2.0, count + len(x) + 2.0)
            sums = _summed_on(total, x)
            parts = _summed_on(squares, (x - (0.5 + sums) / index) ** 2)
            variance = (0.25 + parts) / index
            # A bet may know only what came before.
            bet = np.sqrt(aim / np.append(before, variance[:-1]))
            bet = np.minimum(bet, largest)
            won = _summed_on(capital, np.log1p(bet * (limit - x)))
            yield float(np.exp(-max(won.max(), 0.0)))
            total, squares, capital = sums[-1], parts[-1], won[-1]
            count, before = count + len(x), variance[-1]


def _summed_on(total: float, x: np.ndarray) -> np.ndarray:
    """Running sums `(n,)` that go on from a sum."""
    return np.cumsum(np.append(total, x))[1:]
