"""Predictions of a model on a data set, for fits and for displays."""

import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import TypeVar

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error
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
    "joined",
    "labels_of",
    "logits_of",
    "predicted",
    "predicted_arrays",
    "predicted_batches",
    "seen",
    "takes_data_set",
]

_R = TypeVar("_R")


class Predicted(NamedTuple):
    """A data set with predictions, in arrays."""

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None


def takes_data_set(fit_on: Callable[..., _R]) -> Callable[..., _R]:
    """Make a method of `model, dataset` say what to do with `model, x, y`."""

    @functools.wraps(fit_on)
    def checked(self: Any, *args: Any, **kwargs: Any) -> _R:
        if len(args) > 2:
            raise type_error(
                "`dataset` must hold inputs and labels together: pass the "
                "tuple `(x, y)`",
                arguments=[type(x).__name__ for x in args],
            )
        return fit_on(self, *args, **kwargs)

    return checked


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
    """Tuples of labels, logits and weights (if any), batch by batch.

    `pixels_per_image` pixels of each image are kept, drawn by `seed`; None
    keeps all. Other options are those of `batches_of` and `with_progress`.
    """
    if pixels_per_image is not None:
        check_integer("pixels_per_image", pixels_per_image, 1)
    total = count_batches(dataset, batch_size, steps)
    batches = predict_batches(model, dataset, batch_size, steps, reading.output)
    return (
        _chosen(batch, reading, pixels_per_image, seed)
        for batch in with_progress(batches, total, verbose)
    )


def predicted_arrays(
    model: keras.Model, dataset: Iterable, reading: ReadOptions, **options: Any
) -> Predicted:
    """`predicted_batches` of all data, in memory."""
    return joined(predicted_batches(model, dataset, reading, **options))


def predicted(
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
    output: Any = None,
) -> Predicted:
    """Outputs of a model on all data, in memory, without conversion."""
    return joined(
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
    """The metric, updated with a model's predictions in fixed memory."""
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


def joined(batches: Iterable[tuple]) -> Predicted:
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


def logits_of(batch: Batch, reading: ReadOptions) -> np.ndarray:
    """The logits of a batch of predictions, one channel for two classes."""
    outputs, counts = batch.outputs, None
    if not reading.from_logits:
        counts = _where_it_counts(batch, reading.ignore_class)
    logits = to_numpy(to_model_logits(outputs, reading.from_logits, counts))
    if outputs.shape[-1] == 1:
        # One-channel labels can be probabilities of the second class.
        logits = logits[..., 1:] - logits[..., :1]
    return logits


def _where_it_counts(batch: Batch, ignore_class: int | None) -> Any:
    """Mask of valid samples of a batch, bool `(batch, ...)`; None for all."""
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
    batch: Batch, reading: ReadOptions, pixels_per_image: int | None, seed: int
) -> tuple:
    """Labels, logits and weights of a batch, or of pixels of its images."""
    labels, logits = to_numpy(labels_of(batch)), logits_of(batch, reading)
    weight = batch.sample_weight
    if pixels_per_image is not None and logits.ndim > 2:
        images, num_classes = len(logits), logits.shape[-1]
        logits = logits.reshape(images, -1, num_classes)
        soft = num_classes > 1 and labels.size == logits.size
        labels = labels.reshape(images, logits.shape[1], -1)
        ids = labels.argmax(-1) if soft else labels[..., 0]
        labels = labels if soft else ids
        ids = ops.convert_to_tensor(ids.astype("int32"))
        valid = None
        if reading.ignore_class is not None:
            valid = ops.not_equal(ids, reading.ignore_class)
        places = to_numpy(sample_pixels(ids, valid, pixels_per_image, seed))
        rows = np.arange(images)[:, None]
        if weight is not None:
            weight = to_numpy(weight)
            if weight.size == images * logits.shape[1]:
                weight = weight.reshape(images, -1)[rows, places]
        labels, logits = labels[rows, places], logits[rows, places]
    return (labels, logits) if weight is None else (labels, logits, weight)
