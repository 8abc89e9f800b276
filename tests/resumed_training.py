"""Run by training/test_resume.py: trainings that may be killed and resumed.

python tests/resumed_training.py '[[FOLDER, MODEL, SECONDS], ...]'

MODEL is one of `small_trainings`, or "guide", for the code of that guide on
resuming. With SECONDS one kills itself after so long, at whatever it does
then; with null, it trains to the end and writes all variables. Each is a
process of its own, forked off once all is imported, which takes longer than to
train. What is printed is a list of exit statuses and finished epochs.
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
from pages import blocks, section
from small_trainings import COUNT, CROSS_ENTROPY, data_of, network

import keras_calib as kc

EPOCHS = 40
GUIDE = section("training.md", "Resume after a crash")


def backup_of(folder, name):
    """Where a training has its backup."""
    return folder / ("run/backup.npz" if name == "guide" else "backup.npz")


def kill_soon(path, seconds, callback):
    """Kills this process some time after the first epoch, if not None."""

    def killed():
        # There is something to lose.
        while not path.exists():
            time.sleep(0.001)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    if seconds is not None:
        # Else a fast machine is done before it is killed.
        callback.on_epoch_begin = lambda epoch, logs: time.sleep(0.02)
        threading.Thread(target=killed, daemon=True).start()


def follow_guide(folder, seconds):
    """Runs the code of the guide with a model of Keras itself."""
    keras.utils.set_random_seed(7)
    x, _, labels, _ = data_of("sam", COUNT)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(5, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    model.compile("adam", **CROSS_ENTROPY)
    os.chdir(folder)
    stop = keras.callbacks.EarlyStopping(patience=500)
    kill_soon(backup_of(folder, "guide"), seconds, stop)
    space = {
        "early_stopping": stop,
        "keras_calib": kc,
        "labels": labels,
        "model": model,
        "val": (x, labels),
        "x": x,
    }
    (code,) = blocks(GUIDE, "python")
    exec(code.replace("epochs=200", f"epochs={EPOCHS}"), space)
    losses = [logs["loss"] for logs in space["backup"].epoch_logs]
    values = [*model.variables, *model.optimizer.variables]
    values = [ops.convert_to_numpy(v) for v in values]
    np.savez(folder / "end.npz", *values, losses=losses)


def train(folder, name, seconds):
    keras.utils.set_random_seed(7)
    x, y, labels, weight = data_of(name, COUNT)
    model = network(name, dropout=0.3)
    if backup_of(folder, name).exists():
        # What comes out must not depend on how a process begins.
        for variable in model.variables:
            if "float" in str(variable.dtype):
                variable.assign(np.zeros(variable.shape))
    batches = kc.data.EpochBatches(
        x, y["label"], batch_size=32, sample_weight=weight, seed=3
    )
    plateau = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", patience=1, factor=0.7, min_delta=0.05
    )
    stop = keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=50, restore_best_weights=True
    )
    path = backup_of(folder, name)
    backup = kc.training.ResumableBackup(path, callbacks=[plateau, stop])
    kill_soon(path, seconds, stop)
    model.fit(
        batches,
        epochs=EPOCHS,
        validation_data=(x, labels),
        callbacks=[plateau, stop, backup],
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
        # A bar of progress that is killed would stand before the answer.
        os.dup2(2, 1)
        try:
            if name == "guide":
                follow_guide(folder, seconds)
            else:
                train(folder, name, seconds)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, kc.training.finished_epochs(backup_of(folder, name))


if __name__ == "__main__":
    runs = json.loads(sys.argv[1])
    print(json.dumps([forked(Path(run[0]), *run[1:]) for run in runs]))
