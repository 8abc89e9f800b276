"""Training that is killed goes on as if nothing had been."""

import errno
import functools
import itertools
import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from file_writers import writer
from pages import blocks, section
from paths import ROOT, TESTS
from small_trainings import COUNT, EAGER, data_of, dense, eager

import keras_calib as kc
from keras_calib.backend import files

NAMES = ["crl", "adafocal", "pruning", "guide"]
ONE_STEP = {"batch_size": COUNT, "verbose": 0}
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="one backend is enough to be killed"
)


def run(trainings):
    """Exit status and finished epochs of each, after one start of Python."""
    done = subprocess.run(
        [sys.executable, TESTS / "resumed_training.py", json.dumps(trainings)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr[-3000:]


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


@pytest.mark.slow
@needs_tensorflow
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
    # No lock of a killed process.
    left = {x.name for x in (folder / "broken").rglob("*.*")}
    left = {x for x in left if x[-4:] != ".tmp"}
    assert left == {"backup.npz", "end.npz"}


class Killed(Exception):
    """In place of a signal, between two operations of the file system."""


def test_a_kill_between_any_two_writes_leaves_a_whole_backup(
    tmp_path, monkeypatch
):
    targets = {
        "write": (np, "savez"),
        "fsync": (os, "fsync"),
        "replace": (os, "replace"),
        "sync_folder": (files, "_sync_folder"),
    }
    for operation, target in targets.items():
        killed_in(operation, target, tmp_path / "backup.npz", monkeypatch)


def killed_in(operation, target, path, monkeypatch):
    model = eager("crl")
    kc.training.save_training_state(path, model, 1)
    model.right_counts.assign(np.full(COUNT, 5.0))

    def fails(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(*target, fails)
        with pytest.raises(Killed):
            kc.training.save_training_state(path, model, 2)
    other = eager("crl")
    epochs = kc.training.load_training_state(path, other)["epochs"]
    # Once the new file is in its place, it is the backup.
    assert epochs == (2 if operation == "sync_folder" else 1)
    expected = 5.0 if epochs == 2 else 0.0
    np.testing.assert_array_equal(array(other.right_counts), expected)


def test_a_finished_run_is_not_trained_again_and_can_be_extended(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "deep" / "backup.npz"
    model = eager("crl")
    model.fit(
        x,
        y,
        epochs=2,
        **ONE_STEP,
        callbacks=[kc.training.ResumableBackup(path)],
    )
    again = eager("crl")
    backup = kc.training.ResumableBackup(path)
    again.fit(x, y, epochs=2, **ONE_STEP, callbacks=[backup])
    for v, w in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(array(v), array(w))
    again.fit(x, y, epochs=3, **ONE_STEP, callbacks=[backup])
    assert kc.training.finished_epochs(path) == 3
    assert len(backup.epoch_logs) == 3
    # Without the backup, `fit` begins where it is told to.
    assert len(again.fit(x, y, epochs=1, **ONE_STEP).epoch) == 1


# Those with a record have weights of no axis.
@pytest.mark.parametrize(
    "name, patience, epochs", [("sam", 1, 2), ("crl", 9, 3)]
)
def test_a_run_that_ended_ends_again_with_its_best_weights(
    name, patience, epochs, tmp_path
):
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
        backup = kc.training.ResumableBackup(path, callbacks=[stop])
        model = eager(name)
        options = {"batch_size": 48, "shuffle": False, "verbose": 0}
        shown = model.fit(
            x, y, epochs=3, callbacks=[judge, stop, backup], **options
        )
        ends.append([array(v).copy() for v in model.trainable_variables])
        assert kc.training.finished_epochs(path) == epochs
    assert shown.epoch == []
    alone = eager(name)
    alone.fit(x, y, epochs=1, **options)
    for first, again, best in zip(
        *ends, alone.trainable_variables, strict=True
    ):
        np.testing.assert_array_equal(first, again)
        np.testing.assert_array_equal(first, array(best))


def plain():
    """A model of Keras, whose steps take the least time."""
    model = dense(keras.Model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **EAGER)
    return model


def weights(model):
    return np.concatenate([array(v).ravel() for v in model.variables])


def killing(callback, step):
    """The callback, which breaks training off before a step."""
    steps = itertools.count()

    def begins(batch, logs=None):
        if next(steps) == step:
            raise Killed

    callback.on_train_batch_begin = begins
    return callback


@pytest.mark.portable
def test_code_of_the_guide_resumes_in_the_order_of_the_epoch(
    tmp_path, monkeypatch
):
    x, _, labels, _ = data_of("sam", COUNT)
    (code,) = blocks(section("training.md", "Resume after a crash"), "python")
    code = code.replace("epochs=200", "epochs=2")

    def run(folder, early_stopping):
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        model = plain()
        given = {"keras_calib": kc, "model": model, "val": None}
        given |= {"x": x, "labels": labels, "early_stopping": early_stopping}
        exec(code, given)
        return weights(model)

    stop = functools.partial(keras.callbacks.EarlyStopping, "loss")
    whole = run(tmp_path / "whole", stop())
    with pytest.raises(Killed):
        run(tmp_path / "broken", killing(stop(), 4))
    assert kc.training.finished_epochs("run/backup.npz") == 1
    again = run(tmp_path / "broken", stop())
    np.testing.assert_array_equal(again, whole)


@pytest.mark.slow
@needs_tensorflow
def test_a_pipeline_resumes_at_the_first_epoch_that_is_not_finished(tmp_path):
    x, _, labels, _ = data_of("crl", COUNT)

    def run(path, *callbacks):
        model = eager("crl")
        batches = kc.data.array_pipeline(
            x,
            labels,
            batch_size=32,
            first_epoch=kc.training.finished_epochs(path),
        )
        callbacks = [*callbacks, kc.training.ResumableBackup(path)]
        options = {"epochs": 3, "steps_per_epoch": 3, "verbose": 0}
        model.fit(batches, callbacks=callbacks, **options)
        return weights(model)

    whole = run(tmp_path / "whole.npz")
    with pytest.raises(Killed):
        run(tmp_path / "broken.npz", killing(keras.callbacks.Callback(), 7))
    np.testing.assert_array_equal(run(tmp_path / "broken.npz"), whole)


class StopsAt(keras.callbacks.Callback):
    """Stops training after some steps, as when time is up."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        self.model.stop_training = self.left == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", [8, pytest.param(9, marks=pytest.mark.portable)]
)
def test_an_epoch_that_was_broken_off_is_trained_again(steps, tmp_path):
    # Of three steps each: the third is broken off, be it in its last step.
    x, _, labels, _ = data_of("crl", COUNT)
    path = tmp_path / "backup.npz"
    ends = []
    for runs in ([StopsAt(steps), None], [None]):
        for stops in runs:
            model = eager("crl")
            backup = kc.training.ResumableBackup(path)
            model.fit(
                kc.data.EpochBatches(x, labels, batch_size=32),
                epochs=5,
                callbacks=[backup] if stops is None else [stops, backup],
                verbose=0,
            )
            if stops:
                assert kc.training.finished_epochs(path) == 2
                assert len(backup.epoch_logs) == 2
        ends.append([array(v).copy() for v in model.variables])
        path.unlink()
    for broken, whole in zip(*ends, strict=True):
        np.testing.assert_array_equal(broken, whole)


def test_the_last_epoch_is_saved_whatever_the_interval(tmp_path):
    x, _, labels, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    for epochs in (5, 5):
        backup = kc.training.ResumableBackup(path, every=3)
        shown = plain().fit(
            x, labels, epochs=epochs, **ONE_STEP, callbacks=[backup]
        )
        assert kc.training.finished_epochs(path) == 5
    assert shown.epoch == []


def test_callbacks_stand_before_their_backup(tmp_path):
    x, _, labels, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    stop = keras.callbacks.EarlyStopping("loss")
    backup = kc.training.ResumableBackup(path, callbacks=[stop])
    for callbacks in ([backup, stop], [backup]):
        with pytest.raises(ValueError, match="must stand before the backup"):
            plain().fit(x, labels, **ONE_STEP, callbacks=callbacks)
    plain().fit(x, labels, **ONE_STEP, callbacks=[stop, backup])


def test_an_interrupted_fit_leaves_no_first_epoch_behind(tmp_path):
    x, _, labels, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    model = plain()
    backup = kc.training.ResumableBackup(path)
    model.fit(x, labels, epochs=2, **ONE_STEP, callbacks=[backup])

    def stop(batch, logs):
        raise KeyboardInterrupt

    stops = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, labels, epochs=4, **ONE_STEP, callbacks=[stops, backup])
    assert model.fit(x, labels, epochs=1, **ONE_STEP).epoch == [0]


def test_a_model_that_is_not_built_is_refused_before_it_trains(tmp_path):
    x, _, labels, _ = data_of("sam", COUNT)
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    backup = kc.training.ResumableBackup(tmp_path / "backup.npz")
    if BACKEND == "tensorflow":
        # The others build it before.
        with pytest.raises(ValueError, match="`model` must be built"):
            model.fit(x, labels, callbacks=[backup], verbose=0)
    else:
        model.fit(x, labels, callbacks=[backup], verbose=0)
        assert kc.training.finished_epochs(backup.path) == 1


def test_a_backup_deleted_at_the_end_is_gone(tmp_path):
    x, _, labels, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    backup = kc.training.ResumableBackup(path, delete_at_end=True)
    plain().fit(x, labels, epochs=1, **ONE_STEP, callbacks=backup)
    assert not path.exists()


def test_a_backup_has_one_writer_at_a_time(tmp_path):
    x, y, _, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    model = eager("sam")
    before = [array(v).copy() for v in model.variables]
    backup = kc.training.ResumableBackup(path)
    match = "`path` must have one writer at a time"
    with writer("keep", path) as process:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=match) as raised:
                model.fit(x, y["label"], **ONE_STEP, callbacks=[backup])
            assert f"process={process.pid}," in str(raised.value)
        with pytest.raises(RuntimeError, match=match):
            kc.training.save_training_state(path, model, 1)
    for v, w in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(v, array(w))
    assert os.listdir(tmp_path) == [".backup.npz.lock"]
    # That process was killed.
    model.fit(x, y["label"], **ONE_STEP, callbacks=[backup])
    assert os.listdir(tmp_path) == ["backup.npz"]


def test_a_full_disk_ends_training_and_leaves_the_backup(tmp_path, monkeypatch):
    x, y, _, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    kc.training.save_training_state(path, eager("sam"), 1)
    saved, save = path.read_bytes(), np.savez

    def full(file, *arrays, **more):
        save(file, *arrays, **more)
        raise OSError(errno.ENOSPC, "No space left on device")

    backup = kc.training.ResumableBackup(path)
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        eager("sam").fit(x, y["label"], epochs=2, **ONE_STEP, callbacks=backup)
    assert path.read_bytes() == saved
    assert sorted(os.listdir(tmp_path)) == [".backup.npz.lock", "backup.npz"]
