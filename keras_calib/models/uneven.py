"""Keras' own losses where replicas have parts of different sizes."""

from typing import Any

from keras import ops

from keras_calib.checks import invalid
from keras_calib.replicas import num_replicas
from keras_calib.replicas import sum_over_replicas

__all__ = ["mean_of_the_whole"]


def mean_of_the_whole(
    value: Any, loss: Any, y_pred: Any, sample_weight: Any
) -> Any:
    """A loss with the gradient of the mean over the whole batch.

    Keras takes the mean of the replicas' means. Losses of this library take
    the mean over all replicas by themselves, and stay as they are.

    Args:
        value: The replica's loss, a scalar.
        loss: What the model is compiled with.
        y_pred: Predictions of this replica `(batch, ...)`.
        sample_weight: Weights, or None.

    Returns:
        A scalar of the same value, which Keras averages with the right
        weights.

    Raises:
        ValueError: If `loss` is not of this library and leaves labels out:
            how many it counts is not known here.
    """
    if num_replicas() == 1 or getattr(loss, "spans_replicas", False):
        return value
    if getattr(loss, "ignore_class", None) is not None:
        raise ValueError(
            invalid(
                "`ignore_class` of a loss of Keras gives a wrong mean under "
                "several replicas: use a loss of keras_calib",
                loss=getattr(loss, "name", loss),
                ignore_class=loss.ignore_class,
            )
        )
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    if reduction in (None, "none", "sum"):
        return value
    count = ops.cast(ops.shape(y_pred)[0], "float32")
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        count = ops.sum(ops.cast(sample_weight, "float32"))
    share = ops.divide_no_nan(count, sum_over_replicas(count))
    factor = ops.cast(share * num_replicas(), value.dtype)
    # The value stays: Keras weighs what it shows by the sizes of the parts.
    return value + (factor - 1.0) * (value - ops.stop_gradient(value))
