"""Ranking scores: functions of logits to one value per sample.

A higher score means a surer prediction. Classes that a logit of -inf rules out
have no part in a score. A constant added to all logits changes
`max_logit`, `neg_energy` and `p_norm(center=False)`, and no other score.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_at_least, check_rank
from keras_calib.numerics.arrays import (
    array_namespace,
    as_numbers,
    at_least,
    at_least_float32,
    safe_divide,
)
from keras_calib.numerics.softmax import is_ruled_out, num_allowed

_SHAPE = "(..., num_classes)"
# Finite, where a class that is ruled out would give infinity.
_LARGEST = 1e18
# Rounding error of an energy of 0 in float32, relative to the largest logit.
_ENERGY_ROUNDING = 1e-6


@keras.saving.register_keras_serializable(package="keras_calib")
def msp(logits: Any) -> Any:
    """Maximum softmax probability, max_k p_k, in (0, 1].

    Use it as the default score to accept or reject predictions.

    Args:
        logits: Logits `(..., num_classes)`.

    Returns:
        Scores `(...)`.

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and
        Out-of-Distribution Examples, ICLR 2017,
        https://arxiv.org/abs/1610.02136
    """
    return ops.max(ops.softmax(_tensor(logits), axis=-1), axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
def max_logit(logits: Any) -> Any:
    """Largest logit, max_k z_k, unbounded.

    Use it to compare with `msp` on out-of-distribution data.

    Args:
        logits: Logits `(..., num_classes)`.

    Returns:
        Scores `(...)`.

    Reference:
        Hendrycks et al., Scaling Out-of-Distribution Detection for
        Real-World Settings, ICML 2022, https://arxiv.org/abs/1911.11132
    """
    return ops.max(_tensor(logits), axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
def logit_margin(logits: Any) -> Any:
    """Largest minus second largest logit, >= 0.

    Use it when the distance to the runner-up matters, and not the other
    classes. A temperature does not change its order.

    Args:
        logits: Logits `(..., num_classes)`.

    Returns:
        Scores `(...)`.

    Reference:
        Streeter, Approximation Algorithms for Cascading Prediction Models,
        ICML 2018, https://arxiv.org/abs/1802.07697
    """
    first, second = _two_largest(_tensor(logits))
    # A class that is left alone has a finite lead.
    return first - at_least(second, -_LARGEST)


@keras.saving.register_keras_serializable(package="keras_calib")
def prob_margin(logits: Any) -> Any:
    """Largest minus second largest softmax probability, in [0, 1].

    Use it like `logit_margin`, on the scale of probabilities.

    Args:
        logits: Logits `(..., num_classes)`.

    Returns:
        Scores `(...)`.

    Reference:
        Scheffer et al., Active Hidden Markov Models for Information
        Extraction, IDA 2001, https://doi.org/10.1007/3-540-44816-0_31
    """
    probs = ops.softmax(_tensor(logits), axis=-1)
    first, second = _two_largest(probs)
    return first - second


@keras.saving.register_keras_serializable(package="keras_calib")
def neg_entropy(logits: Any) -> Any:
    """Negative entropy, sum_k p_k log p_k, in [-log K, 0] nats.

    Use it when the probabilities of all classes should matter, not only the
    largest.

    Args:
        logits: Logits `(..., num_classes)`.

    Returns:
        Scores `(...)`.

    Reference:
        Belghazi and Lopez-Paz, What Classifiers Know What They Don't?, 2021,
        https://arxiv.org/abs/2107.06217
    """
    # Finite, as 0 times infinity would be NaN.
    log_p = at_least(ops.log_softmax(_tensor(logits), axis=-1), -_LARGEST)
    return ops.sum(ops.exp(log_p) * log_p, axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
def neg_energy(logits: Any) -> Any:
    """Negative free energy, log sum_k exp z_k, unbounded.

    Use it to compare with `msp` on out-of-distribution data.

    Args:
        logits: Logits `(..., num_classes)`. Rows of log-probabilities all
            score exactly 0, so that rounding does not order them.

    Returns:
        Scores `(...)`.

    Reference:
        Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020,
        https://arxiv.org/abs/2010.03759
    """
    logits = _tensor(logits)
    energy = ops.logsumexp(logits, axis=-1)
    size = ops.maximum(ops.abs(ops.max(logits, axis=-1)), 1.0)
    is_rounding = ops.abs(energy) < _ENERGY_ROUNDING * size
    return ops.where(is_rounding, ops.zeros_like(energy), energy)


@keras.saving.register_keras_serializable(package="keras_calib")
def gini(logits: Any) -> Any:
    """Sum of squared probabilities, sum_k p_k^2, in (0, 1].

    Use it like `neg_entropy`, on a bounded scale. It is 1 minus the Gini
    impurity.

    Args:
        logits: Logits `(..., num_classes)`.

    Returns:
        Scores `(...)`.

    Reference:
        Granese et al., DOCTOR: A Simple Method for Detecting
        Misclassification Errors, NeurIPS 2021,
        https://arxiv.org/abs/2106.02395
    """
    probs = ops.softmax(_tensor(logits), axis=-1)
    return ops.sum(ops.square(probs), axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib")
def p_norm(logits: Any, *, p: float = 4.0, center: bool = True) -> Any:
    """Largest logit after the logits are divided by their p-norm.

    Use it when training has damaged the ranking by `msp`, as label smoothing
    can. `LogitNormalization` chooses p on held-out data.

    max_k v_k / ||v||_p, v = z - mean(z), ||v||_p = (sum_k |v_k|^p)^(1/p)

    With `center=False`, v = z. For p = 0 the norm is the number of non-zero
    entries. For p > 0 and centred logits the score lies in [0, 1]. It is 0 if
    all logits are equal.

    Args:
        logits: Logits `(..., num_classes)`. NumPy arrays are computed in
            float64, where only equal scores tie.
        p: Order of the norm, >= 0.
        center: Whether to subtract the mean first.

    Returns:
        Scores `(...)`.

    Reference:
        Cattelan and Silva, How to Fix a Broken Confidence Estimator:
        Evaluating Post-hoc Methods for Selective Classification with Deep
        Neural Networks, UAI 2024, https://arxiv.org/abs/2305.15508
    """
    check_at_least("p", p, 0.0)
    values = as_numbers(logits, "logits")
    if isinstance(logits, np.ndarray):
        check_rank("logits", values, 1, _SHAPE)
        values = values.astype("float64", copy=False)
    else:
        values = _tensor(logits)
    xp = array_namespace(values)
    # Classes that are ruled out have no part in mean and norm.
    low, count = is_ruled_out(values), num_allowed(values)
    largest = xp.max(values, axis=-1)
    values = xp.where(low, xp.zeros_like(values), values)
    if center:
        mean = xp.sum(values, axis=-1, keepdims=True) / count
        largest = largest - xp.squeeze(mean, axis=-1)
        values = xp.where(low, values, values - mean)
    size = xp.abs(values)
    if p == 0:
        norm = xp.where(size > 0, xp.ones_like(size), xp.zeros_like(size))
        return safe_divide(largest, xp.sum(norm, axis=-1))
    # |v|^p would overflow float32 without a division by the largest entry.
    scale = xp.max(size, axis=-1, keepdims=True)
    share = safe_divide(size, scale)
    norm = xp.power(xp.sum(xp.power(share, p), axis=-1), 1.0 / p)
    scale = xp.squeeze(scale, axis=-1)
    return safe_divide(largest, scale * norm)


def _tensor(logits: Any) -> Any:
    """Logits as a tensor, at least float32."""
    logits = at_least_float32(logits)
    check_rank("logits", logits, 1, _SHAPE)
    return logits


def _two_largest(x: Any) -> tuple[Any, Any]:
    values, _ = ops.top_k(x, 2)
    return values[..., 0], values[..., 1]


_SCORES = {
    score.__name__: score
    for score in (
        msp,
        max_logit,
        logit_margin,
        prob_margin,
        neg_entropy,
        neg_energy,
        gini,
        p_norm,
    )
}
SCORE_NAMES = tuple(_SCORES)
# Scores in [0, 1], which crowd at its ends. Other scores are unbounded.
UNIT_SCORES = ("msp", "prob_margin", "gini", "p_norm")


def get(score: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of logits `(n, num_classes)` named by `score`."""
    if callable(score):
        return score
    if score not in SCORE_NAMES:
        raise value_error(
            f"`score` must be a function or one of {SCORE_NAMES}", score=score
        )
    return _SCORES[score]
