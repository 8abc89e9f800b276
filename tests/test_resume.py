"""Training that is killed goes on as if nothing had been."""

import errno
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from file_writers import writer
from small_trainings import COUNT
from small_trainings import data_of
from small_trainings import network

import keras_calib as kc
from keras_calib.backend import files
from keras_calib.backend.array_files import ArrayFile
from keras_calib.backend.locks import PathLock
from keras_calib.training.callback_state import state_names

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
    # No lock of a killed process, no half of a file.
    assert sorted(os.listdir(folder / "broken")) == ["backup.npz", "end.npz"]


class Killed(Exception):
    """In place of a signal, between two operations of the file system."""


@pytest.mark.parametrize(
    "operation", ["write", "fsync", "replace", "sync_folder"]
)
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
        "fsync": (os, "fsync"),
        "replace": (os, "replace"),
        "sync_folder": (files, "sync_folder"),
    }[operation]
    with monkeypatch.context() as patched:
        patched.setattr(*target, fails)
        with pytest.raises(Killed):
            kc.save_training_state(path, model, 2)
    other = network("crl")
    epochs = kc.load_training_state(path, other)["epochs"]
    # Once the new file is in its place, it is the backup.
    assert epochs == (2 if operation == "sync_folder" else 1)
    expected = 5.0 if epochs == 2 else 0.0
    np.testing.assert_array_equal(array(other.right_counts), expected)


def test_half_a_file_of_a_killed_run_is_cleared_away(tmp_path):
    x, y, _, _ = data_of("crl", COUNT)
    left = tmp_path / ".backup.npz.123.tmp"
    left.write_bytes(b"PK half of it")
    # It does not say on which machine: old enough, nobody writes it.
    os.utime(left, (0, 0))
    backup = kc.ResumableBackup(tmp_path / "backup.npz")
    network("crl").fit(x, y, epochs=1, verbose=0, callbacks=[backup])
    assert os.listdir(tmp_path) == ["backup.npz"]
    assert len(backup.epoch_logs) == 1


def test_a_finished_run_is_not_trained_again_and_can_be_extended(
    tmp_path, monkeypatch
):
    x, y, _, _ = data_of("crl", COUNT)
    path = tmp_path / "deep" / "backup.npz"
    model = network("crl")
    model.fit(x, y, epochs=2, verbose=0, callbacks=[kc.ResumableBackup(path)])
    again = network("crl")
    backup = kc.ResumableBackup(path)
    again.fit(x, y, epochs=2, verbose=0, callbacks=[backup])
    for v, w in zip(model.variables, again.variables, strict=True):
        np.testing.assert_array_equal(array(v), array(w))

    def refused(_):
        raise PermissionError("read-only")

    with monkeypatch.context() as patch:
        patch.setattr(PathLock, "acquire", refused)
        again.fit(x, y, epochs=2, verbose=0, callbacks=[backup])
        with pytest.raises(PermissionError, match="read-only"):
            again.fit(x, y, epochs=3, verbose=0, callbacks=[backup])
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


def test_a_backup_has_one_writer_at_a_time(tmp_path):
    x, y, _, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    model = network("sam")
    before = [array(v).copy() for v in model.variables]
    backup = kc.ResumableBackup(path)
    match = "`path` must have one writer at a time"
    with writer("keep", path) as process:
        for _ in range(2):
            with pytest.raises(RuntimeError, match=match) as raised:
                model.fit(x, y["label"], verbose=0, callbacks=[backup])
            assert f"process={process.pid}," in str(raised.value)
        with pytest.raises(RuntimeError, match=match):
            kc.save_training_state(path, model, 1)
    for v, w in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(v, array(w))
    assert os.listdir(tmp_path) == [".backup.npz.lock"]

    # That process was killed. Another takes over within the next training.
    def stolen(epoch, logs):
        (tmp_path / ".backup.npz.lock").unlink()
        stolen.process = writer("keep", path)
        stolen.process.__enter__()

    steals = keras.callbacks.LambdaCallback(on_epoch_begin=stolen)
    with pytest.raises(RuntimeError, match=match):
        model.fit(x, y["label"], verbose=0, callbacks=[steals, backup])
    stolen.process.__exit__(None, None, None)
    assert os.listdir(tmp_path) == [".backup.npz.lock"]


