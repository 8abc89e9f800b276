"""The likeliest affine maps of logits.

The problems are convex. L-BFGS runs in coordinates in which the curvature is
about 1: a few of its steps, then new coordinates where it has come to.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.likelihood import least_convex
from keras_calib.calibrators.likelihood import nll_and_residuals
from keras_calib.calibrators.likelihood import warn_if_separated
from keras_calib.calibrators.temperature import optimal_temperature

__all__ = ["least_affine", "least_vector"]

# Of a direction in which the data say nothing, as a share of the largest.
_RIDGE = 1e-10
_RIDGE_32 = 1e-7
# Variance of a feature that is constant, as a share of its mean square.
_CONSTANT = 1e-12
# Steps before new coordinates; the last are for what does not converge.
_STEPS = (15, 20, 30, 30, 60, 1000)
# Parameters whose Hessian is worth to have exactly.
_EXACT = 1000
# Classes of which the blocks of the Hessian, cubic in them, are held.
_MANY = 256
# Logits in a block: products of matrices have blocks of their own.
_BLOCK = 2**18


def least_vector(
    samples: FittingData, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Scales and shifts of least NLL.

    Args:
        samples: Held-out samples.
        what: What is fitted, for warnings.

    Returns:
        `(scale, bias)`, each `(num_classes,)`; the bias sums to 0.
    """
    scaled = _standardized(samples)
    start = np.stack([scaled.scale, scaled.shift], axis=-1)
    start /= optimal_temperature(samples)

    def value(theta):
        loss, weight, slope = samples.sums(
            lambda block: _vector_sums(scaled(block.logits), block, theta)
        )
        return loss / weight, slope / weight

    def roots(theta):
        root = _inverse_roots(_vector_curvature(samples, scaled, theta))
        return lambda point: np.einsum(
            "kij,kj->ki", root, point.reshape(theta.shape)
        )

    theta = _least(value, roots, start, what)
    warn_if_separated(value(theta)[0], samples.labels, samples.weight, what)
    scale = theta[:, 0] / scaled.scale
    bias = theta[:, 1] - scale * scaled.shift
    return scale, bias - bias.mean()


def least_affine(
    samples: FittingData, features: Callable, penalty: np.ndarray, what: str
) -> np.ndarray:
    """The affine map [W, b] of least NLL + sum penalty [W, b]^2.

    Args:
        samples: Held-out samples.
        features: Maps logits `(n, num_classes)` to what is mapped.
        penalty: Factors `(num_classes, num_classes + 1)`, >= 0.
        what: What is fitted, for warnings.

    Returns:
        [W, b], `(num_classes, num_classes + 1)`. b and what is off the
        diagonal in each column of W sum to 0: softmax does not see what is
        added to all rows, and no penalty asks for it.
    """
    count = samples.num_classes
    scaled = _standardized(samples, features, centred=not penalty.any())
    penalty = penalty.copy()
    penalty[:, :-1] /= scaled.scale**2
    told = None
    if not penalty[:, :-1].any():
        told = _told_apart(samples, scaled)
    start = np.column_stack([np.diag(scaled.scale), scaled.shift])
    start /= optimal_temperature(samples)

    def value(theta):
        loss, weight, slope = samples.sums(
            lambda block: _affine_sums(scaled(block.logits), block, theta),
            size=_BLOCK,
        )
        loss = loss / weight + np.sum(penalty * theta**2)
        slope = slope / weight + 2.0 * penalty * theta
        if told is not None:
            slope[:, :-1] = slope[:, :-1] @ told
        return loss, slope

    def roots(theta):
        how = _root_of_blocks
        if theta.size <= _EXACT:
            how = _exact_root
        elif theta is start or count > _MANY:
            how = _root_by_rows
        root = how(samples, scaled, theta, penalty)
        if told is None:
            return root

        def told_root(point):
            step = root(point)
            step[:, :-1] = step[:, :-1] @ told
            return step

        return told_root

    theta = _least(value, roots, start, what)
    if not penalty.any():
        loss = value(theta)[0]
        warn_if_separated(loss, samples.labels, samples.weight, what)
    theta[:, :-1] /= scaled.scale
    theta[:, -1] -= theta[:, :-1] @ scaled.shift
    # Large logits times what all rows have would be all that float32 keeps.
    common = theta.sum(axis=0) - np.append(np.diag(theta), 0.0)
    common /= np.append(np.full(count, count - 1), count)
    return theta - common


