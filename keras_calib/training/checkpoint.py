"""All that training needs to go on, in one file that is whole or not there."""

import contextlib
import itertools
import json
import os
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import backend

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.backend.locks import check_not_locked
from keras_calib.numerics.arrays import to_numpy
from keras_calib.training.callback_state import callback_state
from keras_calib.training.callback_state import check_state
from keras_calib.training.callback_state import is_state
from keras_calib.training.callback_state import restore

__all__ = [
    "finished_epochs",
    "load_training_state",
    "save_training_state",
]

_VERSION = 2
# The file holds JSON, in which this key and a number stand for an array.
_ARRAY = "npy:"


def finished_epochs(path: str | os.PathLike) -> int:
    """How many epochs a backup holds, 0 if there is none.

    Args:
        path: The file of `ResumableBackup`.

    Returns:
        Number of epochs: the first one that is still to be trained.

    Raises:
        ValueError: If the file is not a backup.

    Example:

    >>> finished_epochs("no_such_file.npz")
    0

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/
    """
    path = Path(path)
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
    """Writes all that training needs to go on, in one operation.

    Args:
        path: The file; its folder is made.
        model: A compiled model.
        epochs: How many epochs are done.
        logs: The logs of each, as dicts of numbers.
        callbacks: Callbacks whose state is saved too, as by
            `ResumableBackup`.
        stopped: Whether a callback ended training with the last epoch, so
            that there is nothing left to train.

    Returns:
        The path.

    Raises:
        RuntimeError: If another process trains with a `ResumableBackup` of
            this path.
        TypeError: If a callback does not say what is saved, or an attribute
            is neither a number nor a list of arrays.

    Reference:
        The way of writing: POSIX, rename,
        https://pubs.opengroup.org/onlinepubs/9699919799/functions/rename.html
    """
    path = Path(path)
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
    """Sets a model, its optimizer and random numbers as they were saved.

    All is checked before anything is set.

    Args:
        path: The file.
        model: A compiled and built model, made as the one that was saved.
        callbacks: Callbacks made as those that were saved, whose state is
            set too; None to set none.

    Returns:
        A dict with `epochs`, how many are done, `logs`, those of each, and
        `stopped`, whether a callback ended training with the last. None if
        there is no file.

    Raises:
        TypeError: If a callback does not say what may be set.
        ValueError: If the file is not a backup, or of another model or other
            callbacks; then nothing is changed.

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/
    """
    path = Path(path)
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
    """That of Python, NumPy and torch; Keras' generators have variables."""
    state = {
        "python_random": random.getstate(),
        "numpy_random": np.random.get_state(),
        "torch_random": [],
    }
    if backend.backend() == "torch":
        # On which Keras' dropout draws there.
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
    """Classes of the optimizer, and of what it wraps: shapes are alike."""
    names, optimizer = [], model.optimizer
    while optimizer is not None:
        names.append(type(optimizer).__name__)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return names


def _variables(model: keras.Model) -> list:
    """Those of the model, and of its optimizer, which is built if need be."""
    optimizer = model.optimizer
    if optimizer is None:
        return list(model.variables)
    if not optimizer.built:
        strategy = getattr(model, "distribute_strategy", None)
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer.build(model.trainable_variables)
    return [*model.variables, *optimizer.variables]


def _lasting_name(variable: Any) -> str:
    """Without the numbers that Keras gives to make names of a run differ."""
    return re.sub(r"_\d+(?=[/_]|$)", "", variable.path)


def _storable(array: np.ndarray) -> np.ndarray:
    """As a type that the file format knows; exact."""
    array = np.asarray(array)
    return array if array.dtype.kind in "biuf" else array.astype("float32")


def _signature(name: str, value: Any) -> tuple:
    array = _storable(to_numpy(value))
    return name, array.shape, array.dtype.name


def _read(path: Path, *, with_arrays: bool = False) -> dict:
    """What a file holds, checked; nothing is unpickled."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                state = _state(archive, with_arrays)
        # What is not a backup may raise anything.
        except Exception as error:
            raise value_error(
                "`path` must be a file of `ResumableBackup`", path=str(path)
            ) from error
    if state["version"] != _VERSION:
        raise value_error(
            f"the backup must be of version {_VERSION}: train anew",
            path=str(path),
            version=state["version"],
        )
    return state


def _state(archive: zipfile.ZipFile, with_arrays: bool) -> dict:
    # Each entry is read once, and none is compressed: a small file cannot
    # fill the memory.
    left = {entry.filename: entry for entry in archive.infolist()}

    def read(name):
        entry = left.pop(f"{name}.npy")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile("compressed")
        with archive.open(entry) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            # To the end, where the check sum is compared.
            file.read()
        return array

    def value(found):
        return read(f"arr_{found[_ARRAY]}") if _ARRAY in found else found

    text = read("meta").tobytes()
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
        )
        _set_random(state, trial=True)
    if not right:
        raise ValueError("no backup")
    return state


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(x, kind) for x in values)
