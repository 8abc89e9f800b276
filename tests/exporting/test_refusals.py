"""Export: what is wrong is refused, and what fails leaves nothing."""

import os
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import answers, segmenter, selector, trained
from keras import ops

import keras_calib as kc
from keras_calib.exporting import formats, served_model, writer
from keras_calib.exporting.formats import format_of
from keras_calib.exporting.served_model import ServedModel
from keras_calib.selection import SelectiveClassifier

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


def replace(monkeypatch, made, **parts):
    """Writes or loads a format by other means."""
    changed = formats.FORMATS[made]._replace(**parts)
    monkeypatch.setitem(formats.FORMATS, made, changed)


def argmax_score(logits):
    """What no other runtime computes as Keras writes it."""
    return ops.cast(ops.argmax(logits, axis=-1), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("made", ["onnx", "litert"])
def test_a_score_that_can_not_be_converted_is_refused(tmp_path, made):
    model, x = trained(10)
    chosen = SelectiveClassifier(score=argmax_score, threshold=0.0)
    with pytest.raises(RuntimeError, match="cannot be (written|loaded)"):
        kc.export(model, tmp_path / "m", selector=chosen, format=made)
    assert os.listdir(tmp_path) == []
    path = kc.export(model, tmp_path / "m", selector=chosen)
    given = answers(path, x=x)
    np.testing.assert_array_equal(given["score"], given["label"])


def write_folder(served, path, images):
    path.mkdir()


def refused(error, match, tmp_path, model=None, **arguments):
    """Raises, and writes nothing."""
    model = trained(3)[0] if model is None else model
    with pytest.raises(error, match=match):
        kc.export(model, tmp_path / "deep" / "m", **arguments)
    assert os.listdir(tmp_path) == []


def test_parts_that_are_not_fitted_are_refused(tmp_path):
    unfitted = kc.TemperatureScaling()
    refused(RuntimeError, "must be fitted", tmp_path, calibrator=unfitted)
    refused(
        RuntimeError,
        "`SelectiveClassifier` must be fitted",
        tmp_path,
        selector=SelectiveClassifier(),
    )
    refused(
        RuntimeError,
        "`TemperatureScaling` must be fitted",
        tmp_path,
        selector=SelectiveClassifier(calibrator=unfitted, threshold=0.0),
    )


def test_parts_of_the_wrong_kind_are_refused(tmp_path):
    dense = keras.layers.Dense(3)
    refused(TypeError, "`calibrator` must be a Cal", tmp_path, calibrator=dense)
    refused(TypeError, "`selector` must be a Sel", tmp_path, selector=dense)
    refused(TypeError, "`model` must be a Keras", tmp_path, model=dense)


def test_a_calibrator_that_is_not_the_selectors_is_refused(tmp_path):
    other = kc.TemperatureScaling(temperature=2.5)
    for chosen in (selector(0.0), SelectiveClassifier(threshold=0.0)):
        refused(
            ValueError,
            "`calibrator` must be that of `selector`",
            tmp_path,
            calibrator=other,
            selector=chosen,
        )


def test_an_unknown_format_is_refused(tmp_path):
    for name in ("saved_model", "onxx"):
        refused(ValueError, "`format` must be one of", tmp_path, format=name)


def test_an_absent_extra_is_named(tmp_path, monkeypatch):
    for made, package in (
        ("onnx", "tf2onnx"),
        ("onnx", "onnxruntime"),
        ("litert", "ai_edge_litert"),
    ):
        match = rf"needs {package}: pip install 'keras-calib\[{made}\]'"
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            refused(ImportError, match, tmp_path, format=made)


def test_logits_or_probabilities_is_never_guessed(tmp_path):
    model, _ = trained(3, loss="mse")
    refused(ValueError, "`from_logits` must be True or", tmp_path, model)
    model, _ = trained(3)
    refused(
        TypeError, "must be True, False or None", tmp_path, from_logits="yes"
    )
    # Seen in what it answers to the questions of the comparison.
    refused(ValueError, "must be probabilities in", tmp_path, from_logits=False)


def test_a_model_of_several_labels_is_refused(tmp_path):
    model, _ = trained(5, activation="sigmoid", loss="binary_crossentropy")
    refused(ValueError, "several channels under a binary", tmp_path, model)
    match = "must sum to 1 over the classes.*several labels at once need"
    refused(ValueError, match, tmp_path, model, from_logits=False)


def test_a_model_without_fixed_inputs_is_refused(tmp_path):
    class Subclassed(keras.Model):
        def call(self, x):
            return x

    # What the error says to do does it.
    match = (
        r"must have fixed inputs: .*`keras.Model\(inputs, model\(inputs\)\)`"
    )
    refused(ValueError, match, tmp_path, Subclassed(), from_logits=True)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, Subclassed()(inputs))
    served = ServedModel(model, selector(0.0), True)
    given = served.answers(served.outputs({"inputs": np.eye(3)}))
    np.testing.assert_array_equal(given["label"], [0, 1, 2])


