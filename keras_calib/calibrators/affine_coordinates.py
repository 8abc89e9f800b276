"""Coordinates for fits of affine maps, in which the curvature is near 1."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.softmax import FAR_BELOW, is_ruled_out

__all__ = [
    "LARGE_BLOCK",
    "Ridge",
    "degrees_of_freedom",
    "exact_coordinates",
    "mapped",
    "probabilities",
    "products_of",
    "usual_coordinates",
    "without_ruled_out",
]

# Curvature of a direction without data, as a share of the largest.
_RIDGE = 1e-10
# Logits in a block, larger than elsewhere: products of matrices gain by it.
LARGE_BLOCK = 2**18
# The same where each sample makes thousands of products, and the logits that
# a Hessian is taken from.
_SMALL_BLOCK = 2**13
_SAMPLE = 2**18


class Ridge(NamedTuple):
    """The penalty sum strength ([W, b] - anchor)^2; no anchor is 0."""

    strength: np.ndarray  # of the shape of [W, b]
    anchor: np.ndarray | None = None


def usual_coordinates(
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
        spread = probabilities(x, theta, block)
        spread -= np.square(spread)
        spread *= weight
        first = products_of(spread, x, thin)
        second = products_of(spread, np.square(x, out=x), thin)
        return weight.sum(), spread.sum(axis=0), first, second, *both

    weight, *sums = samples.sums(moments, size=LARGE_BLOCK // 2)
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


def degrees_of_freedom(
    samples: FittingData, features: Callable, theta: np.ndarray, ridge: Ridge
) -> float:
    """About sum h / (h + 2 strength), for curvatures h of the NLL at a map.

    Only the diagonal of the Hessian counts, which can only add to the sum.
    """
    thin = theta.shape[1] == 2

    def moments(block):
        x, weight = features(block.logits), block.weights()[:, None]
        spread = probabilities(x, theta, block)
        spread -= np.square(spread)
        spread *= weight
        second = products_of(spread, np.square(x), thin)
        return weight.sum(), np.column_stack([second, spread.sum(axis=0)])

    weight, curvature = samples.sums(moments)
    curvature /= weight
    total = curvature + 2.0 * ridge.strength
    return float(np.sum(curvature[total > 0.0] / total[total > 0.0]))


def exact_coordinates(
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
        p = probabilities(x, theta, block).T
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


def without_ruled_out(features: Any, logits: Any) -> Any:
    """Features, 0 where the logits rule a class out (array-agnostic)."""
    xp = array_namespace(features)
    return xp.where(is_ruled_out(logits), xp.zeros_like(features), features)


def probabilities(
    x: np.ndarray, theta: np.ndarray, block: FittingData
) -> np.ndarray:
    """softmax(W x + b) of the features of a block."""
    p = mapped(x, theta, block)
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)
    return p


def mapped(x: np.ndarray, theta: np.ndarray, block: FittingData) -> np.ndarray:
    """W x + b; x in the order of memory in which sums are fast."""
    weights = theta[:, :-1]
    z = x * weights[:, 0] if weights.shape[1] == 1 else (weights @ x.T).T
    z += theta[:, -1]
    z[is_ruled_out(block.logits)] = FAR_BELOW
    return z


def products_of(a: np.ndarray, b: np.ndarray, thin: bool) -> np.ndarray:
    """sum_n a_nk b_nj, or `(num_classes, 1)` of it where j = k."""
    return np.sum(a * b, axis=0)[:, None] if thin else a.T @ b
