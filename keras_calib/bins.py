"""Bins of confidence: membership, sums per bin, and the errors made of them.

Membership is (lo, hi] with the first bin closed below, as in the papers'
code. The formulas work on NumPy arrays in float64 (the exact functions) and
on backend tensors in float32 (the streaming metrics).
"""

from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_calib import exact_sums
from keras_calib.checks import check_in
from keras_calib.checks import check_integer
from keras_calib.checks import invalid
from keras_calib.inputs import Predictions
from keras_calib.inputs import read_arrays
from keras_calib.inputs import top1
from keras_calib.numerics import namespace
from keras_calib.numerics import safe_divide

__all__ = [
    "BinSums",
    "BinSummary",
    "TopLabel",
    "adaptive_ece",
    "bin_index",
    "bin_sums",
    "ece",
    "equal_mass_edges",
    "equal_mass_error",
    "expected_error",
    "hard_labels",
    "observe",
    "top_label",
    "whole_weights",
]


class BinSums(NamedTuple):
    """What was summed in each bin, shapes `(num_bins,)`.

    Attributes:
        weight: Total weight (the number of samples, without weights).
        confidence: Weighted sum of the confidence.
        correct: Weight of the correct predictions.
        residual: `confidence - correct`, subtracted before rounding.
        squared_weight: Sum of squared weights; weight^2 / squared_weight is
            the number of equally weighted samples that say as much.
    """

    weight: Any
    confidence: Any
    correct: Any
    residual: Any
    squared_weight: Any

    @property
    def accuracy(self) -> Any:
        """Share of correct predictions in each bin, 0 in empty bins."""
        return safe_divide(self.correct, self.weight)

    @property
    def mean_confidence(self) -> Any:
        """Mean confidence in each bin, 0 in empty bins."""
        return safe_divide(self.confidence, self.weight)

    @property
    def gap(self) -> Any:
        """Mean confidence less accuracy; positive is overconfident."""
        return self.mean_confidence - self.accuracy


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


def hard_labels(labels: Any) -> Any:
    """Class ids `(n,)` of ids or of soft labels (either)."""
    if len(labels.shape) == 1:
        return labels
    return namespace(labels).argmax(labels, axis=-1)


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


def whole_weights(weight: np.ndarray | None) -> bool:
    """Whether weights are whole numbers, that is counts of repeats."""
    return weight is None or bool(np.all(weight == np.floor(weight)))


def bin_index(confidence: Any, num_bins: int) -> Any:
    """Index of the equal-width bin (lo, hi] of each confidence (either).

    Args:
        confidence: In [0, 1], any shape.
        num_bins: Number of bins of [0, 1].

    Returns:
        Integers in `[0, num_bins)`, int32 for tensors.
    """
    xp = namespace(confidence)
    index = xp.ceil(confidence * num_bins) - 1.0
    index = xp.clip(index, 0, num_bins - 1)
    return index.astype("int64") if xp is np else ops.cast(index, "int32")


def bin_sums(
    confidence: np.ndarray,
    correct: np.ndarray,
    index: np.ndarray,
    num_bins: int,
    weight: np.ndarray | None = None,
) -> BinSums:
    """Exact sums per bin of NumPy arrays `(n,)`, in float64."""
    weight = np.ones(len(confidence)) if weight is None else weight

    def total(values):
        return np.bincount(index, weights=values, minlength=num_bins)

    return BinSums(
        weight=total(weight),
        confidence=total(weight * confidence),
        correct=total(weight * correct),
        residual=total(weight * (confidence - correct)),
        squared_weight=total(weight * weight),
    )


def expected_error(sums: BinSums) -> Any:
    """ECE of bin sums: sum_b |confidence_b - correct_b| / weight (either).

    The weighted mean of |gap| without a division per bin; 0 when empty.
    """
    xp = namespace(sums.weight)
    return safe_divide(xp.sum(xp.abs(sums.residual)), xp.sum(sums.weight))


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

    >>> ece([0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10)
    0.4

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        eq. 3, https://arxiv.org/abs/1706.04599
    """
    check_integer("num_bins", num_bins, 1)
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    index = bin_index(top.confidence, num_bins)
    sums = bin_sums(top.confidence, top.correct, index, num_bins, top.weight)
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


def observe(batch: Predictions) -> tuple[Any, Any, Any]:
    """What a summary counts of one batch: TopOne, wrong, and counted.

    Returns:
        `(top, wrong, counted)`: the predictions, int32 `(n,)` 1 where wrong,
        and bool `(n,)`, False where ignored or NaN.
    """
    top = top1(batch.outputs, from_logits=batch.from_logits)
    wrong = ops.not_equal(
        ops.cast(top.predicted, "int32"),
        ops.cast(hard_labels(batch.labels), "int32"),
    )
    counted = ops.logical_not(ops.isnan(top.confidence))
    if batch.valid is not None:
        counted = ops.logical_and(counted, batch.valid)
    return top, ops.cast(wrong, "int32"), counted


class BinSummary:
    """Equal-width bins as exact, mergeable integer sums.

    Args:
        num_bins: Number of bins.
    """

    def __init__(self, num_bins: int):
        self.num_bins = num_bins

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the int32 limbs: limb, quantity, key."""
        return (exact_sums.NUM_LIMBS, 3, 2 * self.num_bins)

    def summarise(self, batch: Predictions) -> Any:
        """Limbs of weight, confidence and squared weight, by bin and wrong."""
        top, wrong, counted = observe(batch)
        confidence = ops.where(
            counted, top.confidence, ops.zeros_like(top.confidence)
        )
        num_keys = 2 * self.num_bins
        keys = 2 * bin_index(confidence, self.num_bins) + wrong
        keys = ops.where(counted, keys, ops.full_like(keys, num_keys))
        if batch.weight is None:
            weight = exact_sums.limbs_from_counts(
                exact_sums.count_by_key(keys, num_keys)
            )
            total = exact_sums.sum_by_key(confidence, keys, num_keys)
            squares = weight
        else:
            scale = exact_sums.power_of_two_above(batch.weight)
            weight = exact_sums.sum_by_key(
                batch.weight, keys, num_keys, scale=scale
            )
            total = exact_sums.sum_by_key(
                batch.weight * confidence, keys, num_keys, scale=scale
            )
            squares = exact_sums.sum_by_key(
                ops.square(batch.weight), keys, num_keys, scale=scale * scale
            )
        return ops.stack([weight, total, squares], axis=1)

    def read(self, limbs: Any) -> BinSums:
        """Bin sums of limbs (either)."""
        shape = (exact_sums.NUM_LIMBS, 3, self.num_bins, 2)
        limbs = namespace(limbs).reshape(limbs, shape)
        both = limbs[..., 0] + limbs[..., 1]
        values = exact_sums.to_float(both)
        # A float32 difference of two long sums would lose a small gap.
        correct = limbs[:, 0, :, 0]
        return BinSums(
            weight=values[0],
            confidence=values[1],
            correct=exact_sums.to_float(correct),
            residual=exact_sums.to_float(both[:, 1] - correct),
            squared_weight=values[2],
        )
