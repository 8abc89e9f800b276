"""The complete state of training, in one file that is written atomically."""

import contextlib
import itertools
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import backend

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of, replacing
from keras_calib.backend.locks import check_not_locked
from keras_calib.backend.npz import NpzFile, reading_npz
from keras_calib.numerics.arrays import to_numpy
from keras_calib.training.callback_state import (
    callback_state,
    check_state,
    is_state,
    restore,
)

__all__ = [
    "finished_epochs",
    "load_training_state",
    "save_training_state",
]

_VERSION = 2
# In the JSON of the file this key and a number stand for an array.
_ARRAY = "npy:"


def finished_epochs(path: str | os.PathLike) -> int:
    """Number of epochs in a backup, 0 if there is no file.

    Use it as `first_epoch` of a data pipeline, so that a resumed run sees the
    data in the order of an uninterrupted one.

    Args:
        path: The file of `ResumableBackup`.

    Returns:
        Number of finished epochs, which is also the number, from 0, of the
        next epoch to train.

    Raises:
        ValueError: If the file is not a backup.

    Example:

    >>> finished_epochs("no_such_file.npz")
    0

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/
    """
    path = path_of(path)
    return _read(path)["epochs"] if path.exists() else 0


def save_training_state(
    path: str | os.PathLike,
    model: keras.Model,
    epochs: int,
    *,
    logs: Any = (),
    callbacks: Any = (),
    stopped: bool = False,
) -> Path:
    """Writes the complete state of training to a file, atomically.

    Use it in a training loop of your own; `fit` needs only `ResumableBackup`.

    Args:
        path: The file; its folder is created.
        model: A compiled model.
        epochs: Number of finished epochs.
        logs: The logs of each epoch, as dicts of numbers.
        callbacks: Callbacks whose state is saved too, as by
            `ResumableBackup`.
        stopped: Whether a callback ended training with the last epoch, so
            that no epoch is left to train.

    Returns:
        The path.

    Raises:
        RuntimeError: If another process trains with a `ResumableBackup` of
            this path.
        TypeError: If a callback has no `state_attributes`, or one of these
            is neither None, a number nor a list of arrays.

    Reference:
        The way of writing: POSIX, rename,
        https://pubs.opengroup.org/onlinepubs/9699919799/functions/rename.html
    """
    path = path_of(path)
    check_not_locked("path", path)
    variables = _variables(model)
    state = {
        "version": _VERSION,
        "epochs": int(epochs),
        "stopped": bool(stopped),
        "logs": list(logs),
        "optimizer": _optimizer_names(model),
        "variables": [_lasting_name(v) for v in variables],
        "values": [to_numpy(v) for v in variables],
        "callback_classes": [type(x).__name__ for x in callbacks],
        "callbacks": [callback_state(x) for x in callbacks],
        **_random_state(),
    }
    arrays = []

    def put(array):
        arrays.append(_storable(array))
        return {_ARRAY: len(arrays) - 1}

    meta = np.frombuffer(json.dumps(state, default=put).encode(), "uint8")
    with replacing(path) as file:
        np.savez(file, *arrays, meta=meta)
    return path


def load_training_state(
    path: str | os.PathLike, model: keras.Model, *, callbacks: Any = None
) -> dict | None:
    """Restores a model, its optimizer and random numbers from a file.

    Use it in a training loop of your own; `fit` needs only `ResumableBackup`.
    It checks everything before it sets anything.

    Args:
        path: The file.
        model: A compiled and built model, made like the one that was saved.
        callbacks: Callbacks made like those that were saved, to restore their
            state too; None restores none.

    Returns:
        A dict with `epochs`, the number of finished epochs, `logs`, the logs
        of each, and `stopped`, whether a callback ended training with the
        last. None if there is no file.

    Raises:
        TypeError: If a callback has no `state_attributes`.
        ValueError: If the model is not built, or the file is not a backup or
            one of another model or other callbacks. Nothing is changed then.

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/
    """
    path = path_of(path)
    if not path.exists():
        return None
    if not model.built:
        raise value_error("`model` must be built before training", built=False)
    state = _read(path, with_arrays=True)
    variables = _variables(model)
    own: list[Any] = [_optimizer_names(model)]
    own += [_signature(_lasting_name(v), v) for v in variables]
    saved = [state["optimizer"]]
    saved += map(_signature, state["variables"], state["values"])
    for expected, found in itertools.zip_longest(own, saved):
        if expected != found:
            raise value_error(
                "the backup must be of this model and optimizer",
                path=str(path),
                model=expected,
                backup=found,
            )
    if callbacks is not None:
        classes = [type(x).__name__ for x in callbacks]
        if classes != state["callback_classes"]:
            raise value_error(
                "`callbacks` must be as many as in the backup, and of its "
                "classes in their order",
                callbacks=classes,
                backup=state["callback_classes"],
            )
        for callback, values in zip(callbacks, state["callbacks"], strict=True):
            check_state(callback, values)
    for variable, value in zip(variables, state["values"], strict=True):
        variable.assign(value)
    _set_random(state)
    if callbacks is not None:
        restore(callbacks, state["callbacks"])
    return state


