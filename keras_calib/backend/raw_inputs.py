"""Raw inputs of a KerasHub task, prepared as its `predict` prepares them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import backend, ops

__all__ = ["preparation"]


def preparation(task: Any) -> Callable[[Any], Any] | None:
    """A function from a batch of raw inputs to what the network takes.

    It is None for a model that prepares nothing. KerasHub prepares texts and
    images in two ways: by TensorFlow's operators in a graph, which `predict`
    and files use, and by Python elsewhere. They differ for images of whole
    numbers, which Python rounds, and for rare texts, and Python refuses bytes
    that are no UTF-8. On TensorFlow this function uses the graph.
    """
    prepare = getattr(task, "preprocess_samples", None)
    if prepare is None:
        return None

    def network_inputs(raw):
        return keras.utils.unpack_x_y_sample_weight(prepare(raw))[0]

    if backend.backend() == "tensorflow":
        return _in_graph(network_inputs)
    return lambda raw: network_inputs(
        keras.tree.map_structure(_for_python, raw)
    )


def _in_graph(function: Callable) -> Callable[[Any], Any]:
    import tensorflow as tf

    def spec(x):
        # Batches and images of any size share one graph.
        sides = [None] * x.shape.rank
        if len(sides) > 1:
            sides[-1] = x.shape[-1]
        return tf.TensorSpec(sides, x.dtype)

    # Autograph would rewrite the preprocessor for nothing.
    compiled = tf.function(function, autograph=False)

    def prepared(raw):
        raw = keras.tree.map_structure(tf.convert_to_tensor, raw)
        specs = keras.tree.map_structure(spec, raw)
        return compiled.get_concrete_function(specs)(raw)

    return prepared


def _for_python(x: Any) -> Any:
    """Strings as a list, which all tokenizers take, and images as floats."""
    dtype = getattr(x, "dtype", None)
    if isinstance(x, np.ndarray) and x.dtype.kind in "OSU":
        return [v.decode() if isinstance(v, bytes) else v for v in x.tolist()]
    is_image = dtype is not None and len(x.shape) == 4
    if is_image and "int" in backend.standardize_dtype(dtype):
        return ops.convert_to_numpy(x).astype("float32")
    return x
