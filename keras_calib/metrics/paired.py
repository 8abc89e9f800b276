"""Whether two stages of the same predictions differ in a metric.

Both are read from the same rows, whose noise they share. So the difference is
what is tested, over units that do not depend on each other.

Derivation: docs/derivations.md, 'Paired changes'.
"""

from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import norm, t

from keras_calib.formulas.units import spread_of
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.metrics.states.units import UnitSums
from keras_calib.numerics.arrays import safe_divide

_MEANS = ("accuracy", "nll", "brier_score")


def paired_p_values(
    sums: UnitSums, names: list[str], metric: Any, stages: tuple[int, int]
) -> dict[str, float]:
    """Two-sided p-values of no difference of two stages, by metric.

    - `accuracy`, `nll`, `brier_score`: Student's test of the mean difference,
      whose error is that of the sums of differences by group of units.
    - `confidence_gap`: of equal distance from 0. Both gaps have the same
      accuracy in them, so their distances differ if confidences do, and the
      mean of the two gaps is on one side of 0. The p-value is the larger one
      of these two tests.
    - `ece`, `aece`: of equal sums of the sizes of gaps, each without the part
      that noise adds. The error comes from the covariance of the gaps of all
      bins of both stages.
    - Others: the difference over the standard deviation that it has when
      groups of units are repeated a Poisson(1) number of times, the same in
      both stages.

    Args:
        sums: Sums of both stages.
        names: Metrics out of `QUANTITIES`.
        metric: Has the arguments of the metrics, such as `risk`.
        stages: Numbers of the stages.

    Reference:
        Leone et al., The Folded Normal Distribution, Technometrics 3, 1961
        (sizes of gaps); Chamandy et al., Estimating Uncertainty for Massive
        Data Streams, Google 2012, https://research.google/pubs/pub43157/
        (Poisson replicates)
    """
    weight = sums.total("weight", stages[0])
    size = weight.sum()
    found: dict[str, float] = {}
    for name in _MEANS:
        if name in names:
            before, after = (sums.total(name, k) for k in stages)
            found[name] = _of_mean(after - before, weight)
    if "confidence_gap" in names:
        before, after = (sums.total("confidence_gap", k) for k in stages)
        tests = (
            _of_mean(after - before, weight),
            _of_mean(after + before, weight),
        )
        found["confidence_gap"] = max(tests)
    if "ece" in names:
        parts = [sums.by_bin(k) for k in stages]
        gaps = np.concatenate([x[1] - x[2] for x in parts], axis=-1)
        mean = gaps.sum(axis=0) / size
        rest = (gaps - weight[:, None] * mean) / size
        num = safe_divide(size**2, np.sum(weight**2))
        covariance = safe_divide(num, num - 1.0) * rest.T @ rest
        found["ece"] = _of_gaps(mean, covariance, num)
    others = [x for x in names if x not in found and x != "mean_confidence"]
    if not others:
        return found
    pair = [sums.readings(k) for k in stages]
    draws: list[list[float]] = []
    gaps_of_draws: list[np.ndarray] = []
    for drawn in sums.replicates():
        both = [drawn[k] for k in stages]
        draws.append([_difference(x, both, metric) for x in others])
        if "aece" in others:
            gaps_of_draws.append(_mass_gaps(both, metric))
    num = float(safe_divide(size**2, np.sum(weight**2)))
    deviation = np.std(draws, axis=0, ddof=1)
    for name, error in zip(others, deviation, strict=True):
        found[name] = _p_value(_difference(name, pair, metric), error, num)
    if "aece" in others:
        covariance = np.cov(np.array(gaps_of_draws).T)
        found["aece"] = _of_gaps(_mass_gaps(pair, metric), covariance, num)
    return found


def _difference(name: str, readings: list, metric: Any) -> float:
    before, after = (float(QUANTITIES[name].value(x, metric)) for x in readings)
    return after - before


def _mass_gaps(readings: list, metric: Any) -> np.ndarray:
    """Gaps of the equal-mass bins of both stages, times their shares."""
    quantity: Any = QUANTITIES["aece"]
    bins = [quantity.bins(x, metric) for x in readings]
    return np.concatenate(
        [safe_divide(x.residual, x.weight.sum()) for x in bins]
    )


def _of_mean(difference: np.ndarray, weight: np.ndarray) -> float:
    """P-value of a mean of 0 of differences that are summed by group."""
    variance, num = spread_of(difference[:, None], weight[:, None])
    mean = safe_divide(difference.sum(), weight.sum())
    return _p_value(mean, float(variance[0]) ** 0.5, float(num[0]))


def _of_gaps(mean: np.ndarray, covariance: np.ndarray, num: float) -> float:
    """P-value of equal sums of |E mean| over the two halves of the bins.

    `mean` are gaps times the shares of their bins, nearly normal.
    """
    error = np.sqrt(np.diag(covariance))
    x, side = safe_divide(mean, error), np.repeat([-1.0, 1.0], len(mean) // 2)
    # Without the part of |mean| that its noise adds.
    bias = error * (2.0 * norm.pdf(x) - 2.0 * np.abs(x) * ndtr(-np.abs(x)))
    difference = float(np.sum(side * (np.abs(mean) - bias)))
    signs = side * np.sign(mean)
    variance = float(signs @ covariance @ signs)
    return _p_value(difference, max(variance, 0.0) ** 0.5, num)


def _p_value(difference: float, error: float, num: float) -> float:
    """P-value of a difference with an error that `num` groups estimate."""
    if error <= 0.0 or num <= 1.0 or not np.isfinite(error):
        return 1.0
    return float(2.0 * t.sf(abs(difference) / error, num - 1.0))
