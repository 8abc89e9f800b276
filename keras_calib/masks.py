"""The mask that layers such as `Embedding(mask_zero=True)` attach."""

from typing import Any

import keras
from keras import ops

__all__ = ["keras_mask"]


class _Probe(keras.losses.Loss):
    """A loss of 1 everywhere: unreduced, Keras turns it into the mask."""

    def call(self, y_true, y_pred):
        return y_true


def keras_mask(y_pred: Any, axis: int) -> Any:
    """The mask of predictions, by way of Keras' public interface.

    Args:
        y_pred: Predictions `(batch, ..., num_classes)`, a tensor.
        axis: The axis of the classes, from the front.

    Returns:
        bool `(batch, ...)`, or None if there is no mask.
    """
    sizes = list(ops.shape(y_pred))
    del sizes[axis]
    ones = ops.ones(sizes, dtype="float32")
    probe = _Probe(name="mask", reduction="none", dtype="float32")
    mask = probe(ones, y_pred)
    return None if mask is ones else ops.cast(mask, "bool")