class _Standardized(NamedTuple):
    """Maps logits to features of about mean 0 and variance 1.

    Attributes:
        features: Maps logits `(n, num_classes)` to features of that shape.
        shift: `(num_classes,)`, what is taken from them.
        scale: `(num_classes,)`, what they are divided by.
        constant: Classes whose feature does not vary: 0 is put there.
    """

    features: Callable
    shift: np.ndarray
    scale: np.ndarray
    constant: np.ndarray

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """The features of logits."""
        x = self.features(logits) - self.shift
        x /= self.scale
        if len(self.constant):
            x[:, self.constant] = 0.0
        return x


def _standardized(
    samples: FittingData,
    features: Callable = lambda logits: logits,
    *,
    centred: bool = True,
) -> _Standardized:
    """Measures the features, about their mean or about 0."""

    def moments(block):
        x, weight = features(block.logits), block.weights()
        return weight @ x, weight @ np.square(x), weight.sum()

    first, square, weight = samples.sums(moments)
    shift = first / weight
    if not centred:
        shift = np.zeros_like(first)

    def spread(block):
        return (block.weights() @ np.square(features(block.logits) - shift),)

    variance = samples.sums(spread)[0] / weight
    varies = variance > _CONSTANT * square / weight
    scale = np.sqrt(np.where(varies, variance, 1.0))
    return _Standardized(features, shift, scale, np.flatnonzero(~varies))


def _told_apart(samples: FittingData, scaled: _Standardized) -> np.ndarray:
    """The projection on the directions in which the features vary.

    Where they do not, as across logits that sum to 0, no data say what the
    weights are, and rounding would.
    """

    def of_block(block):
        x = scaled(block.logits)
        return ((x * block.weights()[:, None]).T @ x,)

    values, axes = np.linalg.eigh(samples.sums(of_block, size=_BLOCK)[0])
    axes = axes[:, values > _RIDGE * values[-1]]
    return axes @ axes.T


def _least(
    value: Callable, roots: Callable, theta: np.ndarray, what: str
) -> np.ndarray:
    """Minimum over theta, in coordinates that are renewed.

    Args:
        value: Maps theta to its loss and gradient.
        roots: Maps theta to a symmetric linear map, of points `(n,)` to steps
            of theta, that is near the inverse square root of the Hessian.
        theta: Where to start.
        what: What is fitted, for warnings.
    """
    for steps in _STEPS:
        root, origin = roots(theta), theta

        def scaled(point, root=root, origin=origin):
            loss, slope = value(origin + root(point))
            return loss, root(slope.ravel()).ravel()

        point, converged = least_convex(
            scaled,
            np.zeros(theta.size),
            what,
            max_iterations=steps,
            warn=steps == _STEPS[-1],
        )
        theta = origin + root(point)
        if converged:
            break
    return theta


def _vector_sums(z: np.ndarray, block: FittingData, theta: np.ndarray) -> tuple:
    """NLL, weight and gradient by (w, b), summed over a block."""
    scaled = z * theta[:, 0]
    scaled += theta[:, 1]
    loss, residuals = nll_and_residuals(scaled, block)
    slope = [np.sum(residuals * z, axis=0), residuals.sum(axis=0)]
    return loss, block.weights().sum(), np.stack(slope, axis=-1)


def _affine_sums(x: np.ndarray, block: FittingData, theta: np.ndarray) -> tuple:
    """NLL, weight and gradient by [W, b], summed over a block."""
    scaled = (theta[:, :-1] @ x.T).T
    scaled += theta[:, -1]
    loss, residuals = nll_and_residuals(scaled, block)
    slope = np.column_stack([residuals.T @ x, residuals.sum(axis=0)])
    return loss, block.weights().sum(), slope


