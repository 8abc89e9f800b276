"""Calibration errors of whole data sets, exact in float64.

`equal_mass_error` serves the streaming metric too, on the cells of its
histogram.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_calib.bins import BinSums
from keras_calib.bins import bin_index
from keras_calib.bins import bin_sums
from keras_calib.bins import expected_error
from keras_calib.bins import hard_labels
from keras_calib.checks import check_in
from keras_calib.checks import check_integer
from keras_calib.checks import invalid
from keras_calib.inputs import read_arrays
from keras_calib.numerics import namespace
from keras_calib.numerics import safe_divide
from keras_calib.numerics import top1

__all__ = [
    "TopLabel",
    "adaptive_ece",
    "ece",
    "equal_mass_edges",
    "equal_mass_error",
    "equal_width_bins",
    "top_label",
    "whole_weights",
]


class TopLabel(NamedTuple):
    """Exact inputs of the calibration and selection functions, NumPy `(n,)`.

    Attributes:
        confidence: Probability of the predicted class.
        score: Ranks as the confidence does and saturates later: the
            confidence itself of probabilities, the log-odds of logits.
        correct: 1.0 where the prediction is right.
        weight: Sample weights, or None.
    """

    confidence: np.ndarray
    score: np.ndarray
    correct: np.ndarray
    weight: np.ndarray | None


def top_label(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> TopLabel:
    """Confidence and correctness of every prediction, read and checked."""
    read = read_arrays(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    top = top1(read.outputs, from_logits=from_logits)
    correct = (top.predicted == hard_labels(read.labels)).astype("float64")
    score = top.log_odds if from_logits else top.confidence
    return TopLabel(top.confidence, score, correct, read.weight)


def equal_width_bins(
    labels: Any, probs: Any, *, num_bins: int, **reading: Any
) -> BinSums:
    """Bin sums of a whole data set; `reading` as in `top_label`."""
    check_integer("num_bins", num_bins, 1)
    top = top_label(labels, probs, **reading)
    index = bin_index(top.confidence, num_bins)
    return bin_sums(top.confidence, top.correct, index, num_bins, top.weight)


def whole_weights(weight: np.ndarray | None) -> bool:
    """Whether weights are whole numbers, that is counts of repeats."""
    return weight is None or bool(np.all(weight == np.floor(weight)))


def ece(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Expected calibration error of a whole data set, in float64.

    ECE = sum_b (n_b / N) |mean confidence_b - accuracy_b|, over equal-width
    bins (lo, hi] of the confidence of the predicted class.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        num_bins: Number of bins, at least 1.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.

    Returns:
        ECE in [0, 1].

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(ece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10), 4)
    0.4

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 3, https://arxiv.org/abs/1706.04599
    """
    sums = equal_width_bins(
        labels,
        probs,
        num_bins=num_bins,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    return float(expected_error(sums))


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
            `(n, ..., num_classes)`.
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
        return _interpolated_edges_error(top, num_bins)
    order = np.argsort(top.score, kind="stable")
    score = top.score[order]
    weight = np.ones(len(order)) if top.weight is None else top.weight[order]
    residual = weight * (top.confidence - top.correct)[order]
    if ties == "average":
        starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])
        weight = np.add.reduceat(weight, starts)
        residual = np.add.reduceat(residual, starts)
    before = np.cumsum(weight) - weight
    whole = whole_weights(top.weight)
    return float(equal_mass_error(before, weight, residual, num_bins, whole))


def equal_mass_edges(total: Any, num_bins: int, whole: Any) -> Any:
    """Masses at which equal-mass bins end, `(num_bins + 1,)` (either).

    Args:
        total: Total mass, a scalar.
        num_bins: Number of bins.
        whole: Whether weights are counts. Then cuts fall between samples:
            the first `total mod num_bins` bins hold one more.
    """
    xp = namespace(total)
    index = np.arange(num_bins + 1.0)
    if xp is ops:
        index = ops.convert_to_tensor(index.astype("float32"))
    size = xp.floor(total / num_bins)
    counted = index * size + xp.minimum(index, total - num_bins * size)
    return xp.where(whole, counted, index * (total / num_bins))


def equal_mass_error(
    before: Any, mass: Any, residual: Any, num_bins: int, whole: Any
) -> Any:
    """Equal-mass calibration error of groups in ascending order (either).

    A group cut by an edge is shared in proportion to its mass.

    Args:
        before: Mass below each group, `(n,)`.
        mass: Mass of each group, `(n,)`.
        residual: Mass times (mean confidence - accuracy), `(n,)`.
        num_bins: Number of bins.
        whole: Whether weights are counts, see `equal_mass_edges`.

    Returns:
        A scalar; 0 when empty.
    """
    xp = namespace(mass)
    total = before[-1] + mass[-1]
    edges = equal_mass_edges(total, num_bins, whole)
    if xp is np:
        below = np.interp(
            edges,
            np.r_[0.0, before + mass],
            np.r_[0.0, np.cumsum(residual)],
        )
        gaps = np.diff(below)
    else:
        edges = ops.expand_dims(edges, -1)
        share = ops.clip(safe_divide(edges - before, mass), 0.0, 1.0)
        # Differences first: a bin's residual must not be the difference of
        # two long sums.
        gaps = ops.sum((share[1:] - share[:-1]) * residual, axis=-1)
    return safe_divide(xp.sum(xp.abs(gaps)), total)


def _interpolated_edges_error(top: TopLabel, num_bins: int) -> float:
    confidence = top.confidence.astype("float64")
    count = len(confidence)
    edges = np.interp(
        np.linspace(0, count, num_bins + 1),
        np.arange(count),
        np.sort(confidence),
    )
    # (lo, hi]; what lies at or below the first edge is in no bin.
    index = np.searchsorted(edges, confidence, side="left")
    sums = bin_sums(confidence, top.correct, index, num_bins + 2)
    inside = slice(1, num_bins + 1)
    return float(np.sum(np.abs(sums.residual)[inside]) / count)
