"""Beta calibration."""

import math
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.calibrators.affine_solver import warn_if_separated
from keras_calib.calibrators.affine_solver import warn_not_converged
from keras_calib.calibrators.base import fitted_array
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.one_vs_rest import OneVsRest
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_at_most
from keras_calib.numerics.softmax import sigmoid
from keras_calib.numerics.softmax import top1

__all__ = ["BetaCalibration"]

# Rows in work at a time.
_ROWS = 2**16
# Most Newton steps, twice the gain at which they stop, and the curvature given
# to flat directions.
_STEPS = 200
_GAIN = 1e-16
_FLAT = 1e-12


@keras.saving.register_keras_serializable(package="keras_calib")
class BetaCalibration(OneVsRest):
    """Beta calibration of each class against the rest.

    Use it when probabilities are distorted differently near 0 and near 1,
    which a temperature cannot repair. For each class:

    log q / (1 - q) = a log p - b log(1 - p) + c

    The coefficients a, b >= 0 and c minimise the NLL, a convex problem. The
    q of a sample are then normalised to sum 1. With a = b = 1 and c = 0
    nothing changes.

    Args:
        clip: Clip p to [clip, 1 - clip] first; in [0, 0.499].
        coefficients: (a, b, c) of each class `(num_classes, 3)`, if you know
            them, or one row for two classes; None waits for `fit`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> beta = BetaCalibration(coefficients=[[2.0, 1.0, 0.0]])
    >>> logits = beta(np.log([[0.5, 0.5]]))
    >>> probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    >>> print(np.round(probs, 4))
    [[0.6667 0.3333]]

    Reference:
        Kull et al., Beta calibration: a well-founded and easily implemented
        improvement on logistic calibration for binary classifiers, AISTATS
        2017, https://proceedings.mlr.press/v54/kull17a.html

    Differs:
        The released code fits without bounds, drops a coefficient below 0
        and fits again. That is the bounded optimum unless both are below 0.
        It clips at the float32 epsilon, 1.2e-7, which costs NLL where a model
        is rightly confident.
    """

    fitted_values = ("coefficients",)
    coefficients = fitted_array(
        "coefficients", "The fitted a, b, c of each class."
    )
    options = ("clip",)

    def __init__(
        self,
        *,
        clip: float = 0.0,
        coefficients: Any = None,
        name: str = "beta_calibration",
        **kwargs: Any,
    ):
        check_at_least("clip", clip, 0.0)
        check_at_most("clip", clip, 0.499)
        super().__init__(name=name, **kwargs)
        self.clip = float(clip)
        self.set_known_rows(coefficients=coefficients)

    def fit_samples(self, samples: FittingData) -> None:
        rows = [_fit(*column, self.name) for column in self.columns(samples)]
        self.set_fitted(samples.num_classes, coefficients=np.stack(rows))

    def features(self, logits: Any) -> Any:
        """log p_k / (1 - p_k), which does not saturate."""
        logits = ops.cast(logits, "float32")
        log_p = ops.log_softmax(logits, axis=-1)
        p = ops.exp(log_p)
        largest = ops.expand_dims(top1(logits, from_logits=True).score, -1)
        # Only the largest p can exceed one half.
        log_odds = ops.where(
            p > 0.5, largest, log_p - ops.log1p(-ops.minimum(p, 0.5))
        )
        if self.clip == 0.0:
            return log_odds
        limit = math.log1p(-self.clip) - math.log(self.clip)
        return ops.clip(log_odds, -limit, limit)

    def both_log_probs(self, features: Any) -> tuple[Any, Any]:
        a, b, c = (self._coefficients[:, i] for i in range(3))
        log_odds = b * ops.softplus(features) - a * ops.softplus(-features) + c
        return -ops.softplus(-log_odds), -ops.softplus(log_odds)

    def num_parameters(self, num_classes: int) -> int:
        """Three: each class is fitted on all samples."""
        return 3


def _fit(
    log_odds: np.ndarray, labels: np.ndarray, weight: Any, what: str
) -> np.ndarray:
    """(a, b, c) of one class: the best logistic regression with a, b >= 0."""
    best, least = np.zeros(3), np.inf
    for used in ([0, 1, 2], [0, 2], [1, 2], [2]):
        point, loss = _least(log_odds, labels, weight, used, what)
        if point[:2].min() >= 0.0 and loss < least:
            best, least = point, loss
        if len(used) == 3 and point[:2].min() >= 0.0:
            break
    if 0 < labels.sum() < len(labels):
        warn_if_separated(least, labels, weight, what)
    return best


def _least(
    log_odds: np.ndarray,
    labels: np.ndarray,
    weight: Any,
    used: list,
    what: str,
) -> tuple[np.ndarray, float]:
    """The fit of some coefficients, the others 0, and its NLL, by Newton."""
    some = np.abs(log_odds[log_odds != 0.0], dtype="float64")
    start = 1.0 / np.median(some) if len(some) else 1.0
    found = np.array([start, start, 0.0])[used]
    sums = partial(_sums, log_odds, labels, weight, used)
    loss, slope, curvature = sums(found)
    for _ in range(_STEPS):
        # Units in which each coefficient has curvature 1.
        size = 1.0 / np.sqrt(np.maximum(np.diag(curvature), _FLAT))
        hessian = curvature * size * size[:, None]
        hessian[np.diag_indices(len(hessian))] += _FLAT
        step = size * np.linalg.solve(hessian, slope * size)
        gain = slope @ step
        if gain <= _GAIN:
            break
        share = 1.0
        while (after := sums(found - share * step))[0] > loss and share > _FLAT:
            share /= 2.0
        found = found - share * step
        loss, slope, curvature = after
    else:
        warn_not_converged(what, iterations=_STEPS, gradient=gain)
    point = np.zeros(3)
    point[used] = found
    return point, loss


def _sums(
    log_odds: np.ndarray,
    labels: np.ndarray,
    weight: Any,
    used: list,
    point: np.ndarray,
) -> tuple:
    """Mean NLL, its gradient and Hessian, by blocks."""
    loss, slope, curvature, mass = 0.0, 0.0, 0.0, 0.0
    for start in range(0, len(log_odds), _ROWS):
        part = slice(start, start + _ROWS)
        x, y = log_odds[part].astype("float64"), labels[part]
        w = np.ones(len(x)) if weight is None else weight[part]
        no = _softplus(x)
        x = np.stack([x - no, no, np.ones_like(x)])[used]
        z = point @ x
        q = sigmoid(z)
        loss = loss + w @ (_softplus(z) - y * z)
        slope = slope + x @ (w * (q - y))
        curvature = curvature + (x * (w * q * (1.0 - q))) @ x.T
        mass = mass + w.sum()
    return loss / mass, slope / mass, curvature / mass


def _softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x), faster than NumPy's `logaddexp`."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
