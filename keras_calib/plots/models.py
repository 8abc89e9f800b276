"""What a model predicts on a data set, for a display."""

from typing import Any
from typing import NamedTuple

import keras
import numpy as np

from keras_calib.numerics import to_numpy
from keras_calib.predictions.batches import predict_batches

__all__ = ["Predicted", "predicted", "seen"]


class Predicted(NamedTuple):
    """A data set with predictions, in arrays.

    Attributes:
        labels: As the data set has them, `(n, ...)`.
        outputs: What the model predicts, `(n, ..., num_classes)`.
        sample_weight: Weights, or None.
    """

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None


def predicted(
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
) -> Predicted:
    """Predictions on a data set that fit in memory."""
    parts = [
        (batch.labels, batch.outputs, batch.sample_weight)
        for batch in predict_batches(model, data, batch_size, steps)
    ]
    columns = zip(*parts, strict=True)
    return Predicted(
        *(
            None
            if column[0] is None
            else np.concatenate([to_numpy(part) for part in column])
            for column in columns
        )
    )


def seen(
    metric: keras.metrics.Metric,
    model: keras.Model,
    data: Any,
    batch_size: int = 32,
    steps: int | None = None,
) -> keras.metrics.Metric:
    """A metric that has seen what a model predicts, in fixed memory."""
    for batch in predict_batches(model, data, batch_size, steps):
        metric.update_state(
            batch.labels, batch.outputs, sample_weight=batch.sample_weight
        )
    return metric
