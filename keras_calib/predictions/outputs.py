"""What a model's outputs are: logits or probabilities, and as logits."""

import inspect
from typing import Any

import keras
from keras import ops

from keras_calib.checks import invalid
from keras_calib.checks import shape_of
from keras_calib.inputs import read_predictions
from keras_calib.numerics import to_logits

__all__ = ["reads_logits", "to_model_logits"]

# Of one channel, or of as many labels that do not exclude each other.
_BINARY_FUNCTIONS = (
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
)
_BINARY_LOSSES = (
    keras.losses.BinaryCrossentropy,
    keras.losses.BinaryFocalCrossentropy,
)


def reads_logits(model: keras.Model, from_logits: bool | None = None) -> bool:
    """Whether a model's outputs are to be read as logits.

    As the model says in a bool attribute `returns_logits`; else as told, or
    as the loss says that it is compiled with; never guessed from values.

    Args:
        model: A Keras model.
        from_logits: True or False, or None to ask the model.

    Returns:
        True for logits, False for probabilities.

    Raises:
        TypeError: If `from_logits` is not one of these.
        ValueError: If it is not what the model says; or it is None and the
            model has no loss that says so, or its loss is a binary
            cross-entropy for several channels.
    """
    says = getattr(model, "returns_logits", None)
    if from_logits is not None:
        if not isinstance(from_logits, bool):
            raise TypeError(
                invalid(
                    "`from_logits` must be True, False or None",
                    from_logits=from_logits,
                )
            )
        if isinstance(says, bool) and says is not from_logits:
            raise ValueError(
                invalid(
                    f"`from_logits` must be {says} or None for a model that "
                    "says so",
                    from_logits=from_logits,
                    model=type(model).__name__,
                )
            )
        return from_logits
    if isinstance(says, bool):
        return says
    loss = getattr(model, "loss", None)
    if isinstance(loss, list | tuple | dict) and len(loss) == 1:
        (loss,) = keras.tree.flatten(loss)
    known = _of_loss(loss)
    if known is None:
        raise ValueError(
            invalid(
                "`from_logits` must be True or False unless the model is "
                "compiled with a loss that says so, or has a bool attribute "
                "`returns_logits`",
                from_logits=from_logits,
                loss=loss,
            )
        )
    channels = [shape_of(x)[-1] for x in getattr(model, "outputs", None) or ()]
    if _is_binary(loss) and any(n not in (None, 1) for n in channels):
        raise ValueError(
            invalid(
                "`from_logits` must be True or False for several channels "
                "under a binary cross-entropy, and only if each sample is of "
                "one class: models of several labels are not classifiers",
                from_logits=from_logits,
                loss=loss,
                channels=channels,
            )
        )
    return known


def to_model_logits(outputs: Any, from_logits: bool) -> Any:
    """A model's outputs as logits of every class.

    Args:
        outputs: Logits or probabilities `(batch, ..., num_classes)`, or
            `(batch, ..., 1)` for the second of two classes.
        from_logits: Which of the two.

    Returns:
        Logits `(batch, ..., num_classes)`, float32. Of probabilities log p;
        of one channel p or z `[0, z]`, with z = log(p / (1 - p)).

    Raises:
        ValueError: If there is no axis of classes; and, in eager use, if
            probabilities are not in [0, 1].
    """
    outputs = ops.cast(outputs, "float32")
    one_channel = outputs.shape[-1:] == (1,)
    outputs = read_predictions(outputs, from_logits=from_logits)
    if from_logits:
        return outputs
    logits = to_logits(outputs)
    # As if the model had returned z: a constant on both changes what some
    # calibrators and scores make of them.
    return logits - logits[..., :1] if one_channel else logits


def _is_binary(loss: Any) -> bool:
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    return loss in _BINARY_FUNCTIONS or isinstance(loss, _BINARY_LOSSES)


def _of_loss(loss: Any) -> bool | None:
    if isinstance(loss, keras.losses.Loss):
        known = loss.get_config().get("from_logits")
    elif isinstance(loss, str) or inspect.isfunction(loss):
        # Keras calls it with its defaults.
        parameters = inspect.signature(keras.losses.get(loss)).parameters
        known = getattr(parameters.get("from_logits"), "default", None)
    else:
        known = None
    return None if known in (None, inspect.Parameter.empty) else bool(known)
