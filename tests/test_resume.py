"""Training that is killed goes on as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from small_trainings import COUNT
from small_trainings import data_of
from small_trainings import network

import keras_calib as kc
from keras_calib import training_state as module

HERE = Path(__file__).parent

pytestmark = pytest.mark.portable


def run(trainings):
    """Exit status and finished epochs of each, after one start of Python."""
    done = subprocess.run(
        [sys.executable, HERE / "resumed_training.py", json.dumps(trainings)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr[-3000:]


NAMES = ["crl", "adafocal", "pruning"] if BACKEND == "tensorflow" else ["crl"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By name: whole and broken run's folders, and what the kills left."""
    rng = np.random.default_rng()
    folders = {name: tmp_path_factory.mktemp(name) for name in NAMES}
    first, last = [], []
    for name, folder in folders.items():
        whole, broken = str(folder / "whole"), str(folder / "broken")
        os.mkdir(whole)
        os.mkdir(broken)
        first.append((whole, name, None))
        # Three times, of 40 epochs of at least 0.02 seconds.
        first += [(broken, name, rng.uniform(0.02, 0.25)) for _ in range(3)]
        last.append((broken, name, None))
    killed, errors = run(first)
    # In an interpreter that has seen none of the others.
    ended, more = run(last)
    return {
        name: (folder, killed[4 * i : 4 * i + 4], ended[i], errors + more)
        for i, (name, folder) in enumerate(folders.items())
    }


@pytest.mark.parametrize("name", NAMES)
def test_killed_at_three_points_it_ends_as_uninterrupted(name, trained):
    folder, (whole, *killed), broken, errors = trained[name]
    for status, epochs in (whole, broken):
        assert (status, epochs) == (0, 40), errors
    for status, _ in killed:
        assert status == -signal.SIGKILL, errors
    finished = [epochs for _, epochs in killed]
    assert 0 < finished[0] <= finished[1] <= finished[2] < 40
    ends = [np.load(folder / kind / "end.npz") for kind in ("whole", "broken")]
    assert len(ends[0].files) > 10
    for key in ends[0].files:
        np.testing.assert_array_equal(ends[0][key], ends[1][key], err_msg=key)
    assert len(ends[0]["losses"]) == 40


class Killed(Exception):
    """In place of a signal, between two operations of the file system."""


@pytest.mark.parametrize("operation", ["write", "fsync", "replace", "unlink"])
def test_a_kill_between_any_two_writes_leaves_a_whole_backup(
    operation, tmp_path, monkeypatch
):
    path = tmp_path / "backup.npz"
    model = network("crl")
    kc.save_training_state(path, model, 1)
    model.right_counts.assign(np.full(COUNT, 5.0))

    def fails(*args, **kwargs):
        raise Killed

    target = {
        "write": (np, "savez"),
        "fsync": (module.os, "fsync"),
        "replace": (module.os, "replace"),
        "unlink": (Path, "unlink"),
    }[operation]
    with monkeypatch.context() as patched:
        patched.setattr(*target, fails)
        with pytest.raises(Killed):
            kc.save_training_state(path, model, 2)
    other = network("crl")
    epochs = kc.load_training_state(path, other)["epochs"]
    # Once the new file is in its place, it is the backup.
    assert epochs == (2 if operation == "unlink" else 1)
    expected = 5.0 if epochs == 2 else 0.0
    np.testing.assert_array_equal(array(other.right_counts), expected)


