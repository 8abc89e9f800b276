"""Mean confidence less accuracy, and whether it can be 0."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit
from scipy.special import logit
from scipy.stats import norm as normal

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.intervals import poisson_binomial_tails
from keras_calib.formulas.intervals import tail_of

__all__ = ["MeanGap", "mean_gap"]

# Groups of alike confidence that the test works with.
_NUM_GROUPS = 128


class MeanGap(NamedTuple):
    """Mean confidence less accuracy; see `mean_gap`.

    Attributes:
        value: > 0 is overconfident.
        low: Lower end of the interval.
        high: Upper end.
        too_few: What there is too little of to find a gap of either sign:
            `"errors"`, `"right predictions"`, or None if there is enough.
    """

    value: float
    low: float
    high: float
    too_few: str | None


def mean_gap(
    mass: np.ndarray,
    wrong: np.ndarray,
    doubt: np.ndarray,
    *,
    weight_ratio: float = 1.0,
    level: float = 0.95,
) -> MeanGap:
    """Mean confidence less accuracy, with the interval of an exact test.

    If the predictions are calibrated, the number of wrong ones is a sum of
    independent Bernoulli variables of probability 1 - confidence. 0 lies
    outside of the interval only if this distribution has less than
    (1 - level) / 2 beyond the observed number, however few errors there are.
    The ends are where the same test rejects networks whose log-odds are all
    shifted by one number, moved apart by the variance of gaps that differ.
    Weights that differ get the interval of Clopper and Pearson of the
    effective number of wrong predictions, which is wider.

    Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Groups of alike confidence, ascending, have their weight, that of the
    wrong ones, and the mean of 1 - confidence. `weight_ratio` is the sum of
    squared weights over that of weights.

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
        return MeanGap(0.0, -1.0, 1.0, "errors")
    # A confidence that rounds to 1 leaves a little room for errors.
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
    return MeanGap(errors / total - expected, low, high, too_few)


def _tilted_shares(
    count: np.ndarray, wrong: np.ndarray, doubt: np.ndarray, tail: float
) -> tuple[float, float]:
    """Ends of the share of errors, of networks with shifted log-odds."""
    total, errors = float(count.sum()), int(wrong.sum())
    squares = wrong * (1.0 - doubt) ** 2 + (count - wrong) * doubt**2
    gap = errors / total - float(np.sum(count * doubt)) / total
    variance = float(squares.sum()) / total - gap**2
    # Alike confidences together: their binomial is as good and faster.
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
