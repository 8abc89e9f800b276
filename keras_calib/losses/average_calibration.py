"""Average calibration error of the classes of an image (L1-ACE).

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from collections.abc import Callable
from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.compiled import float_sums_of_segments
from keras_calib.backend.errors import value_error
from keras_calib.backend.gradients import with_gradient
from keras_calib.backend.replicas import num_replicas, sum_over_replicas
from keras_calib.inputs.checks import check_flag, check_in, check_integer
from keras_calib.losses.base import BatchCoupledLoss, CoupledOptions
from keras_calib.losses.closed_forms import (
    Targets,
    flat_rows,
    mark_first,
    mask_of,
    reads_ids,
    shown,
)
from keras_calib.numerics.arrays import (
    at_least,
    at_least_float32,
    safe_divide,
    shape_of,
)
from keras_calib.numerics.softmax import softmax_parts


@reads_ids
def l1_ace(
    labels: Any,
    logits: Any,
    *,
    num_bins: int = 20,
    by: str = "image",
    include_background: bool = True,
    sample_weight: Any = None,
) -> Any:
    """Average calibration error (L1-ACE) of each class, hard binned.

    Use it inside a loss of your own; `L1ACE` is the class to compile with, and
    describes the bins b of pixels n.

    mean_images mean_k mean_b |mean_{n in b} p_nk - mean_{n in b} labels_nk|

    Args:
        labels: One-hot or soft labels `(batch, ..., num_classes)`.
        logits: Logits `(batch, ..., num_classes)`.
        num_bins, by, include_background: As in `L1ACE`.
        sample_weight: Weights `(batch, ...)`, >= 0, of both means, or None.
            An image counts by the mean of its positive weights.

    Returns:
        A scalar in [0, 1], 0 if all weights are 0.

    Raises:
        ValueError: If `by` is `"image"` and there is no axis of space.

    Reference:
        That of `L1ACE`.
    """
    return _average_error(
        labels, logits, num_bins, by, include_background, sample_weight
    )


@reads_ids
def _average_error(
    labels: Any,
    logits: Any,
    num_bins: int,
    by: str,
    include_background: bool,
    sample_weight: Any,
    spans_replicas: bool = False,
) -> Any:
    """`l1_ace`, with `spans_replicas` of the rows of all replicas.

    They exchange sums alone, of each class and bin or of the images.
    """
    total = sum_over_replicas if spans_replicas else lambda x: x
    logits = at_least_float32(logits)
    first, dtype = 0 if include_background else 1, logits.dtype
    lead = ops.shape(logits)[:-1]
    labels, logits, weight = flat_rows(labels, logits, sample_weight)
    if by == "image":
        share, places = _images(ops.reshape(weight, lead), total)
    else:
        share, places = ops.ones((1,), dtype), None
    images = ops.shape(share)[0]
    counted, targets = logits.shape[-1] - first, Targets(labels, logits)
    logits = shown(logits, mask_of(labels))
    num_keys = images * counted * num_bins

    def forward(logits):
        parts = softmax_parts(logits)
        probs = parts.probs[:, first:]
        gaps = targets.subtract_from(parts.probs)[:, first:]
        # Bins are (low, high], and 0 is in the first.
        # ops.ceil would round to float32 on torch.
        scaled = probs * num_bins
        keys = ops.cast(scaled, "int32")
        at_edge = ops.equal(ops.cast(keys, probs.dtype), scaled)
        keys = keys - ops.cast(at_edge, "int32")
        keys = ops.clip(keys, 0, num_bins - 1)
        keys = keys + num_bins * ops.arange(counted, dtype="int32")
        if places is not None:
            keys = keys + ops.expand_dims(places * (counted * num_bins), -1)
        keys = ops.reshape(keys, (-1,))
        each = ops.expand_dims(weight, -1)
        bins = (images, counted, num_bins)
        sums, mass = (
            ops.reshape(float_sums_of_segments(x, keys, num_keys), bins)
            for x in (
                ops.reshape(gaps * each, (-1,)),
                ops.reshape(ops.broadcast_to(each, ops.shape(gaps)), (-1,)),
            )
        )
        if by == "batch":
            sums, mass = total([sums, mass])
        filled = ops.cast(mass > 0, mass.dtype)
        number = at_least(ops.sum(filled, axis=-1, keepdims=True), 1.0)
        # What one bin of a class of an image counts.
        rate = ops.reshape(share / counted, (-1, 1, 1)) * filled / number
        means = safe_divide(sums, mass)
        value = ops.sum(rate * ops.abs(means))
        if by == "batch" and spans_replicas:
            # Each replica has all of it, of which the sum over replicas is
            # taken. Its gradient is that of the replica's own rows.
            value = value / num_replicas()

        def gradient():
            slopes = safe_divide(rate * ops.sign(means), mass)
            slopes = ops.take(ops.reshape(slopes, (-1,)), keys)
            slopes = ops.reshape(slopes, ops.shape(gaps)) * each
            if first:
                slopes = ops.concatenate(
                    [ops.zeros_like(slopes[:, :1]), slopes], axis=-1
                )
            # Less the slope of the likeliest class: what is left does not
            # cancel where its probability is nearly 1.
            top = mark_first(ops.equal(parts.shifted, 0.0), slopes.dtype)
            slopes = slopes - ops.sum(slopes * top, axis=-1, keepdims=True)
            mean = ops.sum(parts.probs * slopes, axis=-1, keepdims=True)
            return parts.probs * (slopes - mean)

        return value, gradient

    value = with_gradient(forward, logits)
    return total(value + ops.sum(targets.fault()))


def _images(weight: Any, total: Callable) -> tuple[Any, Any]:
    """What each image counts, and the number of the image of each row.

    Images count by the mean of their positive weights, relative to the
    `total` of all.
    """
    if len(weight.shape) < 2:
        raise value_error(
            "`logits` must have axes of space, (batch, ..., num_classes), "
            'or pass `by="batch"` for the error of the whole batch',
            **{"logits.shape[:-1]": shape_of(weight)},
        )
    space = tuple(range(1, len(weight.shape)))
    positive = ops.cast(weight > 0, weight.dtype)
    means = safe_divide(
        ops.sum(weight, axis=space), ops.sum(positive, axis=space)
    )
    share = safe_divide(means, total(ops.sum(means)))
    number = ops.cumsum(ops.ones_like(means, dtype="int32")) - 1
    number = ops.reshape(number, (-1, *(1 for _ in space)))
    number = number + ops.zeros_like(weight, dtype="int32")
    return share, ops.reshape(ops.cast(number, "int32"), (-1,))


@keras.saving.register_keras_serializable(package="keras_calib")
class L1ACE(BatchCoupledLoss):
    """A loss plus the average calibration error of each class of an image.

    Use it for segmentation when the probabilities of each class must be
    calibrated on each image. It can be added to any per-sample loss.

    fidelity + strength mean_images mean_k mean_b |gap of bin b|

    The gap of a bin is the mean probability of class k less its frequency,
    over the pixels of an image in that bin. Bins are (low, high], of equal
    width, and empty ones have no part. The gradient runs through the
    probabilities, not through the choice of bin. A bin whose two means agree
    has no gradient.

    Args:
        strength: Coefficient of the term, >= 0. The released code takes half
            the term and half the cross entropy, which is a strength of 1.
        num_bins: Number of bins, >= 1.
        by: `"image"` takes the error of each image and their mean, as the
            authors do. `"batch"` takes that of all pixels of the batch, also
            for classification.
        include_background: Whether class 0 takes part in the mean over k.
        **kwargs: `fidelity`, `name` and arguments of `BatchCoupledLoss`.

    Raises:
        ValueError: On call, if `by` is `"image"` and predictions are rows
            `(batch, num_classes)`.

    Example:

    >>> loss = L1ACE(by="batch", from_logits=True)
    >>> round(float(loss([0, 1], [[2.0, 0.0], [2.0, 0.0]])), 4)
    1.5077

    Reference:
        Barfoot et al., Average Calibration Error: A Differentiable Loss for
        Improved Reliability in Image Segmentation, MICCAI 2024,
        https://arxiv.org/abs/2403.06759

    Differs:
        The released code scales the bins by 1 + 2^-23 and halves both parts
        of the loss. The authors add the term to a Dice loss too, which is not
        in this library.
    """

    def __init__(
        self,
        strength: float = 1.0,
        *,
        num_bins: int = 20,
        by: str = "image",
        include_background: bool = True,
        **kwargs: Unpack[CoupledOptions],
    ):
        check_integer("num_bins", num_bins, 1)
        check_in("by", by, ("image", "batch"))
        check_flag("include_background", include_background)
        super().__init__(
            l1_ace,
            strength=strength,
            hyperparameters={
                "num_bins": num_bins,
                "by": by,
                "include_background": include_background,
            },
            **kwargs,
        )

    def _statistic(self, labels, logits, mask, weight):
        if self.jit_compile:
            # Compiled functions exchange nothing.
            return super()._statistic(labels, logits, mask, weight)
        options = {"sample_weight": weight, "spans_replicas": True}
        options = {**options, **self.hyperparameters}
        return self._run(_average_error, labels, logits, mask, options)