def _vector_curvature(
    samples: FittingData, features: Callable, theta: np.ndarray
) -> np.ndarray:
    """Hessians of the mean NLL by (w_k, b_k), `(num_classes, 2, 2)`."""

    def of_block(block):
        z, weight = features(block.logits), block.weights()
        p = _softmax(z * theta[:, 0] + theta[:, 1])
        spread = p * (1.0 - p) * weight[:, None]
        first = spread * z
        second = np.sum(first * z, axis=0)
        return second, first.sum(axis=0), spread.sum(axis=0), weight.sum()

    second, first, spread, weight = samples.sums(of_block)
    rows = np.stack([second, first, first, spread], axis=-1) / weight
    return rows.reshape(-1, 2, 2)


def _exact_root(
    samples: FittingData,
    features: Callable,
    theta: np.ndarray,
    penalty: np.ndarray,
) -> Callable:
    """The inverse root of the whole Hessian."""
    rows, width = theta.shape

    def of_block(block):
        x, p, weight = _mapped(block, features, theta)
        half = np.sqrt(weight)[:, None]
        share = ((p * half)[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        joint, own = share.T @ share, share.T @ (x * half)
        return joint, own.reshape(rows, width, width), weight.sum()

    joint, own, weight = samples.sums(of_block, size=_BLOCK // width)
    hessian = -joint.reshape(rows, width, rows, width)
    index = np.arange(rows)
    hessian[index, :, index] += own
    hessian = hessian.reshape(theta.size, theta.size) / weight
    hessian[np.diag_indices(theta.size)] += 2.0 * penalty.ravel()
    root = _inverse_roots(hessian[None])[0]
    return lambda point: (root @ point).reshape(theta.shape)


def _root_by_rows(
    samples: FittingData,
    features: Callable,
    theta: np.ndarray,
    penalty: np.ndarray,
) -> Callable:
    """The inverse root of c_k E[x x^T] for each row k, c_k = E[p_k (1-p_k)]."""

    def of_block(block):
        x, p, weight = _mapped(block, features, theta)
        return (x * weight[:, None]).T @ x, weight @ (p - p * p), weight.sum()

    second, spread, weight = samples.sums(of_block, size=_BLOCK)
    values, axes = np.linalg.eigh(second / weight)
    values = np.maximum(values, _RIDGE * values[-1])
    spread = np.maximum(spread / weight, _RIDGE)
    size = 1.0 / np.sqrt(spread[:, None] * values + 2.0 * penalty.mean())

    def root(point):
        return (point.reshape(theta.shape) @ axes * size) @ axes.T

    return root


def _root_of_blocks(
    samples: FittingData,
    features: Callable,
    theta: np.ndarray,
    penalty: np.ndarray,
) -> Callable:
    """The inverse root of E[p_k (1-p_k) x x^T] for each row k, nearly."""
    rows, width = theta.shape

    def of_block(block):
        x, p, weight = _mapped(block, features, theta)
        # Half the time, and all that coordinates need.
        x = x.astype("float32")
        spread = np.sqrt((p - p * p) * weight[:, None]).astype("float32")
        found = np.empty((rows, width, width), "float32")
        for k in range(rows):
            part = x * spread[:, k, None]
            found[k] = part.T @ part
        return found, weight.sum()

    hessian, weight = samples.sums(of_block, size=_BLOCK)
    hessian /= weight
    index = np.arange(width)
    hessian[:, index, index] += 2.0 * penalty
    root = _inverse_roots(hessian, ridge=_RIDGE_32)
    return lambda point: np.einsum(
        "kij,kj->ki", root, point.reshape(theta.shape), optimize=True
    )


def _mapped(block: FittingData, features: Callable, theta: np.ndarray) -> tuple:
    """x with a 1 at its end, softmax(theta x), and weights."""
    x = features(block.logits)
    x = np.column_stack([x, np.ones(len(x))])
    return x, _softmax((theta @ x.T).T), block.weights()


def _inverse_roots(matrices: np.ndarray, ridge: float = _RIDGE) -> np.ndarray:
    """Inverse square roots of positive matrices `(n, k, k)`, symmetric."""
    values, axes = np.linalg.eigh(matrices)
    least = max(ridge * values.max(), 1e-300)
    root = 1.0 / np.sqrt(np.maximum(values, least))
    return np.einsum("nij,nj,nkj->nik", axes, root, axes, optimize=True)


def _softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)
