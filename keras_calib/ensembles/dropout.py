"""Monte Carlo dropout: one network's mean prediction under several masks."""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import nested_layers
from keras_calib.ensembles.base import (
    Members,
    Predictor,
    check_classifier,
    input_structure,
    log_probs_of,
    serialized,
)
from keras_calib.inputs.checks import check_flag, check_integer
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.hashing import mixed, wrapped
from keras_calib.predictions.outputs import reads_logits

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
# Larger masks are computed in the graph, smaller ones are its constants.
_MOST_CONSTANTS = 2**16
# Value of a dropped unit under AlphaDropout: -alpha scale of SELU.
_SATURATED = -1.6732632423543772 * 1.0507009873554805
# One thread at a time replaces the `call` of layers.
_LOCK = threading.RLock()


@keras.saving.register_keras_serializable(package="keras_calib")
class MonteCarloDropout(Predictor):
    """Monte Carlo dropout: the mean prediction under several dropout masks.

    Use it to get the uncertainty of one trained network that has dropout
    layers, at the cost of `num_passes` predictions.

    output = log(1/T sum_t p(k | x, mask_t)), t = 1..T

    The output is normalised logits. Metrics and calibrators take it with
    `from_logits=True`; `SelectiveClassifier` and `export` take it as it is.

    In each pass every dropout layer drops as in training, also nested ones
    and those of `MultiHeadAttention`. All other layers run as at inference.
    The dropout inside recurrent layers and `keras.layers.Attention` stays
    off.

    Masks depend on seed, pass, layer and unit only. They are the same for all
    samples, on every backend and in an exported file. A layer that is used
    twice has the same mask twice. Some masks can be exported as a SavedModel,
    but not as ONNX or LiteRT: those per sample, of dimensions without a fixed
    size, or of more than 65,536 units.

    The predictor shares its weights with `model`, which you can train before
    or after.

    Args:
        model: A functional or sequential model with one output: logits or
            probabilities `(batch, ..., num_classes)`, or `(batch, ..., 1)`
            for the second of two classes, which become two.
        num_passes: Number of passes T, >= 1.
        seed: Seed of the masks, >= 0.
        per_sample: Whether each row of a batch has masks of its own, so that
            the errors of neighbours are independent.
        from_logits: Whether `model` returns logits. None takes it from the
            loss that it was compiled with.
        name: Name of the model.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If `model` has no fixed inputs, several outputs or no
            dropout layer with a rate > 0, `from_logits` is unknown, or a
            number is out of range.
        RuntimeError: On `fit`.

    Example:

    >>> import keras, keras_calib
    >>> import numpy as np
    >>> model = keras.Sequential(
    ...     [keras.Input((2,)), keras.layers.Dropout(0.5)]
    ... )
    >>> predictor = keras_calib.MonteCarloDropout(
    ...     model, num_passes=6, from_logits=True
    ... )
    >>> x = np.array([[1.0, 0.0]])
    >>> predictor.predict_each(x)[:, 0, 0].round(3)
    array([0.881, 0.5  , 0.5  , 0.5  , 0.881, 0.881], dtype=float32)
    >>> np.exp(predictor.predict(x, verbose=0)).round(3)
    array([[0.69, 0.31]], dtype=float32)

    Reference:
        Gal and Ghahramani, Dropout as a Bayesian Approximation: Representing
        Model Uncertainty in Deep Learning, ICML 2016, section 4,
        https://arxiv.org/abs/1506.02142

    Differs:
        The paper draws new masks for each sample. `per_sample=True` does so
        with a fixed seed.
    """

    def __init__(
        self,
        model: keras.Model,
        num_passes: int = 20,
        *,
        seed: int = 0,
        per_sample: bool = False,
        from_logits: bool | None = None,
        name: str = "monte_carlo_dropout",
    ):
        check_classifier(model, "model")
        check_integer("num_passes", num_passes, 1)
        check_integer("seed", seed, 0)
        check_flag("per_sample", per_sample)
        if not dropout_layers(model):
            raise value_error(
                "`model` must have a dropout layer with a rate > 0",
                model=model.name,
            )
        are_logits = reads_logits(model, from_logits)

        def answer(networks, member, inputs):
            layers = dropout_layers(networks[0])
            with masked(layers, (seed, member), per_sample):
                return log_probs_of(networks[0], inputs, are_logits)

        passes = _Passes([model], answer, num_passes, "passes")
        shares = np.full(num_passes, 1 / num_passes)
        super().__init__(input_structure(model), passes, shares, name)
        self._given = {
            "num_passes": num_passes,
            "seed": seed,
            "per_sample": per_sample,
            "from_logits": are_logits,
        }

    def get_config(self) -> dict:
        (model,) = self.get_layer("passes").layers
        return {"name": self.name, "model": serialized(model), **self._given}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        model = keras.saving.deserialize_keras_object(
            config["model"], custom_objects=custom_objects
        )
        return cls(**{**config, "model": model})


