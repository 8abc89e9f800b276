"""The log-sum-exp of many small logits at any temperature, from a few numbers.

Derivation: docs/derivations.md, 'Compact logits'.
"""

import functools
from typing import Any

import numpy as np

__all__ = [
    "NODES",
    "RANGE",
    "interpolated",
    "node_values",
    "nodes",
]

# Chebyshev nodes of 1/T, and the range of 1/T that they span.
NODES = 12
RANGE = 0.25, 2.0
# Powers of exp(_STEP z) whose sums are taken: 1/T from 0.25 to 2.
_STEP, _POWERS = 0.25, 8
# Logits that are read at once, so that all stays in the cache of a core.
_CACHED = 2**15
# Below it exp(z / 4) is nothing beside 1, and powers would be subnormal.
_LEAST = -80.0


def nodes() -> np.ndarray:
    """The Chebyshev nodes of 1/T, float64 `(12,)`, ascending."""
    angles = np.pi * (np.arange(NODES)[::-1] + 0.5) / NODES
    low, high = RANGE
    return 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angles)


def _matrix() -> np.ndarray:
    """Maps values at the nodes to coefficients of Chebyshev polynomials."""
    order = np.arange(NODES)
    angles = np.pi * (order[::-1] + 0.5) / NODES
    matrix = np.cos(np.outer(order, angles)) * (2.0 / NODES)
    matrix[0] *= 0.5
    return matrix


@functools.cache
def _from_powers() -> np.ndarray:
    """Maps values and slopes at 8 multiples of 1/4 to values at the nodes.

    These are of the polynomial of degree 15 that has both, `(12, 16)`.
    """
    basis = np.polynomial.chebyshev.Chebyshev.basis
    low, high = RANGE
    at = (2.0 * _STEP * np.arange(1, _POWERS + 1) - low - high) / (high - low)
    scale = 2.0 / (high - low)
    shown = (2.0 * nodes() - low - high) / (high - low)
    terms = [basis(k) for k in range(2 * _POWERS)]
    known = [np.r_[term(at), scale * term.deriv()(at)] for term in terms]
    return np.linalg.solve(
        np.asarray(known), np.asarray([term(shown) for term in terms])
    ).T


def node_values(
    logits: np.ndarray, largest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """log sum_k exp(b (z_k - m)) at each node b, and at the least b.

    One exp of each logit serves all nodes: sums of its powers are taken.

    Derivation: docs/derivations.md, 'Compact logits'.

    Args:
        logits: z `(n, k)`; -inf leaves one out.
        largest: m `(n,)`: the largest of each row, or a little more.

    Returns:
        Values at the nodes `(n, 12)`, and those at 1/4 `(n,)`, float64.
    """
    count, width = logits.shape
    chunk = min(width, _CACHED)
    size = min(count, max(1, _CACHED // width))
    space = np.empty((5, size * chunk), "float32")
    sums = np.zeros((2 * _POWERS, count))
    for start in range(0, count, size):
        rows = slice(start, start + size)
        for first in range(0, width, chunk):
            z = logits[rows, first : first + chunk]
            held = space[:, : z.size].reshape(5, *z.shape)
            sums[:, rows] += _power_sums(z, largest[rows, None], held)
    values = np.log(sums[:_POWERS])
    known = np.r_[values, sums[_POWERS:] / sums[:_POWERS]]
    return (_from_powers() @ known).T, values[0]


def _power_sums(
    logits: np.ndarray, largest: np.ndarray, space: np.ndarray
) -> np.ndarray:
    """Sums of 8 powers of exp(z / 4), and those times z, `(16, n)`."""
    z, one, two, three, four = space
    np.subtract(logits, largest, out=z, casting="same_kind")
    np.maximum(z, np.float32(_LEAST), out=z)
    np.multiply(z, np.float32(_STEP), out=one)
    np.exp(one, out=one)
    np.multiply(one, one, out=two)
    np.multiply(one, two, out=three)
    np.multiply(two, two, out=four)
    known = np.empty((2 * _POWERS, len(z)))
    # Sums of the powers 2, 3, 4 and 5, 6, 7 and 8, and 1, then the slopes.
    known[1:4] = _dots(space[1:4], one)
    known[4:7] = _dots(space[2:], three)
    known[7] = _dots(space[4:], four)
    known[0] = one.sum(axis=-1)
    known[8:12] = _dots(space[1:], z)
    np.multiply(z, four, out=z)
    known[12:] = _dots(space[1:], z)
    return known


def _dots(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Products `(m, n)` of rows of m arrays with those of one."""
    return np.matmul(left.transpose(1, 0, 2), right[:, :, None])[:, :, 0].T


@functools.lru_cache(maxsize=8)
def _weights(beta: float) -> np.ndarray:
    """Maps values at the nodes to the value and two slopes, `(12, 3)`."""
    low, high = RANGE
    x = (2.0 * beta - low - high) / (high - low)
    scale = 2.0 / (high - low)
    basis = np.polynomial.chebyshev.Chebyshev.basis
    rows = []
    for order in range(3):
        terms = [basis(k).deriv(order)(x) for k in range(NODES)]
        rows.append(scale**order * np.asarray(terms) @ _matrix())
    return np.stack(rows, axis=-1)


def interpolated(values: np.ndarray, beta: float) -> tuple[Any, Any, Any]:
    """The polynomial through the values at 1/T, and two derivatives, `(n,)`.

    Derivation: docs/derivations.md, 'Compact logits'.
    """
    found = values @ _weights(beta)
    return found[:, 0], found[:, 1], found[:, 2]
