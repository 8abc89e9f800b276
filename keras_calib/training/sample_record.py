"""Reads and writes of a variable with one value per training sample."""

from typing import Any

from keras import backend, ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import in_stateless_scope
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.backend.replicas import num_replicas
from keras_calib.inputs.readers import narrowed_ids
from keras_calib.numerics.arrays import as_numbers, value_if_eager

__all__ = ["add_at", "checked_index", "read_at", "set_at", "unless_unknown"]


def checked_index(index: Any, num_samples: int) -> tuple[Any, Any]:
    """int32 numbers `(batch,)`, 0 if out of range, and which are in range.

    Raises ValueError in eager mode if one is out of range.
    """
    given = as_numbers(index, "index")
    index = ops.reshape(narrowed_ids(given, num_samples), (-1,))
    known = index >= 0
    # In a graph a constant has values, and what is computed of it has none.
    values, right = value_if_eager(given), value_if_eager(known)
    if values is not None and right is not None and not right.all():
        raise value_error(
            "`index` must hold numbers in [0, num_samples)",
            minimum=int(values.min()),
            maximum=int(values.max()),
            num_samples=num_samples,
        )
    return ops.where(known, index, ops.zeros_like(index)), known


def read_at(record: Any, index: Any) -> Any:
    """The values `(batch,)` of a variable at an int32 index in range."""
    if _changes_in_place(record):
        # Reading a whole variable that changes in place would copy it.
        return record.value.sparse_read(index)
    return ops.take(ops.convert_to_tensor(record), index)


def add_at(record: Any, index: Any, values: Any) -> None:
    """Adds values `(batch,)` at an index, in which numbers may repeat."""
    values = ops.cast(values, record.dtype)
    if _changes_in_place(record):
        record.value.scatter_add(tf.IndexedSlices(values, index))
    else:
        record.assign(_added(ops.convert_to_tensor(record), index, values))


def set_at(record: Any, index: Any, values: Any, chosen: Any) -> None:
    """Sets values where `chosen`; repeated samples get their mean."""
    chosen = ops.cast(chosen, record.dtype)
    change = ops.cast(values, record.dtype) - read_at(record, index)
    times = _sums_of_equals(index, chosen)
    add_at(record, index, chosen * change / ops.maximum(times, 1.0))


def _sums_of_equals(index: Any, values: Any) -> Any:
    """For each of a batch, the sum over all with the same number."""
    group = ops.searchsorted(ops.sort(index), index)
    return ops.take(_added(ops.zeros_like(values), group, values), group)


def _added(x: Any, index: Any, values: Any) -> Any:
    if backend.backend() == "tensorflow":
        return tf.tensor_scatter_nd_add(x, ops.expand_dims(index, -1), values)
    if backend.backend() == "jax":
        return x.at[index].add(values)
    return x.index_add(0, index, values)


def _changes_in_place(record: Any) -> bool:
    """Whether a few values change in place, as JAX does by itself."""
    if backend.backend() != "tensorflow" or num_replicas() > 1:
        return False
    value = record.value
    # A strategy of one replica mirrors the variable too.
    mirrored = isinstance(value, tf.distribute.DistributedValues)
    plain = isinstance(value, tf.Variable) and not mirrored
    return plain and not in_stateless_scope()


def unless_unknown(known: Any, loss: Any) -> Any:
    """The loss, or NaN if a number of a sample is out of range."""
    return ops.where(ops.all(known), loss, ops.full_like(loss, float("nan")))
