"""Mean confidence minus accuracy, and a test of whether it is 0."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit
from scipy.stats import norm as normal

from keras_calib.formulas.intervals import (
    Moments,
    clopper_pearson,
    mean_interval,
    poisson_binomial_tails,
    tail_of,
)
from keras_calib.metrics.states.composite import Readings
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.results import Result

# Groups of similar confidence that the test works with.
_NUM_GROUPS = 128


class GapEstimate(Result):
    """Mean confidence minus accuracy, with an interval.

    Attributes:
        value: The gap, in [-1, 1]. Above 0 the model is overconfident.
        low: Lower end of the interval. It excludes 0 if an exact test of the
            number of errors rejects calibration.
        high: Upper end of the interval.
        too_few: What is too rare to detect a gap of either sign, `"errors"`
            or `"right predictions"`. None if there are enough of both.
    """

    value: float
    low: float
    high: float
    too_few: str | None


def gap_of(readings: Readings, level: float = 0.95) -> GapEstimate:
    """Mean confidence minus accuracy of a state, with its interval."""
    cells, ratio = readings.cells, float(readings.weight_ratio) or 1.0
    if readings.votes:
        return gap_estimate_of_votes(
            cells.mass,
            cells.confidence_minus_correct,
            cells.squared_residual,
            weight_ratio=ratio,
            level=level,
        )
    return gap_estimate(
        cells.mass,
        cells.wrong,
        1.0 - safe_divide(cells.confidence, cells.mass),
        weight_ratio=ratio,
        level=level,
    )


def gap_estimate(
    mass: np.ndarray,
    wrong: np.ndarray,
    doubt: np.ndarray,
    *,
    weight_ratio: float = 1.0,
    level: float = 0.95,
) -> GapEstimate:
    """Compute mean confidence minus accuracy, with an exact test's interval.

    Groups of similar confidence, ascending, have a weight `mass`, that of the
    `wrong` predictions, and a mean `doubt`, 1 - confidence, each
    `(num_groups,)`. The variance of unequal gaps widens the interval. Unequal
    weights, of which `weight_ratio` is sum w^2 / sum w, get the interval of
    Clopper and Pearson for the effective number of wrong predictions.

    Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Reference:
        Hoeffding, On the Distribution of the Number of Successes in
        Independent Trials, Annals of Mathematical Statistics 27, 1956,
        https://doi.org/10.1214/aoms/1177728178 (the binomial is the widest)
    """
    tail = tail_of(level)
    filled = mass > 0
    count, wrong = mass[filled] / weight_ratio, wrong[filled] / weight_ratio
    total, errors = float(count.sum()), float(wrong.sum())
    if total == 0.0:
        return GapEstimate(0.0, -1.0, 1.0, "errors")
    # Confidences that round to 1 must leave some probability of errors.
    doubt = np.clip(doubt[filled], 1e-12, 1.0 - 1e-12)
    expected = float(np.sum(count * doubt)) / total
    too_few = None
    if np.sum(count * np.log1p(-doubt)) > np.log(tail):
        too_few = "errors"
    elif np.sum(count * np.log(doubt)) > np.log(tail):
        too_few = "right predictions"
    if np.all(np.abs(count - np.round(count)) <= 1e-6 * count):
        ends = _tilted_shares(np.round(count), np.round(wrong), doubt, tail)
    else:
        errors = min(errors, total)
        ends = clopper_pearson(errors, total, level=level)
    low, high = (float(end) - expected for end in ends)
    return GapEstimate(errors / total - expected, low, high, too_few)


def gap_estimate_of_votes(
    mass: np.ndarray,
    residual: np.ndarray,
    squared_residual: np.ndarray,
    *,
    weight_ratio: float = 1.0,
    level: float = 0.95,
) -> GapEstimate:
    """Compute mean confidence minus share of votes, with its interval.

    The votes for one sample are not independent, so samples are what varies.
    The interval is that of a mean. `residual` has the sums of weight times
    (confidence - share of votes), `squared_residual` those of its square, each
    by group.
    """
    mean = safe_divide(residual, mass)
    variance = np.maximum(safe_divide(squared_residual, mass) - mean**2, 0.0)
    third = mass * mean * (mean**2 + 3.0 * variance)
    weight, total, second, third = (
        float(x.sum()) for x in (mass, residual, squared_residual, third)
    )
    if weight == 0.0:
        return GapEstimate(0.0, -1.0, 1.0, "errors")
    moments = Moments.of_ratio(weight_ratio, weight, total, second, third)
    ends = mean_interval(moments, level=level, unseen=(-1.0, 1.0))
    low, high = np.clip(ends, -1.0, 1.0)
    return GapEstimate(total / weight, float(low), float(high), None)


def _tilted_shares(
    count: np.ndarray, wrong: np.ndarray, doubt: np.ndarray, tail: float
) -> tuple[float, float]:
    """Ends of the share of errors, of networks with shifted log-odds."""
    total, errors = float(count.sum()), int(wrong.sum())
    squares = wrong * (1.0 - doubt) ** 2 + (count - wrong) * doubt**2
    gap = errors / total - float(np.sum(count * doubt)) / total
    variance = float(squares.sum()) / total - gap**2
    # A binomial of similar confidences is as accurate, and faster.
    edges = np.linspace(0.0, len(count), _NUM_GROUPS + 1).astype(int)[:-1]
    starts = np.unique(np.minimum(edges, len(count) - 1))
    groups = np.add.reduceat(count, starts)
    log_odds = logit(np.add.reduceat(count * doubt, starts) / groups)

    def excess(shift: float, side: int) -> float:
        shifted = expit(log_odds + shift)
        return poisson_binomial_tails(errors, shifted, groups)[side] - tail

    def root(function: Callable, *args: int) -> np.ndarray:
        shift = brentq(function, -80.0, 80.0, args=args, xtol=1e-6)
        return expit(log_odds + shift)

    if 0 < errors < total:
        middle = root(lambda x: np.sum(groups * expit(log_odds + x)) - errors)
        variance -= float(np.sum(groups * middle * (1.0 - middle))) / total
    else:
        variance = 0.0
    drift = normal.isf(tail) ** 2 * max(variance, 0.0) / total
    share, low, high = errors / total, 0.0, 1.0
    if errors > 0:
        low = float(np.sum(groups * root(excess, 1))) / total
    if errors < total:
        high = float(np.sum(groups * root(excess, 0))) / total
    return (
        max(0.0, share - np.hypot(share - low, np.sqrt(drift))),
        min(1.0, share + np.hypot(high - share, np.sqrt(drift))),
    )
