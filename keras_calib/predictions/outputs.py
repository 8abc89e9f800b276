"""Reading of a model's outputs: which one, logits or probabilities."""

import inspect
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import activation_behind
from keras_calib.backend.traced import made_by
from keras_calib.inputs.checks import SEVERAL_LABELS, class_axis
from keras_calib.inputs.options import ReadOptions, check_reading
from keras_calib.inputs.rows import (
    both_classes,
    check_probabilities,
    check_row_sums,
)
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.softmax import to_logits

# Functions of losses of one channel, or of labels that do not exclude each
# other; and of classes that do.
_BINARY = (
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
)
_OF_CLASSES = (
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
)


class ChosenOutput(NamedTuple):
    """One of several outputs: its key in dicts, its place in lists if known."""

    name: str
    position: int | None

    def of(self, structure: Any, what: str = "outputs") -> Any:
        """Its part of values for every output; errors call them `what`."""
        if not isinstance(structure, dict | list | tuple):
            return structure
        by_name = isinstance(structure, dict)
        key: Any = self.name if by_name else self.position
        try:
            return structure[key]
        except (IndexError, KeyError, TypeError):
            raise value_error(
                f"`{what}` must have an entry for the chosen output",
                output=self.name,
                parts=list(structure) if by_name else len(structure),
            ) from None


def read_as(
    model: keras.Model,
    from_logits: bool | None = None,
    ignore_class: int | None = None,
    output: str | int | None = None,
    several_labels: bool = False,
) -> ReadOptions:
    """Options for reading a model: those given, or of its compiled loss."""
    chosen = choose_output(model, output)
    if ignore_class is None:
        ignore_class = setting_of(loss_of(model, chosen), "ignore_class")
    check_reading(-1, ignore_class)
    return ReadOptions(
        reads_logits(model, from_logits, chosen, several_labels),
        ignore_class=ignore_class,
        output=chosen,
    )


def choose_output(
    model: keras.Model,
    output: "str | int | ChosenOutput | None",
    outputs: Any = None,
) -> ChosenOutput | None:
    """The output of a model to read, by name or position.

    `outputs` is what the model returned, None before it runs. Returns None if
    the model has one output, or does not say how many before it runs.
    """
    if isinstance(output, ChosenOutput):
        return output
    if not hasattr(model, "predict_on_batch"):
        raise type_error(
            "`model` must be a Keras model", model=type(model).__name__
        )
    if output is not None and (
        isinstance(output, bool) or not isinstance(output, str | int)
    ):
        raise type_error("`output` must be a name or a position", output=output)
    known = _known_outputs(model) if outputs is None else outputs
    if isinstance(known, dict):
        names: list[Any] = [*known]
    elif outputs is None:
        names = [*(getattr(model, "output_names", None) or [])]
    else:
        names = [*range(len(outputs))]
    if output is None:
        if len(names) > 1:
            raise type_error(
                "`output` must name the output to read, for a model that "
                "has several",
                output=None,
                outputs=names,
            )
        return None
    if not names:
        position = None if isinstance(output, str) else output
        return ChosenOutput(str(output), position)
    found = names.index(str(output)) if output in names else output
    if isinstance(found, str) or not 0 <= found < len(names):
        raise value_error(
            "`output` must be a name or a position of the model's outputs",
            output=output,
            outputs=names,
        )
    return ChosenOutput(names[found], found)


def reads_logits(
    model: keras.Model,
    from_logits: bool | None = None,
    output: ChosenOutput | None = None,
    several_labels: bool = False,
) -> bool:
    """Whether a model's outputs are logits.

    `from_logits` decides, unless it contradicts the bool attribute
    `returns_logits` of the model, which raises. Without both, a softmax or the
    sigmoid of one channel gives probabilities. Else the compiled loss decides,
    or the last layer: sigmoids give probabilities, and no activation gives
    logits if there is no loss. Values are never used to guess. With
    `several_labels` each output is a label of its own, not one of the classes.
    """
    says = getattr(model, "returns_logits", None)
    if from_logits is not None:
        if not isinstance(from_logits, bool):
            raise type_error(
                "`from_logits` must be True, False or None",
                from_logits=from_logits,
            )
        if isinstance(says, bool) and says is not from_logits:
            raise value_error(
                f"`from_logits` must be None or {says}, the `returns_logits` "
                "of the model",
                from_logits=from_logits,
                model=type(model).__name__,
            )
        return from_logits
    if isinstance(says, bool):
        return says
    known, loss = _known(model, output), loss_of(model, output)
    if known is None:
        raise value_error(
            "`from_logits` must be True or False unless the model is "
            "compiled with a loss that says so, ends in a softmax, a sigmoid "
            "or a dense layer, or has a bool attribute `returns_logits`",
            from_logits=from_logits,
            loss=loss,
        )
    if several_labels:
        if _function_of(loss) in _OF_CLASSES:
            raise value_error(
                "`model` must have several labels, compiled with a binary "
                "cross-entropy or `MultiLabel(loss)`: the classes of this "
                "loss exclude each other, so leave `MultiLabel` out",
                loss=loss,
            )
        return known
    if channels := _channels_of_labels(model, loss, output):
        raise value_error(
            "`from_logits` must be True or False for several channels "
            "under a binary cross-entropy, and only if each sample is of "
            f"one class; {SEVERAL_LABELS}",
            from_logits=from_logits,
            loss=loss,
            channels=channels,
        )
    return known


