"""Losses and confidences whose gradients are written by hand.

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

__all__ = [
    "correctness",
    "first_of_max",
    "flat_rows",
    "of_softmax",
    "probability_margin",
    "through_true_class",
    "top_probability",
]


def of_softmax(labels: Any, logits: Any, closed_form: Callable) -> Any:
    """Compute losses `(...)` with their gradient, in float32 or wider.

    `closed_form` maps labels and `SoftmaxParts` to the losses and to a function
    that returns their derivative `(..., num_classes)`.
    """
    logits = at_least_float32(logits)
    labels = labels_like(labels, logits)
    return with_gradient(
        lambda z: closed_form(labels, softmax_parts(z)), logits
    )


def through_true_class(labels: Any, parts: SoftmaxParts, slope: Any) -> Any:
    """Turn `slope`, the derivative by log p_y, into that by the logits."""
    return (labels - parts.probs) * ops.expand_dims(slope, -1)


def flat_rows(labels: Any, logits: Any, sample_weight: Any) -> tuple:
    """Flatten labels, logits and weights to rows; no weights become ones."""
    logits = at_least_float32(logits)
    labels, num_classes = labels_like(labels, logits), logits.shape[-1]
    labels = ops.reshape(labels, (-1, num_classes))
    logits = ops.reshape(logits, (-1, num_classes))
    if sample_weight is None:
        return labels, logits, ops.ones_like(logits[:, 0])
    weight = ops.cast(ops.reshape(sample_weight, (-1,)), logits.dtype)
    return labels, logits, weight


def correctness(labels: Any, logits: Any) -> Any:
    """Label of the predicted class `(...)`: 1 if correct, 0 if wrong."""
    return ops.stop_gradient(ops.sum(labels * first_of_max(logits), axis=-1))


def top_probability(logits: Any) -> Any:
    """Largest probability of each row `(...)`, in (0, 1]."""

    def forward(logits):
        probs = ops.softmax(logits, axis=-1)
        largest = ops.max(probs, axis=-1, keepdims=True)

        def gradient():
            # 1 - p as a sum: it does not cancel where p is nearly 1.
            first = first_of_max(logits)
            others = (1.0 - first) * probs
            rest = ops.sum(others, axis=-1, keepdims=True)
            return largest * (first * rest - others)

        return ops.squeeze(largest, axis=-1), gradient

    return with_gradient(forward, at_least_float32(logits))


def probability_margin(logits: Any) -> Any:
    """Largest minus second largest probability `(...)`, in [0, 1]."""
    probs = ops.softmax(at_least_float32(logits), axis=-1)
    top = ops.top_k(probs, 2)[0]
    return top[..., 0] - top[..., 1]


def first_of_max(x: Any) -> Any:
    """One-hot rows that mark the first of the largest entries."""
    return ops.one_hot(ops.argmax(x, axis=-1), x.shape[-1], dtype=x.dtype)
