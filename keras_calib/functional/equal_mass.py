"""Bins of equal mass: their edges and the calibration error over them.

`equal_mass_error` serves the streaming metric too, on the cells of its
histogram.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.bins import bin_sums
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.checks import invalid
from keras_calib.inputs.top_label import top_label
from keras_calib.inputs.top_label import whole_weights
from keras_calib.numerics.arrays import namespace
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.arrays import sum_products

__all__ = [
    "adaptive_ece",
    "equal_mass_edges",
    "equal_mass_error",
    "interpolated_bins",
    "sorted_mass_error",
]


def adaptive_ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    edges: str = "mass",
    ties: str = "average",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Calibration error over bins of equal mass, in float64.

    Samples are sorted by confidence and cut into `num_bins` chunks of (as
    nearly as whole samples allow) equal weight; then as in `ece`.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`, read as their largest class.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        num_bins: Number of bins, at least 1.
        edges: `"mass"`: every sample counts. `"interp"`: the edges of the
            papers' code, interpolated from the sorted confidences with
            (lo, hi] membership, which leaves out the smallest confidence and
            collapses where confidences tie; for parity with published
            tables, without weights.
        ties: `"average"`: samples of one confidence count as their mean, so
            that the order of the samples does not matter; `"order"`: as
            sorted stably. Only for `edges="mass"`.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
            Whole numbers count as repeats of the sample.
        ignore_class: Class id that does not count.

    Returns:
        Error in [0, 1].

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(adaptive_ece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=2), 4)
    0.4

    Reference:
        Nguyen and O'Connor, Posterior Calibration and Exploratory Analysis
        for NLP Models, EMNLP 2015, https://arxiv.org/abs/1508.05154
    """
    check_integer("num_bins", num_bins, 1)
    check_in("edges", edges, ("mass", "interp"))
    check_in("ties", ties, ("average", "order"))
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    if edges == "interp":
        if sample_weight is not None:
            raise ValueError(
                invalid(
                    '`sample_weight` needs `edges="mass"`',
                    edges=edges,
                )
            )
        _, sums = interpolated_bins(top.confidence, top.correct, num_bins)
        return float(np.sum(np.abs(sums.residual)) / len(top.confidence))
    return sorted_mass_error(
        top.score,
        top.confidence - top.correct,
        num_bins,
        weight=top.weight,
        ties=ties,
    )


def sorted_mass_error(
    score: np.ndarray,
    residual: np.ndarray,
    num_bins: int,
    *,
    weight: np.ndarray | None = None,
    ties: str = "average",
) -> float:
    """Equal-mass calibration error of samples in any order, in float64.

    Args:
        score: What orders the samples, `(n,)`, n at least 1.
        residual: Confidence less outcome of each sample, `(n,)`.
        num_bins: Number of bins.
        weight: Weights `(n,)`, or None.
        ties: `"average"` or `"order"`, as in `adaptive_ece`.

    Returns:
        Error in [0, 1].
    """
    whole = whole_weights(weight)
    order = np.argsort(score, kind="stable")
    score, residual = score[order], residual[order]
    weight = np.ones(len(order)) if weight is None else weight[order]
    residual = weight * residual
    if ties == "average":
        starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])
        weight = np.add.reduceat(weight, starts)
        residual = np.add.reduceat(residual, starts)
    before = np.cumsum(weight) - weight
    return float(equal_mass_error(before, weight, residual, num_bins, whole))


def equal_mass_edges(
    total: Any, num_bins: int, whole: Any, edges: str = "mass"
) -> Any:
    """Masses at which equal-mass bins end, `(num_bins + 1, ...)` (either).

    Derivation: docs/derivations.md, 'Equal-mass errors from cells'.

    Args:
        total: Total mass, `(...)`.
        num_bins: Number of bins.
        whole: Whether weights are counts. Then cuts fall between samples:
            the first `total mod num_bins` bins hold one more.
        edges: `"mass"`, or `"interp"` for those of samples without ties: a
            bin ends with the sample past k / num_bins of all, and the first
            sample is in none.
    """
    xp = namespace(total)
    index = np.arange(num_bins + 1.0).reshape(-1, *[1] * len(total.shape))
    if xp is ops:
        index = ops.convert_to_tensor(index.astype("float32"))
    if edges == "interp":
        # Rounding must not put a whole number below itself.
        past = xp.floor(index * (total / num_bins) * (1 + 3e-7)) + 1.0
        return xp.minimum(past, total)
    size = xp.floor(total / num_bins)
    counted = index * size + xp.minimum(index, total - num_bins * size)
    return xp.where(whole, counted, index * (total / num_bins))


def equal_mass_error(
    before: Any,
    mass: Any,
    residual: Any,
    num_bins: int,
    whole: Any,
    edges: str = "mass",
) -> Any:
    """Equal-mass calibration error of groups in ascending order (either).

    A group cut by an edge is shared in proportion to its mass.

    Derivation: docs/derivations.md, 'Equal-mass errors from cells'.

    Args:
        before: Mass below each group, `(..., n)`.
        mass: Mass of each group, `(..., n)`.
        residual: Mass times (mean confidence - accuracy), `(..., n)`.
        num_bins: Number of bins.
        whole: Whether weights are counts, see `equal_mass_edges`.
        edges: `"mass"` or `"interp"`, see `equal_mass_edges`.

    Returns:
        Errors `(...)`; 0 when empty.
    """
    xp = namespace(mass)
    if xp is np and mass.ndim > 1:
        # One after the other: all shares at once take num_bins times as much.
        rows = zip(before, mass, residual, strict=True)
        return np.array(
            [equal_mass_error(*row, num_bins, whole, edges) for row in rows]
        )
    total = before[..., -1] + mass[..., -1]
    ends = equal_mass_edges(total, num_bins, whole, edges)
    if xp is np:
        below = np.interp(
            ends,
            np.r_[0.0, before + mass],
            np.r_[0.0, np.cumsum(residual)],
        )
        gaps = np.diff(below)
    else:
        share = safe_divide(xp.expand_dims(ends, -1) - before, mass)
        share = xp.clip(share, 0.0, 1.0)
        # Differences first: a bin's residual must not be the difference of
        # two long sums.
        gaps = sum_products(share[1:] - share[:-1], residual)
    return safe_divide(xp.sum(xp.abs(gaps), axis=0), total)


def interpolated_bins(
    confidence: np.ndarray, correct: np.ndarray, num_bins: int
) -> tuple[np.ndarray, BinSums]:
    """Bins of equal mass as in the papers' code.

    Args:
        confidence: Confidences `(n,)`, n at least 1.
        correct: 1 where right, 0 where wrong, `(n,)`.
        num_bins: Number of bins.

    Returns:
        `(edges, sums)`: ascending edges `(num_bins + 1,)`, interpolated from
        the sorted confidences; and what lies in (lo, hi], arrays
        `(num_bins,)`. The smallest confidence is in no bin.
    """
    confidence = confidence.astype("float64")
    count = len(confidence)
    edges = np.interp(
        np.linspace(0, count, num_bins + 1),
        np.arange(count),
        np.sort(confidence),
    )
    # What lies at or below the first edge is in no bin.
    index = np.searchsorted(edges, confidence, side="left")
    sums = bin_sums(confidence, correct, index, num_bins + 2)
    inside = slice(1, num_bins + 1)
    return edges, BinSums(*(part[inside] for part in sums))
