"""Keras' own losses where replicas have parts of different sizes."""

from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.backend.replicas import num_replicas
from keras_calib.backend.replicas import sum_over_replicas

__all__ = ["mean_of_the_whole"]

_MEAN = "sum_over_batch_size"
_WEIGHTED = "mean_with_sample_weight"


def mean_of_the_whole(
    value: Any, loss: Any, y_pred: Any, sample_weight: Any
) -> Any:
    """A loss with the gradient of the mean over the whole batch.

    Keras takes the mean of the replicas' means. Losses of this library take
    the mean over all replicas by themselves, and stay as they are.

    Args:
        value: The replica's loss, a scalar.
        loss: What the model is compiled with: one loss, or a list or dict of
            losses of several outputs.
        y_pred: Predictions of this replica `(batch, ...)`, or several.
        sample_weight: Weights, or None.

    Returns:
        A scalar of the same value, which Keras averages with the right
        weights.

    Raises:
        ValueError: If a loss is not of this library and leaves labels out:
            how many it counts is not known here; or losses of several
            outputs are not all of this library, or do not all take the same
            mean.
    """
    if num_replicas() == 1:
        return value
    losses = [x for x in keras.tree.flatten(loss) if x is not None]
    spans = [getattr(x, "spans_replicas", False) for x in losses]
    if all(spans):
        return value
    for x in losses:
        if getattr(x, "ignore_class", None) is not None and not any(spans):
            raise ValueError(
                invalid(
                    "`ignore_class` of a loss of Keras gives a wrong mean "
                    "under several replicas: use a loss of keras_calib",
                    loss=getattr(x, "name", x),
                    ignore_class=x.ignore_class,
                )
            )
    means = {getattr(x, "reduction", _MEAN) for x in losses}
    means = {_MEAN if x == "mean" else x for x in means}
    several = len(keras.tree.flatten(y_pred)) > 1 and sample_weight is not None
    if any(spans) or len(means) > 1 or (several and means == {_WEIGHTED}):
        raise ValueError(
            invalid(
                "under several replicas losses of several outputs must all be "
                "of keras_calib, or all of Keras with one reduction, not over "
                "weights",
                losses=[getattr(x, "name", x) for x in losses],
            )
        )
    if means <= {None, "none", "sum"}:
        return value
    count = ops.cast(ops.shape(keras.tree.flatten(y_pred)[0])[0], "float32")
    if means == {_WEIGHTED} and sample_weight is not None:
        count = ops.sum(ops.cast(sample_weight, "float32"))
    share = ops.divide_no_nan(count, sum_over_replicas(count))
    factor = ops.cast(share * num_replicas(), value.dtype)
    # The value stays: Keras weighs what it shows by the sizes of the parts.
    return value + (factor - 1.0) * (value - ops.stop_gradient(value))
