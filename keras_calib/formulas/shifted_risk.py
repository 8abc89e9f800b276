"""Tests of a risk under another prior of the classes, from labelled samples.

The labels are taken as given. Samples of a class are independent draws from
what the class looks like, which the prior does not change.
Derivation: docs/derivations.md, 'Other priors and mixtures'.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import betainc

# A bet of the whole capital would end with the first error.
_LARGEST_BET = 0.9


class Subsample(NamedTuple):
    """How many rows follow a prior, and how often so many are there."""

    size: int
    chance: float


def class_weights(count: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Weights q n / n_y `(num_classes,)` whose mean over n rows is 1.

    `count` has the rows of each class, > 0 where the prior is.
    """
    some = prior > 0
    total = count[some].sum()
    return np.where(some, prior * total / np.maximum(count, 1), 0.0)


def largest_bet(weight: np.ndarray, risk: float) -> float:
    """The largest bet that leaves a part of the capital after an error."""
    return _LARGEST_BET / (float(weight.max()) * (1.0 - risk))


def log_evidence(
    right: np.ndarray,
    wrong: np.ndarray,
    weight: np.ndarray,
    bet: np.ndarray,
    risk: float,
) -> np.ndarray:
    """Logarithms of e-values `(num_thresholds,)` against a risk above `risk`.

    With right and wrong accepted samples of class y, R and W, each
    `(num_thresholds, num_classes)`,

    e = prod_y (1 + b w_y risk)^R (1 - b w_y (1 - risk))^W

    If the risk at the prior exceeds `risk`, E[e] <= 1. So 1 / e is a p-value.
    The bet b of each threshold lies between 0 and `largest_bet`. It may know
    the labels, but no score and no error.
    """
    stake = np.multiply.outer(bet, weight)
    gain = right * np.log1p(stake * risk)
    loss = wrong * np.log1p(-stake * (1.0 - risk))
    return (gain + loss).sum(axis=1)


def subsample_of(
    count: np.ndarray, prior: np.ndarray, failure: float
) -> Subsample:
    """The largest sample of a prior that rows of each class nearly always fill.

    It has Multinomial(size, prior) rows of each class. A class lacks some with
    a probability of at most `failure` over all classes.
    """
    some = prior > 0
    have, share = count[some], prior[some]

    def failures(size: int) -> float:
        # P(Bin(size, share) > have), as an incomplete beta function.
        rest = np.maximum(size - have, 1.0)
        tails = betainc(have + 1.0, rest, share)
        return float(tails[have < size].sum())

    low, high = 0, int((have / share).min())
    while low < high:
        middle = (low + high + 1) // 2
        if failures(middle) <= failure:
            low = middle
        else:
            high = middle - 1
    return Subsample(low, 1.0 - failures(low))
