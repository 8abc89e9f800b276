"""Cumulative calibration error, and its law for calibrated predictions."""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import erfc

from keras_calib.inputs.checks import check_in
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import array_namespace, at_least

__all__ = [
    "BAND",
    "CumulativeDifferences",
    "KINDS",
    "brownian_tail",
    "check_kind",
    "cumulative_error",
    "cumulative_p_value",
    "differences_of",
]

KINDS = ("range", "maximum")
# In 95 % of cases Brownian motion on [0, 1] stays between -BAND and BAND.
BAND = 2.241402727
# Each series takes over where its terms fall fastest; so many are enough.
_SWITCH = {"range": 2.0, "maximum": 1.5}
_TERMS = 12
# Variance in samples that makes the walk of the differences nearly Brownian.
_ENOUGH_VARIANCE = 5.0


class CumulativeDifferences(NamedTuple):
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


def check_kind(kind: str) -> None:
    """Raise unless `kind` names a form of the cumulative error."""
    check_in("kind", kind, KINDS)


def cumulative_error(difference: Any, kind: str = "range") -> Any:
    """Range or largest size of differences C_k `(n,)` (array-agnostic).

    Derivation: docs/derivations.md, 'Cumulative errors'.

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
) -> CumulativeDifferences:
    """Differences of samples `(n,)` in any order; tied scores are one step.

    Derivation: docs/derivations.md, 'Cumulative errors'.
    """
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
    return CumulativeDifferences(
        share=np.cumsum(mass) / total,
        difference=np.cumsum(residual) / total,
        deviation=float(np.sqrt(np.sum(squares * doubt)) / total),
    )


def brownian_tail(value: float, kind: str) -> float:
    """P(statistic >= value) of Brownian motion on [0, 1].

    The statistic is its range, or the largest absolute value. Two series
    reach full precision, one for small values and one for large ones.

    Derivation: docs/derivations.md, 'Cumulative errors'.

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

    `deviation` is that of `CumulativeDifferences`, and `num_samples` the
    effective number of predictions.
    """
    if (deviation * num_samples) ** 2 < _ENOUGH_VARIANCE:
        return None
    return brownian_tail(error / deviation, kind)
