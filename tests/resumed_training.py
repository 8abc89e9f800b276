"""Run by training/test_resume.py: trainings that may be killed and resumed.

python tests/resumed_training.py '[[FOLDER, MODEL, SECONDS], ...]'

With SECONDS one kills itself after so long, at whatever it does then; with
null, it trains to the end and writes all variables. Each is a process of its
own, forked off once all is imported, which takes longer than to train. What
is printed is a list of exit statuses and finished epochs.
"""

import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import keras
import numpy as np
from keras import ops
from small_trainings import COUNT
from small_trainings import data_of
from small_trainings import network

import keras_calib as kc

EPOCHS = 40


def train(folder, name, seconds):
    keras.utils.set_random_seed(7)
    x, y, labels, weight = data_of(name, COUNT)
    model = network(name, dropout=0.3)
    if (folder / "backup.npz").exists():
        # What comes out must not depend on how a process begins.
        for variable in model.variables:
            if "float" in str(variable.dtype):
                variable.assign(np.zeros(variable.shape))
    batches = kc.EpochBatches(
        x, y["label"], batch_size=32, sample_weight=weight, seed=3
    )
    plateau = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", patience=1, factor=0.7, min_delta=0.05
    )
    stop = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=50, restore_best_weights=True
    )
    backup = kc.ResumableBackup(
        folder / "backup.npz", callbacks=[plateau, stop]
    )

    def killed():
        # Waits for the first epoch, so that there is something to lose.
        while not (folder / "backup.npz").exists():
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [plateau, stop, backup]
    if seconds is not None:
        # Else a fast machine is done before it is killed.
        pause = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: time.sleep(0.02)
        )
        callbacks = [pause, *callbacks]
        threading.Thread(target=killed, daemon=True).start()
    model.fit(
        batches,
        epochs=EPOCHS,
        validation_data=(x, labels),
        callbacks=callbacks,
        verbose=0,
    )
    values = [ops.convert_to_numpy(v) for v in model.variables]
    values += [ops.convert_to_numpy(v) for v in model.optimizer.variables]
    losses = [logs["loss"] for logs in backup.epoch_logs]
    rest = {"losses": losses, "wait": plateau.wait, "best": stop.best}
    np.savez(folder / "end.npz", *values, **rest)


def forked(folder, name, seconds):
    """Exit status of a process that trains, and what its backup holds."""
    child = os.fork()
    if child == 0:
        try:
            train(folder, name, seconds)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, kc.finished_epochs(folder / "backup.npz")


if __name__ == "__main__":
    runs = json.loads(sys.argv[1])
    print(json.dumps([forked(Path(run[0]), *run[1:]) for run in runs]))
