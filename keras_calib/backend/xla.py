"""Functions that TensorFlow compiles by XLA inside a graph."""

import functools
from collections.abc import Callable
from typing import Any

from keras import backend

__all__ = ["compiled_by_xla", "run_by_xla"]


@functools.cache
def compiled_by_xla(fn: Callable) -> Callable:
    """`fn(labels, logits, **options)` as XLA clusters on TensorFlow.

    Only logits have a gradient. It starts anew from them, so that nothing else
    is kept between the two clusters. On other backends it returns `fn`.
    """
    if backend.backend() != "tensorflow":
        return fn
    import tensorflow as tf

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
    if backend.backend() != "tensorflow" or not only_if:
        return fn(*arguments)
    import tensorflow as tf

    if tf.executing_eagerly():
        return fn(*arguments)
    # Made anew for each graph, which keeps it.
    return tf.function(fn, jit_compile=True, autograph=False)(*arguments)
