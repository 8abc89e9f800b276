"""Export of one output of a model that has several."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import answers

import keras_calib as kc

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
NAMES = {"savedmodel": "m", "onnx": "m.onnx", "litert": "m.tflite"}
PACKAGES = {"onnx": ("tf2onnx", "onnxruntime"), "litert": ("ai_edge_litert",)}


def with_two_heads(in_dict):
    """A model of a depth `(batch, 1)` and of classes `(batch, 3)`, and data."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, "relu")(inputs)
    heads = {
        "depth": keras.layers.Dense(1, name="depth")(x),
        "kind": keras.layers.Dense(3, "softmax", name="kind")(x),
    }
    model = keras.Model(inputs, heads if in_dict else [*heads.values()])
    classes = keras.losses.SparseCategoricalCrossentropy()
    losses = {"depth": "mse", "kind": classes}
    model.compile(loss=losses if in_dict else [*losses.values()])
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 4)).astype("float32")
    labels = {"depth": data[:, :1], "kind": rng.integers(0, 3, 60)}
    return model, data, labels if in_dict else tuple(labels.values())


@pytest.mark.parametrize(
    ("made", "output"),
    [
        ("savedmodel", "kind"),
        pytest.param("onnx", 1, marks=pytest.mark.slow),
        pytest.param("litert", "kind", marks=pytest.mark.slow),
    ],
)
def test_a_file_answers_and_certifies_for_the_output(tmp_path, made, output):
    for package in PACKAGES.get(made, ()):
        pytest.importorskip(package)
    model, x, y = with_two_heads(made != "onnx")
    selector = kc.SelectiveClassifier(
        calibrator=kc.TemperatureScaling(temperature=2.0)
    )
    selector.fit_on(
        *(model, (x, y)), output=output, risk=0.9, delta=0.1, verbose=0
    )
    path = tmp_path / NAMES[made]
    kc.export(model, path, selector=selector, output=output, certificate=True)
    found = answers(path, made, **{"inputs" if made != "onnx" else "x": x})
    outputs = model.predict(x, verbose=0)
    outputs = outputs["kind"] if isinstance(outputs, dict) else outputs[1]
    expected = array(selector.calibrator(outputs, from_logits=False))
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-3, atol=1e-4)
    check = kc.exporting.check_certificate(path)
    assert check.holds
    # The weights of the other head are not in the certificate.
    told = check.certificate["weights"]["variables"]
    assert not any("depth" in one["path"] for one in told)
