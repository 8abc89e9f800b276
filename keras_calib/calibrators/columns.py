"""One fit for each column: a class against the rest, a label, a class of boxes.

A column has two outcomes: a score of each sample, such as its log-odds, and a
label. Fits of least NLL have up to three coefficients, for which Newton's steps
are few; those of `affine_solver` have thousands.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid, warn
from keras_calib.calibrators.affine_solver import warn_not_converged
from keras_calib.calibrators.separation import (
    has_threshold,
    is_separated,
    platt_targets,
)
from keras_calib.numerics.softmax import sigmoid

__all__ = [
    "fit_columns",
    "least_logistic",
    "least_polynomial",
    "softplus",
    "tables",
    "typical_slope",
]

# Rows in work at a time.
_ROWS = 2**16
# Most Newton steps, twice the gain at which they stop, and the curvature given
# to flat directions.
_STEPS = 200
_GAIN = 1e-16
_FLAT = 1e-12


def fit_columns(
    fit: Callable[..., Any],
    columns: Iterable[tuple | None],
    what: str | None = None,
) -> list[tuple]:
    """A row of each fitted value for each column.

    A column that is None takes the first fit: that of all data, where they are
    the first column.

    Args:
        fit: Maps what a column holds to a row of each value. With `what` it
            maps scores, labels and weights `(n,)` to these and the mean NLL.
        columns: What each column holds, or None.
        what: Name of a fit of least NLL in warnings. Where a threshold parts
            the outcomes it has no optimum, and takes Platt's targets.
    """
    found: list[tuple | None] = []
    separated = num_fits = samples = 0
    for column in columns:
        row = None
        if column is not None and what is None:
            row = fit(*column)
        elif column is not None:
            row, has_optimum = _least_or_supported(fit, *column)
            num_fits, samples = num_fits + 1, len(column[0])
            separated += not has_optimum
        found.append(row)
    if separated:
        warn(
            invalid(
                f"The data have no optimal {what}, as a threshold puts every "
                "sample of a class on the right side: the more confident, the "
                "better. Each label is taken as right with probability "
                "(n + 1) / (n + 2) instead. Fit on more held-out samples, some "
                "of which are wrong",
                samples=samples,
                errors=0,
                problems=f"{separated} of {num_fits}",
            )
        )
    first = next(row for row in found if row is not None)
    return [first if row is None else row for row in found]


def _least_or_supported(
    fit: Callable, scores: np.ndarray, labels: np.ndarray, weight: Any
) -> tuple[tuple, bool]:
    """The fit of least NLL, if there is one, else that of Platt's targets."""
    if not has_threshold(scores, labels, weight):
        row, loss = fit(scores, labels, weight)
        both = 0 < labels.sum() < len(labels)
        if not (both and is_separated(loss, labels, weight)):
            return row, True
    row, _ = fit(scores, platt_targets(labels, weight), weight)
    return row, False


def tables(
    rows: Sequence[tuple], fillers: Mapping[str, float | None]
) -> dict[str, np.ndarray]:
    """Fitted values by name, with a row for each column.

    Shorter rows are filled with their last entry, or with that of `fillers`.
    """
    found = {}
    for name, values in zip(fillers, zip(*rows, strict=True), strict=True):
        longest, filler = max(map(np.size, values)), fillers[name]
        table = np.empty((len(values), longest))
        for line, value in zip(table, map(np.ravel, values), strict=True):
            line[: len(value)] = value
            line[len(value) :] = value[-1] if filler is None else filler
        # Numbers have no axis but that of the columns.
        found[name] = table if np.ndim(values[0]) else table[:, 0]
    return found


def least_polynomial(
    column: tuple, size: int, ridge: float, what: str
) -> tuple[np.ndarray, float]:
    """The first of (a, b, c) for log-odds a s + b + c s^2 of scores s.

    They have the least mean NLL + ridge (b^2 + c^2), which comes with them.
    """

    def features(s: np.ndarray) -> np.ndarray:
        rows = [s, np.ones_like(s)][:size]
        return np.stack([*rows, s * s] if size > 2 else rows)

    start = np.array([typical_slope(column[0]), 0.0, 0.0])
    penalty = np.array([0.0, ridge, ridge])
    return least_logistic(features, column, start[:size], penalty[:size], what)


def least_logistic(
    features: Callable[[np.ndarray], np.ndarray],
    column: tuple,
    start: np.ndarray,
    penalty: np.ndarray | float,
    what: str,
) -> tuple[np.ndarray, float]:
    """Coefficients of least mean NLL + sum penalty c^2, and this value.

    Newton's method with halved steps, in float64. It warns if it does not
    converge.

    Args:
        features: Maps scores `(n,)` to features `(size, n)`.
        column: Scores, shares of the second class in [0, 1], and weights or
            None, `(n,)`.
        start: The coefficients `(size,)` to start from.
        penalty: Strength for each coefficient `(size,)`, or for all.
        what: Name of the fit in warnings.
    """
    sums = partial(_sums, features, column, penalty)
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
    column: tuple,
    penalty: np.ndarray | float,
    point: np.ndarray,
) -> tuple:
    """Mean NLL and penalty, their gradient and Hessian, by blocks."""
    scores, labels, weight = column
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
    return (
        loss / mass + np.sum(penalty * point**2),
        slope / mass + 2.0 * penalty * point,
        curvature / mass + np.diag(np.broadcast_to(2.0 * penalty, len(point))),
    )
