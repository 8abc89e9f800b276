"""Values per training sample, read and changed at the samples of a batch."""

from typing import Any

from keras import backend
from keras import ops

from keras_calib.checks import invalid
from keras_calib.numerics import concrete

__all__ = ["add_at", "checked_index", "set_at", "unless_unknown"]


def checked_index(index: Any, num_samples: int) -> tuple[Any, Any]:
    """Numbers of samples that can be used, and which of them are right.

    Args:
        index: Whole numbers `(batch,)` or `(batch, 1)`.
        num_samples: How many samples there are.

    Returns:
        `(index, known)`: int32 `(batch,)` in [0, num_samples), 0 where it is
        not; and bool `(batch,)`.

    Raises:
        ValueError: In eager use, if a number is out of range.
    """
    index = ops.reshape(ops.convert_to_tensor(index), (-1,))
    index = ops.cast(index, "int32")
    known = ops.logical_and(index >= 0, index < num_samples)
    values = concrete(index)
    if values is not None and not concrete(ops.all(known)):
        raise ValueError(
            invalid(
                "`index` must hold numbers in [0, num_samples)",
                minimum=int(values.min()),
                maximum=int(values.max()),
                num_samples=num_samples,
            )
        )
    return ops.where(known, index, ops.zeros_like(index)), known


def add_at(record: Any, index: Any, values: Any) -> Any:
    """The record with values added at some samples, each as often as it comes.

    Args:
        record: Float tensor `(num_samples,)`.
        index: int32 `(batch,)`, in range.
        values: `(batch,)`.

    Returns:
        Tensor `(num_samples,)`.
    """
    values = ops.cast(values, record.dtype)
    if backend.backend() == "tensorflow":
        import tensorflow as tf

        places = ops.expand_dims(index, -1)
        return tf.tensor_scatter_nd_add(record, places, values)
    if backend.backend() == "jax":
        return record.at[index].add(values)
    return record.index_add(0, index, values)


def set_at(record: Any, index: Any, values: Any, chosen: Any) -> Any:
    """The record with new values at the chosen samples.

    Of samples that come more than once in a batch, the mean of their values.

    Args:
        record: Float tensor `(num_samples,)`.
        index: int32 `(batch,)`, in range.
        values: `(batch,)`.
        chosen: bool `(batch,)`: where False, nothing changes.

    Returns:
        Tensor `(num_samples,)`.
    """
    chosen = ops.cast(chosen, record.dtype)
    zeros = ops.zeros_like(record)
    times = ops.take(add_at(zeros, index, chosen), index)
    change = chosen * (ops.cast(values, record.dtype) - ops.take(record, index))
    return add_at(record, index, change / ops.maximum(times, 1.0))


def unless_unknown(known: Any, loss: Any) -> Any:
    """The loss, NaN if a number of a sample is out of range."""
    return ops.where(ops.all(known), loss, ops.full_like(loss, float("nan")))
