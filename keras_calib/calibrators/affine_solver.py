"""Solver for affine maps of logits with the least NLL.

The problems are convex. L-BFGS takes a few steps in coordinates with a
curvature near 1, then more in new coordinates, computed at the point that it
reached. The Hessian gives those of few classes exactly. Far from the optimum
float32 is enough.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from keras_calib.backend.errors import warn
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.separation import is_separated
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.softmax import FAR_BELOW, is_ruled_out

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
# Curvature of a direction without data, as a share of the largest.
_RIDGE = 1e-10
# Logits in a block, larger than elsewhere: products of matrices gain by it.
_LARGE_BLOCK = 2**18
# The same where each sample makes thousands of products, and the logits that
# a Hessian is taken from.
_SMALL_BLOCK = 2**13
_SAMPLE = 2**18


class Ridge(NamedTuple):
    """The penalty sum strength ([W, b] - anchor)^2; no anchor is 0."""

    strength: np.ndarray  # of the shape of [W, b]
    anchor: np.ndarray | None = None


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
    for rows, block in samples.placed_blocks():
        z = block.logits
        held[rows] = np.where(is_ruled_out(z), z, features(z))
    samples, features = samples._replace(logits=held), identity
    return samples, of_allowed


def identity(logits: Any) -> Any:
    """The logits themselves, as features."""
    return logits


def _standardized(
    samples: FittingData, features: Callable, centred: bool
) -> tuple[Callable, np.ndarray, np.ndarray]:
    """Features of variance 1 about their mean or 0, their shift and scale."""
    mean, variance, _ = samples.moments(features)
    square = variance + np.square(mean)
    shift = mean if centred else np.zeros_like(mean)
    spread = variance if centred else square
    varies = spread > _CONSTANT * square
    scale = np.sqrt(np.where(varies, spread, 1.0))

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
    size = {} if thin else {"size": _LARGE_BLOCK}
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
            z = _mapped(x, used, block)
            loss, residuals = _nll_and_residuals(z, block)
            slope = _products_of(residuals, x, thin), residuals.sum(axis=0)
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
            _exact_coordinates if exact and index else _usual_coordinates
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


def _nll_and_residuals(
    scaled: np.ndarray, block: FittingData
) -> tuple[float, np.ndarray]:
    """The summed NLL of a block and its gradient by the logits, overwritten."""
    scaled -= scaled.max(axis=-1, keepdims=True)
    of_label = block.at_labels(scaled)
    np.exp(scaled, out=scaled)
    total = scaled.sum(axis=-1, keepdims=True)
    losses = np.log(total[:, 0]) - of_label
    scaled /= total
    block.less_labels(scaled)
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


def _usual_coordinates(
    samples: FittingData,
    features: Callable,
    theta: np.ndarray,
    penalty: np.ndarray,
) -> tuple[Callable, Callable]:
    """Coordinates in which the curvature is about 1: a linear map, its adjoint.

    Row k of [W, b] has the Hessian E[s_k (x, 1) (x, 1)^T], s_k = p_k (1 - p_k),
    and twice the penalties. Its last column is eliminated exactly, the scales
    of x are those of each row, and correlations those of x without s_k.
    Directions in which x does not vary have no coordinate.
    """
    thin = theta.shape[1] == 2

    def moments(block):
        x, weight = features(block.logits), block.weights()[:, None]
        # In place, as blocks are large.
        both = (0.0, 0.0) if thin else ((x * weight).T @ x, x.T @ weight)
        spread = _spread(x, theta, block)
        first = _products_of(spread, x, thin)
        second = _products_of(spread, np.square(x, out=x), thin)
        return weight.sum(), spread.sum(axis=0), first, second, *both

    weight, *sums = samples.sums(moments, size=_LARGE_BLOCK // 2)
    # E[s_k], E[s_k x_j], E[s_k x_j^2], E[x x^T] and E[x].
    spread, first, second, product, mean = (x / weight for x in sums)
    spread = np.maximum(spread, _RIDGE)[:, None]
    last = spread + 2.0 * penalty[:, -1:]
    shear = first / last
    own = second - last * shear**2 + 2.0 * penalty[:, :-1]
    scale = 1.0 / np.sqrt(np.maximum(own, _RIDGE * spread))
    axes = np.ones((1, 1))
    if first.shape[1] > 1:
        usual = spread.mean()
        product = product - mean * mean.T * usual / last.mean()
        # Off the diagonal of W, where all penalties of a column are one.
        product[np.diag_indices(len(product))] += (
            2.0 * penalty[:, :-1].max(axis=0) / usual
        )
        size = np.sqrt(np.maximum(np.diag(product), _RIDGE))
        axes = _axes(product / size / size[:, None])
    last = np.sqrt(last)

    def root(point):
        point = point.reshape(len(spread), -1)
        weights = point[:, :-1] @ axes.T * scale
        bias = point[:, -1:] / last
        bias = bias - np.sum(shear * weights, axis=-1, keepdims=True)
        return np.append(weights, bias, axis=-1)

    def back(slope):
        weights = (slope[:, :-1] - shear * slope[:, -1:]) * scale
        return np.append(weights @ axes, slope[:, -1:] / last, axis=-1).ravel()

    return root, back


def degrees_of_freedom(
    samples: FittingData, features: Callable, theta: np.ndarray, ridge: Ridge
) -> float:
    """About sum h / (h + 2 strength), for curvatures h of the NLL at a map.

    Only the diagonal of the Hessian counts, which can only add to the sum.
    """
    thin = theta.shape[1] == 2

    def moments(block):
        x, weight = features(block.logits), block.weights()[:, None]
        spread = _spread(x, theta, block)
        second = _products_of(spread, np.square(x), thin)
        return weight.sum(), np.column_stack([second, spread.sum(axis=0)])

    weight, curvature = samples.sums(moments)
    curvature /= weight
    total = curvature + 2.0 * ridge.strength
    return float(np.sum(curvature[total > 0.0] / total[total > 0.0]))


def _exact_coordinates(
    samples: FittingData,
    features: Callable,
    theta: np.ndarray,
    penalty: np.ndarray,
) -> tuple[Callable, Callable]:
    """Coordinates in which the Hessian of some samples is 1, as above.

    The Hessian is E[p_k (1[k = m] - p_m) y_i y_j], with y = (x, 1), and twice
    the penalties. Both factors are symmetric, which saves three quarters.
    """
    count, width = theta.shape
    k, m = np.triu_indices(count)
    i, j = np.triu_indices(width)

    def moments(block):
        x, weight = features(block.logits), block.weights()
        p = _probabilities(x, theta, block).T
        y = np.append(x.T, np.ones((1, len(x))), axis=0)
        factors = -p[k] * p[m]
        factors[k == m] += p
        factors *= weight
        return weight.sum(), factors @ (y[i] * y[j]).T

    some = samples.subsampled(_SAMPLE)
    weight, products = some.sums(moments, size=_SMALL_BLOCK)
    hessian = np.empty((count, width, count, width))
    for row, column in ((k, m), (m, k)):
        row, column = row[:, None], column[:, None]
        hessian[row, i, column, j] = hessian[row, j, column, i] = products
    hessian = hessian.reshape(theta.size, theta.size) / weight
    hessian[np.diag_indices(theta.size)] += 2.0 * penalty.ravel()
    own = np.diag(hessian)
    scale = np.where(own > 0.0, 1.0 / np.sqrt(np.maximum(own, _RIDGE)), 0.0)
    axes = _axes(hessian * scale * scale[:, None]) * scale[:, None]
    return (
        lambda point: (axes @ point).reshape(theta.shape),
        lambda slope: axes.T @ slope.ravel(),
    )


def _axes(matrix: np.ndarray) -> np.ndarray:
    """Axes in which a symmetric matrix is 1, without directions of 0."""
    values, axes = np.linalg.eigh(matrix)
    seen = values > _RIDGE * values[-1]
    return axes[:, seen] / np.sqrt(values[seen])


def without_ruled_out(features: Any, logits: Any) -> Any:
    """Features, 0 where the logits rule a class out (array-agnostic)."""
    xp = array_namespace(features)
    return xp.where(is_ruled_out(logits), xp.zeros_like(features), features)


def _probabilities(
    x: np.ndarray, theta: np.ndarray, block: FittingData
) -> np.ndarray:
    """softmax(W x + b) of the features of a block."""
    p = _mapped(x, theta, block)
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def _spread(x: np.ndarray, theta: np.ndarray, block: FittingData) -> np.ndarray:
    """p (1 - p) of these, times the weights."""
    spread = _probabilities(x, theta, block)
    spread -= np.square(spread)
    spread *= block.weights()[:, None]
    return spread


def _mapped(x: np.ndarray, theta: np.ndarray, block: FittingData) -> np.ndarray:
    """W x + b; x in the order of memory in which sums are fast."""
    weights = theta[:, :-1]
    z = x * weights[:, 0] if weights.shape[1] == 1 else (weights @ x.T).T
    z += theta[:, -1]
    z[is_ruled_out(block.logits)] = FAR_BELOW
    return z


def _products_of(a: np.ndarray, b: np.ndarray, thin: bool) -> np.ndarray:
    """sum_n a_nk b_nj, or `(num_classes, 1)` of it where j = k."""
    return np.sum(a * b, axis=0)[:, None] if thin else a.T @ b