def _known(model: keras.Model, output: ChosenOutput | None) -> bool | None:
    """Whether a model says that its outputs are logits; None if it does not."""
    says = getattr(model, "returns_logits", None)
    if isinstance(says, bool):
        return says
    loss = loss_of(model, output)
    first, *_ = keras.tree.flatten(_known_outputs(model, output)) or [None]
    known, activation = _of_loss(loss), activation_behind(first)
    # It gives probabilities also under a loss of logits.
    if known is None or made_by(first) == "softmax":
        ends: Any = {"softmax": False, "sigmoid": False, "logits": True}
        if loss is None:
            # They may be probabilities to some losses.
            ends["linear"] = True
        known = ends.get(activation)
    return known


def from_logits_of(
    model: keras.Model,
    from_logits: bool | None,
    output: str | int | None,
    *parts: Any,
) -> bool | None:
    """What was told, or what fitted parts remember of a model that is silent.

    None where the model says it, or nobody does.
    """
    if from_logits is not None:
        return from_logits
    if _known(model, choose_output(model, output)) is not None:
        return None
    # A choice has a calibrator, and a selector knows that of its own.
    parts = (*parts, *(getattr(part, "calibrator", None) for part in parts))
    remembered = [getattr(part, "from_logits", None) for part in parts]
    return next((x for x in remembered if isinstance(x, bool)), None)


def has_several_labels(
    model: keras.Model, from_logits: Any, output: str | int | None
) -> bool:
    """Whether a compiled loss takes each of several channels as a label.

    Where it is said whether outputs are logits, a binary loss may be of
    classes.
    """
    chosen = choose_output(model, output)
    loss = loss_of(model, chosen)
    if getattr(loss, "several_labels", False):
        return True
    said = from_logits, getattr(model, "returns_logits", None)
    is_said = any(isinstance(x, bool) for x in said)
    return not is_said and bool(_channels_of_labels(model, loss, chosen))


def to_model_logits(
    outputs: Any, from_logits: bool, counts: Any = None, name: str = "logits"
) -> Any:
    """A model's outputs `(batch, ..., num_classes)` as logits of every class.

    Probabilities become log p. One channel, p or z, becomes `[0, z]` with
    z = log(p / (1 - p)). In eager mode values are checked where `counts` is
    True; errors call them `name`.
    """
    outputs = ops.cast(outputs, "float32")
    class_axis(outputs, -1, name)
    if from_logits:
        return both_classes(outputs, from_logits)
    one_channel = outputs.shape[-1] == 1
    check_probabilities(outputs, name, counts)
    check_row_sums(outputs, name, counts)
    logits = to_logits(both_classes(outputs, from_logits))
    # Shifted to [0, z], as some calibrators and scores depend on a constant
    # added to both.
    return logits - logits[..., :1] if one_channel else logits


def _channels_of_labels(
    model: keras.Model, loss: Any, output: ChosenOutput | None
) -> list:
    """Numbers of channels if there are several under a binary loss, else []."""
    outputs = keras.tree.flatten(_known_outputs(model, output))
    channels = [shape_of(x)[-1] for x in outputs if x is not None]
    several = any(n not in (None, 1) for n in channels)
    return channels if several and _function_of(loss) in _BINARY else []


def _known_outputs(
    model: keras.Model, output: ChosenOutput | None = None
) -> Any:
    """The symbolic outputs, or the one; None before a subclassed model runs."""
    outputs = getattr(model, "outputs", None) or None
    if outputs is not None:
        # A Sequential model that was never called has only the list.
        outputs = getattr(model, "output", outputs)
    if output is None or outputs is None:
        return outputs
    return output.of(outputs)


def loss_of(model: keras.Model, output: ChosenOutput | None) -> Any:
    """The compiled loss of one output; None if it has none."""
    loss = getattr(model, "loss", None)
    if output is not None:
        try:
            return output.of(loss)
        except ValueError:
            # This output has no loss.
            return None
    if isinstance(loss, list | tuple | dict) and len(loss) == 1:
        (loss,) = keras.tree.flatten(loss)
    return loss


def setting_of(loss: Any, name: str, default: Any = None) -> Any:
    """A setting of a loss, such as its `ignore_class`.

    Some losses of Keras tell it in their configuration alone: since Keras 3.16
    this holds for `SparseCategoricalCrossentropy`.
    """
    if hasattr(loss, name) or not isinstance(loss, keras.losses.Loss):
        return getattr(loss, name, default)
    return loss.get_config().get(name, default)


def _function_of(loss: Any) -> Any:
    """The function of Keras behind a loss, its class or its name."""
    loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    return getattr(loss, "fn", loss)


def _of_loss(loss: Any) -> bool | None:
    known = None
    if isinstance(loss, keras.losses.Loss):
        known = setting_of(loss, "from_logits")
    elif isinstance(loss, str) or inspect.isfunction(loss):
        # Keras calls the function with its defaults.
        parameters = inspect.signature(keras.losses.get(loss)).parameters
        known = getattr(parameters.get("from_logits"), "default", None)
    return None if known in (None, inspect.Parameter.empty) else bool(known)
