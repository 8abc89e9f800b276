"""Outputs of several labels: logits of each, from models and data sets."""

from collections.abc import Iterable
from typing import Any

from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.weights import weight_of_rows
from keras_calib.predictions.batches import Batch
from keras_calib.predictions.collect import Predicted
from keras_calib.predictions.collect import joined
from keras_calib.predictions.collect import labels_of
from keras_calib.predictions.outputs import to_model_logits

__all__ = ["joined_batches", "label_logits", "labels_and_label_logits"]


def label_logits(outputs: Any, from_logits: bool, counts: Any = None) -> Any:
    """A model's outputs `(batch, ..., labels)` as logits of each label.

    A probability p becomes log(p / (1 - p)), as that of one output does. In
    eager mode values are checked where `counts` is True.
    """
    if from_logits:
        return ops.cast(outputs, "float32")
    outputs = ops.expand_dims(outputs, -1)
    pairs = to_model_logits(outputs, from_logits, counts)
    return pairs[..., 1] - pairs[..., 0]


def labels_and_label_logits(batch: Batch, reading: ReadOptions) -> tuple:
    """Labels, logits of each label and weights of a batch."""
    if reading.pixels_per_image is not None:
        raise value_error(
            "`pixels_per_image` must be None with several labels",
            pixels_per_image=reading.pixels_per_image,
        )
    outputs, weight, counts = batch.outputs, batch.sample_weight, None
    if weight is not None and not reading.from_logits:
        counts = weight_of_rows(weight, outputs.shape) > 0
        counts = counts.reshape(outputs.shape)
    logits = label_logits(outputs, bool(reading.from_logits), counts)
    return labels_of(batch), logits, weight


def joined_batches(batches: Iterable[tuple]) -> Predicted:
    """Labels, logits and weights of batches `(labels, logits[, weights])`."""
    rows = [(*batch, None)[:3] for batch in batches]
    if not rows:
        raise value_error("`labels` must hold a batch", batches=0)
    return joined(rows)
