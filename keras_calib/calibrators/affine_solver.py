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
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.temperature import optimal_temperature

__all__ = [
    "least_affine",
    "nll_and_residuals",
    "warn_if_separated",
    "warn_not_converged",
]

# Curvature of a direction without data, as a share of the largest.
_RIDGE = 1e-10
# Variance of a constant feature, as a share of its mean square.
_CONSTANT = 1e-12
# Gradient at which to stop. With a curvature near 1 the value is then within
# half the squared gradient of the optimum.
_GRADIENT = 1e-6
# Most steps of each round, and the gradient that it accepts: the last line
# search can end at the precision of the value.
_ROUNDS = ((4, _GRADIENT), (8, _GRADIENT), (1000, 1e-5), (1000, 1e-5))
# Gradient down to which float32 serves, and the scale of logits and weights up
# to which it does.
_SINGLE, _LARGE = 1e-3, 100.0
# Logits in a block, larger than elsewhere: products of matrices gain by it.
_BLOCK = 2**18
# The same where each sample makes thousands of products.
_SMALL_BLOCK = 2**13
# Most classes of a matrix for the Hessian, and logits that it is taken from.
_CLASSES = 12
_SAMPLE = 2**18


def least_affine(
    samples: FittingData, features: Callable, penalty: np.ndarray, what: str
) -> np.ndarray:
    """The affine map [W, b] of least NLL + sum penalty [W, b]^2.

    The penalty is `(num_classes, num_classes + 1)`, or `(num_classes, 2)` for
    the diagonal of W alone. Softmax ignores what is added to all rows, so b and
    the off-diagonal part of each column of W sum to 0.
    """
    count, thin = samples.num_classes, penalty.shape[1] == 2
    centred = not penalty.any()
    standardize, shift, scale = _standardized(samples, features, centred)
    # W is scaled by column; its diagonal alone is scaled by row.
    columns = scale[:, None] if thin else scale
    start = np.column_stack([columns if thin else np.diag(scale), shift])
    start /= optimal_temperature(samples)
    penalty = penalty.copy()
    penalty[:, :-1] /= columns**2
    theta = _least(samples, standardize, start, penalty, what)
    weights = theta[:, :-1] / columns
    if thin:
        bias = theta[:, -1] - weights[:, 0] * shift
        return np.column_stack([weights, bias - bias.mean()])
    theta = np.column_stack([weights, theta[:, -1] - weights @ shift])
    # A large part common to all rows would cost the rest its float32 digits.
    common = theta.sum(axis=0) - np.append(np.diag(theta), 0.0)
    return theta - common / np.append(np.full(count, count - 1), count)


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
    penalty: np.ndarray,
    what: str,
) -> np.ndarray:
    """[W, b] of least penalised NLL, by SciPy's L-BFGS-B."""
    thin = start.shape[1] == 2
    size = {} if thin else {"size": _BLOCK}
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
            loss, residuals = nll_and_residuals(_mapped(x, used), block)
            slope = _products(residuals, x, thin), residuals.sum(axis=0)
            return loss, block.weights().sum(), np.column_stack(slope)

        loss, weight, slope = samples.sums(of_block, **size)
        loss = loss / weight + np.sum(penalty * theta**2)
        slope = slope / weight + 2.0 * penalty * theta
        last = theta, double, (loss, slope)
        return loss, slope

    theta = start
    for index, (steps, accepted) in enumerate(_ROUNDS):
        # The precision may be what stopped the last line search.
        double = double or index == len(_ROUNDS) - 1
        coordinates = _exact_coordinates if exact and index else _coordinates
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
        warn_if_separated(loss, samples.labels, samples.weight, what)
    return theta


def _coordinates(
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
        spread = _probabilities(x, theta)
        spread -= np.square(spread)
        spread *= weight
        first = _products(spread, x, thin)
        second = _products(spread, np.square(x, out=x), thin)
        return weight.sum(), spread.sum(axis=0), first, second, *both

    weight, *sums = samples.sums(moments, size=_BLOCK // 2)
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
        values, axes = np.linalg.eigh(product / size / size[:, None])
        seen = values > _RIDGE * values[-1]
        axes = axes[:, seen] / np.sqrt(values[seen])
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
        p = _probabilities(x, theta).T
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
    values, axes = np.linalg.eigh(hessian * scale * scale[:, None])
    seen = values > _RIDGE * values[-1]
    axes = axes[:, seen] / np.sqrt(values[seen]) * scale[:, None]
    return (
        lambda point: (axes @ point).reshape(theta.shape),
        lambda slope: axes.T @ slope.ravel(),
    )


def _probabilities(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """softmax(W x + b)."""
    p = _mapped(x, theta)
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def _mapped(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """W x + b; x in the order of memory in which sums are fast."""
    weights = theta[:, :-1]
    z = x * weights[:, 0] if weights.shape[1] == 1 else (weights @ x.T).T
    z += theta[:, -1]
    return z


def _products(a: np.ndarray, b: np.ndarray, thin: bool) -> np.ndarray:
    """sum_n a_nk b_nj, or `(num_classes, 1)` of it where j = k."""
    return np.sum(a * b, axis=0)[:, None] if thin else a.T @ b


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


def warn_if_separated(
    loss: float, labels: np.ndarray, weight: np.ndarray | None, what: str
) -> None:
    """Warns if a fit of mean NLL `loss` puts every sample on the right side.

    Otherwise at least one sample costs log 2 or more. Soft labels between 0 and
    1 always have an optimum.
    """
    least = 1.0 / len(labels)
    if weight is not None:
        least = weight[weight > 0].min() / weight.sum()
    if loss >= least * np.log(2.0):
        return
    soft = labels.ndim > 1 or labels.dtype.kind == "f"
    if not soft or np.all((labels == 0) | (labels == 1)):
        warn(
            f"The data have no optimal {what}: it puts every sample on the "
            "right side, and larger parameters are always better. Fewer "
            "parameters, regularisation or more samples help. Received: "
            f"loss={loss:.1e}"
        )