def _random_state() -> dict[str, Any]:
    """State of Python, NumPy and torch; Keras' generators are variables."""
    state = {
        "python_random": random.getstate(),
        "numpy_random": np.random.get_state(),
        "torch_random": [],
    }
    if backend.backend() == "torch":
        # Keras' dropout draws from it on torch.
        import torch

        numbers = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        state["torch_random"] = [x.numpy() for x in numbers]
    return state


def _set_random(state: dict[str, Any], *, trial: bool = False) -> None:
    """Sets all generators, or new ones on trial, which raise if they cannot."""
    version, internal, gauss = state["python_random"]
    (random.Random() if trial else random).setstate(
        (version, tuple(internal), gauss)
    )
    (np.random.RandomState() if trial else np.random).set_state(
        state["numpy_random"]
    )
    if backend.backend() == "torch" and state["torch_random"]:
        import torch

        own, *others = map(torch.from_numpy, state["torch_random"])
        (torch.Generator() if trial else torch.default_generator).set_state(own)
        if not trial and len(others) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(others)


def _optimizer_names(model: keras.Model) -> list[str]:
    """Classes of the optimizer and of those it wraps, as shapes do not tell."""
    names, optimizer = [], model.optimizer
    while optimizer is not None:
        names.append(type(optimizer).__name__)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return names


def _variables(model: keras.Model) -> list:
    """Variables of the model and of its optimizer, which is built if needed."""
    optimizer = model.optimizer
    if optimizer is None:
        return list(model.variables)
    if not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)
    return [*model.variables, *optimizer.variables]


def _lasting_name(variable: Any) -> str:
    """Name without the numbers that Keras adds to tell variables apart."""
    return re.sub(r"_\d+(?=[/_]|$)", "", variable.path)


def _storable(array: np.ndarray) -> np.ndarray:
    """The same values in a type that the file format supports."""
    array = np.asarray(array)
    return array if array.dtype.kind in "biuf" else array.astype("float32")


def _signature(name: str, value: Any) -> tuple:
    array = _storable(to_numpy(value))
    return name, array.shape, array.dtype.name


def _read(path: Path, *, with_arrays: bool = False) -> dict:
    """Reads and checks a file, without unpickling."""
    rule = "`path` must be a file of `ResumableBackup`"
    with reading_npz(path, rule) as file:
        state = _state(file, with_arrays)
    if state["version"] != _VERSION:
        raise value_error(
            f"the backup must be of version {_VERSION}: train anew",
            path=str(path),
            version=state["version"],
        )
    return state


def _state(file: NpzFile, with_arrays: bool) -> dict:
    def value(found):
        return file.read(f"arr_{found[_ARRAY]}") if _ARRAY in found else found

    text = file.read("meta").tobytes()
    state = json.loads(text, object_hook=value if with_arrays else None)
    if state["version"] != _VERSION:
        return state
    right = (
        type(state["epochs"]) is int
        and state["epochs"] >= 0
        and type(state["stopped"]) is bool
        and _are(dict, state["logs"])
        and _are(str, state["optimizer"])
        and _are(str, state["variables"])
        and _are(str, state["callback_classes"])
        and _are(dict, state["callbacks"])
        and len(state["callbacks"]) == len(state["callback_classes"])
    )
    if right and with_arrays:
        values = [x for each in state["callbacks"] for x in each.values()]
        right = (
            _are(np.ndarray, state["values"])
            and len(state["values"]) == len(state["variables"])
            and all(map(is_state, values))
            and _is_numpy_random(state["numpy_random"])
        )
        if right:
            _set_random(state, trial=True)
    if not right:
        raise ValueError("no backup")
    return state


def _is_numpy_random(found: Any) -> bool:
    """Whether NumPy can take a state, which it reads without such a look."""
    if not isinstance(found, list) or len(found) != 5:
        return False
    name, key, position, *_ = found
    size = 624
    return (
        name == "MT19937"
        and np.shape(key) == (size,)
        and type(position) is int
        and 0 <= position <= size
    )


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(x, kind) for x in values)
