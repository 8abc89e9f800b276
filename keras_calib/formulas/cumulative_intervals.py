"""Confidence intervals of the cumulative calibration error, from its steps.

Noise raises the range and the largest size of a walk, and resampling adds more
noise: a bootstrap interval misses the error of a calibrated model. So each end
inverts a test of its own.
"""

import numpy as np
from scipy.stats import norm as normal

from keras_calib.formulas.cumulative import check_kind, cumulative_error
from keras_calib.formulas.intervals import tail_of
from keras_calib.inputs.checks import generator

__all__ = ["cumulative_interval"]

# Points of the walk that are looked at, and drawn paths of its noise.
_POINTS = 256
_PATHS = 1000
# Places so many standard deviations below the top may be the true top.
_NEAR = 4.0


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
    may lie above the interval. With C_j the differences and C_0 = 0, the upper
    end is

    max over i < j of |C_j - C_i| + z sd(C_j - C_i)

    with i = 0 for ECCE-MAD, and an allowance for skewness. The lower end is the
    estimate less a quantile of drawn noise: the highest noise at places near
    the top of the walk less the lowest near its bottom. Near is within 4
    standard deviations of the last difference. The interval is (0, 1) without
    samples.

    Derivation: docs/derivations.md, 'Cumulative errors'.

    Args:
        difference: Differences C through each step `(steps,)`.
        variance: Variance of each step `(steps,)`: sum w^2 (c - a)^2 over the
            square of all weight.
        num_samples: Effective number of samples.
        third: Third moment of the last difference: sum w^3 (c - a)^3 over the
            cube of all weight.
        kind: `"range"` for ECCE-R, `"maximum"` for ECCE-MAD.
        level: Probability to cover, in (0, 1).
        seed: Seed of the noise.

    Reference:
        Andrews and Soares, Inference for Parameters Defined by Moment
        Inequalities Using Generalized Moment Selection, Econometrica 2010,
        https://doi.org/10.3982/ECTA7502 (places near the top)
    """
    check_kind(kind)
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
