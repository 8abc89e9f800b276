"""Solver for logistic regression with a few features of one score."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.calibrators.affine_solver import warn_not_converged
from keras_calib.numerics.softmax import sigmoid

__all__ = ["least_logistic", "softplus", "typical_slope"]

# Rows in work at a time.
_ROWS = 2**16
# Most Newton steps, twice the gain at which they stop, and the curvature given
# to flat directions.
_STEPS = 200
_GAIN = 1e-16
_FLAT = 1e-12


def least_logistic(
    features: Callable[[np.ndarray], np.ndarray],
    scores: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    start: np.ndarray,
    what: str,
    penalty: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, float]:
    """Coefficients of least mean NLL + sum penalty c^2, and this value.

    Newton's method with halved steps, in float64. It warns if it does not
    converge.

    Args:
        features: Maps scores `(n,)` to features `(size, n)`.
        scores: Scores `(n,)`.
        labels: Shares of the second class `(n,)`, in [0, 1].
        weight: Weights `(n,)`, or None.
        start: The coefficients `(size,)` to start from.
        what: Name of the fit in warnings.
        penalty: Strength for each coefficient `(size,)`, or for all.
    """

    def sums(point: np.ndarray) -> tuple:
        loss, slope, curvature = _sums(features, scores, labels, weight, point)
        return (
            loss + np.sum(penalty * point**2),
            slope + 2.0 * penalty * point,
            curvature + np.diag(np.broadcast_to(2.0 * penalty, len(point))),
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


def typical_slope(log_odds: np.ndarray) -> float:
    """A slope with which typical log-odds become 1, to start from."""
    some = np.abs(log_odds[log_odds != 0.0], dtype="float64")
    return float(1.0 / np.median(some)) if len(some) else 1.0


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + e^x), faster than NumPy's `logaddexp`."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _sums(
    features: Callable[[np.ndarray], np.ndarray],
    scores: np.ndarray,
    labels: np.ndarray,
    weight: Any,
    point: np.ndarray,
) -> tuple:
    """Mean NLL, its gradient and Hessian, by blocks."""
    loss, slope, curvature, mass = 0.0, 0.0, 0.0, 0.0
    for start in range(0, len(scores), _ROWS):
        part = slice(start, start + _ROWS)
        x, y = features(scores[part].astype("float64")), labels[part]
        w = np.ones(len(y)) if weight is None else weight[part]
        z = point @ x
        q = sigmoid(z)
        loss = loss + w @ (softplus(z) - y * z)
        slope = slope + x @ (w * (q - y))
        curvature = curvature + (x * (w * q * (1.0 - q))) @ x.T
        mass = mass + w.sum()
    return loss / mass, slope / mass, curvature / mass