def test_a_full_disk_ends_training_and_leaves_the_backup(tmp_path, monkeypatch):
    x, y, _, _ = data_of("sam", COUNT)
    path = tmp_path / "backup.npz"
    kc.save_training_state(path, network("sam"), 1)
    saved, save = path.read_bytes(), np.savez

    def full(file, **arrays):
        save(file, **arrays)
        raise OSError(errno.ENOSPC, "No space left on device")

    backup = kc.ResumableBackup(path)
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        network("sam").fit(x, y["label"], epochs=2, verbose=0, callbacks=backup)
    assert path.read_bytes() == saved
    assert sorted(os.listdir(tmp_path)) == [".backup.npz.lock", "backup.npz"]


class Remembers(keras.callbacks.Callback):
    """Says what of it belongs into a backup."""

    state_attributes = ("count", "means")

    def __init__(self, path=""):
        super().__init__()
        self.path = path
        self.count, self.means, self.other = 0, None, 0


def remembering():
    return [
        Remembers(),
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.ModelCheckpoint("mine.keras"),
    ]


def forge(path, change):
    """Writes a backup anew; `change` gets its numbers and its arrays."""
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(arrays["meta"].tobytes())
    change(meta, arrays)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), "uint8")
    np.savez(path, **arrays)


def test_a_backup_sets_what_callbacks_say_and_nothing_else(tmp_path):
    path = tmp_path / "backup.npz"
    saved, callbacks = remembering(), remembering()
    saved[0].count, saved[0].other = np.float32(0.5), 5
    saved[0].means = [np.arange(3.0), np.ones((2, 2), "int32")]
    saved[1].wait, saved[1].patience, saved[2].best = 2, 7, 0.25
    model = network("sam")
    kc.save_training_state(path, model, 1, callbacks=saved)
    kc.load_training_state(path, model, callbacks=callbacks)
    own, stop, checkpoint = callbacks
    assert (own.count, own.other, own.path) == (0.5, 0, "")
    for mean, expected in zip(own.means, saved[0].means, strict=True):
        np.testing.assert_array_equal(mean, expected)
        assert mean.dtype == expected.dtype
    assert (stop.wait, stop.patience, checkpoint.best) == (2, 0, 0.25)

    # As release 0.1 wrote it, with all numbers of a callback.
    def older(meta, arrays):
        del meta["callback_classes"], meta["variables"]
        meta["callbacks"][2] |= {"filepath": 1, "validation_data": None}
        arrays["callback_0_other_0"] = np.ones(3)

    forge(path, older)
    kc.load_training_state(path, model, callbacks=callbacks)
    assert (own.other, checkpoint.filepath) == (0, "mine.keras")

    class Silent(keras.callbacks.EarlyStopping):
        pass

    class Mistaken(Remembers):
        state_attributes = "path"

    for wrong, match in (
        (keras.callbacks.Callback(), "`state_attributes`, empty for nothing"),
        (Silent(), "callback='Silent'"),
        (Mistaken(), "`Mistaken.state_attributes` must be a tuple"),
    ):
        with pytest.raises(TypeError, match=match):
            kc.ResumableBackup(path, callbacks=[wrong])
    for value in ("text", [1.0, 2.0], {}):
        own.count = value
        with pytest.raises(TypeError, match="`Remembers.count` must be None"):
            kc.save_training_state(path, model, 1, callbacks=callbacks)


def test_what_is_known_of_the_callbacks_of_keras_is_so(tmp_path):
    made = [
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.ModelCheckpoint("x.keras"),
        keras.callbacks.SwapEMAWeights(),
    ]
    if BACKEND == "tensorflow":
        made.append(keras.callbacks.TensorBoard(tmp_path))
    for callback in made:
        callback.set_model(network("sam"))
        if not isinstance(callback, keras.callbacks.SwapEMAWeights):
            callback.on_train_begin()
        callback.on_epoch_begin(0)
        names = state_names(callback)
        assert names and set(names) <= set(vars(callback)), callback
        given = inspect.signature(type(callback)).parameters
        assert not set(names) & set(given)


def without(name):
    return lambda meta, arrays: arrays.pop(name)


def with_(name, value):
    return lambda meta, arrays: arrays.update({name: value})


def told(**changes):
    return lambda meta, arrays: meta.update(changes)


def of_callback(place, **values):
    return lambda meta, arrays: meta["callbacks"][place].update(values)


