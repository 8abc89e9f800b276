"""Solver for affine maps of logits with the least NLL.

The problems are convex. L-BFGS takes a few steps in coordinates with a
curvature near 1, then more in new coordinates, computed at the point that it
reached. The Hessian gives those of few classes exactly. Far from the optimum
float32 is enough.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize

from keras_calib.backend.errors import warn
from keras_calib.calibrators.affine_coordinates import (
    LARGE_BLOCK,
    Ridge,
    exact_coordinates,
    mapped,
    products_of,
    usual_coordinates,
    without_ruled_out,
)
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import is_separated
from keras_calib.numerics.softmax import is_ruled_out

__all__ = [
    "identity",
    "least_affine",
    "nll_and_residuals",
    "warn_not_converged",
]

# Variance of a constant feature, as a share of its mean square.
_CONSTANT = 1e-12
# Gradient at which to stop. With a curvature near 1 the value is then within
# half the squared gradient of the optimum.
_GRADIENT = 1e-6
# Most steps of each round, and the gradient that it accepts: the last line
# search can end at the precision of the value.
_ROUNDS = ((4, _GRADIENT), (25, _GRADIENT), (1000, 1e-5), (1000, 1e-5))
# Gradient down to which float32 serves, and the scale of logits and weights up
# to which it does.
_SINGLE, _LARGE = 1e-4, 100.0
# Most classes of a matrix for the exact Hessian.
_CLASSES = 12
# Most features that are computed once and held.
_HELD = 2**26


def least_affine(
    samples: FittingData,
    features: Callable,
    unit: float,
    ridge: Ridge | None,
    what: str,
    *,
    diagonal: bool,
) -> np.ndarray:
    """The affine map [W, b] of the least NLL and ridge.

    It starts at `unit` times the identity. The map is `(num_classes,
    num_classes + 1)`, or `(num_classes, 2)` for a diagonal W. Softmax ignores
    what is added to all rows: without an anchor, b and the off-diagonal part
    of each column of W sum to 0.
    """
    count = samples.num_classes
    samples, features = _computed(samples, features)
    standardize, shift, scale = _standardized(samples, features, ridge is None)
    # W is scaled by column; its diagonal alone is scaled by row.
    columns = scale[:, None] if diagonal else scale
    factors = np.append(
        np.broadcast_to(columns, (count, 1 if diagonal else count)),
        np.ones((count, 1)),
        axis=1,
    )
    start = unit * (np.ones((count, 1)) if diagonal else np.eye(count))
    start = np.append(start * columns, unit * shift[:, None], axis=1)
    if ridge is None:
        ridge = Ridge(np.zeros_like(start))
    anchor = np.zeros_like(start) if ridge.anchor is None else ridge.anchor
    scaled = Ridge(ridge.strength / factors**2, anchor * factors)
    theta = _least(samples, standardize, start, scaled, what) / factors
    if ridge.anchor is not None:
        return theta
    weights = theta[:, :-1]
    if diagonal:
        bias = theta[:, -1] - weights[:, 0] * shift
        return np.column_stack([weights, bias - bias.mean()])
    theta = np.column_stack([weights, theta[:, -1] - weights @ shift])
    # A large part common to all rows would cost the rest its float32 digits.
    common = theta.sum(axis=0) - np.append(np.diag(theta), 0.0)
    return theta - common / np.append(np.full(count, count - 1), count)


def _computed(
    samples: FittingData, features: Callable
) -> tuple[FittingData, Callable]:
    """Samples with their features in place of logits, where these are few.

    In float32, as the layer computes them.
    """

    def of_allowed(logits):
        return without_ruled_out(features(logits), logits)

    if features is identity or samples.logits.size > _HELD:
        return samples, of_allowed
    held = np.zeros(samples.logits.shape, "float32")

    def of_block(block, rows):
        z = block.logits
        held[rows] = np.where(is_ruled_out(z), z, features(z))

    samples.visit(of_block)
    samples, features = samples._replace(logits=held), identity
    return samples, of_allowed


def identity(logits: Any) -> Any:
    """The logits themselves, as features."""
    return logits


def _standardized(
    samples: FittingData, features: Callable, centred: bool
) -> tuple[Callable, np.ndarray, np.ndarray]:
    """Features of variance 1 about their mean or 0, their shift and scale."""

    def moments(block):
        x, weight = features(block.logits), block.weights()
        return weight @ x, weight @ np.square(x), weight.sum()

    first, square, weight = samples.sums(moments)
    shift = first / weight if centred else np.zeros_like(first)

    def spread(block):
        return (block.weights() @ np.square(features(block.logits) - shift),)

    variance = samples.sums(spread)[0] / weight
    varies = variance > _CONSTANT * square / weight
    scale = np.sqrt(np.where(varies, variance, 1.0))

    def standardize(logits):
        x = features(logits) - shift
        x /= scale
        if not varies.all():
            x[:, ~varies] = 0.0
        return x

    return standardize, shift, scale


def _least(
    samples: FittingData,
    features: Callable,
    start: np.ndarray,
    ridge: Ridge,
    what: str,
) -> np.ndarray:
    """[W, b] of least NLL and ridge by SciPy's L-BFGS-B."""
    penalty, anchor = ridge
    thin = start.shape[1] == 2
    size = {} if thin else {"size": LARGE_BLOCK}
    exact = double = False
    last: Any = np.array(()), double, (0.0, np.array(()))
    heaviest = 1.0 if samples.weight is None else samples.weight.max()
    if max(np.abs(start).max(), heaviest) <= _LARGE:
        exact = not thin and samples.num_classes <= _CLASSES
    else:
        # Logits of -1e9 rule classes out, and leave few digits to the others.
        double = True

    def value(theta):
        nonlocal last
        if double == last[1] and np.array_equal(theta, last[0]):
            return last[2]
        dtype = "float64" if double else "float32"
        used = theta.astype(dtype)

        def of_block(block):
            x = features(block.logits).astype(dtype, copy=False)
            z = mapped(x, used, block)
            loss, residuals = nll_and_residuals(z, block)
            slope = products_of(residuals, x, thin), residuals.sum(axis=0)
            return loss, block.weights().sum(), np.column_stack(slope)

        loss, weight, slope = samples.sums(of_block, **size)
        off = theta - anchor
        loss = loss / weight + np.sum(penalty * off**2)
        slope = slope / weight + 2.0 * penalty * off
        last = theta, double, (loss, slope)
        return loss, slope

    theta = start
    for index, (steps, accepted) in enumerate(_ROUNDS):
        # The precision may be what stopped the last line search.
        double = double or index == len(_ROUNDS) - 1
        coordinates = (
            exact_coordinates if exact and index else usual_coordinates
        )
        root, back = coordinates(samples, features, theta, penalty)
        # The first step is as long as the unit, which makes it Newton's.
        first = back(value(theta)[1])
        unit = float(np.linalg.norm(first)) or 1.0

        def scaled(point, root=root, back=back, origin=theta, unit=unit):
            nonlocal double
            loss, slope = value(origin + root(unit * point))
            if not double and np.max(np.abs(back(slope))) <= _SINGLE:
                double = True
                loss, slope = value(origin + root(unit * point))
            return loss, unit * back(slope)

        found = minimize(
            scaled,
            np.zeros(first.size),
            jac=True,
            method="L-BFGS-B",
            options={
                "maxcor": 20,
                "maxiter": steps,
                "maxfun": 2 * steps,
                "ftol": 0.0,
                "gtol": _GRADIENT * unit,
            },
        )
        theta = theta + root(unit * found.x)
        slope = float(np.max(np.abs(found.jac))) / unit
        if slope <= accepted:
            break
    else:
        warn_not_converged(what, iterations=found.nit, gradient=slope)
    if not penalty.any():
        loss = value(theta)[0]
        if is_separated(loss, samples.labels, samples.weight):
            warn(
                f"The data have no optimal {what}: it puts every sample on "
                "the right side, and larger parameters are always better. "
                "Fewer parameters, regularisation or more samples help. "
                f"Received: loss={loss:.1e}"
            )
    return theta


