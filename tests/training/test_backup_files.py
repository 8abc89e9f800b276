"""What a backup holds, and what of one from elsewhere is refused."""

import inspect
import json
import random

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from small_trainings import eager

import keras_calib as kc
from keras_calib.training.backup import state_names


def test_a_backup_of_another_optimizer_is_refused(tmp_path):
    # Each has one value per weight: a momentum, or a mean of squares.
    path = tmp_path / "backup.npz"
    kc.training.save_training_state(path, eager("sam"), 1)
    model = eager("sam")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.RMSprop(0.5), loss=loss)
    with pytest.raises(ValueError, match="of this model and optimizer"):
        kc.training.load_training_state(path, model)


def test_a_part_of_a_backup_is_refused(tmp_path):
    path = tmp_path / "backup.npz"
    kc.training.save_training_state(path, eager("crl"), 1)
    content = path.read_bytes()
    for part in (content[: len(content) // 2], content[:-30]):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="must be a file of `Resumable"):
            kc.training.finished_epochs(path)
    # Whole, but for some bytes within.
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"?" * 64 + content[middle + 64 :])
    with pytest.raises(ValueError, match="must be a file of `Resumable"):
        kc.training.load_training_state(path, eager("crl"))


def test_what_is_no_backup_of_this_model_is_refused(tmp_path):
    path = tmp_path / "backup.npz"
    kc.training.save_training_state(path, eager("cape"), 1)
    model = eager("crl")
    before = [array(v).copy() for v in model.variables]
    with pytest.raises(ValueError, match="of this model and optimizer"):
        kc.training.load_training_state(path, model)
    for v, w in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(v, array(w))
    for content in (b"", b"not a file of arrays"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be a file of `Resumable"):
            kc.training.finished_epochs(path)
    np.savez(path, x=np.ones(3))
    with pytest.raises(ValueError, match="must be a file of `Resumable"):
        kc.training.finished_epochs(path)
    with pytest.raises(ValueError, match="`every` must be >= 1"):
        kc.training.ResumableBackup(path, every=0)


@pytest.mark.portable
def test_half_precision_comes_back_exactly(tmp_path):
    path = tmp_path / "backup.npz"

    def make():
        layers = [keras.Input((3,)), keras.layers.Dense(2, dtype="bfloat16")]
        model = keras.Sequential(layers)
        model.compile("adam", "mse")
        return model

    model, other = make(), make()
    kc.training.save_training_state(
        path, model, 1, logs=[{"loss": float("nan")}]
    )
    state = kc.training.load_training_state(path, other)
    assert np.isnan(state["logs"][0]["loss"])
    for v, w in zip(model.variables, other.variables, strict=True):
        assert v.dtype == w.dtype
        as_float = [array(keras.ops.cast(x, "float32")) for x in (v, w)]
        np.testing.assert_array_equal(*as_float)


@pytest.mark.portable
def test_random_numbers_go_on(tmp_path):
    path = tmp_path / "backup.npz"
    model = eager("sam")
    kc.training.save_training_state(path, model, 1)

    def drawn():
        numbers = [random.random(), np.random.rand()]
        if BACKEND == "torch":
            import torch

            numbers.append(float(torch.rand(())))
        return numbers

    first = drawn()
    assert drawn() != first
    kc.training.load_training_state(path, model)
    assert drawn() == first


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
    model = eager("sam")
    kc.training.save_training_state(path, model, 1, callbacks=saved)
    kc.training.load_training_state(path, model, callbacks=callbacks)
    own, stop, checkpoint = callbacks
    assert (own.count, own.other, own.path) == (0.5, 0, "")
    for mean, expected in zip(own.means, saved[0].means, strict=True):
        np.testing.assert_array_equal(mean, expected)
        assert mean.dtype == expected.dtype
    assert (stop.wait, stop.patience, checkpoint.best) == (2, 0, 0.25)

    class Silent(keras.callbacks.EarlyStopping):
        pass

    class Mistaken(Remembers):
        state_attributes = "path"

    for wrong, match in (
        (keras.callbacks.Callback(), "such a tuple, empty for nothing"),
        (Silent(), "callback='Silent'"),
        (Mistaken(), "`Mistaken.state_attributes` must be a tuple"),
    ):
        with pytest.raises(TypeError, match=match):
            kc.training.ResumableBackup(path, callbacks=[wrong])
    for value in ("text", [1.0, 2.0], {}):
        own.count = value
        with pytest.raises(TypeError, match="`Remembers.count` must be None"):
            kc.training.save_training_state(path, model, 1, callbacks=callbacks)


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
        callback.set_model(eager("sam"))
        if not isinstance(callback, keras.callbacks.SwapEMAWeights):
            callback.on_train_begin()
        callback.on_epoch_begin(0)
        names = state_names(callback)
        assert names and set(names) <= set(vars(callback)), callback
        given = inspect.signature(type(callback)).parameters
        assert not set(names) & set(given)


def told(**changes):
    return lambda meta, arrays: meta.update(changes)


def of_callback(place, **values):
    return lambda meta, arrays: meta["callbacks"][place].update(values)


def with_array(place, name):
    def change(meta, arrays):
        arrays["arr_99"] = np.ones(9)
        meta["callbacks"][place][name] = [{"npy:": 99}]

    return change


NOT_ONE = "must be a file of `ResumableBackup`"
FORGED = [
    (of_callback(2, filepath="theirs.keras"), NOT_ONE),
    (of_callback(2, filepath=1), "hold only the `state_attributes`"),
    (of_callback(0, path=1), "hold only the `state_attributes`"),
    (with_array(2, "filepath"), "only the `state_attri"),
    (told(callback_classes=["EarlyStopping"] * 3), "of its classes"),
    (told(callbacks=[]), NOT_ONE),
    (told(callbacks=[], callback_classes=[]), "as many as in the backup"),
    (told(version=1), "must be of version 2"),
    (told(callbacks=[{}, 1, {}]), NOT_ONE),
    (told(epochs=-1), NOT_ONE),
    (told(epochs=[1]), NOT_ONE),
    (told(logs={}), NOT_ONE),
    (told(variables=[]), NOT_ONE),
    (told(optimizer=1), NOT_ONE),
    (told(python_random=[3, [1, 2], None]), NOT_ONE),
    (told(numpy_random=["MT19937"]), NOT_ONE),
    (told(numpy_random=["MT19937", [1, 2], 0, 0, 0.0]), NOT_ONE),
    (told(numpy_random=["MT19937", [1] * 624, 625, 0, 0.0]), NOT_ONE),
    (told(values=[]), NOT_ONE),
    # An array counts once.
    (lambda meta, _: meta["values"].__setitem__(1, {"npy:": 0}), NOT_ONE),
    (lambda meta, arrays: arrays.pop("arr_0"), NOT_ONE),
]


def test_a_forged_backup_changes_nothing(tmp_path):
    whole, path = tmp_path / "whole.npz", tmp_path / "backup.npz"
    model, callbacks = eager("sam"), remembering()
    callbacks[0].count = 3
    kc.training.save_training_state(whole, model, 1, callbacks=callbacks)
    for variable in model.variables:
        variable.assign(np.ones(variable.shape))
    callbacks[0].count = 5
    last = f"arr_{len([*model.variables, *model.optimizer.variables]) - 1}"

    def renamed(meta, arrays):
        meta["variables"][-1] = "another"

    kept = [{**vars(callback)} for callback in callbacks]
    for change, match in (
        *FORGED,
        (renamed, "of this model and optimizer"),
        (lambda meta, x: x.update({last: np.ones((7, 7), "f4")}), r"\(7, 7\)"),
        (lambda meta, x: x.update({last: x[last].astype(">f8")}), "'float64'"),
    ):
        path.write_bytes(whole.read_bytes())
        forge(path, change)
        drawn = random.getstate(), np.random.get_state()[1].tolist()
        with pytest.raises(ValueError, match=match):
            kc.training.load_training_state(path, model, callbacks=callbacks)
        assert drawn == (random.getstate(), np.random.get_state()[1].tolist())
        assert kept == [vars(callback) for callback in callbacks]
        for variable in model.variables:
            assert (array(variable) == 1).all()
    kc.training.load_training_state(whole, model, callbacks=callbacks)
    assert callbacks[0].count == 3


def test_a_small_backup_fills_no_memory(tmp_path):
    path = tmp_path / "backup.npz"
    model = eager("sam")
    kc.training.save_training_state(path, model, 1)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez_compressed(path, **arrays)
    with pytest.raises(ValueError, match=NOT_ONE):
        kc.training.load_training_state(path, model)
    # A head that promises more.
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
        kc.training.load_training_state(path, model)


def test_a_damaged_backup_is_told_or_read_as_it_was(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "backup.npz"
    model = eager("sam")
    kc.training.save_training_state(path, model, 1)
    whole = path.read_bytes()
    directory = whole.index(b"PK\1\2")
    expected = [array(v).copy() for v in model.variables]
    outcomes = set()
    for i in range(200):
        content = bytearray(whole)
        first = directory if i % 2 else 0
        for place in rng.integers(first, len(content), size=1 + i % 4):
            content[place] = rng.integers(256)
        path.write_bytes(content[: None if i % 7 else rng.integers(len(whole))])
        try:
            kc.training.load_training_state(path, model)
        except ValueError as error:
            assert NOT_ONE in str(error)
            outcomes.add("told")
            continue
        outcomes.add("read")
        for variable, value in zip(model.variables, expected, strict=True):
            np.testing.assert_array_equal(array(variable), value)
    assert outcomes == {"told", "read"}
