"""Beta calibration."""

import math
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.calibrators.base import fitted_array
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.logistic_solver import (
    least_logistic,
    softplus,
    typical_slope,
)
from keras_calib.calibrators.one_vs_rest import OneVsRest, log_odds_of_classes
from keras_calib.calibrators.separation import solve_each
from keras_calib.inputs.checks import check_at_least, check_at_most

__all__ = ["BetaCalibration"]

# Where all other classes are ruled out: 0 times infinity would be NaN.
_LARGEST = 1e18


@keras.saving.register_keras_serializable(package="keras_calib")
class BetaCalibration(OneVsRest):
    """Beta calibration of each class against the rest.

    Use it when probabilities are distorted differently near 0 and near 1,
    which a temperature cannot repair. For each class:

    log q / (1 - q) = a log p - b log(1 - p) + c

    The coefficients a, b >= 0 and c minimise the NLL, a convex problem. The
    q of a sample are then normalised to sum 1. With a = b = 1 and c = 0
    nothing changes. Classes that a threshold separates have no optimum: it
    warns, and their labels are as in `AffineScaling`.

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
    columns_of = {"coefficients": 3}
    coefficients = fitted_array(
        "coefficients", "The fitted a, b, c of each class."
    )

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
        self._keep(clip=float(clip))
        self.set_known_rows(coefficients=coefficients)

    def fit_samples(self, samples: FittingData) -> None:
        solve = partial(_fit, what=self.name)
        rows = solve_each(solve, self.columns(samples), self.name)
        self.set_fitted(samples.num_classes, coefficients=np.stack(rows))

    def features(self, logits: Any) -> Any:
        """log p_k / (1 - p_k), clipped."""
        log_odds = log_odds_of_classes(logits)
        limit = _LARGEST
        if self.clip > 0.0:
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
) -> tuple[np.ndarray, float]:
    """(a, b, c) of one class, and the mean NLL.

    It is the best logistic regression with a, b >= 0.
    """
    best, least = np.zeros(3), np.inf
    slope = typical_slope(log_odds)
    for used in ([0, 1, 2], [0, 2], [1, 2], [2]):
        point = np.zeros(3)
        point[used], loss = least_logistic(
            partial(_features, used),
            log_odds,
            labels,
            weight,
            np.array([slope, slope, 0.0])[used],
            what,
        )
        if point[:2].min() >= 0.0 and loss < least:
            best, least = point, loss
        if len(used) == 3 and point[:2].min() >= 0.0:
            break
    return best, least


def _features(used: list, log_odds: np.ndarray) -> np.ndarray:
    """log p, -log(1 - p) and 1, as far as used."""
    no = softplus(log_odds)
    return np.stack([log_odds - no, no, np.ones_like(no)])[used]
