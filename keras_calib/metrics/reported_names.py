"""Names under which Keras reports metrics, where two of them meet."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_calib.backend.keras_internals import metrics_beside

__all__ = ["warn_of_shared_names"]


def warn_of_shared_names(table: Any, names: Sequence[str], y_pred: Any) -> bool:
    """Warns where other metrics of a compiled model report under these names.

    Keras reports the values of a dict under its keys alone, whatever the
    output, and one of two values of a key overwrites the other.

    Args:
        table: A metric that returns a dict, during its first update.
        names: The keys of that dict.
        y_pred: What it is updated with.

    Returns:
        Whether a compiled model makes this update, so that there was
        something to compare with.
    """
    beside = metrics_beside(table)
    weighted = any(w for metric, _, w in beside if metric is table)
    shared = set()
    for metric, output, sees_weights in beside:
        if metric is table:
            continue
        if type(metric) is type(table):
            others = metric.reported_names
        elif _is_same_accuracy(metric, table, y_pred):
            # The same value: nothing is lost.
            others = () if sees_weights == weighted else (metric.name,)
        else:
            others = (f"{output}_{metric.name}" if output else metric.name,)
        shared |= {*others} & {*names}
    if shared:
        warnings.warn(
            f"`{table.name}` and another metric of the model both report "
            f"{sorted(shared)}: Keras shows one of the values and drops the "
            'other. Give one of them other names: `prefix="..."` of '
            "`CalibrationMetrics`, `name` of another metric",
            RuntimeWarning,
            stacklevel=3,
        )
    return bool(beside)


def _is_same_accuracy(metric: Any, table: Any, y_pred: Any) -> bool:
    """Whether a metric of Keras gives the accuracy of a table."""
    reading = table.options
    if reading.ignore_class is not None or (
        reading.objectness or reading.pixels_per_image
    ):
        return False
    if type(metric) is keras.metrics.BinaryAccuracy:
        # Of one unit, the probability of the second class.
        one = tuple(getattr(y_pred, "shape", ()))[-1:] == (1,)
        return one and not reading.from_logits and metric.threshold == 0.5
    return type(metric) in (
        keras.metrics.CategoricalAccuracy,
        keras.metrics.SparseCategoricalAccuracy,
    )
