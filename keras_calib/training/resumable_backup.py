"""A callback that resumes training after a kill."""

import os
from typing import Any

import keras

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of
from keras_calib.backend.keras_internals import (
    begin_at_epoch,
    callback_model,
    fit_arguments,
)
from keras_calib.backend.locks import PathLock
from keras_calib.backend.replicas import is_chief
from keras_calib.inputs.checks import check_integer
from keras_calib.training.callback_state import (
    plain_number,
    restore,
    state_names,
)
from keras_calib.training.checkpoint import (
    load_training_state,
    save_training_state,
)

__all__ = ["ResumableBackup"]


class ResumableBackup(keras.callbacks.Callback):
    """Saves the state of training after each epoch, and resumes from it.

    Use it for any run that may be killed: start the same script again, and
    `fit` continues with the first epoch that the backup lacks. One file holds
    weights, optimizer, random numbers, the model's records, gammas and
    targets, the logs of all epochs and the state of other callbacks. It is
    replaced atomically, so a kill leaves a complete backup, of the last epoch
    or of the one before.

    To train in the order of an uninterrupted run, use `EpochBatches`, which
    this callback tells the epoch, or give `array_pipeline`,
    `training_pipeline` and `shuffled_epochs`
    `first_epoch=finished_epochs(path)`. Arrays that `fit` itself shuffles
    come in a new order. Layers that draw random numbers without a
    `keras.random.SeedGenerator` of their own draw new ones.

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
        if not self.model.built:
            # Even without a file: better an error now than after a crash.
            raise value_error(
                "`model` must be built before training", built=False
            )
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
            restore(self.callbacks, self._pending)
            self._pending = None

    def on_train_batch_end(self, batch, logs=None):
        self._broken_off = callback_model(self).stop_training

    def on_epoch_end(self, epoch, logs=None):
        if self._broken_off:
            return
        numbers = {k: plain_number(v) for k, v in (logs or {}).items()}
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
