"""Feature maps of a layer inside a model, and logits computed from them.

The `call` of the layer is replaced, which works in any model and backend.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.numerics.arrays import shape_of
from keras_calib.predictions.outputs import reads_logits

__all__ = ["FeatureMaps"]


class FeatureMaps:
    """The feature maps of a classifier of images, and its logits.

    Arguments are those of `class_activation_maps`, and a batch of one image.
    """

    def __init__(
        self,
        model: keras.Model,
        image: np.ndarray,
        layer: str | keras.layers.Layer | None,
        from_logits: bool | None,
    ):
        if not model.built:
            raise value_error("`model` must be built", model=model.name)
        layers = dict.fromkeys(_layers_of(model))
        if layer is not None:
            layer = _layer_of(layers, layer)
            layers[layer] = None
        calls, outputs = _calls(model, image, list(layers))
        place = _last_map(calls) if layer is None else _last_of(layer, calls)
        self.model = model
        self.layer = calls[place][0]
        # Among the calls of this layer, as one may be called several times.
        self._call = [x for x, _ in calls[:place]].count(self.layer)
        self.channels_first = _channels_first(calls[: place + 1])
        self.num_classes = max(2, outputs.shape[-1])
        self._last = _last_activation(model, calls, outputs, from_logits)

    def read(self, images: np.ndarray) -> tuple[Any, Any]:
        """The feature maps and the logits of a batch, in the model's layout."""
        with _at_logits(self._last):
            calls, outputs = _calls(self.model, images, [self.layer])
        return ops.stop_gradient(calls[self._call][1]), outputs

    def outputs(self, images: np.ndarray, features: Any) -> Any:
        """The logits of the batch with its feature maps replaced by these."""
        call, count = self.layer.call, itertools.count()

        def given(*args, **kwargs):
            output = call(*args, **kwargs)
            return features if next(count) == self._call else output

        with _at_logits(self._last), _replaced(self.layer, "call", given):
            return _run(self.model, images)


def _layers_of(model: keras.Model) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _layers_of(layer)


def _layer_of(layers: dict, layer: Any) -> keras.layers.Layer:
    if isinstance(layer, keras.layers.Layer):
        return layer
    if not isinstance(layer, str):
        raise type_error(
            "`layer` must be a layer or the name of one", layer=layer
        )
    named = [x for x in layers if x.name == layer]
    if len(named) != 1:
        raise value_error(
            "`layer` must be the name of one layer of the model",
            layer=layer,
            **{"layers of that name": len(named)},
        )
    return named[0]


def _is_map(output: Any) -> bool:
    return len(getattr(output, "shape", ())) == 4


def _last_map(calls: list) -> int:
    """Place of the last call that returns a map."""
    for place in reversed(range(len(calls))):
        layer, output = calls[place]
        # Maps pooled to 1 x 1 have no places, and after a layer that moves
        # axes the channels can be anywhere.
        moved = isinstance(layer, keras.layers.Permute)
        if _is_map(output) and not moved and sorted(output.shape[1:])[1] > 1:
            return place
    raise value_error(
        "`layer` must be given: no layer of the model returns maps larger "
        "than 1 x 1",
        layer=None,
    )


def _last_of(layer: keras.layers.Layer, calls: list) -> int:
    """Place of the last call of a layer, which must return a map."""
    places = [i for i, (called, _) in enumerate(calls) if called is layer]
    if not places:
        raise value_error(
            "`layer` must be a layer of the model that its call uses",
            layer=layer,
        )
    features = calls[places[-1]][1]
    if not _is_map(features):
        raise value_error(
            "`layer` must return maps of shape (batch, height, width, "
            "channels) or (batch, channels, height, width)",
            layer=layer,
            output=keras.tree.map_structure(shape_of, features),
        )
    return places[-1]


def _channels_first(calls: list) -> bool:
    """Whether channels come first, by the last layer that says so."""
    formats = [keras.config.image_data_format()]
    for layer, _ in calls:
        formats.append(getattr(layer, "data_format", None) or formats[-1])
    return formats[-1] == "channels_first"


def _last_activation(
    model: keras.Model, calls: list, outputs: Any, from_logits: bool | None
) -> keras.layers.Layer | None:
    """The layer whose softmax or sigmoid follows the logits, or None."""
    # The first such layer, as later ones, such as dropout, pass it through.
    last = next((layer for layer, x in calls if x is outputs), None)
    activation = getattr(last, "activation", None)
    one_output = outputs.shape[-1] == 1
    if (
        isinstance(last, keras.layers.Softmax)
        or isinstance(activation, keras.layers.Softmax)
        or activation is keras.activations.softmax
        or (one_output and activation is keras.activations.sigmoid)
    ):
        if from_logits:
            raise value_error(
                "`from_logits` must be False or None for a model that "
                "ends in softmax or sigmoid",
                from_logits=from_logits,
                layer=getattr(last, "name", None),
            )
        return last
    linear = activation is keras.activations.linear
    if (from_logits is None and linear) or reads_logits(model, from_logits):
        return None
    raise value_error(
        "the model must return logits, or end in a layer whose activation "
        "is softmax, or sigmoid for one output: probabilities alone do "
        "not say what the logits are",
        **{"last layer": getattr(last, "name", None)},
    )


def _at_logits(last: keras.layers.Layer | None) -> Any:
    if last is None:
        return contextlib.nullcontext()
    if isinstance(last, keras.layers.Softmax):
        return _replaced(last, "call", lambda inputs, *_, **__: inputs)
    return _replaced(last, "activation", keras.activations.linear)


def _run(model: keras.Model, images: np.ndarray) -> Any:
    # The scope discards changes of state and losses of layers.
    with keras.StatelessScope():
        outputs = model(ops.convert_to_tensor(images), training=False)
    if isinstance(outputs, list | tuple) and len(outputs) == 1:
        outputs = outputs[0]
    if len(getattr(outputs, "shape", ())) != 2:
        raise value_error(
            "the model must have one output of shape (batch, num_classes)",
            outputs=keras.tree.map_structure(shape_of, outputs),
        )
    return outputs


def _calls(
    model: keras.Model, images: np.ndarray, layers: list
) -> tuple[list[tuple[keras.layers.Layer, Any]], Any]:
    """Calls of these layers with their outputs, in order; model outputs."""
    calls: list = []
    with contextlib.ExitStack() as stack:
        for layer in layers:
            recorded = _recorded(layer, calls)
            stack.enter_context(_replaced(layer, "call", recorded))
        return calls, _run(model, images)


def _recorded(layer: keras.layers.Layer, calls: list) -> Callable:
    call = layer.call

    def recorded(*args, **kwargs):
        output = call(*args, **kwargs)
        calls.append((layer, output))
        return output

    return recorded


@contextlib.contextmanager
def _replaced(thing: Any, name: str, value: Any) -> Iterator[None]:
    own, old = name in vars(thing), getattr(thing, name)
    setattr(thing, name, value)
    try:
        yield
    finally:
        if own:
            setattr(thing, name, old)
        else:
            delattr(thing, name)
