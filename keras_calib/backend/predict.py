"""What `keras.Model.predict` does before a network, and drops behind it."""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import backend, ops

from keras_calib.backend.keras_internals import keras_mask, nested_layers
from keras_calib.backend.late import jax, torch
from keras_calib.backend.late import tensorflow as tf


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


_Reader = Callable[[Any], Any]
# Readers by model and name of the output: making one traces the model.
_READERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def mask_of_output(
    model: keras.Model, output: str | None, chosen: _Reader, inputs: Any
) -> Any:
    """The mask of an output for inputs, of the shape of `keras_mask`; or None.

    Compiled, it computes no more than the mask needs. A model of layers of
    Keras, none of which makes a mask, is not asked, nor one that had no mask
    before. No state of the model changes. `chosen` picks the output of this
    name from all.
    """
    if not isinstance(model, keras.Model):
        return None
    readers = _READERS.setdefault(model, {})
    if output not in readers:
        can = any(map(_may_mask, nested_layers(model)))
        readers[output] = _reader(weakref.ref(model), chosen) if can else None
    reader = readers[output]
    mask = None if reader is None else reader(inputs)
    if mask is None:
        readers[output] = None
    return mask


def makes_mask(model: keras.Model) -> bool:
    """Whether a layer of the model masks padding."""
    is_model = isinstance(model, keras.Model)
    return is_model and any(map(_masks, nested_layers(model)))


def _masks(layer: keras.layers.Layer) -> bool:
    is_masking = isinstance(layer, keras.layers.Masking)
    return is_masking or bool(getattr(layer, "mask_zero", False))


def _may_mask(layer: keras.layers.Layer) -> bool:
    known = type(layer).__module__.startswith(("keras.", "keras_calib."))
    is_lambda = isinstance(layer, keras.layers.Lambda)
    return _masks(layer) or is_lambda or not known


def _reader(reference: Callable[[], Any], chosen: _Reader) -> _Reader:
    def mask_of(outputs):
        outputs = chosen(outputs)
        return keras_mask(outputs, len(outputs.shape) - 1)

    def stateless(state, inputs):
        return mask_of(reference().predict_step(state, (inputs,))[0])

    def stateful(inputs):
        # The state of a recurrent layer or of a seed must not move on.
        with keras.StatelessScope():
            return mask_of(reference().predict_step((inputs,)))

    if backend.backend() == "torch":
        return torch.no_grad()(stateful)
    model = reference()
    if backend.backend() == "tensorflow":
        if model.run_eagerly:
            return stateful
        return tf.function(stateful, autograph=False, reduce_retracing=True)
    if not model.run_eagerly:
        stateless = jax.jit(stateless)

    def read(inputs):
        model = reference()
        variables = model.trainable_variables, model.non_trainable_variables
        state = tuple([x.value for x in part] for part in variables)
        return stateless(state, inputs)

    return read
