"""The whole batch, after a `tf.distribute` strategy has split it.

Without a strategy the batch is whole, and these functions return their
argument. On JAX it is one array, however it is laid out.
"""

from typing import Any

import keras
import numpy as np
from keras import backend, ops

from keras_calib.backend.errors import invalid, warn
from keras_calib.backend.keras_internals import backing_value
from keras_calib.backend.late import jax
from keras_calib.backend.late import tensorflow as tf


def num_processes() -> int:
    """Number of processes that train together by `keras.distribution`."""
    if backend.backend() != "jax":
        return 1
    return jax.process_count()


def is_chief() -> bool:
    """Whether this process, of several that train together, writes files."""
    if num_processes() == 1:
        return True
    return jax.process_index() == 0


def num_replicas() -> int:
    """Number of replicas that run this code in parallel, 1 outside a step."""
    context = _context()
    return 1 if context is None else context.num_replicas_in_sync


def sum_over_replicas(x: Any) -> Any:
    """Sum float tensors over the replicas, with a gradient."""
    context = _context()
    return x if context is None else context.all_reduce("sum", x)


def all_rows(x: Any) -> Any:
    """Gather the rows of all replicas, with a gradient."""
    context = _context()
    if context is None:
        return x
    dtype = backend.standardize_dtype(x.dtype)
    # Several workers cannot gather integers inside a gradient tape. float64
    # holds all integers below 2^53.
    floats = x if "float" in dtype else ops.cast(x, "float64")
    rows = context.all_gather(floats, axis=0)
    # Gathering loses the static shape.
    return ops.cast(ops.reshape(rows, (-1, *x.shape[1:])), dtype)


def own_rows(rows: Any, count: Any) -> Any:
    """Select the `count` rows of this replica from the result of `all_rows`."""
    context = _context()
    if context is None:
        return rows
    counts = context.all_gather(
        ops.reshape(ops.cast(count, "float64"), (1,)), axis=0
    )
    own = context.replica_id_in_sync_group
    before = ops.arange(context.num_replicas_in_sync) < own
    start = ops.sum(ops.where(before, counts, ops.zeros_like(counts)))
    start, count = ops.cast(start, "int32"), ops.cast(count, "int32")
    return rows[start : start + count]


def shared_by_replicas(model: Any, inputs: Any, count: int) -> Any:
    """Split inputs `(count, ...)` of `predict_on_batch` among replicas.

    Keras gives each replica the whole batch. Under `MirroredStrategy` the
    replicas get parts of equal size, padded with the last row.
    """
    if backend.backend() != "tensorflow":
        return inputs
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if not mirrored or replicas == 1:
        return inputs
    size = -(-count // replicas)
    # Every replica gets rows, and all get one shape, which compiles once.
    rows = np.minimum(np.arange(size * replicas), count - 1)

    def shared(x):
        x = ops.convert_to_tensor(x)
        parts = [tf.gather(x, part) for part in np.split(rows, replicas)]
        return strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    return keras.tree.map_structure(shared, inputs)


def warn_of_differences(model: Any) -> None:
    """Warn if replicas differ, for example in batch normalization."""
    if backend.backend() != "tensorflow":
        return
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return
    differ = []
    for variable in model.non_trainable_weights:
        if variable.aggregation == "sum":
            continue
        parts = strategy.experimental_local_results(variable.value)
        first, *others = (part.numpy() for part in parts)
        # Rounding errors are allowed.
        if not all(np.allclose(first, x, equal_nan=True) for x in others):
            differ.append(variable.path)
    if differ:
        warn(
            invalid(
                "Variables of the model differ between its replicas: what it "
                "predicts depends on which replica reads an example, and "
                "saved files hold the values of the first. Build "
                "`BatchNormalization(synchronized=True)`, or call "
                "`model.set_weights(model.get_weights())` before predicting "
                "and saving, which gives all of them those of the first",
                num_replicas=strategy.num_replicas_in_sync,
                differ=len(differ),
                first=differ[:3],
            )
        )


def assign_sum(variable: Any, value: Any) -> None:
    """Assign to a variable that is a sum over replicas, without rounding.

    TensorFlow would give each replica an equal share, and lose the remainder.
    Here the first replica gets all.
    """
    variable.assign(value)
    if backend.backend() != "tensorflow" or num_replicas() > 1:
        return
    parts = backing_value(variable)
    if not isinstance(parts, tf.distribute.DistributedValues):
        return
    value = tf.convert_to_tensor(value, parts.dtype)
    held = ops.convert_to_tensor(variable)
    # In a stateless scope the variable already holds the value.
    if tf.executing_eagerly() and not bool(tf.reduce_all(held == value)):
        for part in parts.values:
            part.assign(tf.zeros_like(value))
        parts.values[0].assign(value)


def _context() -> Any:
    """Replica context of TensorFlow, None without several replicas."""
    if backend.backend() != "tensorflow":
        return None
    context = tf.distribute.get_replica_context()
    several = context is not None and context.num_replicas_in_sync > 1
    return context if several else None
