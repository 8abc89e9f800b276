"""The part of a callback's state that a backup saves and restores."""

from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.numerics.arrays import to_numpy

__all__ = [
    "callback_state",
    "check_state",
    "is_state",
    "plain_number",
    "restore",
    "state_names",
]

# State that Keras' callbacks keep between epochs, as of Keras 3.12 to 3.15.
# Arguments of their constructors, such as a path, are not part of it.
_KERAS = {
    "BackupAndRestore": "",
    "CSVLogger": "",
    "EarlyStopping": "best best_epoch best_weights stopped_epoch wait",
    "History": "",
    "LambdaCallback": "",
    "LearningRateScheduler": "",
    "ModelCheckpoint": "_batches_seen_since_last_saving _current_epoch "
    "_last_batch_seen best",
    "ProgbarLogger": "",
    "ReduceLROnPlateau": "best cooldown_counter wait",
    "RemoteMonitor": "",
    "SwapEMAWeights": "_ema_weights_in_model",
    "TensorBoard": "_global_test_batch _global_train_batch",
    "TerminateOnNaN": "",
}
_OF_CLASS = {
    getattr(keras.callbacks, name): names.split()
    for name, names in _KERAS.items()
}


def state_names(callback: keras.callbacks.Callback) -> list[str]:
    """Names of the attributes that a backup saves.

    A class adds its `state_attributes` to those of its bases. Raises TypeError
    if it has none.
    """
    names: set[str] = set()
    # A subclass of a Keras callback may keep more, so it must declare it.
    declared = type(callback) in _OF_CLASS
    for cls in type(callback).__mro__:
        own = vars(cls).get("state_attributes")
        declared, own = declared or own is not None, own or ()
        if isinstance(own, str) or not all(isinstance(x, str) for x in own):
            raise type_error(
                f"`{cls.__name__}.state_attributes` must be a tuple of names",
                state_attributes=own,
            )
        names |= {*own, *_OF_CLASS.get(cls, ())}
    if not declared:
        raise type_error(
            "`callbacks` must have `state_attributes`, the names of the "
            "attributes that a backup saves: give the class such a tuple, "
            "empty for nothing",
            callback=type(callback).__name__,
        )
    return sorted(names)


def callback_state(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """State by name: None, a number or a list of arrays; else TypeError."""
    state = {}
    for name in state_names(callback):
        if not hasattr(callback, name):
            continue
        value = getattr(callback, name)
        if isinstance(value, list | tuple):
            if all(hasattr(x, "shape") for x in value):
                value = [to_numpy(x) for x in value]
        elif getattr(value, "shape", None) == ():
            value = plain_number(value)
        if not is_state(value):
            raise type_error(
                f"`{type(callback).__name__}.{name}` must be None, a "
                "number or a list of arrays to be in a backup",
                **{name: type(value).__name__},
            )
        state[name] = value
    return state


def is_state(value: Any) -> bool:
    """Whether a value is None, a number or a list of arrays."""
    if isinstance(value, list):
        return all(isinstance(x, np.ndarray) for x in value)
    return value is None or isinstance(value, bool | int | float)


def check_state(
    callback: keras.callbacks.Callback, values: dict[str, Any]
) -> None:
    """Raises ValueError unless all attributes in a backup may be set."""
    other = sorted(set(values) - set(state_names(callback)))
    if other:
        raise value_error(
            "the backup must hold only the `state_attributes` of a callback. "
            "It is of another version of the class, or not to be trusted: "
            "train anew",
            callback=type(callback).__name__,
            attributes=other,
        )


def restore(callbacks: list, states: list[dict[str, Any]]) -> None:
    """Sets the state that `check_state` has approved."""
    for callback, values in zip(callbacks, states, strict=True):
        for name, value in values.items():
            setattr(callback, name, value)


def plain_number(value: Any) -> Any:
    """A Python number; NaN and infinities stay."""
    return to_numpy(value).tolist()
