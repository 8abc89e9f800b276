"""Affine, quadratic and beta calibration: logistic fits to log-odds."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.calibrators.affine_solver import warn_not_converged
from keras_calib.calibrators.base import FittedValue
from keras_calib.calibrators.columns import ROWS, OneVsRest, log_odds_of_classes
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_at_most,
    check_flag,
)
from keras_calib.numerics.softmax import sigmoid

# Largest log-odds; their square is finite in float32.
_LARGEST = 1e9
# The same for `BetaCalibration`, which has no square.
_LARGEST_OF_BETA = 1e18
# Rows in work at a time.
_ROWS = 2**16
# Most Newton steps, twice the gain at which they stop, and the curvature given
# to flat directions.
_STEPS = 200
_GAIN = 1e-16
_FLAT = 1e-12


class _LogOddsScaling(OneVsRest):
    """Abstract: new log-odds of each class, of features of its log-odds."""

    is_likelihood = True

    def scaled(self, log_odds: Any) -> Any:
        raise NotImplementedError

    def features(self, logits: Any) -> Any:
        """The log-odds of each class."""
        return ops.clip(log_odds_of_classes(logits), -_LARGEST, _LARGEST)

    def both_log_probs(self, features: Any) -> tuple[Any, Any]:
        scaled = self.scaled(features)
        return -ops.softplus(-scaled), -ops.softplus(scaled)

    def num_parameters(self, num_classes: int) -> int:
        """The coefficients of a class: each is fitted on all samples."""
        return int(self.fitted_values["coefficients"].shape[1])


class _Polynomial(_LogOddsScaling):
    """Abstract: a polynomial of the log-odds, with a ridge."""

    def __init__(self, *, penalty: float | None, **kwargs: Any):
        if penalty is not None:
            check_above("penalty", penalty, 0.0)
            penalty = float(penalty)
        super().__init__(**kwargs)
        self._keep(penalty=penalty)

    def ridge(self, samples: FittingData) -> float:
        """The strength for the mean NLL."""
        return 2.0 * (self.penalty or 0.0) / samples.effective_count()


@keras.saving.register_keras_serializable(package="keras_calib")
class AffineScaling(_Polynomial):
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

    coefficients = FittedValue(ROWS, 2)

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        coefficients: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(penalty=penalty, **kwargs)
        self.set_known(coefficients=coefficients)

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        ridge = self.ridge(samples)
        point, loss = least_polynomial(column, 2, ridge, self.name)
        return (point,), loss

    def scaled(self, log_odds: Any) -> Any:
        table = self._coefficients
        return table[:, 0] * log_odds + table[:, 1]


@keras.saving.register_keras_serializable(package="keras_calib")
class QuadraticScaling(_Polynomial):
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

    coefficients = FittedValue(ROWS, 3)
    ends = FittedValue(ROWS, 2, ascends=True)

    def __init__(
        self,
        *,
        penalty: float | None = 1.0,
        monotone: bool = False,
        coefficients: Any = None,
        ends: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        check_flag("monotone", monotone)
        super().__init__(penalty=penalty, **kwargs)
        self._keep(monotone=bool(monotone))
        if coefficients is not None and ends is None:
            rows = len(np.atleast_1d(coefficients))
            ends = np.full((rows, 2), [-_LARGEST, _LARGEST])
        self.set_known(coefficients=coefficients, ends=ends)

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        log_odds, _, weight = column
        ridge = self.ridge(samples)
        some = log_odds if weight is None else log_odds[weight > 0]
        ends = np.array([some.min(), some.max()], "float64")
        best, loss = least_polynomial(column, 3, ridge, self.name)
        if self.monotone and _falls(best, ends):
            # Then the optimum has the slope 0 at one end, or everywhere.
            loss = np.inf
            for flat in (*ends, None):
                point, value = _least_flat_at(flat, column, ridge, self.name)
                if value < loss and not _falls(point, ends):
                    best, loss = point, value
        return (best, ends), loss

    def degrees_of_freedom(self, samples: FittingData) -> float:
        """The number of coefficients."""
        return float(self.fitted_value("coefficients").size)

    def scaled(self, log_odds: Any) -> Any:
        a, b, c = (self._coefficients[:, i] for i in range(3))
        inside = ops.clip(log_odds, self._ends[:, 0], self._ends[:, 1])
        slope = a + 2.0 * c * inside
        parabola = (a + c * inside) * inside + b
        return parabola + slope * (log_odds - inside)


def _falls(point: np.ndarray, ends: np.ndarray) -> bool:
    """Whether a s + b + c s^2 decreases between two ends."""
    slopes = point[0] + 2.0 * point[2] * ends
    # The slope at one end may be 0 up to rounding.
    return bool(slopes.min() < -1e-9 * max(1.0, np.abs(slopes).max()))


def _least_flat_at(
    end: float | None, column: tuple, ridge: float, what: str
) -> tuple[np.ndarray, float]:
    """(a, b, c) with slope 0 at one end, or everywhere, and the loss."""

    def features(s: np.ndarray) -> np.ndarray:
        rows = [np.ones_like(s)]
        return np.stack(rows if end is None else [*rows, s * (s - 2.0 * end)])

    start = np.zeros(1 if end is None else 2)
    found, loss = _least_logistic(features, column, start, ridge, what)
    if end is None:
        return np.array([0.0, found[0], 0.0]), loss
    return np.array([-2.0 * end * found[1], found[0], found[1]]), loss


@keras.saving.register_keras_serializable(package="keras_calib")
class BetaCalibration(_LogOddsScaling):
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

    coefficients = FittedValue(ROWS, 3)

    def __init__(
        self,
        *,
        clip: float = 0.0,
        coefficients: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        check_at_least("clip", clip, 0.0)
        check_at_most("clip", clip, 0.499)
        super().__init__(**kwargs)
        self._keep(clip=float(clip))
        self.set_known(coefficients=coefficients)

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        """The best logistic regression with a, b >= 0."""
        best, least = np.zeros(3), np.inf
        slope = _typical_slope(column[0])

        def features(used: list, log_odds: np.ndarray) -> np.ndarray:
            # log p, -log(1 - p) and 1.
            no = _softplus(log_odds)
            return np.stack([log_odds - no, no, np.ones_like(no)])[used]

        for used in ([0, 1, 2], [0, 2], [1, 2], [2]):
            start, point = np.array([slope, slope, 0.0])[used], np.zeros(3)
            point[used], loss = _least_logistic(
                partial(features, used), column, start, 0.0, self.name
            )
            if point[:2].min() >= 0.0 and loss < least:
                best, least = point, loss
            if len(used) == 3 and point[:2].min() >= 0.0:
                break
        return (best,), least

    def features(self, logits: Any) -> Any:
        """log p_k / (1 - p_k), clipped."""
        # Where all others are ruled out, 0 times infinity would be NaN.
        limit = _LARGEST_OF_BETA
        if self.clip > 0.0:
            limit = math.log1p(-self.clip) - math.log(self.clip)
        return ops.clip(log_odds_of_classes(logits), -limit, limit)

    def scaled(self, log_odds: Any) -> Any:
        a, b, c = (self._coefficients[:, i] for i in range(3))
        return b * ops.softplus(log_odds) - a * ops.softplus(-log_odds) + c


def least_polynomial(
    column: tuple, size: int, ridge: float, what: str
) -> tuple[np.ndarray, float]:
    """The first of (a, b, c) for log-odds a s + b + c s^2 of scores s.

    They have the least mean NLL + ridge (b^2 + c^2), which comes with them.
    """

    def features(s: np.ndarray) -> np.ndarray:
        return np.stack([s, np.ones_like(s), s * s][:size])

    start = np.array([_typical_slope(column[0]), 0.0, 0.0])
    penalty = np.array([0.0, ridge, ridge])
    return _least_logistic(features, column, start[:size], penalty[:size], what)


def _least_logistic(
    features: Callable[[np.ndarray], np.ndarray],
    column: tuple,
    start: np.ndarray,
    penalty: np.ndarray | float,
    what: str,
) -> tuple[np.ndarray, float]:
    """Coefficients of least mean NLL + sum penalty c^2, and this value.

    Newton's method with halved steps, in float64, from `start`: it takes few
    for up to three coefficients. `features` map scores `(n,)` to `(size, n)`.
    The column is scores, shares of the second class, and weights or None.
    """
    scores, labels, weight = column

    def sums(point: np.ndarray) -> tuple:
        loss, slope, curvature, mass = 0.0, 0.0, 0.0, 0.0
        for first in range(0, len(scores), _ROWS):
            part = slice(first, first + _ROWS)
            x, y = features(scores[part].astype("float64")), labels[part]
            w = np.ones(len(y)) if weight is None else weight[part]
            z = point @ x
            q = sigmoid(z)
            loss = loss + w @ (_softplus(z) - y * z)
            slope = slope + x @ (w * (q - y))
            curvature = curvature + (x * (w * q * (1.0 - q))) @ x.T
            mass = mass + w.sum()
        ridge = np.broadcast_to(2.0 * penalty, len(point))
        return (
            loss / mass + np.sum(penalty * point**2),
            slope / mass + ridge * point,
            curvature / mass + np.diag(ridge),
        )

    found = np.array(start, "float64")
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
    return found, float(loss)


def _typical_slope(log_odds: np.ndarray) -> float:
    """A slope with which typical log-odds become 1, to start from."""
    some = np.abs(log_odds[log_odds != 0.0], dtype="float64")
    return float(1.0 / np.median(some)) if len(some) else 1.0


def _softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x), faster than NumPy's `logaddexp`."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
