"""Files that answer to several labels at once."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import answers

import keras_calib as kc

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def several(activation="sigmoid"):
    """A model of three labels, inputs and their labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype("float32")
    weight = rng.normal(size=(4, 3))
    model = keras.Sequential([keras.Input((4,), name="inputs")])
    model.add(keras.layers.Dense(3, activation=activation))
    model.layers[-1].set_weights([2.0 * weight, np.zeros(3)])
    loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
    model.compile(loss=loss)
    y = (rng.random((400, 3)) < 1 / (1 + np.exp(-x @ weight))).astype(int)
    return model, x, y


@pytest.mark.parametrize(
    ("made", "part", "by"),
    [
        ("onnx", kc.AffineScaling(), "label"),
        ("onnx", kc.AffineScaling(), "example"),
        slow("savedmodel", kc.AffineScaling(), "label"),
        slow("savedmodel", kc.TemperatureScaling(), "example"),
        slow("litert", kc.BetaCalibration(), "label"),
        slow("onnx", kc.VennAbers(), "label"),
        slow("litert", kc.VennAbers(), "label"),
        slow("litert", kc.IsotonicCalibration(min_prob=1e-3), "example"),
    ],
)
def test_files_answer_as_the_selector_does(made, part, by, tmp_path):
    model, x, y = several(None if by == "label" else "sigmoid")
    calibrator = kc.labels.MultiLabelCalibrator(part)
    calibrator.fit_on(model, (x, y), num_folds=0, verbose=0)
    selector = kc.labels.MultiLabelSelector(calibrator=calibrator, by=by)
    selector.fit_on(model, (x, y), coverage=0.5, verbose=0)
    suffix = {"savedmodel": "", "onnx": ".onnx", "litert": ".tflite"}[made]
    path = kc.export(model, tmp_path / f"m{suffix}", selector=selector)
    given = answers(path, made, inputs=x)
    outputs = model.predict_on_batch(x)
    wanted = selector(outputs, from_logits=by == "label")
    # Rounding may cross an edge of a table, but fits rise with the output.
    step = 2e-6 if by == "label" else 2e-7
    low, high = (
        array(selector(z, from_logits=by == "label")["probabilities"])
        for z in (outputs - step, outputs + step)
    )
    found = given["probabilities"]
    assert (found >= low - 1e-5).all() and (found <= high + 1e-5).all()
    sure = high - low < 1e-4
    assert sure.mean() > 0.5
    for name in ("probabilities", "confidence", "score", "accept", "labels"):
        value = given[name]
        same = np.isclose(value, array(wanted[name]), atol=1e-3)
        kept = sure if value.ndim > 1 else sure.all(axis=-1)
        if name in ("accept", "labels"):
            # A tie may go either way.
            edge = selector.threshold if name == "accept" else 0.0
            compared = "score" if name == "accept" else "logits"
            same |= np.abs(array(wanted[compared]) - edge) < 1e-4
        assert same[kept].all(), name
    assert set(given) == set(wanted)
    assert given["accept"].shape == ((400, 3) if by == "label" else (400,))


def test_a_calibrator_alone_accepts_everything(tmp_path):
    model, x, y = several()
    calibrator = kc.labels.MultiLabelCalibrator(kc.AffineScaling())
    calibrator.fit_on(model, (x, y), num_folds=0, verbose=0)
    path = kc.export(model, tmp_path / "m", calibrator)
    given = answers(path, inputs=x)
    probs = keras.ops.sigmoid(
        calibrator(model.predict_on_batch(x), from_logits=False)
    )
    assert np.allclose(given["probabilities"], array(probs), atol=1e-5)
    assert given["accept"].all()
    with pytest.raises(ValueError, match="needs a `SelectiveClassifier`"):
        kc.export(
            model,
            tmp_path / "c",
            selector=kc.labels.MultiLabelSelector(threshold=np.zeros(3)),
            certificate=True,
        )
