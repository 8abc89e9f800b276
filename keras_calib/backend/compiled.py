"""What compiled code does in another way on each backend, XLA included."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.backend.late import jax, keras_module, torch
from keras_calib.backend.late import tensorflow as tf

backend = keras_module("keras.backend")
ops = keras_module("keras.ops")


def exact_products(function: Callable) -> Callable:
    """A function whose products and convolutions JAX does not round.

    By default it rounds their factors to 10 bits on GPUs, for speed. On torch
    and TensorFlow only the program can choose that, not an operation, and
    `docs/devices.md` says how.
    """

    @functools.wraps(function)
    def exact(*args: Any, **kwargs: Any) -> Any:
        if backend.backend() != "jax":
            return function(*args, **kwargs)
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return exact


def sums_of_segments(values: Any, keys: Any, num_keys: int) -> Any:
    """Sums `(num_keys,)` of integers over each key, which is < `num_keys`."""
    if not _has_bincount():
        return ops.segment_sum(values, keys, num_segments=num_keys)
    # Several times as fast in a graph, and no slower under XLA.
    return tf.raw_ops.Bincount(arr=keys, size=num_keys, weights=values)


def float_sums_of_segments(values: Any, keys: Any, num_keys: Any) -> Any:
    """Sums `(num_keys,)` of floats over each key, in their own dtype.

    They are constants to automatic differentiation.
    """
    if backend.backend() == "torch":
        # ops.segment_sum and ops.bincount add in float32, whatever the dtype.
        sums = values.new_zeros((int(num_keys),))
        return sums.index_add(0, keys, values)
    if _has_bincount():
        # Twenty times as fast in a graph. It has no gradient.
        return tf.raw_ops.Bincount(arr=keys, size=num_keys, weights=values)
    return ops.segment_sum(values, keys, num_segments=num_keys)


def subtract_at(x: Any, ids: Any, amount: Any) -> Any:
    """Rows `(..., n)` minus an amount at the place `(...)` of each row."""
    places = ops.expand_dims(ids, -1)
    if backend.backend() == "torch":
        # Its one-hot rows are integers of 64 bits first.
        amount = torch.as_tensor(amount, dtype=x.dtype, device=x.device)
        amount = amount.expand(places.shape)
        return x.scatter_add(-1, places.long(), -amount)
    rows = ops.one_hot(
        ids, x.shape[-1], dtype=backend.standardize_dtype(x.dtype)
    )
    return x - amount * rows


def take_at(x: Any, ids: Any) -> Any:
    """Entries `(...)` of rows `(..., n)` at places `(...)` (array-agnostic)."""
    if isinstance(x, np.ndarray):
        # Of two axes, as it makes places of all others.
        flat, places = x.reshape(-1, x.shape[-1]), ids.reshape(-1, 1)
        return np.take_along_axis(flat, places, axis=-1).reshape(ids.shape)
    if backend.backend() == "tensorflow":
        # One operation; those of Keras take twenty times as long, eagerly.
        ids = ops.cast(ids, "int32")
        return tf.gather(x, ids, axis=-1, batch_dims=len(ids.shape))
    found = ops.take_along_axis(x, ops.expand_dims(ids, -1), axis=-1)
    return ops.squeeze(found, axis=-1)


@functools.cache
def _has_bincount() -> bool:
    """Whether TensorFlow counts by the kernel that it made for CPUs."""
    is_tensorflow = backend.backend() == "tensorflow"
    return is_tensorflow and not tf.config.list_logical_devices("GPU")


def read_later(
    owner: Any, name: str, read: Callable, state: Callable
) -> dict[str, Any] | None:
    """Return a dict that a step may return in place of values of a metric.

    Its `items()` are computed when they are read outside of compiled code, by
    `read(owner, name, array)`. On JAX the array is that of `state()`, which the
    step computes. TensorFlow's variables can be read at any time; there it is
    None.

    It returns None where that would not work: on torch, which compiles nothing
    here, and with several processes.
    """
    if backend.backend() == "jax":
        if jax.process_count() > 1:
            return None
    elif backend.backend() == "tensorflow":
        strategy = tf.distribute.get_strategy()
        local = tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy
        if tf.distribute.has_strategy() and not isinstance(strategy, local):
            return None
    else:
        return None
    classes = _CLASSES.setdefault(owner, {})
    if name not in classes:
        classes[name] = _class_of(owner, name, read)
    made = classes[name]()
    if backend.backend() == "jax":
        made["state"] = state()
    return made


# TensorFlow makes new objects of the class alone, so each owner has its own,
# for each name.
_CLASSES: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _class_of(owner: Any, name: str, read: Callable) -> type:
    found = weakref.ref(owner)

    class ReadLater(dict):
        """A dict whose items are computed when they are read."""

        def __missing__(self, key):
            return dict(self.items())[key]

        def __bool__(self):
            return True

        def __float__(self):
            # A metric of one value, in a loop around a step of Keras.
            values = [value for _, value in self.items()]
            if len(values) != 1:
                raise TypeError(f"{len(values)} values are not a number")
            return values[0]

        def items(self):
            owner = found()
            if owner is None or _is_tracing():
                return super().items()
            return read(owner, name, self.get("state")).items()

    if backend.backend() == "jax":
        jax.tree_util.register_pytree_node(
            ReadLater,
            lambda made: ((made["state"],), None),
            lambda _, states: ReadLater(state=states[0]),
        )
    return ReadLater


def _is_tracing() -> bool:
    """Whether TensorFlow traces a graph."""
    return backend.backend() == "tensorflow" and not tf.executing_eagerly()


def without_autograph(thing: Any) -> Any:
    """Keep `tf.function` from rewriting a function, or calls of a class.

    That takes seconds for all that is called in it, and finds nothing to
    change. The public `do_not_convert` would import TensorFlow on other
    backends; this is the mark that it leaves. Without it a trace is slower,
    not wrong. Seen in TensorFlow 2.21: `autograph_info__`.
    """
    thing.autograph_info__ = {}
    return thing


@functools.cache
def compiled_by_xla(fn: Callable) -> Callable:
    """`fn(labels, logits, **options)` as XLA clusters on TensorFlow.

    Only logits have a gradient. It starts anew from them, so that nothing else
    is kept between the two clusters. On other backends it returns `fn`.
    """
    if backend.backend() != "tensorflow":
        return fn

    @tf.function(jit_compile=True, autograph=False)
    def values(labels, logits, options):
        return fn(labels, logits, **options)

    @tf.function(jit_compile=True, autograph=False)
    def slopes(labels, logits, options, upstream):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = fn(labels, logits, **options)
        return tape.gradient(value, logits, output_gradients=upstream)

    def run(labels: Any, logits: Any, **options: Any) -> Any:
        @tf.custom_gradient
        def call(logits):
            def backward(upstream):
                return slopes(labels, logits, options, upstream)

            return values(labels, logits, options), backward

        return call(logits)

    return run


def run_by_xla(fn: Callable, *arguments: Any, only_if: bool = True) -> Any:
    """`fn(*arguments)` as an XLA cluster of a TensorFlow graph.

    It has no gradient. Outside of a graph, on other backends, and if `only_if`
    is False, it is a call.
    """
    if not only_if or not _is_tracing():
        return fn(*arguments)
    # Made anew for each graph, which keeps it.
    return tf.function(fn, jit_compile=True, autograph=False)(*arguments)
