"""All that training needs to go on, in one file that is whole or not there."""

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.array_files import ArrayFile
from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.backend.locks import check_not_locked
from keras_calib.numerics.arrays import to_numpy
from keras_calib.training.callback_state import callback_state
from keras_calib.training.callback_state import check_state
from keras_calib.training.callback_state import is_plain
from keras_calib.training.callback_state import restore
from keras_calib.training.callback_state import state_names
from keras_calib.training.random_state import checked_random_state
from keras_calib.training.random_state import random_state

__all__ = [
    "finished_epochs",
    "load_training_state",
    "save_training_state",
]

_VERSION = 1
_META = "meta"


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
    if not path.exists():
        return 0
    with _opened(path) as arrays:
        return _read_meta(path, arrays)["epochs"]


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
        callbacks: Callbacks whose state is saved too: what Keras' own
            remember, and the `state_attributes` of other classes.
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
    arrays = {
        f"variable_{i}": _storable(to_numpy(v)) for i, v in enumerate(variables)
    }
    states = []
    for i, callback in enumerate(callbacks):
        numbers, lists = callback_state(callback)
        states.append(numbers)
        for name, values in lists.items():
            for j, array in enumerate(values):
                arrays[f"callback_{i}_{name}_{j}"] = _storable(array)
    numbers, keys = random_state()
    arrays |= keys
    meta = {
        "version": _VERSION,
        "epochs": int(epochs),
        "stopped": bool(stopped),
        "optimizer": _optimizer_names(model),
        "variables": [_lasting_name(v) for v in variables],
        "logs": list(logs),
        "callbacks": states,
        "callback_classes": [type(x).__name__ for x in callbacks],
        **numbers,
    }
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), "uint8")
    with replacing(path) as file:
        np.savez(file, **arrays)
    return path


