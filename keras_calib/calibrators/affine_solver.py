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
# Variance of a feature that is constant, as a share of its mean square.
_CONSTANT = 1e-12
# Steps before new coordinates, and at most.
_STEPS = (15, 1000)
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
    theta = _least(samples, scaled, start, np.zeros_like(start), what)
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
    penalty = penalty / np.append(scaled.scale**2, 1.0)
    start = np.column_stack([np.diag(scaled.scale), scaled.shift])
    theta = _least(samples, scaled, start, penalty, what)
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


def _least(
    samples: FittingData,
    features: Callable,
    start: np.ndarray,
    penalty: np.ndarray,
    what: str,
) -> np.ndarray:
    """[W, b] of least penalised NLL; of W only the diagonal if it is thin.

    Args:
        samples: Held-out samples.
        features: Maps logits to what is mapped.
        start: [W, b] of the logits as they are, `(num_classes, width + 1)`,
            with the width `num_classes`, or 1 for the diagonal.
        penalty: Factors of that shape.
        what: What is fitted, for warnings.
    """
    start = start / optimal_temperature(samples)
    thin = start.shape[1] == 2
    size = {} if thin else {"size": _BLOCK}

    def value(theta):
        def of_block(block):
            x = features(block.logits)
            loss, residuals = nll_and_residuals(_mapped(x, theta), block)
            slope = _products(residuals, x, thin), residuals.sum(axis=0)
            return loss, block.weights().sum(), np.column_stack(slope)

        loss, weight, slope = samples.sums(of_block, **size)
        loss = loss / weight + np.sum(penalty * theta**2)
        return loss, slope / weight + 2.0 * penalty * theta

    def moments(block):
        x, weight = features(block.logits), block.weights()[:, None]
        # In place where it can be: blocks are large.
        both = (0.0, 0.0) if thin else ((x * weight).T @ x, x.T @ weight)
        spread = _softmax(_mapped(x, theta))
        spread -= np.square(spread)
        spread *= weight
        first = _products(spread, x, thin)
        second = _products(spread, np.square(x, out=x), thin)
        return weight.sum(), spread.sum(axis=0), first, second, *both

    theta = start
    for steps in _STEPS:
        weight, *sums = samples.sums(moments, size=_BLOCK // 2)
        root, back = _coordinates(*(x / weight for x in sums), penalty)

        def scaled(point, root=root, back=back, origin=theta):
            loss, slope = value(origin + root(point))
            return loss, back(slope)

        point, converged = least_convex(
            scaled,
            np.zeros(back(np.zeros_like(start)).size),
            what,
            max_iterations=steps,
            warn=steps == _STEPS[-1],
        )
        theta = theta + root(point)
        if converged:
            break
    if not penalty.any():
        loss = value(theta)[0]
        warn_if_separated(loss, samples.labels, samples.weight, what)
    return theta


def _coordinates(
    spread: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    product: np.ndarray,
    mean: np.ndarray,
    penalty: np.ndarray,
) -> tuple[Callable, Callable]:
    """Coordinates in which the curvature is about 1.

    Row k of [W, b] has the Hessian E[s_k (x, 1) (x, 1)^T], s_k = p_k (1 - p_k),
    and twice the penalties. Its last column is eliminated exactly, the scales
    of x are those of each row, and correlations those of x without s_k.

    Args:
        spread: E[s_k], `(num_classes,)`.
        first: E[s_k x_j], `(num_classes, width)`.
        second: E[s_k x_j^2], of that shape.
        product: E[x x^T], `(width, width)`.
        mean: E[x], `(width, 1)`.
        penalty: Factors `(num_classes, width + 1)`.

    Returns:
        `(root, back)`: the linear map of points to steps of [W, b], and its
        adjoint. Directions in which x does not vary, where no data say what
        the weights are and rounding would, have no coordinate.
    """
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


def _mapped(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """W x + b; x in the order of memory in which sums are fast."""
    weights = theta[:, :-1]
    z = x * weights[:, 0] if weights.shape[1] == 1 else (weights @ x.T).T
    z += theta[:, -1]
    return z


def _products(a: np.ndarray, b: np.ndarray, thin: bool) -> np.ndarray:
    """sum_n a_nk b_nj, or `(num_classes, 1)` of it where j = k."""
    return np.sum(a * b, axis=0)[:, None] if thin else a.T @ b


def _softmax(z: np.ndarray) -> np.ndarray:
    """softmax, in place."""
    z -= z.max(axis=-1, keepdims=True)
    p = np.exp(z, out=z)
    p /= p.sum(axis=-1, keepdims=True)
    return p
