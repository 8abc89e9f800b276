"""Deep ensembles: the mean of networks that were trained apart."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.ensembles.base import (
    Members,
    Predictor,
    check_classifier,
    input_structure,
    log_probs_of,
    serialized,
)
from keras_calib.inputs.checks import check_at_least
from keras_calib.numerics.arrays import fits, shape_of
from keras_calib.predictions.outputs import reads_logits


@keras.saving.register_keras_serializable(package="keras_calib")
class DeepEnsemble(Predictor):
    """Deep ensemble: the mean prediction of several networks.

    Use it for better accuracy, calibration and rejection when you can afford
    to train and run several networks. Train them with different initial
    weights and orders of the data.

    output = log(sum_m w_m p_m(k | x)), sum_m w_m = 1

    The output is normalised logits. Metrics and calibrators take it with
    `from_logits=True`; `SelectiveClassifier` and `export` take it as it is.
    Its NLL is at most the mean NLL of the members (Jensen). The mean is less
    confident than the members, so fit a calibrator on the ensemble.

    The ensemble shares its weights with the members, which you can train
    before or after you build it.

    Args:
        models: Functional or sequential models with the same inputs and one
            output each: logits or probabilities `(batch, ..., num_classes)`,
            or `(batch, ..., 1)` for the second of two classes, which become
            two. A member can be a `MonteCarloDropout`.
        weights: Weight of each member, >= 0, of any sum > 0; None for equal
            weights.
        from_logits: Whether the members return logits, as one bool or a list.
            None takes it from the loss that each was compiled with.
        name: Name of the model.

    Raises:
        TypeError: If an argument is of the wrong kind.
        ValueError: If members have no fixed inputs or several outputs, differ
            in inputs or classes, or share weights. Also if it is unknown
            whether a member returns logits, or if `weights` are not one per
            member, negative or all 0.
        RuntimeError: On `fit`.

    Example:

    >>> import keras, keras_calib
    >>> import numpy as np
    >>> members = [
    ...     keras.Sequential([
    ...         keras.Input((1,)),
    ...         keras.layers.Dense(1, "sigmoid", bias_initializer=bias),
    ...     ])
    ...     for bias in ("zeros", "ones")
    ... ]
    >>> ensemble = keras_calib.DeepEnsemble(members, from_logits=False)
    >>> x = np.zeros((1, 1))
    >>> ensemble.predict_each(x)[:, 0].round(3)
    array([[0.5 , 0.5 ], [0.269, 0.731]], dtype=float32)
    >>> np.exp(ensemble.predict(x, verbose=0)).round(3)
    array([[0.384, 0.616]], dtype=float32)

    Reference:
        Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty
        Estimation using Deep Ensembles, NeurIPS 2017, section 2.4,
        https://arxiv.org/abs/1612.01474
    """

    def __init__(
        self,
        models: Sequence[keras.Model],
        *,
        weights: Sequence[float] | None = None,
        from_logits: bool | Sequence[bool] | None = None,
        name: str = "deep_ensemble",
    ):
        models = _read_models(models)
        weights = _read_weights(weights, len(models))
        are_logits = _read_logits(models, from_logits)

        def answer(networks, member, inputs):
            return log_probs_of(networks[member], inputs, are_logits[member])

        members = _Members(models, answer, len(models), "members")
        shares = weights / weights.sum()
        super().__init__(input_structure(models[0]), members, shares, name)
        self._given = {"weights": weights.tolist(), "from_logits": are_logits}

    def get_config(self) -> dict:
        members = self.get_layer("members")
        return {
            "name": self.name,
            "models": [serialized(model) for model in members.layers],
            **self._given,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        models = [
            keras.saving.deserialize_keras_object(
                model, custom_objects=custom_objects
            )
            for model in config["models"]
        ]
        return cls(**{**config, "models": models})


class _Members(Members):
    """Networks. Saved weights are found by the name of this class."""


def _read_models(models: Any) -> list[keras.Model]:
    if not isinstance(models, list | tuple):
        raise type_error(
            "`models` must be a list of Keras models",
            models=type(models).__name__,
        )
    if not models:
        raise value_error("`models` must not be empty", models=models)
    for i, model in enumerate(models):
        check_classifier(model, f"models[{i}]")
    seen: dict[int, int] = {}
    for i, model in enumerate(models):
        _check_same(models[0], model, i)
        for variable in model.variables:
            # A file holds one copy of a variable, but two would be looked for.
            if seen.setdefault(id(variable), i) != i:
                raise value_error(
                    "`models` must not share weights; to count one twice, "
                    "give `weights`",
                    first=f"models[{seen[id(variable)]}]",
                    second=f"models[{i}]",
                    variable=variable.path,
                )
    return list(models)


def _check_same(first: keras.Model, other: keras.Model, index: int) -> None:
    """Raises ValueError unless both take and give the same."""
    (taken, given), (taken_too, given_too) = map(_signature, (first, other))
    if taken != taken_too:
        raise value_error(
            "`models` must take the same inputs: structure, shapes and types",
            **{"models[0]": taken, f"models[{index}]": taken_too},
        )
    if not fits(given, given_too):
        raise value_error(
            "`models` must return outputs of the same shape; one output is "
            "two classes",
            **{"models[0]": given, f"models[{index}]": given_too},
        )


def _signature(model: keras.Model) -> tuple[list, tuple]:
    """Path, shape and type of each input, and the shape of all classes."""
    flat = keras.tree.flatten_with_path(input_structure(model))
    # A list of one input is the same as the input.
    alone = len(flat) == 1
    taken = [(() if alone else path, shape_of(x), x.dtype) for path, x in flat]
    *lead, channels = shape_of(model.outputs[0])
    return taken, (*lead, max(channels, 2))


def _read_logits(models: list, from_logits: Any) -> list[bool]:
    if not isinstance(from_logits, list | tuple):
        from_logits = [from_logits] * len(models)
    if len(from_logits) != len(models):
        raise value_error(
            "`from_logits` must have one value for each of `models`",
            from_logits=from_logits,
            models=len(models),
        )
    return [
        reads_logits(model, told)
        for model, told in zip(models, from_logits, strict=True)
    ]


def _read_weights(weights: Any, count: int) -> np.ndarray:
    given = np.ones(count) if weights is None else np.asarray(weights)
    if given.shape != (count,):
        raise value_error(
            "`weights` must have one number for each of `models`",
            weights=given.tolist(),
            models=count,
        )
    for weight in given.tolist():
        check_at_least("weights", weight, 0.0)
    if not given.any():
        raise value_error("`weights` must not all be 0", weights=weights)
    return given.astype("float64")