def nll_and_residuals(
    scaled: np.ndarray, block: FittingData
) -> tuple[float, np.ndarray]:
    """The summed NLL of a block and its gradient by the logits, overwritten."""
    scaled -= scaled.max(axis=-1, keepdims=True)
    rows = np.arange(len(scaled))
    hard = block.labels.ndim == 1
    target = None if hard else block.soft_labels()
    if hard:
        of_label = scaled[rows, block.labels]
    else:
        of_label = np.sum(target * scaled, axis=-1)
    np.exp(scaled, out=scaled)
    total = scaled.sum(axis=-1, keepdims=True)
    losses = np.log(total[:, 0]) - of_label
    scaled /= total
    if hard:
        scaled[rows, block.labels] -= 1.0
    else:
        scaled -= target
    if block.weight is None:
        return losses.sum(dtype="float64"), scaled
    scaled *= block.weight[:, None]
    return block.weight @ losses, scaled


def warn_not_converged(what: str, *, iterations: int, gradient: float) -> None:
    """Warns that a fit did not converge."""
    warn(
        f"The fit of {what} did not converge; the best values so far are "
        "used. There may be no optimum: fewer parameters, regularisation or "
        f"more samples help. Received: iterations={iterations}, "
        f"gradient={gradient:.1e}"
    )
