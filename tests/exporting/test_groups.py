"""Files of selectors with thresholds by group."""

import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import answers, trained

import keras_calib as kc

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
IDS = np.array([-4, 3, 70, 2**31 - 2])


def grouped(named=False):
    """A network, its inputs, a selector by group, and groups of the inputs."""
    model, _ = trained(4)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(600, 4)).astype("float32")
    logits = model.predict(x, verbose=0)
    noise = rng.gumbel(size=logits.shape)
    labels = (2.0 * logits + noise).argmax(axis=-1)
    place = rng.integers(len(IDS), size=600)
    groups = np.array(["a", "b", "z", "é"])[place] if named else IDS[place]
    scaling = kc.TemperatureScaling(temperature=2.5)
    chosen = kc.SelectiveClassifier(calibrator=scaling)
    chosen.fit(labels, logits, coverage=0.5, groups=groups)
    return model, x, chosen, groups, place if named else groups


@pytest.mark.slow
@pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])
@pytest.mark.parametrize("named", [False, True])
def test_files_take_the_group_and_reject_unknown_ones(made, named, tmp_path):
    if (made, named) in (("onnx", True), ("litert", True)):
        pytest.skip("the file of names is that of places")
    model, x, chosen, groups, ids = grouped(named)
    suffix = {"savedmodel": "", "onnx": ".onnx", "litert": ".tflite"}[made]
    path = kc.export(
        model, tmp_path / f"m{suffix}", selector=chosen, from_logits=True
    )
    inputs = {chosen_name(path, made): x, "group": ids.astype("int32")}
    given = answers(path, made, **inputs)
    accepted = keras.ops.convert_to_numpy(
        chosen(model.predict(x, verbose=0), groups=groups)["accept"]
    )
    assert (given["accept"] == accepted).mean() > 0.998
    assert 0.4 < accepted.mean() < 0.6
    inputs["group"] = np.full(len(x), 11, "int32")
    assert not answers(path, made, **inputs)["accept"].any()
    if made == "savedmodel":
        logits = model.predict(x, verbose=0)
        of_logits = answers(
            path,
            signature="serving_logits",
            logits=logits,
            group=ids.astype("int32"),
        )
        assert (of_logits["accept"] == given["accept"]).mean() > 0.998


def chosen_name(path, made):
    """The name of the network's input in a file."""
    if made == "onnx":
        import onnxruntime

        names = [
            x.name for x in onnxruntime.InferenceSession(path).get_inputs()
        ]
    elif made == "litert":
        from ai_edge_litert.interpreter import Interpreter

        runner = Interpreter(str(path)).get_signature_runner("serving_default")
        names = list(runner.get_input_details())
    else:
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
        names = list(loaded.structured_input_signature[1])
    (name,) = set(names) - {"group"}
    return name
