"""Sums of exp(b z) of many logits z at any b, from sums at a few b.

Derivation: docs/derivations.md, 'Compact logits'.
"""

import functools
from typing import Any

import numpy as np

__all__ = ["RANGE", "interpolated", "log_sums", "nodes"]

# The range of b = 1/T in which sums are interpolated.
RANGE = 0.25, 2.0
# Nodes are these and the sums of any two of them, times `_UNIT`.
_POWERS, _UNIT = (1, 2, 4, 8, 16, 20), RANGE[1] / 40
# Entries of a part of the logits, whose powers stay in the cache of a core.
_CACHED = 24 * 1024
# Entries that are added in float32, before float64 takes over.
_ADDED = 1024
# Logits for which the weights of nodes are chosen, as multiples of one that
# counts: a logit at 0 beside `1 / _SHARE` others far below it.
_FARTHEST, _NUM_LOGITS, _SHARE = 600.0, 400, 5e-4
# Relative rounding error of a sum.
_ROUNDING = 3e-7
# Stands for an empty sum.
_NOTHING = 1e-300


@functools.cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    """The values of b, and where `_products` has their sums."""
    exponents = np.add.outer((0, *_POWERS), _POWERS)
    found, places = np.unique(exponents, return_index=True)
    return _UNIT * found, places


def nodes() -> np.ndarray:
    """The values of b at which sums are taken, float64 `(21,)`, ascending."""
    return _nodes()[0]


def log_sums(
    logits: np.ndarray, start: np.ndarray, skip: np.ndarray
) -> np.ndarray:
    """log sum_k exp(b (z_k - m)) at each node b, as steps to the next.

    One exp of each logit serves all nodes, as they are products of powers.

    Derivation: docs/derivations.md, 'Compact logits'.

    Args:
        logits: z `(n, k)`; -inf adds nothing.
        start: m `(n,)`: no z that is not skipped exceeds it.
        skip: Classes to leave out, `(n, m)`.

    Returns:
        The first logarithm and the differences of each from the one before,
        float32 `(n, 21)`.
    """
    count, num_classes = logits.shape
    width = min(num_classes, _CACHED)
    size = max(1, _CACHED // width)
    room = np.ones((1 + len(_POWERS), size * width), "float32")
    sums = np.zeros((count, len(room) * len(_POWERS)))
    for low in range(0, count, size):
        rows = slice(low, low + size)
        for first in range(0, num_classes, width):
            z = logits[rows, first : first + width]
            powers = room[:, : z.size].reshape(-1, *z.shape)
            where = skip[rows] - first
            sums[rows] += _products(z, start[rows, None], where, powers)
    found = np.log(np.maximum(sums[:, _nodes()[1]], _NOTHING))
    # Float32 rounds small differences less than large logarithms.
    return np.diff(found, axis=-1, prepend=0.0).astype("float32")


def _products(
    logits: np.ndarray, start: np.ndarray, skip: np.ndarray, powers: np.ndarray
) -> np.ndarray:
    """Sums of products of powers of exp(z / 20), `(n, 42)`.

    The powers `(7, n, k)` are overwritten, except the first, which is 1.
    """
    one, two, four, eight, sixteen, twenty = powers[1:]
    np.subtract(logits, start, out=one, casting="same_kind")
    np.multiply(one, np.float32(_UNIT), out=one)
    row, place = np.nonzero((skip >= 0) & (skip < one.shape[-1]))
    one[row, skip[row, place]] = -np.inf
    np.exp(one, out=one)
    np.multiply(one, one, out=two)
    np.multiply(two, two, out=four)
    np.multiply(four, four, out=eight)
    np.multiply(eight, eight, out=sixteen)
    np.multiply(four, sixteen, out=twenty)
    count, width = one.shape
    whole = width - width % _ADDED
    total = np.zeros((count, len(powers), len(_POWERS)))
    for part in (slice(whole), slice(whole, None)):
        x = powers[..., part]
        if x.size:
            size = min(_ADDED, x.shape[-1])
            x = x.reshape(*x.shape[:2], -1, size).transpose(1, 2, 0, 3)
            found = np.matmul(x, x[:, :, 1:].transpose(0, 1, 3, 2))
            total += found.sum(axis=1, dtype="float64")
    return total.reshape(count, -1)


@functools.lru_cache(maxsize=16)
def _weights(b: float) -> np.ndarray:
    """Maps sums at the nodes to the sum at b and two slopes, `(21, 3)`.

    Least squares over all logits that may be, relative to what stands beside
    them, and with a penalty for rounding.
    """
    z = -np.r_[0.0, np.geomspace(1e-3, _FARTHEST, _NUM_LOGITS - 1)]
    of_nodes, of_b = np.exp(np.outer(z, nodes())), np.exp(b * z)
    scale = 1.0 / (of_b + _SHARE)
    rounding = _ROUNDING * (of_nodes * scale[:, None]).max(axis=0)
    left = of_nodes * scale[:, None]
    left = np.r_[left, np.diag(rounding) * np.sqrt(_NUM_LOGITS) / 3.0]
    right = np.stack([of_b, of_b * z, of_b * z * z], axis=-1) * scale[:, None]
    right = np.r_[right, np.zeros((len(rounding), 3))]
    return np.linalg.lstsq(left, right, rcond=None)[0]


def interpolated(steps: np.ndarray, b: float) -> tuple[Any, Any, Any]:
    """sum_k exp(b z_k) and two derivatives by b, from `log_sums`, `(n,)`.

    Derivation: docs/derivations.md, 'Compact logits'.
    """
    sums = np.exp(np.cumsum(steps.astype("float64"), axis=-1))
    found = sums @ _weights(b)
    return found[:, 0], found[:, 1], found[:, 2]
