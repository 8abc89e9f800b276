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
from keras_calib.inputs import Predictions
from keras_calib.numerics import namespace
from keras_calib.numerics import safe_divide
from keras_calib.numerics import top1

__all__ = [
    "BinSummary",
    "BinSums",
    "bin_index",
    "bin_sums",
    "expected_error",
    "hard_labels",
    "observe",
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


def hard_labels(labels: Any) -> Any:
    """Class ids `(n,)` of ids or of soft labels (either)."""
    if len(labels.shape) == 1:
        return labels
    return namespace(labels).argmax(labels, axis=-1)


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


def observe(batch: Predictions) -> tuple[Any, Any, Any]:
    """What a summary counts of one batch: TopOne, wrong, and counted.

    Returns:
        `(top, wrong, counted)`: the predictions, int32 `(n,)` 1 where wrong,
        and bool `(n,)`, False where ignored, NaN or impossible.
    """
    top = top1(batch.outputs, from_logits=batch.from_logits)
    wrong = ops.not_equal(
        ops.cast(top.predicted, "int32"),
        ops.cast(hard_labels(batch.labels), "int32"),
    )
    counted = ops.logical_and(
        batch.possible, ops.logical_not(ops.isnan(top.confidence))
    )
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
