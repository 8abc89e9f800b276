"""Cumulative calibration error, its law if calibrated, and its intervals.

Noise raises the range and the largest size of a walk, and resampling adds more
noise: a bootstrap interval misses the error of a calibrated model. So each end
inverts a test of its own.

Derivation: docs/derivations.md, 'Cumulative errors'.
"""

from typing import Any

import numpy as np
from scipy.special import erfc
from scipy.stats import norm as normal

from keras_calib.formulas.intervals import tail_of
from keras_calib.inputs.checks import check_in, generator
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import array_namespace, at_least
from keras_calib.numerics.results import Result

KINDS = ("range", "maximum")
# In 95 % of cases Brownian motion on [0, 1] stays between -BAND and BAND.
BAND = 2.241402727
# Each series takes over where its terms fall fastest; so many are enough.
_SWITCH = {"range": 2.0, "maximum": 1.5}
_TERMS = 12
# Variance of a number of samples that makes it nearly normal, and the walk of
# the differences nearly Brownian.
ENOUGH_VARIANCE = 5.0
# Points of the walk that are looked at, and drawn paths of its noise.
_POINTS = 256
_PATHS = 1000
# Places so many standard deviations below the top may be the true top.
_NEAR = 4.0


class CumulativeCurve(Result):
    """Result of `cumulative_differences`, the least confident first.

    Attributes:
        share: Share of the weight through each group of ties, `(groups,)`.
        difference: Sum of (confidence - correct) so far over the total
            weight, `(groups,)`. It rises where the model is overconfident.
        deviation: Standard deviation of the last difference if the
            predictions are calibrated. With votes it is that of one vote for
            each sample, which is the largest that they can have.
    """

    share: np.ndarray
    difference: np.ndarray
    deviation: float


def cumulative_error(difference: Any, kind: str = "range") -> Any:
    """Range or largest size of differences C_k `(n,)` (array-agnostic).

    C_0 = 0 counts too.
    """
    xp = array_namespace(difference)
    above = at_least(xp.max(difference), 0.0)
    below = at_least(-xp.min(difference), 0.0)
    if kind == "range":
        return above + below
    return xp.where(above > below, above, below)


def differences_of(
    score: np.ndarray,
    confidence: np.ndarray,
    correct: np.ndarray,
    weight: np.ndarray | None = None,
) -> CumulativeCurve:
    """Differences of samples `(n,)` in any order; tied scores are one step."""
    order = np.argsort(score, kind="stable")
    score = score[order]
    confidence = confidence[order].astype("float64")
    correct = correct[order]
    weight = np.ones(len(order)) if weight is None else weight[order]
    total = weight.sum()
    starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])
    mass = np.add.reduceat(weight, starts)
    residual = np.add.reduceat(weight * (confidence - correct), starts)
    # Frequency weights repeat a sample, which adds its variance each time.
    squares = weight if are_frequency_weights(weight) else np.square(weight)
    doubt = confidence * np.maximum(1.0 - confidence, 0.0)
    return CumulativeCurve(
        share=np.cumsum(mass) / total,
        difference=np.cumsum(residual) / total,
        deviation=float(np.sqrt(np.sum(squares * doubt)) / total),
    )


def brownian_tail(value: float, kind: str) -> float:
    """P(statistic >= value) of Brownian motion on [0, 1]: its range or maximum.

    Reference:
        Feller, The Asymptotic Distribution of the Range of Sums of
        Independent Random Variables, Annals of Mathematical Statistics 1951,
        https://doi.org/10.1214/aoms/1177729589
    """
    if value <= 0.0:
        return 1.0
    k = np.arange(_TERMS)
    sign = 1.0 - 2.0 * (k % 2)
    if value > _SWITCH[kind]:
        n = k + 1.0 if kind == "range" else 2.0 * k + 1.0
        factor = 4.0 * n if kind == "range" else 2.0
        tail = np.sum(sign * factor * erfc(n * value / np.sqrt(2.0)))
        return float(np.clip(tail, 0.0, 1.0))
    square = np.square((k + 0.5) * np.pi)
    if kind == "range":
        parts = 8.0 / value**2 + 2.0 / square
        below = np.sum(parts * np.exp(-2.0 * square / value**2))
    else:
        parts = sign * 2.0 / np.sqrt(square)
        below = np.sum(parts * np.exp(-0.5 * square / value**2))
    return float(np.clip(1.0 - below, 0.0, 1.0))