def test_a_model_of_several_outputs_needs_the_one_to_serve(tmp_path):
    inputs = keras.Input((4,))
    heads = [keras.layers.Dense(n)(inputs) for n in (2, 3)]
    model = keras.Model(inputs, heads)
    match = "`output` must name the output to read"
    refused(TypeError, match, tmp_path, model, from_logits=True)
    # Not that it is not known what it returns.
    refused(TypeError, match, tmp_path, model)
    refused(ValueError, "a name or a position", tmp_path, model, output=2)
    match = "`outputs` must be an argument of `export`"
    refused(TypeError, match, tmp_path, model, outputs=1)


def test_samples_that_do_not_fit_are_refused(tmp_path):
    x = np.zeros((2, 4), "float32")
    for samples, match in (
        ([x, x], "must have the structure"),
        (np.float32(1), "at least one"),
        (x[:0], "at least one"),
        (x[:, :3], "incompatible"),
    ):
        refused(ValueError, match, tmp_path, sample_inputs=samples)


def of_strings():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    layers = [
        keras.Input((2,), dtype="string"),
        lookup,
        keras.layers.Embedding(3, 4),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    return keras.Sequential(layers)


def test_a_model_that_fails_on_random_inputs_asks_for_samples(tmp_path):
    match = "`sample_inputs` must be given"
    refused(ValueError, match, tmp_path, of_strings(), from_logits=True)
    layers = [keras.Input((2,)), Picky(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    match += ": the model fails"
    refused(ValueError, match, tmp_path, model, from_logits=True)


class Picky(keras.layers.Layer):
    """Takes no number but 7, in eager use."""

    def call(self, x):
        if hasattr(x, "numpy") and (x.numpy() != 7).any():
            raise ValueError("not 7")
        return x


@pytest.mark.slow
def test_a_model_of_strings_is_exported_with_samples(tmp_path):
    samples = np.array([["a", "b"], ["c", "a"]], dtype=object)
    model = of_strings()
    path = kc.export(
        model, tmp_path / "m", from_logits=True, sample_inputs=samples
    )
    given = answers(path, x=samples)["logits"]
    wanted = ops.convert_to_numpy(model(samples))
    np.testing.assert_allclose(given, wanted, rtol=1e-5)


def test_images_that_the_model_does_not_take_are_refused(tmp_path):
    same, image = keras.layers.Identity(), segmenter(3, side=8)
    options = {"model": image, "from_logits": True}
    for match, arguments in (
        ("`image_size` needs", {"image_size": (8, 8)}),
        (
            "must return what the model takes",
            {"image_preprocessing": same, "image_size": (9, 8)},
        ),
        ("needs a SavedModel", {"image_preprocessing": same, "format": "onnx"}),
        (
            "a height and a width",
            {"image_preprocessing": same, "image_size": (8, 8, 3)},
        ),
        (
            "a height and a width",
            {"image_preprocessing": same, "image_size": 8},
        ),
    ):
        refused(ValueError, match, tmp_path, **options, **arguments)
    refused(
        TypeError,
        "must be a function or layer",
        tmp_path,
        **options,
        image_preprocessing=1 / 255,
    )
    refused(
        ValueError,
        "the model gives them only if",
        tmp_path,
        segmenter(3, side=None),
        from_logits=True,
        image_preprocessing=same,
    )
    refused(ValueError, "with one input", tmp_path, image_preprocessing=same)


OTHERS = ("pb", "pt", "pth", "pkl", "json", "npz", "safetensors", "zip", "gz")


def test_the_ending_of_a_path_fits_the_format(tmp_path):
    model, _ = trained(3)
    for name, made, match in (
        ("m.keras", None, "call `model.save"),
        ("m.h5", None, "call `model.save"),
        ("m.KERAS", "savedmodel", "call `model.save"),
        ("m.hdf5", None, "call `model.save"),
        *((f"m.{x}", None, "or be the name of a folder") for x in OTHERS),
        ("m.PT", "savedmodel", "or be the name of a folder"),
        ("m.onnx", "savedmodel", "unless `format` is 'onnx'"),
        ("m.onnx", "litert", "unless `format` is 'onnx'"),
        ("m.tflite", "onnx", "unless `format` is 'litert'"),
    ):
        with pytest.raises(ValueError, match=match):
            kc.export(model, tmp_path / name, format=made)
    assert os.listdir(tmp_path) == []
    for name, made, meant in (
        ("m.tflite", None, "litert"),
        ("m.ONNX", None, "onnx"),
        ("1", None, "savedmodel"),
        ("v1.2", None, "savedmodel"),
        ("model.v2", None, "savedmodel"),
        ("m.bin", "onnx", "onnx"),
    ):
        assert format_of(Path(name), made) == meant, name


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("numpy_function", "PyFunc"),
        pytest.param("py_function", "EagerPyFunc", marks=pytest.mark.slow),
    ],
)
def test_a_model_that_calls_python_is_refused(tmp_path, name, operation):
    import tensorflow as tf

    class Doubled(keras.layers.Layer):
        def call(self, x):
            run = getattr(tf, name)
            return tf.ensure_shape(run(lambda x: 2 * x, [x], x.dtype), x.shape)

    layers = [keras.Input((4,)), Doubled(), keras.layers.Dense(3)]
    match = f"must not call Python.*'{operation}'"
    with pytest.raises(RuntimeError, match=match):
        kc.export(keras.Sequential(layers), tmp_path / "m", from_logits=True)
    assert os.listdir(tmp_path) == []


def test_a_strategy_of_several_replicas_is_refused(tmp_path):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    two = type("Two", (), {"num_replicas_in_sync": 2})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.distribute, "get_strategy", lambda: two)
        match = "must be called outside of `strategy.scope"
        refused(RuntimeError, match, tmp_path)
    assert tf.distribute.get_strategy() is strategy


def test_a_model_that_is_calibrated_already_is_refused(tmp_path, monkeypatch):
    network, _ = trained(3)
    chosen = selector(0.0)
    inside = keras.Sequential([network, chosen.calibrator])
    inner = keras.Sequential([network, kc.TemperatureScaling(temperature=2.0)])
    behind = keras.Sequential([inside, keras.layers.Rescaling(2.0)])
    match = "`model` must be the network alone"
    for model in (inside, inner, keras.Sequential([inner]), behind):
        for parts in (
            {"selector": chosen},
            {"calibrator": chosen.calibrator},
        ):
            refused(
                ValueError, match, tmp_path, model, from_logits=True, **parts
            )
    # Without a selector all is accepted; its calibrator may be given twice.
    assert served_model.selector_to_serve(None, None).threshold == -np.inf
    replace(
        monkeypatch,
        "savedmodel",
        write=lambda served, path, _: path.mkdir(),
        load=lambda _: {},
    )
    monkeypatch.setattr(writer, "check_answers", lambda *_: None)
    kc.export(inside, tmp_path / "m", from_logits=True)
    kc.export(network, tmp_path / "n", chosen.calibrator, chosen)
