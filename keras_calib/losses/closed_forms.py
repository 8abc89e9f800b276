"""Losses of the softmax whose gradient is written by hand: one home.

A closed form takes fewer passes over the logits than automatic
differentiation, and keeps the digits that a saturated softmax would lose.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_calib.backend.gradients import with_gradient
from keras_calib.numerics.arrays import at_least_float32
from keras_calib.numerics.arrays import labels_like
from keras_calib.numerics.softmax import SoftmaxParts
from keras_calib.numerics.softmax import softmax_parts

__all__ = ["flat_rows", "of_softmax", "through_true_class"]


def of_softmax(labels: Any, logits: Any, closed_form: Callable) -> Any:
    """Losses `(...)` with their gradient, computed in float32 or wider.

    Derivation: docs/derivations.md, 'Gradients of the losses'.

    Args:
        labels: Labels `(..., num_classes)`.
        logits: Logits `(..., num_classes)`.
        closed_form: Maps labels and `SoftmaxParts` to the losses `(...)` and a
            function that returns their derivative `(..., num_classes)`.
    """
    logits = at_least_float32(logits)
    labels = labels_like(labels, logits)
    return with_gradient(
        lambda z: closed_form(labels, softmax_parts(z)), logits
    )


def through_true_class(labels: Any, parts: SoftmaxParts, slope: Any) -> Any:
    """The derivative by the logits, from `slope` by log p_y `(...)`."""
    return (labels - parts.probs) * ops.expand_dims(slope, -1)


def flat_rows(labels: Any, logits: Any, sample_weight: Any) -> tuple:
    """Labels, logits and weights (ones for None) of a batch without axes."""
    logits = at_least_float32(logits)
    labels, num_classes = labels_like(labels, logits), logits.shape[-1]
    labels = ops.reshape(labels, (-1, num_classes))
    logits = ops.reshape(logits, (-1, num_classes))
    if sample_weight is None:
        return labels, logits, ops.ones_like(logits[:, 0])
    weight = ops.cast(ops.reshape(sample_weight, (-1,)), logits.dtype)
    return labels, logits, weight
