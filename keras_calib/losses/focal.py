"""The focal loss."""

from typing import Any

import keras
from keras import ops

from keras_calib.checks import check_at_least
from keras_calib.gradients import with_gradient
from keras_calib.losses.base import PerSampleLoss
from keras_calib.numerics import at_least
from keras_calib.numerics import at_least_float32
from keras_calib.numerics import softmax_parts

__all__ = ["FocalLoss", "focal_loss"]

_TINY = 1e-30


def focal_loss(labels: Any, logits: Any, *, gamma: float = 3.0) -> Any:
    """Cross entropy that fades for well-fitted classes, per sample.

    loss = -sum_k labels_k (1 - p_k)^gamma log p_k

    The gradient runs through (1 - p)^gamma.

    Args:
        labels: One-hot or soft labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        gamma: Exponent, >= 0; 0 is cross entropy.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, eq. 4,
        https://arxiv.org/abs/1708.02002
    """
    logits = at_least_float32(logits)
    labels = ops.cast(labels, logits.dtype)

    def forward(logits):
        parts = softmax_parts(logits)
        log_p = parts.shifted - ops.expand_dims(parts.log_total, -1)
        # 0 where p rounds to 1: the powers below must stay finite there.
        q = at_least(1.0 - parts.probs, _TINY)
        lower = _power(q, gamma - 1.0)
        faded = labels * lower * q
        value = -ops.sum(faded * log_p, axis=-1)

        def gradient():
            # d loss / d log p_k, then through the softmax.
            slope = gamma * labels * lower * parts.probs * log_p - faded
            total = ops.sum(slope, axis=-1, keepdims=True)
            return slope - parts.probs * total

        return value, gradient

    return with_gradient(forward, logits)


def _power(x: Any, exponent: float) -> Any:
    """x^exponent for x > 0; by products for small whole exponents."""
    if exponent in (1.0, 2.0, 3.0, 4.0):
        power = x
        for _ in range(int(exponent) - 1):
            power = power * x
        return power
    return ops.ones_like(x) if exponent == 0.0 else ops.power(x, exponent)


@keras.saving.register_keras_serializable(package="keras_calib")
class FocalLoss(PerSampleLoss):
    """Focal loss without class weights.

    Args:
        gamma: Exponent, >= 0; 0 is cross entropy. Defaults to `3.0`.
        name: Name of the loss.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `reduction` and
            `dtype` of `PerSampleLoss`.

    Returns:
        On call with labels `(batch, ...)` and predictions
        `(batch, ..., num_classes)`: the reduced loss, a scalar.

    Raises:
        ValueError: If `gamma` is negative.

    Example:

    >>> loss = FocalLoss(gamma=2.0, from_logits=True)
    >>> round(float(loss([0], [[1.0, 0.0]])), 4)
    0.0227

    Reference:
        Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, eq. 4,
        https://arxiv.org/abs/1708.02002; for calibration: Mukhoti et al.,
        Calibrating Deep Neural Networks using Focal Loss, NeurIPS 2020,
        https://arxiv.org/abs/2002.09437

    Differs:
        Mukhoti et al. train with the sum over the batch
        (`reduction="sum"`); the default here is the mean.
        `keras.losses.CategoricalFocalCrossentropy` multiplies by 0.25.
    """

    def __init__(
        self, gamma: float = 3.0, *, name: str = "focal_loss", **kwargs: Any
    ):
        check_at_least("gamma", gamma, 0.0)
        super().__init__(focal_loss, gamma=gamma, name=name, **kwargs)
