"""Affine and quadratic scaling of the log-odds of two classes."""

from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.calibrators.base import fitted_array
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.logistic_solver import (
    least_logistic,
    typical_slope,
)
from keras_calib.calibrators.one_vs_rest import OneVsRest, log_odds_of_classes
from keras_calib.calibrators.separation import solve_each
from keras_calib.inputs.checks import check_above, check_flag

__all__ = ["AffineScaling", "QuadraticScaling"]

# Largest log-odds; their square is finite in float32.
_LARGEST = 1e9


class _LogOddsScaling(OneVsRest):
    """Abstract: a polynomial of the log-odds of each class."""

    coefficients = fitted_array(
        "coefficients", "The fitted coefficients of each class."
    )

    def __init__(self, *, penalty: float | None, name: str, **kwargs: Any):
        if penalty is not None:
            check_above("penalty", penalty, 0.0)
            penalty = float(penalty)
        super().__init__(name=name, **kwargs)
        self._keep(penalty=penalty)

    def ridge(self, samples: FittingData) -> float:
        """The factor of the squared coefficients beside the mean NLL."""
        return 2.0 * (self.penalty or 0.0) / samples.effective_count()

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """The number of coefficients."""
        return float(self.fitted_value("coefficients").size)

    def solve(
        self, log_odds: np.ndarray, labels: np.ndarray, weight: Any, ridge: Any
    ) -> tuple[np.ndarray, float]:
        """The optimal coefficients of one class for a ridge, and the loss."""
        raise NotImplementedError

    def features(self, logits: Any) -> Any:
        """The log-odds of each class."""
        return ops.clip(log_odds_of_classes(logits), -_LARGEST, _LARGEST)

    def scaled(self, log_odds: Any) -> Any:
        """Calibrated log-odds."""
        raise NotImplementedError

    def both_log_probs(self, features: Any) -> tuple[Any, Any]:
        scaled = self.scaled(features)
        return -ops.softplus(-scaled), -ops.softplus(scaled)


@keras.saving.register_keras_serializable(package="keras_calib")
class AffineScaling(_LogOddsScaling):
    """Affine scaling (Platt scaling) of the log-odds of two classes.

    Use it for two classes when a temperature is not enough, as where one
    class is predicted too often. The log-odds s = log p / (1 - p) of the
    second class become

    q = a s + b

    a and b minimise the mean NLL + penalty 2 b^2 / n, a convex problem. The
    map is increasing where a > 0, so ranks stay. More than two classes are
    fitted one against the rest and normalised; take `VectorScaling` for these.

    If a threshold separates the classes, the NLL has no optimal a. Then it
    warns, and takes Platt's labels for n_0 and n_1 samples: 1 / (n_0 + 2) for
    0 and (n_1 + 1) / (n_1 + 2) for 1.

    Args:
        penalty: Strength of the ridge penalty on b, > 0; None for none. n is
            the number of samples, or the sum of frequency weights.
        coefficients: (a, b) of each class `(num_classes, 2)`, if you know
            them, or one row for two classes; None waits for `fit`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> scaling = AffineScaling(coefficients=[[0.5, 1.0]])
    >>> logits = keras.ops.convert_to_numpy(scaling(np.array([[0.0, 2.0]])))
    >>> print(np.round(logits[:, 1] - logits[:, 0], 4))
    [2.]

    Reference:
        Platt, Probabilistic Outputs for Support Vector Machines and
        Comparisons to Regularized Likelihood Methods, 1999; the penalty:
        Berta et al., Structured matrix scaling for multi-class calibration,
        AISTATS 2026, https://arxiv.org/abs/2511.03685

    Differs:
        Platt always replaces the labels 0 and 1 by values between them. This
        fit does so only for separated classes, and the penalty keeps b small.
    """

    fitted_values = ("coefficients",)
    columns_of = {"coefficients": 2}

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        coefficients: Any = None,
        name: str = "affine_scaling",
        **kwargs: Any,
    ):
        super().__init__(penalty=penalty, name=name, **kwargs)
        self.set_known_rows(coefficients=coefficients)

    def fit_samples(self, samples: FittingData) -> None:
        solve = partial(self.solve, ridge=self.ridge(samples))
        rows = solve_each(solve, self.columns(samples), self.name)
        self.set_fitted(samples.num_classes, coefficients=np.stack(rows))

    def solve(
        self, log_odds: np.ndarray, labels: np.ndarray, weight: Any, ridge: Any
    ) -> tuple[np.ndarray, float]:
        start = np.array([typical_slope(log_odds), 0.0])
        point, loss = least_logistic(
            lambda s: np.stack([s, np.ones_like(s)]),
            log_odds,
            labels,
            weight,
            start,
            self.name,
            np.array([0.0, ridge]),
        )
        return point, loss

    def scaled(self, log_odds: Any) -> Any:
        table = self._coefficients
        return table[:, 0] * log_odds + table[:, 1]

    def num_parameters(self, num_classes: int) -> int:
        """Two: each class is fitted on all samples."""
        return 2


