"""Tests of the mean of losses in [0, 1].

Losses with other bounds are divided by their bound first, and so is the limit.
Two tests reject the hypothesis that the mean exceeds a limit.
That of Hoeffding and Bentkus needs the sum of the losses alone. Betting adapts
to their variance, so that it is far stronger where losses vary less than losses
of 0 or 1.
"""

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
    order = generator(seed).permutation(len(losses))
    return _in_order(losses[order], limit, delta)


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
        return bool(_in_order(np.full(count, loss), limit, delta) <= delta)

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
    # Within the accepted, ranks must not order the bets: losses rise with them.
    ranks = generator(seed).permutation(len(losses))
    ordered = losses[ranks]
    return np.array(
        [_in_order(ordered[ranks < m], limit, delta) for m in accepted],
        "float64",
    )


class AcceptedBets:
    """Tests by betting of the mean loss of accepted samples, as they are asked.

    Whether a p-value of `accepted_p_values` is at most a level is often known
    long before the last bet. Arguments are those of that function.
    """

    def __init__(
        self, losses: np.ndarray, limit: float, delta: float, seed: int = 0
    ):
        self._ranks = generator(seed).permutation(len(losses))
        self._ordered = losses[self._ranks]
        self._limit = limit
        self._delta = delta

    def passes(self, accepted: int, level: float) -> bool:
        """Whether the p-value of so many accepted is at most `level`."""
        limit, largest = self._limit, _LARGEST_BET / (1.0 - self._limit)
        aim = 2.0 * np.log(1.0 / self._delta) / accepted
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
            if np.exp(-max(won.max(), 0.0)) <= level:
                return True
            total, squares, capital = sums[-1], parts[-1], won[-1]
            count, before = count + len(x), variance[-1]
        return False


def _summed_on(total: float, x: np.ndarray) -> np.ndarray:
    """Running sums `(n,)` that go on from a sum."""
    return np.cumsum(np.append(total, x))[1:]


def _in_order(losses: np.ndarray, limit: Any, delta: float) -> np.ndarray:
    """The p-value by betting on losses as they come."""
    count = len(losses)
    limit = np.asarray(limit, "float64")
    if count == 0:
        return np.ones(limit.shape)
    index = np.arange(2.0, count + 2.0)
    mean = (0.5 + np.cumsum(losses)) / index
    variance = (0.25 + np.cumsum((losses - mean) ** 2)) / index
    # A bet may know only what came before.
    variance = np.append(0.25, variance[:-1])
    bet = np.sqrt(2.0 * np.log(1.0 / delta) / count / variance)
    p_values = []
    for one in limit.reshape(-1):
        own = np.minimum(bet, _LARGEST_BET / (1 - one))
        capital = np.cumsum(np.log1p(own * (one - losses)))
        p_values.append(np.exp(-max(capital.max(), 0.0)))
    return np.array(p_values).reshape(limit.shape)
