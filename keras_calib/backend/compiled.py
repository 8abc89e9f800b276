"""What compiled code does in another way on each backend."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import backend
from keras import ops

__all__ = [
    "one_process",
    "sums_of_segments",
    "value_read_later",
    "values_of_host",
    "without_autograph",
]


def sums_of_segments(values: Any, keys: Any, num_keys: int) -> Any:
    """Sums `(num_keys,)` of integers over each key, which is < `num_keys`."""
    if not _has_bincount():
        return ops.segment_sum(values, keys, num_segments=num_keys)
    import tensorflow as tf

    # Several times as fast in a graph, and no slower under XLA.
    return tf.raw_ops.Bincount(arr=keys, size=num_keys, weights=values)


@functools.cache
def _has_bincount() -> bool:
    """Whether TensorFlow counts by the kernel that it made for CPUs."""
    if backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.config.list_logical_devices("GPU")


def values_of_host(
    function: Callable, arrays: list[Any], num_values: int
) -> Any:
    """Values `(num_values,)` of a function of NumPy arrays, in a graph.

    It returns None if this graph cannot call Python. Only TensorFlow graphs do.
    """
    if backend.backend() != "tensorflow" or not _calls_the_host():
        return None
    import tensorflow as tf

    values = tf.numpy_function(
        lambda *given: np.asarray(function(*given), "float32"),
        arrays,
        tf.float32,
    )
    values.set_shape((num_values,))
    return values


def _calls_the_host() -> bool:
    """Return whether the TensorFlow graph being traced may call Python.

    XLA cannot, nor can other machines. There is no public way to ask for XLA;
    it counts as there if TensorFlow does not say. Seen in TensorFlow 2.21:
    `GraphOrParentsInXlaContext`.
    """
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    if isinstance(
        strategy,
        tf.distribute.TPUStrategy
        | tf.distribute.experimental.ParameterServerStrategy,
    ):
        return False
    try:
        from tensorflow.python.ops import control_flow_util as util

        graph = tf.compat.v1.get_default_graph()
        return not util.GraphOrParentsInXlaContext(graph)
    except (ImportError, AttributeError):
        return False


def one_process() -> bool:
    """Return whether this process of JAX has all devices."""
    import jax

    return jax.process_count() == 1


@functools.cache
def value_read_later() -> type:
    """Return a class of values that JAX returns before they are computed.

    An object is made of a source, the index of the value and, for one of the
    values of a source, an array that a jitted function computes. The source
    gets it as `source.latest`, and `float` calls `source.read(index)`.
    """
    import jax

    @jax.tree_util.register_pytree_node_class
    class ValueReadLater:
        """A scalar that `float` computes."""

        def __init__(self, source, index, array=None):
            self.source, self.index, self.array = source, index, array

        def __float__(self):
            return self.source.read(self.index)

        def __array__(self, dtype=None, copy=None):
            return np.asarray(float(self), dtype)

        def tree_flatten(self):
            arrays = () if self.array is None else (self.array,)
            return arrays, (self.source, self.index)

        @classmethod
        def tree_unflatten(cls, fixed, arrays):
            made = cls(*fixed, *arrays)
            if arrays and isinstance(arrays[0], jax.Array):
                made.source.latest = arrays[0]
            return made

    return ValueReadLater


def without_autograph(function: Callable) -> Callable:
    """Keep `tf.function` from rewriting a function and all that it calls.

    That takes seconds, and finds nothing to change. The public
    `do_not_convert` would import TensorFlow on other backends; this is the
    mark that it leaves. Without it a trace is slower, not wrong.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function