@keras.saving.register_keras_serializable(package="keras_calib")
class QuadraticScaling(_LogOddsScaling):
    """Quadratic scaling of the log-odds of two classes.

    Use it for two classes when the miscalibration differs near 0 and near 1
    and there are a thousand held-out samples. The log-odds
    s = log p / (1 - p) of the second class become

    q = a s + b + c s^2

    a, b and c minimise the mean NLL + penalty 2 (b^2 + c^2) / n, a convex
    problem. Beyond the log-odds of the fit q goes on along its tangent. With
    c != 0 the parabola may decrease within them, which changes ranks:
    `monotone=True` forbids that. Separated classes have the labels of
    `AffineScaling`. More than two classes are fitted one against the rest and
    normalised; take `VectorScaling` for these.

    Args:
        penalty: Strength of the ridge penalty on b and c, > 0; None for none.
            n is the number of samples, or the sum of frequency weights.
        monotone: Whether q must not decrease in s.
        coefficients: (a, b, c) of each class `(num_classes, 3)`, if you know
            them, or one row for two classes; None waits for `fit`.
        ends: Least and largest s of the parabola of each class
            `(num_classes, 2)`, or one row for two classes; None puts no ends
            to given `coefficients`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> scaling = QuadraticScaling(coefficients=[[1.0, 0.5, 0.25]])
    >>> logits = keras.ops.convert_to_numpy(scaling(np.array([[0.0, 2.0]])))
    >>> print(np.round(logits[:, 1] - logits[:, 0], 4))
    [3.5]

    Reference:
        Berta et al., Structured matrix scaling for multi-class calibration,
        AISTATS 2026, https://arxiv.org/abs/2511.03685, whose released code
        has it for two classes

    Differs:
        The released code fits without a penalty by default, and follows the
        parabola beyond the data.
    """

    fitted_values = ("coefficients", "ends")
    columns_of = {"coefficients": 3, "ends": 2}
    ascending = ("ends",)
    ends = fitted_array("ends", "Least and largest s of each parabola.")

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        monotone: bool = False,
        coefficients: Any = None,
        ends: Any = None,
        name: str = "quadratic_scaling",
        **kwargs: Any,
    ):
        check_flag("monotone", monotone)
        super().__init__(penalty=penalty, name=name, **kwargs)
        self._keep(monotone=bool(monotone))
        if coefficients is not None and ends is None:
            rows = len(np.atleast_1d(coefficients))
            ends = np.full((rows, 2), [-_LARGEST, _LARGEST])
        self.set_known_rows(alike=False, coefficients=coefficients, ends=ends)

    def fit_samples(self, samples: FittingData) -> None:
        ends = []

        def columns():
            for log_odds, labels, weight in self.columns(samples):
                ends.append(_ends(log_odds, weight))
                yield log_odds, labels, weight

        solve = partial(self.solve, ridge=self.ridge(samples))
        rows = solve_each(solve, columns(), self.name)
        self.set_fitted(
            samples.num_classes, coefficients=np.stack(rows), ends=ends
        )

    def solve(
        self, log_odds: np.ndarray, labels: np.ndarray, weight: Any, ridge: Any
    ) -> tuple[np.ndarray, float]:
        slope = typical_slope(log_odds)
        data = log_odds, labels, weight
        ends = _ends(log_odds, weight)
        best, loss = least_logistic(
            lambda s: np.stack([s, np.ones_like(s), s * s]),
            *data,
            np.array([slope, 0.0, 0.0]),
            self.name,
            np.array([0.0, ridge, ridge]),
        )
        if self.monotone and _falls(best, ends):
            # Then the optimum has the slope 0 at one end, or everywhere.
            loss = np.inf
            for flat in (*ends, None):
                point, value = _least_flat_at(flat, *data, ridge, self.name)
                if value < loss and not _falls(point, ends):
                    best, loss = point, value
        return best, loss

    def scaled(self, log_odds: Any) -> Any:
        a, b, c = (self._coefficients[:, i] for i in range(3))
        inside = ops.clip(log_odds, self._ends[:, 0], self._ends[:, 1])
        slope = a + 2.0 * c * inside
        parabola = (a + c * inside) * inside + b
        return parabola + slope * (log_odds - inside)

    def num_parameters(self, num_classes: int) -> int:
        """Three: each class is fitted on all samples."""
        return 3


def _ends(log_odds: np.ndarray, weight: Any) -> np.ndarray:
    """Least and largest log-odds of the samples that weigh something."""
    some = log_odds if weight is None else log_odds[weight > 0]
    return np.array([some.min(), some.max()], "float64")


def _falls(point: np.ndarray, ends: np.ndarray) -> bool:
    """Whether a s + b + c s^2 decreases between two ends."""
    slopes = point[0] + 2.0 * point[2] * ends
    # The slope at one end may be 0 up to rounding.
    return bool(slopes.min() < -1e-9 * max(1.0, np.abs(slopes).max()))


def _least_flat_at(
    end: float | None,
    log_odds: np.ndarray,
    labels: np.ndarray,
    weight: Any,
    ridge: float,
    what: str,
) -> tuple[np.ndarray, float]:
    """(a, b, c) with slope 0 at one end, or everywhere, and the loss."""

    def features(s: np.ndarray) -> np.ndarray:
        rows = [np.ones_like(s)]
        return np.stack(rows if end is None else [*rows, s * (s - 2.0 * end)])

    size = 1 if end is None else 2
    found, loss = least_logistic(
        features, log_odds, labels, weight, np.zeros(size), what, ridge
    )
    if end is None:
        return np.array([0.0, found[0], 0.0]), loss
    return np.array([-2.0 * end * found[1], found[0], found[1]]), loss
