"""Base classes of predictors that average several networks or passes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, type_error, value_error
from keras_calib.backend.keras_internals import keras_mask, set_keras_mask
from keras_calib.backend.progress import level_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import logsumexp
from keras_calib.predictions.outputs import to_model_logits


def check_classifier(model: Any, name: str) -> None:
    """Raises unless `model` is a model with fixed inputs and one output."""
    if not isinstance(model, keras.Model):
        raise type_error(
            f"`{name}` must be a Keras model", **{name: type(model).__name__}
        )
    if not getattr(model, "inputs", None):
        raise value_error(
            f"`{name}` must have fixed inputs: a functional model, or a "
            "sequential one that is built. Wrap a subclass of `keras.Model`: "
            "`inputs = keras.Input(shape)`, then `keras.Model(inputs, "
            "model(inputs))`",
            **{name: type(model).__name__},
        )
    if len(model.outputs) != 1:
        raise value_error(
            f"`{name}` must have one output; choose the one to use: "
            "`keras.Model(model.inputs, model.outputs[0])`",
            outputs=len(model.outputs),
        )


def input_structure(model: keras.Model) -> Any:
    """The symbolic inputs of a model, in the structure that it takes."""
    # A sequential model that was never called has inputs but no `input`.
    sequential = isinstance(model, keras.Sequential)
    return model.inputs[0] if sequential else model.input


def log_probs_of(model: keras.Model, inputs: Any, from_logits: bool) -> Any:
    """Inference log p of every class `(batch, ..., num_classes)`."""
    # Some models return their one output in a dict or list.
    (outputs,) = keras.tree.flatten(model(inputs, training=False))
    logits = to_model_logits(outputs, from_logits, name="outputs")
    found = ops.log_softmax(logits, axis=-1)
    set_keras_mask(found, keras_mask(outputs, len(found.shape) - 1))
    return found


def serialized(model: keras.Model) -> dict:
    """A model's configuration without its compile configuration.

    With it a custom loss would keep the predictor from being loaded.
    """
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    return config


def _uncompiled(model: keras.Model) -> keras.Model:
    """The same layers without an optimizer, which files would hold too."""
    structure = input_structure(model)
    bare = keras.Model(structure, model.outputs[0], name=model.name)
    # A model of another class may do more than its layers.
    known = type(model) in (keras.Sequential, type(bare))
    return bare if known else model


class Members(keras.layers.Layer):
    """log p of each member, stacked on the axis after the batch.

    `answer` maps networks, the number of a member and inputs to its log p
    `(batch, ..., num_classes)`.
    """

    def __init__(
        self, models: list, answer: Callable, num_members: int, name: str
    ):
        # Networks cast their inputs as they need them.
        super().__init__(name=name, dtype="float32", autocast=False)
        self.supports_masking = True
        self.layers = [_uncompiled(model) for model in models]
        self.num_members = num_members
        self._answer = answer

    def call(self, inputs):
        members = range(self.num_members)
        answers = [self._answer(self.layers, i, inputs) for i in members]
        found = ops.stack(answers, axis=1)
        set_keras_mask(found, keras_mask(answers[0], len(found.shape) - 2))
        return found

    @property
    def metrics(self) -> list:
        """Empty: Keras would mistake the networks' metrics for its own."""
        return []

    def compute_output_shape(self, input_shape):
        batch, *places, channels = self.layers[0].outputs[0].shape
        return (batch, self.num_members, *places, max(channels, 2))


class _LogMean(keras.layers.Layer):
    """log(sum_i w_i p_i) of log p_i on the axis after the batch."""

    def __init__(self, weights: np.ndarray, name: str):
        super().__init__(name=name, dtype="float32")
        self.supports_masking = True
        with np.errstate(divide="ignore"):
            self._log_weights = np.log(weights).astype("float32")

    def call(self, log_probs):
        ones = (1,) * (len(log_probs.shape) - 2)
        log_weights = self._log_weights.reshape((1, -1, *ones))
        return logsumexp(log_probs + ops.convert_to_tensor(log_weights), axis=1)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *input_shape[2:])


class Predictor(keras.Model):
    """Abstract: a model that returns the log of a mean of probabilities.

    `structure` holds the symbolic inputs of a member; `weights` sum to 1.
    """

    # The log of a mean of probabilities: logits that are normalised.
    returns_logits = True

    def __init__(
        self, structure: Any, members: Members, weights: np.ndarray, name: str
    ):
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(
                batch_shape=x.shape, dtype=x.dtype, sparse=x.sparse, name=x.name
            ),
            structure,
        )
        each = members(inputs)
        super().__init__(
            inputs, _LogMean(weights, name="log_mean")(each), name=name
        )
        # Keep the bound method only, as Keras would save the model too.
        self._predict_each = keras.Model(inputs, each).predict

    def predict_each(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        verbose: str | int = "auto",
    ) -> np.ndarray:
        """Probabilities of each member or pass, in their order.

        Their mean is the softmax of the output. The entropy of that mean,
        less the mean of their entropies, is the mutual information of class
        and network.

        Args:
            data: Inputs as `predict` takes them.
            batch_size: Batch size for arrays; None for 32.
            verbose: `"auto"` or 1 for a progress bar, 2 for a line at the end,
                0 for silence.

        Returns:
            Probabilities `(num_members, batch, ..., num_classes)`, float32.
        """
        log_probs = self._predict_each(
            data, batch_size=batch_size, verbose=level_of(verbose)
        )
        return np.moveaxis(np.exp(to_numpy(log_probs)), 1, 0)

    def fit(self, *args: Any, **kwargs: Any) -> None:
        """Refuses to train, as does `train_on_batch`; train the networks.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            invalid(
                "a predictor must not be trained: train its networks, whose "
                "weights it shares",
                predictor=type(self).__name__,
            )
        )

    train_on_batch = fit
