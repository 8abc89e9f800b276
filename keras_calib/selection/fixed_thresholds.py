"""Thresholds that a share of the data fixes, for tests on the rest.

Tests of samples that are not draws of one population need thresholds that
these samples did not choose.
Derivation: docs/derivations.md, 'Other priors and mixtures'.
"""

from collections.abc import Callable

import numpy as np

from keras_calib.inputs.checks import generator
from keras_calib.selection.candidates import ranked_candidates

__all__ = [
    "counts_at",
    "fixed_thresholds",
    "starts_at",
    "tenth_of",
    "tenth_sizes",
]

# Share of the samples that fixes thresholds and starts, and most thresholds.
_SHARE, _MOST = 0.1, 256
# By how much a start may miss what it needs: the tenth estimates coverages.
_MARGIN = 1.2


def tenth_of(kind: np.ndarray, seed: int) -> np.ndarray:
    """Mask of a random tenth of each kind (class or group) `(n,)`, >= 1 row."""
    count = len(kind)
    order = generator(seed).permutation(count)
    order = order[np.argsort(kind[order], kind="stable")]
    sizes = np.bincount(kind)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(count, bool)
    mask[order] = np.arange(count) - first < tenth_sizes(sizes)[kind[order]]
    if not mask.any():
        mask[order[0]] = True
    return mask


def tenth_sizes(sizes: np.ndarray) -> np.ndarray:
    """How many of so many samples fix the thresholds."""
    return np.rint(_SHARE * np.asarray(sizes)).astype(int)


def fixed_thresholds(scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Thresholds between scores, at most 256, even in coverage, descending.

    The last accepts all.
    Derivation: docs/derivations.md, 'Other priors and mixtures'.
    """
    found = ranked_candidates(scores, np.zeros(len(scores)), weight)
    wanted = np.arange(1, _MOST + 1) / _MOST - 1e-9
    places = np.searchsorted(found.coverage, wanted)
    places = np.minimum(places, len(found.threshold) - 1)
    return found.threshold[np.unique(places)]


def counts_at(
    scores: np.ndarray,
    kind: np.ndarray,
    num_kinds: int,
    threshold: np.ndarray,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Accepted samples of each kind `(num_thresholds, num_kinds)`.

    Thresholds descend. Weights `(n,)` count instead of samples.
    """
    place = len(threshold) - np.searchsorted(
        threshold[::-1], scores, side="right"
    )
    # No threshold accepts an infinite score.
    place = np.where(np.isfinite(scores), place, len(threshold))
    cells = (len(threshold) + 1) * num_kinds
    counts = np.bincount(place * num_kinds + kind, weight, cells)
    return np.cumsum(counts.reshape(-1, num_kinds)[:-1], axis=0)


def starts_at(
    capacity: np.ndarray,
    coverage: np.ndarray,
    needed: Callable[[float], float],
    delta: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Places where walks begin, and the share of `delta` that each brings.

    As in `guarantees.starts`: the first start has half of `delta`, and its
    coverage doubles from one start to the next. A single start has all. There
    is none if the last threshold could not pass even without errors.

    Args:
        capacity: What each threshold could show without errors
            `(num_thresholds,)`, ascending; estimated, but for the last.
        coverage: Estimated coverage, ascending.
        needed: The capacity that a level takes.
        delta: What the starts share.
    """
    last = len(capacity) - 1
    first = np.searchsorted(capacity, _MARGIN * needed(delta / 2.0))
    wanted, places = float("inf"), []
    if first <= last:
        wanted = coverage[first]
    while wanted <= coverage[-1]:
        places.append(int(np.searchsorted(coverage, wanted)))
        wanted *= 2.0
    places = sorted(set(places))
    if len(places) > 1:
        shares = np.full(len(places), delta / 2.0 / (len(places) - 1))
        shares[0] = delta / 2.0
        return np.array(places), shares
    if capacity[-1] < needed(delta):
        return np.zeros(0, int), np.zeros(0)
    first = np.searchsorted(capacity, _MARGIN * needed(delta))
    return np.array([min(first, last)]), np.array([delta])
