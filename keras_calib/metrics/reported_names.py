"""Names under which Keras reports metrics, where two of them meet."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras

from keras_calib.backend.keras_internals import metrics_beside

__all__ = ["warn_of_shared_names"]


def warn_of_shared_names(table: Any, names: Sequence[str]) -> bool:
    """Warns where other metrics of a compiled model report under these names.

    Keras reports the values of a dict under its keys alone, whatever the
    output, and one of two values of a key overwrites the other.

    Args:
        table: A metric that returns a dict, during its first update.
        names: The keys of that dict.

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
        elif _is_plain_accuracy(metric) and _counts_all(table):
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


def _is_plain_accuracy(metric: Any) -> bool:
    return type(metric) in (
        keras.metrics.CategoricalAccuracy,
        keras.metrics.SparseCategoricalAccuracy,
    )


def _counts_all(table: Any) -> bool:
    """Whether a table counts what Keras' accuracy counts."""
    reading = table.reading
    return reading.ignore_class is None and not (
        reading.objectness or reading.pixels_per_image
    )