def cumulative_p_value(
    error: float, deviation: float, num_samples: float, kind: str
) -> float | None:
    """P(ECCE >= error) of calibrated predictions; None of too few to tell.

    `deviation` is that of `CumulativeCurve`, and `num_samples` the
    effective number of predictions.
    """
    if (deviation * num_samples) ** 2 < ENOUGH_VARIANCE:
        return None
    return brownian_tail(error / deviation, kind)


def cumulative_interval(
    difference: np.ndarray,
    variance: np.ndarray,
    *,
    num_samples: float,
    third: float = 0.0,
    kind: str = "range",
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Confidence interval of a cumulative calibration error.

    It covers the error of the population. The estimate is biased upwards and
    may lie above the interval. It is (0, 1) without samples.

    The variance of each step `(steps,)` is sum w^2 (c - a)^2 over the square of
    all weight. `third` is sum w^3 (c - a)^3 over its cube, and `num_samples`
    an effective number.

    Reference:
        Andrews and Soares, Inference for Parameters Defined by Moment
        Inequalities Using Generalized Moment Selection, Econometrica 2010,
        https://doi.org/10.3982/ECTA7502 (places near the top)
    """
    check_in("kind", kind, KINDS)
    tail = tail_of(level)
    z = normal.isf(tail)
    if not len(difference) or num_samples <= 0.0:
        return 0.0, 1.0
    error = float(cumulative_error(difference, kind))
    # Steps of size 1 that a sample may not show.
    unseen = 0.5 * z * z / num_samples**2
    walk, time = _thinned(difference, variance)
    rise, run = walk, time
    if kind == "range":
        # Between all places; both signs of a gap have the same size.
        rise, run = (x[:, None] - x for x in (walk, time))
    spread = np.maximum(np.abs(run) - rise**2 / num_samples, 0.0) + unseen
    high = np.max(np.abs(rise) + z * np.sqrt(spread))
    # The first term of Edgeworth's series: few errors are skewed.
    skewness = abs(third + unseen / num_samples) / (time[-1] + unseen)
    high += (2.0 * z * z + 1.0) / 6.0 * skewness
    later = unseen * np.linspace(0.0, 1.0, len(time))
    noise = _highest_noise(walk, time + later, kind, seed)
    low = error - np.quantile(noise, 1.0 - tail)
    return max(float(low), 0.0), min(float(high), 1.0)


def _thinned(
    difference: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Differences and their variance at some places, from the start on.

    The places are about evenly spaced in variance, and hold both extremes.
    """
    time = np.cumsum(variance)
    steps = time[-1] * np.arange(1, _POINTS + 1) / _POINTS
    # The last one may lie beyond the sum by rounding.
    places = np.searchsorted(time, steps * (1.0 - 1e-12))
    last = len(time) - 1
    ends = [int(np.argmin(difference)), int(np.argmax(difference)), last]
    places = np.union1d(np.minimum(places, last), ends)
    return np.r_[0.0, difference[places]], np.r_[0.0, time[places]]


def _highest_noise(
    walk: np.ndarray, time: np.ndarray, kind: str, seed: int
) -> np.ndarray:
    """Noise that can lift the estimate above the truth, in drawn paths.

    Paths are Brownian motion that runs with the variance. Only places matter
    that may be the true extremes.
    """
    rng = generator(seed)
    steps = np.sqrt(np.maximum(np.diff(time), 0.0))
    paths = np.zeros((_PATHS, len(time)))
    draws = rng.standard_normal((_PATHS, len(steps)), "float32")
    np.cumsum(draws * steps, axis=1, out=paths[:, 1:])
    reach = _NEAR * np.sqrt(time[-1])
    if kind == "range":
        top = paths[:, walk >= walk.max() - reach].max(axis=1)
        return top - paths[:, walk <= walk.min() + reach].min(axis=1)
    most = np.abs(walk).max() - reach
    above = paths[:, walk >= most].max(axis=1, initial=-np.inf)
    below = -paths[:, walk <= -most].min(axis=1, initial=np.inf)
    return np.maximum(above, below)
