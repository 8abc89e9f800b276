"""Confidences to train on: gradients run to the first of tied classes."""

from typing import Any

from keras import ops

from keras_calib.backend.gradients import with_gradient
from keras_calib.numerics.arrays import at_least_float32

__all__ = [
    "correctness",
    "probability_margin",
    "top_probability",
]


def correctness(labels: Any, logits: Any) -> Any:
    """Label of the predicted class `(...)`: 1 if right, 0 if wrong."""
    return ops.stop_gradient(ops.sum(labels * _first_of_max(logits), axis=-1))


def top_probability(logits: Any) -> Any:
    """Largest probability of each row `(...)`, in (0, 1]."""

    def forward(logits):
        probs = ops.softmax(logits, axis=-1)
        largest = ops.max(probs, axis=-1, keepdims=True)

        def gradient():
            # 1 - p as a sum: it does not cancel where p is nearly 1.
            first = _first_of_max(logits)
            others = (1.0 - first) * probs
            rest = ops.sum(others, axis=-1, keepdims=True)
            return largest * (first * rest - others)

        return ops.squeeze(largest, axis=-1), gradient

    return with_gradient(forward, at_least_float32(logits))


def probability_margin(logits: Any) -> Any:
    """Largest less second largest probability `(...)`, in [0, 1]."""

    def forward(logits):
        probs = ops.softmax(logits, axis=-1)
        first = _first_of_max(logits)
        others = probs - 2.0 * first
        largest = ops.max(probs, axis=-1, keepdims=True)
        second = ops.max(others, axis=-1, keepdims=True)

        def gradient():
            to_first = largest * (first - probs)
            return to_first - second * (_first_of_max(others) - probs)

        return ops.squeeze(largest - second, axis=-1), gradient

    return with_gradient(forward, at_least_float32(logits))


def _first_of_max(x: Any) -> Any:
    """One-hot rows at the first of the largest entries."""
    return ops.one_hot(ops.argmax(x, axis=-1), x.shape[-1], dtype=x.dtype)