class _Passes(Members):
    """Passes. Saved weights are found by the name of this class."""


def dropout_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """All dropout layers of a model with a rate > 0, nested ones too."""
    return [
        layer
        for layer in nested_layers(model)
        if isinstance(layer, _KINDS) and layer.rate > 0
    ]


@contextlib.contextmanager
def masked(
    layers: list[keras.layers.Layer], seeds: tuple, per_sample: bool
) -> Iterator[None]:
    """Context in which each layer multiplies by the mask of its list position.

    Other threads find the layers unchanged.
    """
    thread = threading.get_ident()

    def masking(layer, usual, seeds):
        def call(inputs, *args, **kwargs):
            if threading.get_ident() == thread:
                return _dropped(layer, inputs, seeds, per_sample)
            return usual(inputs, *args, **kwargs)

        return call

    with _LOCK, contextlib.ExitStack() as stack:
        for i, layer in enumerate(layers):
            # A nested predictor may have replaced `call` already.
            if "call" in vars(layer):
                stack.callback(vars(layer).update, call=layer.call)
            else:
                stack.callback(vars(layer).pop, "call")
            vars(layer)["call"] = masking(layer, layer.call, (*seeds, i))
        yield


def _dropped(
    layer: keras.layers.Layer, inputs: Any, seeds: tuple, per_sample: bool
) -> Any:
    """Output of the layer in training, with one mask."""
    rate, shape = layer.rate, list(ops.shape(inputs))
    if isinstance(layer, _SPATIAL):
        first = getattr(layer, "data_format", None) == "channels_first"
        channel = 1 if first else len(shape) - 1
        noise = [None if i in (0, channel) else 1 for i in range(len(shape))]
    else:
        noise = getattr(layer, "noise_shape", None) or [None] * len(shape)
    sizes = zip(shape, noise, strict=True)
    shape = [n if size is None else size for n, size in sizes]
    if not per_sample:
        shape[0] = 1

    # Hashes of positions in the mask are the same on every backend.
    count = math.prod(shape)
    constant = isinstance(count, int) and count <= _MOST_CONSTANTS
    xp = np if constant else ops
    bits = xp.arange(count, dtype="int32")
    for key in np.random.SeedSequence(seeds).generate_state(2):
        bits = mixed(bits + wrapped(int(key)))

    def tensor(values):
        return ops.reshape(ops.cast(values, inputs.dtype), shape)

    if isinstance(layer, keras.layers.GaussianDropout):
        # Normal numbers by Box and Muller's method.
        angle = 2 * math.pi * _uniform(mixed(bits))
        normal = xp.sqrt(-2.0 * xp.log(_uniform(bits))) * xp.cos(angle)
        return inputs * tensor(1.0 + math.sqrt(rate / (1.0 - rate)) * normal)
    kept = xp.where(_uniform(bits) >= rate, np.float32(1), np.float32(0))
    if isinstance(layer, keras.layers.AlphaDropout):
        # Klambauer et al. 2017, section 3: mean and variance stay.
        scale = ((1 - rate) * (1 + rate * _SATURATED**2)) ** -0.5
        shift = scale * _SATURATED * (1.0 - kept - rate)
        return inputs * tensor(scale * kept) + tensor(shift)
    scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    return inputs * tensor(scale * kept)


def _uniform(bits: Any) -> Any:
    """Numbers in (0, 1), float32, from 23 bits of each hash."""
    xp = array_namespace(bits)
    low = xp.bitwise_and(bits, 2**23 - 1)
    low = low.astype("float32") if xp is np else xp.cast(low, "float32")
    return (low + 0.5) * np.float32(2.0**-23)
