"""Training that goes on where it was killed."""

import os
from pathlib import Path
from typing import Any

import keras

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import begin_at_epoch
from keras_calib.backend.keras_internals import callback_model
from keras_calib.backend.locks import PathLock
from keras_calib.inputs.checks import check_integer
from keras_calib.training.callback_state import plain_number
from keras_calib.training.callback_state import restore
from keras_calib.training.callback_state import state_names
from keras_calib.training.checkpoint import load_training_state
from keras_calib.training.checkpoint import save_training_state
from keras_calib.training.multi_worker import is_chief

__all__ = ["ResumableBackup"]


class ResumableBackup(keras.callbacks.Callback):
    """Saves the state of training after each epoch, and goes on from there.

    One file holds weights, optimizer, random numbers and whatever else the
    model owns (records, gammas, targets), the logs of all epochs, and the
    state of other callbacks. It is replaced in one operation: a process that
    is killed leaves a whole backup, of the last epoch or of the one before.

    `fit`, called as before, goes on with the first epoch that is not in the
    backup. For the same order of data as in an uninterrupted run, use
    `EpochBatches`, or give `training_pipeline` and `shuffled_epochs`
    `first_epoch=finished_epochs(path)`. Arrays that `fit` itself shuffles are
    in a new order, and random numbers are new that layers draw without a
    `keras.random.SeedGenerator` of their own.

    While it trains, a lock file beside the backup keeps other processes out.

    Put it last in the list of callbacks. An epoch within which one of them
    stops training, as `TerminateOnNaN` does, is not saved but trained again.

    Args:
        path: The file, which may be there from an interrupted run. Its
            folder is made.
        callbacks: Callbacks whose state is saved too, such as
            `EarlyStopping` and `ReduceLROnPlateau`, which Keras resets when
            training begins. Another class than Keras' own names what is
            saved in its attribute `state_attributes`: a tuple of names of
            attributes that are None, numbers or lists of arrays. Nothing
            else is ever set, whatever the file says.
        every: After how many epochs it saves; and after the last.
        delete_at_end: Whether the file is deleted when training ends by
            itself. Else `fit` does nothing once all epochs are done.

    Raises:
        OSError: When training begins, if its lock file cannot be written.
        RuntimeError: When training begins, if another process or thread
            trains with this path.
        TypeError: If one of `callbacks` has no `state_attributes`.
        ValueError: When training begins, if the model is not built, the
            backup is of another model, optimizer or other callbacks, or one
            of `callbacks` comes after it.

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
        self.path = Path(path)
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            state_names(callback)
        self.every = every
        self.delete_at_end = delete_at_end
        self.epoch_logs: list[dict] = []
        self._pending: list | None = None
        self._late: list = []
        # Whether training was stopped within an epoch.
        self._broken_off = False
        self._lock = PathLock("path", path)

    def set_params(self, params):
        super().set_params(params)
        # Keras gives the same to all in their order.
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
        if not self.model.built:
            # Also where there is no file yet, rather than after a crash.
            raise value_error(
                "`model` must be built before training", built=False
            )
        if self._writes():
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
            # As the run that a callback ended: nothing is left to train.
            first = max(first, self.params.get("epochs", first))
        begin_at_epoch(self.model, first)
        # Callbacks that come later may yet reset themselves.
        self._pending = state["callbacks"]

    def on_epoch_begin(self, epoch, logs=None):
        # Keras has read it; another `fit` begins where it is told to.
        begin_at_epoch(self.model, None)
        if self._pending is not None:
            restore(self.callbacks, self._pending)
            self._pending = None

    def on_train_batch_end(self, batch, logs=None):
        self._broken_off = callback_model(self).stop_training

    def _writes(self) -> bool:
        """Whether this process writes the file."""
        return is_chief(getattr(self.model, "distribute_strategy", None))

    def on_epoch_end(self, epoch, logs=None):
        if self._broken_off:
            return
        numbers = {k: plain_number(v) for k, v in (logs or {}).items()}
        self.epoch_logs.append(numbers)
        last = (self.params or {}).get("epochs") == epoch + 1
        due = (epoch + 1) % self.every == 0 or last or self.model.stop_training
        if due and self._writes():
            save_training_state(
                self.path,
                self.model,
                epoch + 1,
                logs=self.epoch_logs,
                callbacks=self.callbacks,
                stopped=self.model.stop_training,
            )

    def on_train_end(self, logs=None):
        # All epochs were done before.
        begin_at_epoch(self.model, None)
        if self.delete_at_end and not self._broken_off and self._writes():
            self.path.unlink(missing_ok=True)
        self._lock.release()
