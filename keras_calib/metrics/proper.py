"""Proper scores: they reward the true probabilities."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib import exact_sums
from keras_calib.checks import check_above
from keras_calib.checks import check_at_most
from keras_calib.inputs import Predictions
from keras_calib.inputs import read_arrays
from keras_calib.metrics.base import StreamingMetric
from keras_calib.numerics import at_least
from keras_calib.numerics import logsumexp
from keras_calib.numerics import namespace
from keras_calib.numerics import safe_divide
from keras_calib.numerics import to_logits

__all__ = ["NLL", "NLLSummary", "nll"]


def nll(
    labels: Any,
    probs: Any,
    *,
    clip: float | None = None,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Negative log-likelihood of a whole data set, in float64.

    NLL = mean_n -log p_y; for soft labels the cross entropy.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        clip: Lower bound on probabilities, in (0, 1]; published tables clip
            at 1e-15 or 1e-12. None clips at 1e-37.
        from_logits: Whether `probs` are logits.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
        ignore_class: Class id that does not count.

    Returns:
        NLL in nats, >= 0.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(nll([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.5697

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 2, https://arxiv.org/abs/1706.04599
    """
    _check_clip(clip)
    read = read_arrays(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    losses = _losses(
        read.labels, read.outputs.astype("float64"), from_logits, clip
    )
    return float(np.average(losses, weights=read.weight))


def _check_clip(clip: float | None) -> None:
    if clip is not None:
        check_above("clip", clip, 0.0)
        check_at_most("clip", clip, 1.0)


def _losses(
    labels: Any, outputs: Any, from_logits: bool, clip: float | None
) -> Any:
    """-log p of ids `(n,)`, or cross entropy of soft labels (either)."""
    xp = namespace(outputs)
    if from_logits:
        log_p = outputs - logsumexp(outputs, keepdims=True)
    else:
        log_p = to_logits(outputs)
    if clip is not None:
        log_p = at_least(log_p, float(np.log(clip)))
    if len(labels.shape) > 1:
        return -xp.sum(labels * log_p, axis=-1)
    # An id that can not be is told elsewhere; here it must not break.
    index = xp.clip(labels, 0, log_p.shape[-1] - 1)
    chosen = xp.take_along_axis(log_p, xp.expand_dims(index, -1), axis=-1)
    return -xp.squeeze(chosen, axis=-1)


class NLLSummary:
    """Weighted sum of the losses and sum of the weights.

    Args:
        clip: Lower bound on probabilities, or None.
    """

    shape = (exact_sums.NUM_LIMBS, 2, 1)

    def __init__(self, clip: float | None):
        self.clip = clip

    def summarise(self, batch: Predictions) -> Any:
        """Limbs of the two sums."""
        losses = _losses(
            batch.labels, batch.outputs, batch.from_logits, self.clip
        )
        # Rounding can leave a loss of -1e-8; a sum must not run below 0.
        losses = ops.maximum(losses, 0.0)
        counted = ops.logical_and(
            batch.possible, ops.logical_not(ops.isnan(losses))
        )
        if batch.valid is not None:
            counted = ops.logical_and(counted, batch.valid)
        losses = ops.where(counted, losses, ops.zeros_like(losses))
        weight = ops.cast(counted, losses.dtype)
        if batch.weight is not None:
            weight = weight * batch.weight
        keys = ops.zeros_like(losses, dtype="int32")
        sums = [
            exact_sums.sum_by_key(
                values, keys, 1, scale=exact_sums.power_of_two_above(values)
            )
            for values in (weight * losses, weight)
        ]
        return ops.stack(sums, axis=1)


@keras.saving.register_keras_serializable(package="keras_calib")
class NLL(StreamingMetric):
    """Negative log-likelihood, streaming and exact.

    NLL = mean_n -log p_y; for soft labels the cross entropy.

    Args:
        clip: Lower bound on probabilities, in (0, 1]; published tables clip
            at 1e-15 or 1e-12. None, the default, clips only probabilities
            that are given, at 1e-37.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness` and
            `dtype` of `StreamingMetric`.

    Returns:
        From `result()`: a scalar in nats, >= 0; 0 before any sample.

    Raises:
        ValueError: If `clip` is not in (0, 1].

    Example:

    >>> metric = NLL()
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> round(float(metric.result()), 4)
    0.5697

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        section 2, https://arxiv.org/abs/1706.04599
    """

    def __init__(
        self, *, clip: float | None = None, name: str = "nll", **kwargs: Any
    ):
        _check_clip(clip)
        super().__init__(NLLSummary(clip), name=name, **kwargs)
        self.clip = clip

    def get_config(self):
        return {"clip": self.clip, **super().get_config()}

    def _value(self, sums, whole):
        total = exact_sums.to_float(sums)
        return safe_divide(total[0, 0], total[1, 0])
