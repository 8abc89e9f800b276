"""Confidence intervals of shares and of means.

Derivation: docs/derivations.md, 'Intervals and guarantees'.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import ndtr
from scipy.stats import beta, binom, t

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above, check_share
from keras_calib.numerics.arrays import as_array, safe_divide

# Up to this variance the distribution of a count is computed term by term.
_EXACT_VARIANCE = 100.0


def clopper_pearson(
    successes: Any, trials: Any, *, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray]:
    """Exact binomial interval of a share (Clopper and Pearson).

    It covers the true share with at least the probability `level`, however few
    the trials. It is (0, 1) without any. Successes may be fractional, like
    effective sample sizes of weighted data.

    Reference:
        Clopper and Pearson, The Use of Confidence or Fiducial Limits
        Illustrated in the Case of the Binomial, Biometrika 1934,
        https://doi.org/10.1093/biomet/26.4.404
    """
    check_share("level", level, positive=True)
    successes = as_array(successes, "successes", "float64")
    trials = as_array(trials, "trials", "float64")
    if not (np.all(successes >= 0) and np.all(successes <= trials)):
        raise value_error(
            "`successes` must lie between 0 and `trials`",
            successes=successes,
            trials=trials,
        )
    tail = (1.0 - level) / 2.0
    # beta.ppf is NaN if a parameter is 0, where the end is 0 or 1.
    more = trials - successes + 1.0
    lower = beta.ppf(tail, np.maximum(successes, 1e-300), more)
    upper = binomial_upper_bound(successes, trials, level=1 - tail)
    return np.where(successes > 0, lower, 0.0), upper


def binomial_upper_bound(
    successes: Any, trials: Any, *, level: float = 0.95
) -> np.ndarray:
    """Exact upper bound of a share, the one-sided end of Clopper and Pearson.

    It holds with probability `level`, and is 1 without trials.
    """
    successes = np.asarray(successes, "float64")
    failures = np.asarray(trials, "float64") - successes
    bound = beta.ppf(level, successes + 1.0, np.maximum(failures, 1e-300))
    return np.where(failures > 0, bound, 1.0)


def binomial_p_value(errors: Any, trials: Any, risk: float) -> np.ndarray:
    """P(Bin(trials, risk) <= errors), which is small if the risk is lower."""
    return binom.cdf(errors, trials, risk)


def poisson_binomial_tails(
    successes: int,
    probability: np.ndarray,
    count: np.ndarray,
    *,
    exact_variance: float = _EXACT_VARIANCE,
) -> tuple[float, float]:
    """P(K <= successes) and P(K >= successes) of independent trials.

    K is the number of successes of trials with known probabilities: `count`
    trials of each `probability`, arrays `(groups,)`. Up to `exact_variance` it
    is exact, by a discrete Fourier transform. Beyond, it is the normal
    distribution with a term for the skewness, with errors below 3e-4 from a
    variance of 100. The tails that many tests need must be smaller than that.

    Reference:
        Hong, On Computing the Distribution Function for the Poisson Binomial
        Distribution, Computational Statistics and Data Analysis 59, 2013,
        https://doi.org/10.1016/j.csda.2012.10.006
    """
    mean = float(np.sum(count * probability))
    each = count * probability * (1.0 - probability)
    variance = float(np.sum(each))
    if variance > exact_variance:
        spread = np.sqrt(variance)
        third = float(np.sum(each * (1.0 - 2.0 * probability))) / spread**3
        ends = (np.array([0.5, -0.5]) + successes - mean) / spread
        density = np.exp(-0.5 * ends**2) / np.sqrt(2.0 * np.pi)
        through, below = ndtr(ends) + third / 6.0 * (1.0 - ends**2) * density
        return float(np.clip(through, 0, 1)), float(np.clip(1 - below, 0, 1))
    # Values further from the mean have a probability below 1e-25.
    reach = 12.0 * np.sqrt(variance) + 40.0
    first = max(0, int(np.floor(mean - reach)))
    last = min(int(np.sum(count)), int(np.ceil(mean + reach)))
    size = last - first + 1
    turn = np.exp(2j * np.pi * np.arange(size // 2 + 1) / size)
    with np.errstate(divide="ignore"):
        terms = count * np.log1p(np.outer(turn - 1.0, probability))
    transform = np.exp(terms.sum(axis=1))
    mass = np.fft.irfft(np.conj(transform * turn**-first), size)
    values = np.arange(first, last + 1)
    return (
        float(np.clip(mass[values <= successes].sum(), 0.0, 1.0)),
        float(np.clip(mass[values >= successes].sum(), 0.0, 1.0)),
    )


def tail_of(level: float) -> float:
    """Half of the probability that an interval of this level may miss."""
    check_inside("level", level)
    return (1.0 - level) / 2.0


def check_inside(name: str, value: Any) -> None:
    """Raise unless `value` is a number in (0, 1)."""
    check_above(name, value, 0.0)
    if value >= 1.0:
        raise value_error(f"`{name}` must be < 1", **{name: value})


class Moments(NamedTuple):
    """Sums over values x with weights w, for the interval of their mean.

    The sums are scalars, or arrays of one shape for many means.

    Attributes:
        weight: Sum of w.
        total: Sum of w x.
        squared_weight: Sum of w^2.
        squared_total: Sum of w^2 x.
        squares: Sum of w^2 x^2.
        second: Sum of w x^2.
        third: Sum of w x^3.
    """

    weight: Any
    total: Any
    squared_weight: Any
    squared_total: Any
    squares: Any
    second: Any
    third: Any

    @classmethod
    def of(cls, x: Any, w: Any, total: Callable[[Any], Any] = np.sum) -> Self:
        """Those of values and weights, which `total` sums."""
        wx = w * x
        terms = (w, wx, w**2, w * wx, wx**2, wx * x, wx * x**2)
        return cls(*map(total, terms))

    @classmethod
    def of_ratio(
        cls, ratio: Any, weight: Any, total: Any, second: Any, third: Any
    ) -> Self:
        """From the sums with w alone, as if each w were `ratio`."""
        squared = ratio * weight, ratio * total, ratio * second
        return cls(weight, total, *squared, second, third)

    @property
    def mean(self) -> Any:
        """The weighted mean, 0 without weights."""
        return safe_divide(self.total, self.weight)


def mean_interval(
    sums: Moments,
    *,
    level: float = 0.95,
    unseen: tuple[float | None, float | None] = (None, None),
) -> tuple[np.ndarray, np.ndarray]:
    """Confidence interval of a weighted mean, from streamed sums.

    It is Student's interval with the error sqrt(sum w^2 (x - m)^2) / sum w and
    the effective number of values n = (sum w)^2 / sum w^2. Hall's
    transformation corrects it for skewness. With A the skewness of the values
    divided by sqrt(n), and T the studentised mean,

    T + (A / 3) T^2 + (A^2 / 27) T^3 + A / 6

    is nearly normal. So rare large losses move the upper end further than the
    lower end.

    `unseen` has the smallest and the largest possible value, or None. A sample
    may lack the rare values that matter, so each end is at least as far as with
    one such value more. Without a limit the end is infinite if n <= 1.

    Reference:
        Hall, On the Removal of Skewness by Transformation, Journal of the
        Royal Statistical Society B 54, 1992,
        https://doi.org/10.1111/j.2517-6161.1992.tb01876.x
    """
    tail = tail_of(level)
    sums = Moments(*(np.asarray(v, "float64") for v in sums))
    low, high = _student_interval(sums, tail)
    if unseen[0] is not None:
        more = _with_one_more(sums, unseen[0])
        other = _student_interval(more, tail)[0]
        low = np.where(np.isfinite(low), np.minimum(low, other), other)
    if unseen[1] is not None:
        more = _with_one_more(sums, unseen[1])
        other = _student_interval(more, tail)[1]
        high = np.where(np.isfinite(high), np.maximum(high, other), other)
    return low, high


def _with_one_more(sums: Moments, value: float) -> Moments:
    """Add one more value to moments, with the mean effective weight."""
    w = safe_divide(sums.squared_weight, sums.weight)
    w = np.where(w > 0, w, 1.0)
    return Moments(*map(np.add, sums, Moments.of(value, w, np.asarray)))


def _student_interval(
    sums: Moments, tail: float
) -> tuple[np.ndarray, np.ndarray]:
    weight, total, squared_weight, squared_total, squares, second, third = sums
    mean = safe_divide(total, weight)
    count = safe_divide(weight**2, squared_weight)
    spread = squares - 2.0 * mean * squared_total + mean**2 * squared_weight
    # Rounding may leave a negative number if all values are equal.
    error = np.sqrt(np.maximum(safe_divide(spread, weight**2), 0.0))
    # The effective number of one value may round to more than 1.
    enough = count > 1.0 + 1e-9
    degrees = np.where(enough, count - 1.0, 1.0)
    error = error * np.sqrt(count / degrees)
    variance = safe_divide(second, weight) - mean**2
    cube = safe_divide(third, weight) - 3.0 * mean * variance - mean**3
    # The variance of equal values is rounding error.
    varied = variance > 1e-12 * np.maximum(mean**2, 1e-300)
    skewness = np.where(
        varied, cube / np.where(varied, variance, 1.0) ** 1.5, 0.0
    )
    skewness = skewness / np.sqrt(np.maximum(count, 1.0))
    reach = t.isf(tail, degrees)
    low, high = (
        np.where(enough, mean - error * _unskewed(z, skewness), bound)
        for z, bound in ((reach, -np.inf), (-reach, np.inf))
    )
    return low, high


def _unskewed(z: np.ndarray, skewness: np.ndarray) -> np.ndarray:
    """The studentised mean that Hall's transformation maps to z."""
    flat = np.abs(skewness) < 1e-9
    a = np.where(flat, 1.0, skewness)
    return np.where(flat, z, 3.0 / a * (np.cbrt(1.0 + a * (z - a / 6.0)) - 1.0))
