"""The log-sum-exp of many small logits at any temperature, from a few numbers.

Derivation: docs/derivations.md, 'Compact logits'.
"""

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


def node_values(logits: np.ndarray) -> np.ndarray:
    """log sum_k exp(b z_k) of logits z <= 0 at each node b, `(n, 12)`.

    Derivation: docs/derivations.md, 'Compact logits'.
    """
    values = np.empty((len(logits), NODES))
    for i, beta in enumerate(nodes()):
        total = np.exp(logits * logits.dtype.type(beta)).sum(
            axis=-1, dtype="float64"
        )
        values[:, i] = np.log(np.maximum(total, 1e-300))
    return values


def interpolated(values: np.ndarray, beta: float) -> tuple[Any, Any, Any]:
    """The polynomial through the values at 1/T, and two derivatives, `(n,)`.

    Derivation: docs/derivations.md, 'Compact logits'.
    """
    low, high = RANGE
    x = (2.0 * beta - low - high) / (high - low)
    scale = 2.0 / (high - low)
    matrix = _matrix()
    polynomials = np.polynomial.chebyshev.Chebyshev.basis
    rows = []
    for order in range(3):
        basis = [polynomials(k).deriv(order)(x) for k in range(NODES)]
        rows.append(scale**order * np.asarray(basis) @ matrix)
    found = values @ np.stack(rows, axis=-1)
    return found[:, 0], found[:, 1], found[:, 2]
