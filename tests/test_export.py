"""Export: the SavedModel answers as the model does, nothing is half done."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from keras import ops

import keras_calib as kc

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
RELOAD = Path(__file__).parents[1] / "examples" / "reload_savedmodel.py"


def fitted(num_outputs=3, loss=None, activation=None, dtype=None):
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    layer = keras.layers.Dense(num_outputs, activation, dtype=dtype)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(loss=loss or kc.ACLS(from_logits=True))
    logits = np.asarray(ops.cast(model(x), "float32")) * 3
    best = logits.argmax(-1) if num_outputs > 1 else (logits > 0)[:, 0]
    other = rng.integers(max(num_outputs, 2), size=64)
    labels = np.where(rng.uniform(size=64) < 0.7, best, other)
    return model, kc.TemperatureScaling().fit(labels, logits), x


def served(path, x):
    import tensorflow as tf

    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    (name,) = signature.structured_input_signature[1]
    answer = signature(**{name: tf.constant(x)})
    return {key: value.numpy() for key, value in answer.items()}


def test_it_answers_calibrated_for_any_batch_size(tmp_path):
    model, scaling, x = fitted()
    path = kc.export(model, tmp_path / "model", calibrator=scaling)
    logits = array(scaling(model(x)))
    assert abs(scaling.temperature - 1) > 0.1
    for size in (1, 5, 64):
        answer = served(path, x[:size])
        np.testing.assert_allclose(answer["logits"], logits[:size], rtol=1e-5)
        probs = array(ops.softmax(logits[:size]))
        np.testing.assert_allclose(answer["probabilities"], probs, rtol=1e-5)
        np.testing.assert_allclose(
            answer["confidence"], probs.max(-1), rtol=1e-5
        )


def test_it_serves_where_keras_cannot_be_imported(tmp_path):
    model, scaling, x = fitted()
    path = kc.export(model, tmp_path / "model", calibrator=scaling)
    np.save(tmp_path / "x.npy", x)
    subprocess.run(
        [sys.executable, RELOAD, path, tmp_path / "x.npy", tmp_path / "p.npy"],
        check=True,
        capture_output=True,
    )
    expected = array(ops.softmax(scaling(model(x))))
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), expected, rtol=1e-5)


def test_probabilities_binary_and_half_precision_outputs_export(tmp_path):
    cases = {
        "softmax": fitted(3, kc.ACLS(), "softmax"),
        "sigmoid": fitted(1, kc.FocalLoss(), "sigmoid"),
        "half": fitted(3, dtype="mixed_float16"),
    }
    for name, (model, _, x) in cases.items():
        answer = served(kc.export(model, tmp_path / name), x)
        outputs = np.asarray(ops.cast(model(x), "float32"))
        if name == "half":
            outputs = array(ops.softmax(outputs))
        elif name == "sigmoid":
            outputs = np.concatenate([1 - outputs, outputs], axis=-1)
        np.testing.assert_allclose(
            answer["probabilities"], outputs, rtol=1e-4, atol=1e-6
        )
        assert answer["probabilities"].dtype == np.float32


def test_a_functional_model_with_named_inputs_exports(tmp_path):
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    outputs = keras.layers.Dense(3)(keras.layers.Add()([first, second]))
    model = keras.Model({"a": first, "b": second}, outputs)
    path = kc.export(model, tmp_path / "model", from_logits=True)
    import tensorflow as tf

    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    x = np.ones((2, 4), "float32")
    answer = signature(a=tf.constant(x), b=tf.constant(2 * x))
    expected = array(model({"a": x, "b": 2 * x}))
    np.testing.assert_allclose(answer["logits"], expected, rtol=1e-5)


def test_logits_or_probabilities_is_never_guessed(tmp_path):
    model, _, _ = fitted()
    model.compile(loss="mse")
    with pytest.raises(ValueError, match="`from_logits` must be True or False"):
        kc.export(model, tmp_path / "model")
    assert os.listdir(tmp_path) == []
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(True))
    kc.export(model, tmp_path / "model")


def test_an_existing_folder_is_left_alone(tmp_path):
    model, scaling, _ = fitted()
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(ValueError, match="`path` must not exist. Received"):
        kc.export(model, tmp_path, calibrator=scaling)
    assert (tmp_path / "kept.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["kept.txt"]


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    model, scaling, _ = fitted()

    def fail(self, path, **kwargs):
        Path(path).mkdir()
        raise OSError("no space left on device")

    monkeypatch.setattr(keras.Model, "export", fail)
    with pytest.raises(OSError, match="no space left"):
        kc.export(model, tmp_path / "deep" / "model", calibrator=scaling)
    assert os.listdir(tmp_path / "deep") == []


def test_an_unfitted_calibrator_is_refused(tmp_path):
    model, _, _ = fitted()
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        kc.export(model, tmp_path / "m", calibrator=kc.TemperatureScaling())
    assert os.listdir(tmp_path) == []


def test_a_model_without_fixed_inputs_is_refused(tmp_path):
    class Subclassed(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(ValueError, match="`model` must have fixed inputs"):
        kc.export(Subclassed(), tmp_path / "m", from_logits=True)


def test_what_is_no_calibrator_is_refused(tmp_path):
    model, _, _ = fitted()
    with pytest.raises(TypeError, match="`calibrator` must be a Calibrator"):
        kc.export(model, tmp_path / "m", calibrator=keras.layers.Dense(3))
    assert os.listdir(tmp_path) == []