def load_training_state(
    path: str | os.PathLike, model: keras.Model, *, callbacks: Any = None
) -> dict | None:
    """Sets a model, its optimizer and random numbers as they were saved.

    All is checked before anything is set. Arrays that the model does not
    have are not read.

    Args:
        path: The file.
        model: A compiled and built model, made as the one that was saved.
        callbacks: Callbacks made as those that were saved, whose state is
            set too; None to set none.

    Returns:
        A dict with `epochs`, how many are done, `logs`, those of each, and
        `stopped`, whether a callback ended training with the last; and for
        `ResumableBackup` the state of `callbacks`. None if there is no file.

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
    with _opened(path) as arrays:
        state = _read_meta(path, arrays)
        names = _optimizer_names(model)
        if state.get("optimizer", names) != names:
            saved = state["optimizer"]
            raise _of_another(path, optimizer=names, saved=saved)
        variables = _variables(model)
        _check_same(path, state, variables, arrays)
        states = _callback_states(state, arrays, callbacks, model)
        try:
            set_random = checked_random_state(state, arrays)
        except (LookupError, OverflowError, TypeError, ValueError) as error:
            raise _not_a_backup(path) from error
        values = [arrays.read(f"variable_{i}") for i in range(len(variables))]
        for numbers, lists in zip(state["callbacks"], states, strict=True):
            for name, parts in lists.items():
                numbers[name] = [arrays.read(part) for part in parts]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    set_random()
    if callbacks is not None:
        restore(callbacks, state["callbacks"])
    return state


def _check_same(
    path: Path, state: dict, variables: list, arrays: ArrayFile
) -> None:
    """Raises unless the file has what fits the variables."""
    saved = sum(name.startswith("variable_") for name in arrays.names)
    if len(variables) != saved:
        raise _of_another(path, variables=len(variables), saved=saved)
    names = [_lasting_name(variable) for variable in variables]
    told = state.get("variables", names)
    if len(told) != saved:
        raise _not_a_backup(path)
    for i, (v, name, other) in enumerate(
        zip(variables, names, told, strict=True)
    ):
        try:
            shape, dtype = arrays.header(f"variable_{i}")
        except KeyError as error:
            raise _not_a_backup(path) from error
        if tuple(v.shape) != shape:
            raise _of_another(
                path, variable=v.path, shape=tuple(v.shape), saved=shape
            )
        if _stored_as(str(v.dtype)) != dtype.name:
            raise _of_another(
                path, variable=v.path, dtype=str(v.dtype), saved=dtype.name
            )
        if name != other:
            raise _of_another(path, variable=name, saved=other)


def _callback_states(
    state: dict, arrays: ArrayFile, callbacks: Any, model: keras.Model
) -> list[dict[str, list[str]]]:
    """Names of the arrays of each attribute of each callback, checked."""
    saved = state["callbacks"]
    found = [_parts(arrays, f"callback_{i}_") for i in range(len(saved))]
    if callbacks is None:
        return found
    classes = [type(x).__name__ for x in callbacks]
    told = state.get("callback_classes", classes)
    if (len(saved), told) != (len(callbacks), classes):
        raise value_error(
            "`callbacks` must be as many as in the backup, and of its "
            "classes in their order",
            callbacks=classes,
            backup=told if len(told) == len(saved) else len(saved),
        )
    if "callback_classes" not in state:
        # Release 0.1 saved all numbers of a callback.
        for i, callback in enumerate(callbacks):
            known = state_names(callback)
            saved[i] = {k: v for k, v in saved[i].items() if k in known}
            found[i] = {k: v for k, v in found[i].items() if k in known}
    for callback, numbers, lists in zip(callbacks, saved, found, strict=True):
        shapes = {
            name: [arrays.header(part)[0] for part in parts]
            for name, parts in lists.items()
        }
        check_state(callback, {*numbers, *lists}, shapes, model)
    return found


def _parts(arrays: ArrayFile, prefix: str) -> dict[str, list[str]]:
    """By attribute, the names of its arrays in their order."""
    found: dict[str, dict[int, str]] = {}
    for name in arrays.names:
        match = re.fullmatch(re.escape(prefix) + r"(\w+)_(\d{1,9})", name)
        if match:
            found.setdefault(match[1], {})[int(match[2])] = name
    return {k: [v[i] for i in sorted(v)] for k, v in found.items()}


def _of_another(path: Path, **facts: Any) -> ValueError:
    rule = "the backup must be of this model and optimizer"
    return value_error(rule, path=str(path), **facts)


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


def _stored_as(dtype: str) -> str:
    """Name of the type that `_storable` gives."""
    try:
        return _storable(np.empty(0, dtype)).dtype.name
    except TypeError:
        # NumPy knows bfloat16 only where a package has told it.
        return "float32"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[ArrayFile]:
    try:
        with open(path, "rb") as file:
            yield ArrayFile(file)
    except (EOFError, zipfile.BadZipFile) as error:
        raise _not_a_backup(path) from error


def _read_meta(path: Path, arrays: ArrayFile) -> dict:
    if _META not in arrays.names:
        raise _not_a_backup(path)
    try:
        meta = json.loads(arrays.read(_META).tobytes())
        version = meta["version"]
        right = version != _VERSION or (
            type(meta["epochs"]) is int
            and meta["epochs"] >= 0
            and type(meta["stopped"]) is bool
            and _are(dict, meta["logs"])
            and _are(dict, meta["callbacks"])
            and all(is_plain(v) for x in meta["callbacks"] for v in x.values())
            and all(
                _are(str, meta.get(name, []))
                for name in ("optimizer", "variables", "callback_classes")
            )
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _not_a_backup(path) from error
    if not right:
        raise _not_a_backup(path)
    if version != _VERSION:
        raise value_error(
            f"the backup must be of version {_VERSION}",
            path=str(path),
            version=version,
        )
    return meta


def _are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(x, kind) for x in values)


def _not_a_backup(path: Path) -> ValueError:
    return value_error(
        "`path` must be a file of `ResumableBackup`", path=str(path)
    )