NOT_ONE = "must be a file of `ResumableBackup`"
FORGED = [
    (of_callback(2, filepath="theirs.keras"), NOT_ONE),
    (of_callback(2, filepath=1), "nothing of a callback but its"),
    (of_callback(0, path=1), "nothing of a callback but its"),
    (with_("callback_2_filepath_0", np.ones(1)), "but its `state_attri"),
    (with_("callback_1_best_weights_0", np.ones(9)), "must be of this model"),
    (told(callback_classes=["EarlyStopping"] * 3), "of the classes in the"),
    (told(callbacks=[]), "as many as in the backup"),
    (told(callbacks=[{}, 1, {}]), NOT_ONE),
    (told(epochs=-1), NOT_ONE),
    (told(epochs=[1]), NOT_ONE),
    (told(logs={}), NOT_ONE),
    (told(variables=[]), NOT_ONE),
    (told(optimizer=1), NOT_ONE),
    (told(python_random=[3, [1, 2], None]), NOT_ONE),
    (told(numpy_random=["MT19937"]), NOT_ONE),
    (with_("numpy_random_keys", np.ones(3)), NOT_ONE),
    (without("numpy_random_keys"), NOT_ONE),
    (without("variable_0"), "of this model and optimizer"),
]


def test_a_forged_backup_changes_nothing(tmp_path):
    whole, path = tmp_path / "whole.npz", tmp_path / "backup.npz"
    model, callbacks = network("sam"), remembering()
    callbacks[0].count = 3
    kc.save_training_state(whole, model, 1, callbacks=callbacks)
    for variable in model.variables:
        variable.assign(np.ones(variable.shape))
    callbacks[0].count = 5
    last = f"variable_{len([*model.variables, *model.optimizer.variables]) - 1}"

    def renamed(meta, arrays):
        meta["variables"][-1] = "another"

    kept = [{**vars(callback)} for callback in callbacks]
    for change, match in (
        *FORGED,
        (renamed, "of this model and optimizer"),
        (with_(last, np.ones((7, 7), "float32")), "of this model and optim"),
        (lambda meta, x: x.update({last: x[last].astype(">f8")}), "dtype="),
    ):
        path.write_bytes(whole.read_bytes())
        forge(path, change)
        drawn = random.getstate(), np.random.get_state()[1].tolist()
        with pytest.raises(ValueError, match=match):
            kc.load_training_state(path, model, callbacks=callbacks)
        assert drawn == (random.getstate(), np.random.get_state()[1].tolist())
        assert kept == [vars(callback) for callback in callbacks]
        for variable in model.variables:
            assert (array(variable) == 1).all()
    kc.load_training_state(whole, model, callbacks=callbacks)
    assert callbacks[0].count == 3


def test_a_small_backup_fills_no_memory(tmp_path, monkeypatch):
    path = tmp_path / "backup.npz"
    model = network("sam")
    kc.save_training_state(path, model, 1)
    read, names = ArrayFile.read, []
    monkeypatch.setattr(
        ArrayFile, "read", lambda x, name: names.append(name) or read(x, name)
    )
    # What the model does not have is not read.
    forge(path, with_("more", np.ones(1000)))
    kc.load_training_state(path, model)
    assert "variable_0" in names and "more" not in names
    # Compressed zeros, a head that promises more, entries in one place.
    with np.load(path) as file:
        arrays = dict(file)
    np.savez_compressed(path, **arrays)
    with pytest.raises(ValueError, match=NOT_ONE):
        kc.load_training_state(path, model)
    np.savez(path, **arrays)
    content = path.read_bytes()
    head = content.index(b"'shape': (")
    place = content.index(b")", head)
    room = content[place : content.index(b"\n", place)]
    more = b"999999999, )" if b"(," in content[head:place] else b", 99999999)"
    path.write_bytes(
        content[:place]
        + (more + room[1:])[: len(room)]
        + content[place + len(room) :]
    )
    with pytest.raises(ValueError, match=NOT_ONE):
        kc.load_training_state(path, model)
    np.savez(path, **arrays)
    with zipfile.ZipFile(path) as file:
        entries = file.infolist()
        for entry in entries:
            entry.header_offset, entry.file_size = 0, path.stat().st_size
            entry.compress_size = entry.file_size
    monkeypatch.setattr(zipfile.ZipFile, "infolist", lambda self: entries)
    with pytest.raises(ValueError, match=NOT_ONE):
        kc.finished_epochs(path)
