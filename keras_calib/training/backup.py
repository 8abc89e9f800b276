"""Backups that resume training after a kill: its whole state, in one file."""

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

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import NpzFile, path_of, reading_npz, replacing
from keras_calib.backend.keras_internals import (
    begin_at_epoch,
    callback_model,
    fit_arguments,
)
from keras_calib.backend.late import torch
from keras_calib.backend.locks import PathLock, check_not_locked
from keras_calib.backend.replicas import is_chief
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import to_numpy

_VERSION = 2
# In the JSON of the file this key and a number stand for an array.
_ARRAY = "npy:"
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


class ResumableBackup(keras.callbacks.Callback):
    """Saves the state of training after each epoch, and resumes from it.

    Use it for any run that may be killed: start the same script again, and
    `fit` continues with the first epoch that the backup lacks. One file holds
    weights, optimizer, random numbers, the model's records, gammas and
    targets, the logs of all epochs and the state of other callbacks. It is
    replaced atomically, so a kill leaves a complete backup, of the last epoch
    or of the one before.

    To train in the order of an uninterrupted run, use `EpochBatches`, which
    this callback tells the epoch, or give `array_pipeline` and
    `training_pipeline` `first_epoch=finished_epochs(path)`. Arrays that `fit`
    itself shuffles come in a new order. Layers that draw random numbers
    without a `keras.random.SeedGenerator` of their own draw new ones.

    A lock file beside the backup keeps other processes out during training.
    Put the backup last in the list of callbacks. If a callback stops training
    within an epoch, as `TerminateOnNaN` does, that epoch is trained again.
    If it stops at the end of one, as `EarlyStopping` does, the run has ended.

    Args:
        path: The file, which may exist from an interrupted run. Its folder is
            created.
        callbacks: Callbacks whose state is saved too, such as
            `EarlyStopping` and `ReduceLROnPlateau`, which Keras resets when
            training begins. A class of your own lists the attributes to save
            in its attribute `state_attributes`, a tuple of names. Each may be
            None, a number or a list of arrays. Nothing else is ever set,
            whatever the file contains.
        every: Save after every this many epochs, and after the last.
        delete_at_end: Whether to delete the file when training is complete.
            Otherwise `fit` does nothing once all epochs are done.

    Raises:
        OSError: When training begins, if its lock file cannot be written.
        RuntimeError: When training begins, if another process or thread
            trains with this path.
        TypeError: If one of `callbacks` has no `state_attributes`.
        ValueError: When training begins, if the model is not built, one of
            `callbacks` comes after the backup, or `steps_per_epoch` breaks up
            the passes of `EpochBatches`. Also if the backup is of another
            model, optimizer or other callbacks.

    Example:

    >>> backup = ResumableBackup("backup.npz")
    >>> backup.epoch_logs
    []

    Reference:
        Keras, BackupAndRestore,
        https://keras.io/api/callbacks/backup_and_restore/

    Differs:
        `BackupAndRestore` writes two files in place. A kill between these
        writes mixes two epochs, a kill within one loses the backup.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        callbacks: Any = (),
        every: int = 1,
        delete_at_end: bool = False,
    ):
        super().__init__()
        check_integer("every", every, 1)
        self.path = path_of(path)
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            state_names(callback)
        self.every = every
        self.delete_at_end = delete_at_end
        self.epoch_logs: list[dict] = []
        self._pending: list | None = None
        self._late: list = []
        # Data that take the number of the epoch, or None.
        self._data: Any = None
        # Whether training was stopped within an epoch.
        self._broken_off = False
        self._lock = PathLock("path", path)

    def set_params(self, params):
        super().set_params(params)
        # Keras sets the same `params` on all callbacks, in their order.
        self._late = [x for x in self.callbacks if x.params is not params]

    def on_train_begin(self, logs=None):
        if self._late:
            raise value_error(
                "`callbacks` must stand before the backup among those of "
                "`fit`: it saves them as the epoch leaves them",
                callback=type(self._late[0]).__name__,
            )
        self.epoch_logs = []
        self._pending = None
        self._broken_off = False
        arguments = fit_arguments(self.model)
        follows = hasattr(arguments.get("x"), "set_epoch")
        if follows and arguments["steps_per_epoch"] is not None:
            raise value_error(
                "`steps_per_epoch` must be None for data that have an epoch "
                "of their own, which is a whole pass",
                steps_per_epoch=arguments["steps_per_epoch"],
            )
        self._data = arguments["x"] if follows else None
        if is_chief():
            self._lock.acquire()
        try:
            state = load_training_state(
                self.path, self.model, callbacks=self.callbacks
            )
        except BaseException:
            self._lock.release()
            raise
        if state is None:
            return
        self.epoch_logs = state["logs"]
        first = state["epochs"]
        if state["stopped"]:
            # A callback ended this run, so no epoch is left to train.
            first = max(first, self.params.get("epochs", first))
        begin_at_epoch(self.model, first)
        # Restored later, as other callbacks may still reset themselves.
        self._pending = state["callbacks"]

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has read the first epoch; another `fit` must not inherit it.
        begin_at_epoch(self.model, None)
        if self._data is not None:
            self._data.set_epoch(epoch)
        if self._pending is not None:
            _restore(self.callbacks, self._pending)
            self._pending = None

    def on_train_batch_end(self, batch, logs=None):
        self._broken_off = callback_model(self).stop_training

    def on_epoch_end(self, epoch, logs=None):
        if self._broken_off:
            return
        numbers = {k: to_numpy(v).tolist() for k, v in (logs or {}).items()}
        self.epoch_logs.append(numbers)
        last = (self.params or {}).get("epochs") == epoch + 1
        due = (epoch + 1) % self.every == 0 or last or self.model.stop_training
        if due and is_chief():
            save_training_state(
                self.path,
                self.model,
                epoch + 1,
                logs=self.epoch_logs,
                callbacks=self.callbacks,
                stopped=self.model.stop_training,
            )

    def on_train_end(self, logs=None):
        # `on_epoch_begin` did not run if all epochs were finished before.
        begin_at_epoch(self.model, None)
        self._data = None
        if self.delete_at_end and not self._broken_off and is_chief():
            self.path.unlink(missing_ok=True)
        self._lock.release()


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
        "callbacks": [_callback_state(x) for x in callbacks],
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
    if not model.built:
        # Even without a file: better an error now than after a crash.
        raise value_error("`model` must be built before training", built=False)
    if not path.exists():
        return None
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
        _check_callbacks(callbacks, state)
    for variable, value in zip(variables, state["values"], strict=True):
        variable.assign(value)
    _set_random(state)
    if callbacks is not None:
        _restore(callbacks, state["callbacks"])
    return state


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


def _callback_state(callback: keras.callbacks.Callback) -> dict[str, Any]:
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
            value = to_numpy(value).tolist()
        if not _is_state(value):
            raise type_error(
                f"`{type(callback).__name__}.{name}` must be None, a "
                "number or a list of arrays to be in a backup",
                **{name: type(value).__name__},
            )
        state[name] = value
    return state


def _is_state(value: Any) -> bool:
    """Whether a value is None, a number or a list of arrays."""
    if isinstance(value, list):
        return all(isinstance(x, np.ndarray) for x in value)
    return value is None or isinstance(value, bool | int | float)


def _check_callbacks(callbacks: Any, backup: dict) -> None:
    """Raises ValueError unless a backup holds the state of these callbacks."""
    classes = [type(x).__name__ for x in callbacks]
    if classes != backup["callback_classes"]:
        raise value_error(
            "`callbacks` must be as many as in the backup, and of its "
            "classes in their order",
            callbacks=classes,
            backup=backup["callback_classes"],
        )
    for callback, values in zip(callbacks, backup["callbacks"], strict=True):
        other = sorted(set(values) - set(state_names(callback)))
        if other:
            raise value_error(
                "the backup must hold only the `state_attributes` of a "
                "callback. It is of another version of the class, or not to "
                "be trusted: train anew",
                callback=type(callback).__name__,
                attributes=other,
            )


def _restore(callbacks: list, states: list[dict[str, Any]]) -> None:
    """Sets the state that `_check_callbacks` has approved."""
    for callback, values in zip(callbacks, states, strict=True):
        for name, value in values.items():
            setattr(callback, name, value)


def _random_state() -> dict[str, Any]:
    """State of Python, NumPy and torch; Keras' generators are variables."""
    state = {
        "python_random": random.getstate(),
        "numpy_random": np.random.get_state(),
        "torch_random": [],
    }
    if backend.backend() == "torch":
        # Keras' dropout draws from it on torch.
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
            and all(map(_is_state, values))
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
