"""Masks of dropout layers that are a function of a seed, and their use."""

import contextlib
import math
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.backend.keras_internals import nested_layers
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.hashing import mixed
from keras_calib.numerics.hashing import wrapped

__all__ = ["dropout_layers", "masked"]

_KINDS = (
    keras.layers.Dropout,
    keras.layers.GaussianDropout,
    keras.layers.AlphaDropout,
)
_SPATIAL = (
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)
# Masks of more numbers than this are computed where the model runs: of each
# pass they would be a constant of its graph.
_MOST_CONSTANTS = 2**16
# What a dropped unit becomes under AlphaDropout: -alpha scale of SELU.
_SATURATED = -1.6732632423543772 * 1.0507009873554805
# One thread at a time replaces what layers do.
_LOCK = threading.RLock()


def dropout_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Each dropout layer of a model with a rate > 0, inner ones too."""
    return [
        layer
        for layer in nested_layers(model)
        if isinstance(layer, _KINDS) and layer.rate > 0
    ]


@contextlib.contextmanager
def masked(
    layers: list[keras.layers.Layer], seeds: tuple, per_sample: bool
) -> Iterator[None]:
    """Within it each layer multiplies by the mask of its place in the list.

    For this thread alone; others find the layers as they were.

    Args:
        layers: Dropout layers.
        seeds: Whole numbers >= 0 that masks are a function of.
        per_sample: Whether the samples of a batch have masks of their own.
    """
    with _LOCK:
        before = [vars(layer).get("call") for layer in layers]
        try:
            for i, layer in enumerate(layers):
                vars(layer)["call"] = _in_this_thread(
                    layer.call, _masking(layer, (*seeds, i), per_sample)
                )
            yield
        finally:
            for layer, call in zip(layers, before, strict=True):
                if call is None:
                    vars(layer).pop("call", None)
                else:
                    vars(layer)["call"] = call


def _in_this_thread(usual: Callable, masking: Callable) -> Callable:
    thread = threading.get_ident()

    def call(inputs, *args, **kwargs):
        if threading.get_ident() == thread:
            return masking(inputs)
        return usual(inputs, *args, **kwargs)

    return call


def _masking(
    layer: keras.layers.Layer, seeds: tuple, per_sample: bool
) -> Callable:
    """What the layer does in training, with the mask of `seeds`."""
    rate = layer.rate

    def call(inputs):
        shape = _mask_shape(layer, inputs, per_sample)
        bits = _bits(shape, seeds)
        if isinstance(layer, keras.layers.GaussianDropout):
            factor = 1.0 + math.sqrt(rate / (1.0 - rate)) * _normal(bits)
            return inputs * _tensor(factor, shape, inputs.dtype)
        kept = _uniform(bits) >= rate
        kept = array_namespace(kept).where(kept, np.float32(1), np.float32(0))
        if isinstance(layer, keras.layers.AlphaDropout):
            # Klambauer et al. 2017, section 3: mean and variance stay.
            scale = ((1 - rate) * (1 + rate * _SATURATED**2)) ** -0.5
            shift = scale * _SATURATED * (1.0 - kept - rate)
            factor = _tensor(scale * kept, shape, inputs.dtype)
            return inputs * factor + _tensor(shift, shape, inputs.dtype)
        scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
        return inputs * _tensor(scale * kept, shape, inputs.dtype)

    return call


def _mask_shape(
    layer: keras.layers.Layer, inputs: Any, per_sample: bool
) -> tuple:
    """The shape of a mask, of numbers or, if they are open, of tensors."""
    # Of tensors where the static shape does not say.
    batch, *places = ops.shape(inputs)
    if isinstance(layer, _SPATIAL):
        first = getattr(layer, "data_format", None) == "channels_first"
        channel = 0 if first else len(places) - 1
        places = [n if i == channel else 1 for i, n in enumerate(places)]
    given = getattr(layer, "noise_shape", None)
    if given is not None:
        if len(given) != len(inputs.shape):
            raise ValueError(
                invalid(
                    "`noise_shape` of a dropout layer must have the axes of "
                    "its inputs",
                    noise_shape=given,
                    inputs=shape_of(inputs),
                    layer=layer.name,
                )
            )
        batch = batch if given[0] is None else given[0]
        places = [
            n if size is None else size
            for n, size in zip(places, given[1:], strict=True)
        ]
    return (batch if per_sample else 1, *places)


def _bits(shape: tuple, seeds: tuple) -> Any:
    """Hashes of the places of a mask, int32, flat.

    Of places alone: the same on every backend, wherever it is computed.
    """
    count = math.prod(shape)
    constant = isinstance(count, int) and count <= _MOST_CONSTANTS
    places = (np if constant else ops).arange(count, dtype="int32")
    keys = np.random.SeedSequence(seeds).generate_state(2)
    for key in keys:
        places = mixed(places + wrapped(int(key)))
    return places


def _uniform(bits: Any) -> Any:
    """Numbers in (0, 1), float32, of 23 bits of each."""
    xp = array_namespace(bits)
    low = xp.bitwise_and(bits, 2**23 - 1)
    low = low.astype("float32") if xp is np else xp.cast(low, "float32")
    return (low + 0.5) * np.float32(2.0**-23)


def _normal(bits: Any) -> Any:
    """Standard normal numbers, float32, by Box and Muller's method."""
    xp = array_namespace(bits)
    angle = 2 * math.pi * _uniform(mixed(bits))
    return xp.sqrt(-2.0 * xp.log(_uniform(bits))) * xp.cos(angle)


def _tensor(values: Any, shape: tuple, dtype: Any) -> Any:
    return ops.reshape(ops.cast(values, dtype), shape)