def test_half_a_file_of_a_killed_run_is_cleared_away(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    left = tmp_path / ".backup.npz.123.tmp"
    left.write_bytes(b"PK half of it")
    backup = kc.ResumableBackup(tmp_path / "backup.npz")
    network("crl").fit(x, y, epochs=1, verbose=0, callbacks=[backup])
    assert os.listdir(tmp_path) == ["backup.npz"]
    assert len(backup.epoch_logs) == 1


def test_a_finished_run_is_not_trained_again_and_can_be_extended(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "deep" / "backup.npz"
    model = network("crl")
    model.fit(x, y, epochs=2, verbose=0, callbacks=[kc.ResumableBackup(path)])
    again = network("crl")
    backup = kc.ResumableBackup(path)
    again.fit(x, y, epochs=2, verbose=0, callbacks=[backup])
    for v, w in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(array(v), array(w))
    again.fit(x, y, epochs=3, verbose=0, callbacks=[backup])
    assert kc.finished_epochs(path) == 3
    assert len(backup.epoch_logs) == 3
    # Without the backup, `fit` begins where it is told to.
    assert len(again.fit(x, y, epochs=1, verbose=0).epoch) == 1


@pytest.mark.parametrize("name", ["sam", "crl"])
@pytest.mark.parametrize("patience, epochs", [(1, 2), (9, 3)])
def test_a_run_that_ended_ends_again_with_its_best_weights(
    patience, epochs, name, tmp_path
):
    # Those with a record have weights of no axis.
    x, y, _, _ = data_of(name, COUNT)
    path = tmp_path / "backup.npz"
    ends = []
    for _ in range(2):
        # The first epoch is the best.
        judge = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(value=-epoch)
        )
        stop = keras.callbacks.EarlyStopping(
            monitor="value",
            mode="max",
            patience=patience,
            restore_best_weights=True,
        )
        backup = kc.ResumableBackup(path, callbacks=[stop])
        model = network(name)
        options = {"batch_size": 32, "shuffle": False, "verbose": 0}
        shown = model.fit(
            x, y, epochs=3, callbacks=[judge, stop, backup], **options
        )
        ends.append([array(v).copy() for v in model.trainable_variables])
        assert kc.finished_epochs(path) == epochs
    assert shown.epoch == []
    alone = network(name)
    alone.fit(x, y, epochs=1, **options)
    for first, again, best in zip(
        *ends, alone.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(first, array(best))


class StopsAt(keras.callbacks.Callback):
    """Stops training after some steps, as when time is up."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training = self.left == 0


@pytest.mark.parametrize("steps", [7, 8, 9])
def test_an_epoch_that_was_broken_off_is_trained_again(steps, tmp_path):
    # Of three steps each: the third is broken off, be it in its last step.
    x, _, labels, _ = data_of("crl", COUNT)
    path = tmp_path / "backup.npz"
    ends = []
    for runs in ([StopsAt(steps), None], [None]):
        for stops in runs:
            model = network("crl")
            backup = kc.ResumableBackup(path)
            model.fit(
                kc.EpochBatches(x, labels, batch_size=32),
                epochs=5,
                callbacks=[backup] if stops is None else [stops, backup],
                verbose=0,
            )
            if stops:
                assert kc.finished_epochs(path) == 2
                assert len(backup.epoch_logs) == 2
        ends.append([array(v).copy() for v in model.variables])
        path.unlink()
    for broken, whole in zip(*ends, strict=True):
        np.testing.assert_array_equal(broken, whole)


def test_the_last_epoch_is_saved_whatever_the_interval(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "backup.npz"
    for epochs in (5, 5):
        backup = kc.ResumableBackup(path, every=3)
        shown = network("crl").fit(
            x, y, epochs=epochs, verbose=0, callbacks=[backup]
        )
        assert kc.finished_epochs(path) == 5
    assert shown.epoch == []


def test_callbacks_stand_before_their_backup(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "backup.npz"
    stop = keras.callbacks.EarlyStopping("loss")
    backup = kc.ResumableBackup(path, callbacks=[stop])
    for callbacks in ([backup, stop], [backup]):
        with pytest.raises(ValueError, match="must stand before the backup"):
            network("crl").fit(x, y, verbose=0, callbacks=callbacks)
    network("crl").fit(x, y, verbose=0, callbacks=[stop, backup])


def test_a_backup_of_another_optimizer_is_refused(tmp_path):
    # Each has one value per weight: a momentum, or a mean of squares.
    path = tmp_path / "backup.npz"
    kc.save_training_state(path, network("sam"), 1)
    model = network("sam")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.RMSprop(0.5), loss=loss)
    with pytest.raises(ValueError, match="of this model and optimizer"):
        kc.load_training_state(path, model)


def test_a_part_of_a_backup_is_refused(tmp_path):
    path = tmp_path / "backup.npz"
    kc.save_training_state(path, network("crl"), 1)
    content = path.read_bytes()
    for part in (content[: len(content) // 2], content[:-30]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="must be a file of `Resumable"):
            kc.finished_epochs(path)
    # Whole, but for some bytes within.
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"?" * 64 + content[middle + 64 :])
    with pytest.raises(ValueError, match="must be a file of `Resumable"):
        kc.load_training_state(path, network("crl"))


def test_an_interrupted_fit_leaves_no_first_epoch_behind(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "backup.npz"
    model = network("crl")
    backup = kc.ResumableBackup(path)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[backup])

    def stop(batch, logs):
        raise KeyboardInterrupt

    stops = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, epochs=4, verbose=0, callbacks=[stops, backup])
    assert model.fit(x, y, epochs=1, verbose=0).epoch == [0]


def test_a_model_that_is_not_built_is_refused_before_it_trains(tmp_path):
    x, _, labels, _ = data_of("sam", COUNT)
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    backup = kc.ResumableBackup(tmp_path / "backup.npz")
    if BACKEND == "tensorflow":
        # The others build it before.
        with pytest.raises(ValueError, match="`model` must be built"):
            model.fit(x, labels, callbacks=[backup], verbose=0)
    else:
        model.fit(x, labels, callbacks=[backup], verbose=0)
        assert kc.finished_epochs(backup.path) == 1


def test_a_backup_deleted_at_the_end_is_gone(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "backup.npz"
    backup = kc.ResumableBackup(path, delete_at_end=True)
    network("crl").fit(x, y, epochs=1, verbose=0, callbacks=backup)
    assert not path.exists()


def test_what_is_no_backup_of_this_model_is_refused(tmp_path):
    path = tmp_path / "backup.npz"
    kc.save_training_state(path, network("cape"), 1)
    model = network("crl")
    before = [array(v).copy() for v in model.variables]
    with pytest.raises(ValueError, match="of this model and optimizer"):
        kc.load_training_state(path, model)
    for v, w in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(v, array(w))
    for content in (b"", b"not a file of arrays"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be a file of `Resumable"):
            kc.finished_epochs(path)
    np.savez(path, x=np.ones(3))
    with pytest.raises(ValueError, match="must be a file of `Resumable"):
        kc.finished_epochs(path)
    with pytest.raises(ValueError, match="`every` must be >= 1"):
        kc.ResumableBackup(path, every=0)


def test_half_precision_comes_back_exactly(tmp_path):
    path = tmp_path / "backup.npz"

    def make():
        layers = [keras.Input((3,)), keras.layers.Dense(2, dtype="bfloat16")]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
        return model

    model, other = make(), make()
    kc.save_training_state(path, model, 1, logs=[{"loss": float("nan")}])
    state = kc.load_training_state(path, other)
    assert np.isnan(state["logs"][0]["loss"])
    for v, w in zip(model.variables, other.variables, strict=True):
        assert v.dtype == w.dtype
        as_float = [array(keras.ops.cast(x, "float32")) for x in (v, w)]
        np.testing.assert_array_equal(*as_float)
