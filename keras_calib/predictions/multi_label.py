"""Outputs of several labels: logits of each, from models and data sets."""

from collections.abc import Iterable
from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.options import ReadOptions
from keras_calib.predictions.batches import count_batches
from keras_calib.predictions.batches import predict_batches
from keras_calib.predictions.batches import with_progress
from keras_calib.predictions.collect import Predicted
from keras_calib.predictions.collect import joined
from keras_calib.predictions.collect import labels_of
from keras_calib.predictions.outputs import to_model_logits

__all__ = ["joined_batches", "label_logits", "predicted_labels"]


def label_logits(outputs: Any, from_logits: bool) -> Any:
    """A model's outputs `(batch, ..., labels)` as logits of each label.

    A probability p becomes log(p / (1 - p)), as that of one output does. In
    eager mode values are checked.
    """
    if from_logits:
        return ops.cast(outputs, "float32")
    pairs = to_model_logits(ops.expand_dims(outputs, -1), from_logits)
    return pairs[..., 1] - pairs[..., 0]


def predicted_labels(
    model: keras.Model,
    dataset: Iterable,
    reading: ReadOptions,
    *,
    batch_size: int = 32,
    steps: int | None = None,
    verbose: str | int = "auto",
) -> Predicted:
    """Labels, logits of each label and weights of a data set, in memory."""
    total = count_batches(dataset, batch_size, steps)
    batches = predict_batches(model, dataset, batch_size, steps, reading.output)
    return joined(
        (
            labels_of(batch),
            label_logits(batch.outputs, bool(reading.from_logits)),
            batch.sample_weight,
        )
        for batch in with_progress(batches, total, verbose)
    )


def joined_batches(batches: Iterable[tuple]) -> Predicted:
    """Labels, logits and weights of batches `(labels, logits[, weights])`."""
    rows = [(*batch, None)[:3] for batch in batches]
    if not rows:
        raise value_error("`labels` must hold a batch", batches=0)
    return joined(rows)
