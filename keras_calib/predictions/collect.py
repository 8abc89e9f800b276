"""Predictions of a model on a data set, for fits and for displays."""

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.readers import standardize_labels
from keras_calib.inputs.weights import weight_of_rows
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.hashing import sample_pixels
from keras_calib.predictions.batches import Batch
from keras_calib.predictions.batches import count_batches
from keras_calib.predictions.batches import predict_batches
from keras_calib.predictions.batches import with_progress
from keras_calib.predictions.outputs import to_model_logits

__all__ = [
    "Predicted",
    "labels_of",
    "predicted",
    "predicted_arrays",
    "predicted_batches",
    "seen",
]


class Predicted(NamedTuple):
    """A data set with predictions, in arrays.

    Labels `(n, ...)` as the data set has them, outputs `(n, ...,
    num_classes)`, and weights or None.
    """

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None


def predicted_batches(
    model: keras.Model,
    dataset: Iterable,
    reading: ReadOptions,
    *,
    pixels_per_image: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    steps: int | None = None,
    verbose: str | int = "auto",
) -> Iterator[tuple]:
    """Labels, logits and weights of a data set, batch by batch.

    Args:
        model: A Keras model.
        dataset: As in `batches_of`.
        reading: How the model is read.
        pixels_per_image: How many pixels of each image to keep, or None.
        seed: Seed of the choice of pixels.
        batch_size: Size of the batches of arrays.
        steps: Number of batches to use, or None for all.
        verbose: `"auto"`, 0, 1 or 2 as in Keras, for a progress bar.

    Returns:
        An iterator of `(labels, logits)` or `(labels, logits, weights)`, which
        raises ValueError at a batch without labels.
    """
    if steps is not None:
        check_integer("steps", steps, 1)
    if pixels_per_image is not None:
        check_integer("pixels_per_image", pixels_per_image, 1)
    total = count_batches(
        dataset,
        batch_size,
        steps,
        "`steps` must be given for a data set that does not end",
    )

    batches = predict_batches(model, dataset, batch_size, steps, reading.output)
    return (
        _chosen(
            to_numpy(labels_of(batch)),
            _logits(batch, reading),
            batch.sample_weight,
            reading.ignore_class,
            pixels_per_image,
            seed,
        )
        for batch in with_progress(batches, total, verbose)
    )


def predicted_arrays(
    model: keras.Model, dataset: Iterable, reading: ReadOptions, **options: Any
) -> Predicted:
    """`predicted_batches` of data that fit in memory.

    Raises ValueError if there is no batch, some have weights and some not, or
    shapes differ.
    """
    return _joined(predicted_batches(model, dataset, reading, **options))


def predicted(
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: Any = None,
) -> Predicted:
    """Outputs of a model on a data set that fit in memory, as they are."""
    return _joined(
        (labels_of(batch), batch.outputs, batch.sample_weight)
        for batch in predict_batches(model, data, batch_size, steps, output)
    )


def seen(
    metric: keras.metrics.Metric,
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: Any = None,
) -> keras.metrics.Metric:
    """A metric that has seen what a model predicts, in fixed memory."""
    for batch in predict_batches(model, data, batch_size, steps, output):
        metric.update_state(
            labels_of(batch), batch.outputs, sample_weight=batch.sample_weight
        )
    return metric


def labels_of(batch: Batch) -> Any:
    """The labels of a batch; ValueError if it has none."""
    if batch.labels is None:
        raise value_error(
            "`data` must give labels: a tuple of arrays (x, y), or "
            "batches of such tuples",
            y=None,
        )
    return batch.labels


def _joined(batches: Iterable[tuple]) -> Predicted:
    rows = [
        tuple(to_numpy(part) for part in batch if part is not None)
        for batch in batches
    ]
    shapes = {tuple(part.shape[1:] for part in row) for row in rows}
    if len(shapes) != 1:
        raise value_error(
            "`data` must have batches with labels of one shape, of "
            "which all have weights or none has",
            batches=len(rows),
            shapes=sorted(shapes)[:4],
        )
    columns = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
    return Predicted(*columns, *[None] * (3 - len(columns)))


def _logits(batch: Batch, reading: ReadOptions) -> np.ndarray:
    outputs, counts = batch.outputs, None
    if not reading.from_logits:
        counts = _where_it_counts(batch, reading.ignore_class)
    logits = to_numpy(to_model_logits(outputs, reading.from_logits, counts))
    if outputs.shape[-1] == 1:
        # Labels of such a model can be probabilities of the second class.
        logits = logits[..., 1:] - logits[..., :1]
    return logits


def _where_it_counts(batch: Batch, ignore_class: int | None) -> Any:
    """Where samples of a batch do, bool `(batch, ...)`; None if everywhere."""
    counts, lead = None, batch.outputs.shape[:-1]
    if batch.sample_weight is not None:
        weight = weight_of_rows(batch.sample_weight, lead)
        counts = weight.reshape(lead) > 0
    if ignore_class is not None:
        _, valid = standardize_labels(
            batch.labels,
            batch.outputs,
            ignore_class=ignore_class,
            names=("labels", "y_pred"),
            mask=counts,
        )
        valid = to_numpy(valid)
        counts = valid if counts is None else counts & valid
    return counts


def _chosen(
    labels: np.ndarray,
    logits: np.ndarray,
    weight: Any,
    ignore_class: int | None,
    pixels_per_image: int | None,
    seed: int,
) -> tuple:
    """The batch, or the chosen pixels of its images."""
    batch = (labels, logits) if weight is None else (labels, logits, weight)
    if pixels_per_image is None or logits.ndim < 3:
        return batch
    images, num_classes = len(logits), logits.shape[-1]
    logits = logits.reshape(images, -1, num_classes)
    soft = num_classes > 1 and labels.size == logits.size
    labels = labels.reshape(images, logits.shape[1], -1)
    ids = labels.argmax(-1) if soft else labels[..., 0]
    ids = ops.convert_to_tensor(ids.astype("int32"))
    valid = None if ignore_class is None else ops.not_equal(ids, ignore_class)
    places = to_numpy(sample_pixels(ids, valid, pixels_per_image, seed))
    rows = np.arange(images)[:, None]
    labels = labels if soft else labels[..., 0]
    chosen = (labels[rows, places], logits[rows, places])
    if weight is None:
        return chosen
    weight = to_numpy(weight)
    if weight.size == images * logits.shape[1]:
        weight = weight.reshape(images, -1)[rows, places]
    return *chosen, weight
