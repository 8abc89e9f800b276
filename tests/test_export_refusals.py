"""Export: what is wrong is refused, and what fails leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import answers
from exported import segmenter
from exported import selector
from exported import trained
from keras import ops

import keras_calib as kc
from keras_calib.backend.files import scratch_folder
from keras_calib.exporting import formats
from keras_calib.exporting.formats import format_of
from keras_calib.exporting.served_model import ServedModel
from keras_calib.selection import SelectiveClassifier

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
each_format = pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])


def replace(monkeypatch, made, **parts):
    """Writes or loads a format by other means."""
    changed = formats.FORMATS[made]._replace(**parts)
    monkeypatch.setitem(formats.FORMATS, made, changed)


# Files that are wrong.


@each_format
@pytest.mark.parametrize(
    ("output", "other"),
    [
        ("logits", selector(0.0, temperature=2.6)),
        ("score", selector(0.0, score="max_logit")),
        ("accept", selector(-1e3)),
    ],
)
def test_a_file_that_answers_otherwise_is_not_kept(
    tmp_path, monkeypatch, made, output, other
):
    model, _ = trained(10)
    write = formats.FORMATS[made].write

    def write_other(served, path, images):
        write(ServedModel(served.network, other, True), path, images)

    replace(monkeypatch, made, write=write_other)
    with pytest.raises(RuntimeError, match=f"as the model.*output='{output}'"):
        kc.export(model, tmp_path / "m", selector=selector(0.0), format=made)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])
def test_a_file_that_is_cut_off_is_not_kept(tmp_path, monkeypatch, made):
    model, _ = trained(10)
    write = formats.FORMATS[made].write

    def write_half(served, path, images):
        write(served, path, images)
        file = path / "saved_model.pb" if path.is_dir() else path
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    replace(monkeypatch, made, write=write_half)
    with pytest.raises(RuntimeError, match="can not be loaded"):
        kc.export(model, tmp_path / "m", format=made)
    assert os.listdir(tmp_path) == []


def test_outputs_without_their_names_are_not_kept(tmp_path, monkeypatch):
    model, _ = trained(3)

    def load(path):
        (run,) = formats._load_onnx(path).values()

        def nameless(**inputs):
            return {f"out{i}": v for i, v in enumerate(run(**inputs).values())}

        return {"serving_default": nameless}

    replace(monkeypatch, "onnx", load=load)
    with pytest.raises(RuntimeError, match="outputs=\\['out0'"):
        kc.export(model, tmp_path / "m", format="onnx")
    assert os.listdir(tmp_path) == []


def test_a_missing_signature_is_found(tmp_path, monkeypatch):
    model, _ = trained(3)
    load = formats.FORMATS["savedmodel"].load

    def load_one(path):
        return {"serving_default": load(path)["serving_default"]}

    replace(monkeypatch, "savedmodel", load=load_one)
    with pytest.raises(RuntimeError, match="signature='serving_logits'"):
        kc.export(model, tmp_path / "m")
    assert os.listdir(tmp_path) == []


def argmax_score(logits):
    """What no other runtime computes as Keras writes it."""
    return ops.cast(ops.argmax(logits, axis=-1), "float32")


@pytest.mark.parametrize("made", ["onnx", "litert"])
def test_a_score_that_can_not_be_converted_is_refused(tmp_path, made):
    model, x = trained(10)
    chosen = SelectiveClassifier(score=argmax_score, threshold=0.0)
    with pytest.raises(RuntimeError, match="can not be (written|loaded)"):
        kc.export(model, tmp_path / "m", selector=chosen, format=made)
    assert os.listdir(tmp_path) == []
    path = kc.export(model, tmp_path / "m", selector=chosen)
    given = answers(path, x=x)
    np.testing.assert_array_equal(given["score"], given["label"])


def test_a_batch_size_that_is_fixed_in_the_file_is_found(tmp_path, monkeypatch):
    import tensorflow as tf

    model, _ = trained(3)

    def write(served, path, images):
        archive = keras.export.ExportArchive()
        archive.track(served.model)
        archive.add_endpoint(
            "serving_default",
            lambda inputs: served.model({"inputs": inputs}, training=False),
            [tf.TensorSpec((3, 4), name="inputs")],
        )
        archive.write_out(path, verbose=False)

    replace(monkeypatch, "savedmodel", write=write)
    with pytest.raises(RuntimeError, match="answer as the model does"):
        kc.export(model, tmp_path / "m")
    assert os.listdir(tmp_path) == []


# Exports that do not end.


@each_format
@pytest.mark.parametrize(
    "error", [OSError("no space left on device"), KeyboardInterrupt()]
)
def test_an_interrupted_export_leaves_nothing(
    tmp_path, monkeypatch, made, error
):
    model, _ = trained(3)

    def write_some(served, path, images):
        path.write_text("some")
        raise error

    replace(monkeypatch, made, write=write_some)
    with pytest.raises(type(error)):
        kc.export(model, tmp_path / "deep" / "model", format=made)
    assert os.listdir(tmp_path / "deep") == []


@each_format
def test_an_export_interrupted_while_compared_leaves_nothing(
    tmp_path, monkeypatch, made
):
    model, _ = trained(3)
    load = formats.FORMATS[made].load

    def load_some(path):
        load(path)
        raise KeyboardInterrupt

    replace(monkeypatch, made, load=load_some)
    with pytest.raises(KeyboardInterrupt):
        kc.export(model, tmp_path / "deep" / "model", format=made)
    assert os.listdir(tmp_path / "deep") == []


@each_format
def test_what_exists_is_left_alone(tmp_path, made):
    model, _ = trained(3)
    (tmp_path / "kept.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "kept.txt", tmp_path / "link"):
        with pytest.raises(ValueError, match="`path` must not exist. Received"):
            kc.export(model, path, format=made)
    assert (tmp_path / "kept.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["kept.txt", "link"]


# Arguments that are wrong.


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


@pytest.mark.parametrize(
    ("made", "package"),
    [
        ("onnx", "tf2onnx"),
        ("onnx", "onnxruntime"),
        ("litert", "ai_edge_litert"),
    ],
)
def test_an_absent_extra_is_named(tmp_path, monkeypatch, made, package):
    monkeypatch.setitem(sys.modules, package, None)
    match = rf"needs {package}: pip install 'keras-calib\[{made}\]'"
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
    match = "probabilities that sum to 1 over the classes"
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
    path = kc.export(model, tmp_path / "whole", from_logits=True)
    x = np.eye(3, dtype="float32")
    np.testing.assert_array_equal(
        answers(path, "savedmodel", x=x)["label"], [0, 1, 2]
    )


def test_a_model_of_several_outputs_is_refused(tmp_path):
    inputs = keras.Input((4,))
    heads = [keras.layers.Dense(n)(inputs) for n in (2, 3)]
    model = keras.Model(inputs, heads)
    match = "`model` must have one output; choose the one .*model.outputs"
    refused(ValueError, match, tmp_path, model, from_logits=True)
    # Not that it is not known what it returns.
    refused(ValueError, match, tmp_path, model)


def test_samples_that_do_not_fit_are_refused(tmp_path):
    x = np.zeros((2, 4), "float32")
    for samples, match in (
        ([x, x], "must have the structure"),
        (np.float32(1), "at least one"),
        (x[:0], "at least one"),
        (x[:, :3], "incompatible"),
    ):
        refused(ValueError, match, tmp_path, sample_inputs=samples)


def test_a_model_that_fails_on_random_inputs_asks_for_samples(tmp_path):
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    layers = [
        keras.Input((2,), dtype="string"),
        lookup,
        keras.layers.Embedding(3, 4),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers)
    refused(
        ValueError,
        "`sample_inputs` must be given",
        tmp_path,
        model,
        from_logits=True,
    )
    samples = np.array([["a", "b"], ["c", "a"]], dtype=object)
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


def test_what_stands_in_the_way_is_not_removed(tmp_path):
    model, _ = trained(3)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError):
        kc.export(model, tmp_path / "file" / "m")
    assert Path(tmp_path / "file").read_text() == "mine"


@each_format
def test_what_another_process_made_in_the_meantime_is_kept(
    tmp_path, monkeypatch, made
):
    model, _ = trained(3)
    path, load = tmp_path / "m", formats.FORMATS[made].load

    def load_late(written):
        if made == "savedmodel":
            path.mkdir()
            (path / "kept.txt").write_text("theirs")
        else:
            path.write_text("theirs")
        return load(written)

    replace(monkeypatch, made, load=load_late)
    with pytest.raises(ValueError, match="`path` must not exist. Received"):
        kc.export(model, path, format=made)
    kept = path / "kept.txt" if made == "savedmodel" else path
    assert kept.read_text() == "theirs"
    assert os.listdir(tmp_path) == ["m"]


def test_a_file_is_made_where_there_are_no_links(tmp_path, monkeypatch):
    def link(source, target):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", link)
    model, x = trained(3)
    # The ending says which format is meant.
    path = kc.export(model, tmp_path / "m.onnx")
    assert answers(path, "onnx", x=x)["label"].shape == (64,)
    assert os.listdir(tmp_path) == ["m.onnx"]


OTHERS = ("pb", "pt", "pth", "pkl", "json", "npz", "safetensors", "zip", "gz")


def test_the_ending_of_a_path_fits_the_format(tmp_path):
    model, _ = trained(3)
    for name, made, match in (
        ("m.keras", None, "call `model.save"),
        ("m.h5", None, "call `model.save"),
        ("m.KERAS", "savedmodel", "call `model.save"),
        ("m.hdf5", None, "call `model.save"),
        *((f"m.{x}", None, f"or be .* folder: files in .{x}") for x in OTHERS),
        ("m.PT", "savedmodel", "folder: files in .pt"),
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


def test_what_a_killed_export_leaves_is_cleared_by_the_next(
    tmp_path, monkeypatch
):
    path = tmp_path / "m"
    with subprocess.Popen(["sleep", "600"]) as other:
        with monkeypatch.context() as patched:
            # Its folder, as it would be named there.
            patched.setattr(os, "getpid", lambda: other.pid)
            with scratch_folder(path) as left:
                pass
        left.mkdir()
        (left / "model").write_text("half")
        (tmp_path / ".other-1.part").write_text("theirs")
        with scratch_folder(path) as own:
            # It lives: left alone.
            assert left.is_dir() and own.is_dir() and own != left
        other.kill()
    with scratch_folder(tmp_path / "n"):
        assert left.is_dir()
    with scratch_folder(path) as own:
        assert sorted(os.listdir(tmp_path)) == sorted(
            [".other-1.part", own.name]
        )
        # Another thread of this process writes to the same path.
        with scratch_folder(path) as second:
            assert own.is_dir() and own != second
    assert os.listdir(tmp_path) == [".other-1.part"]
    # An earlier process may have had the number of this one.
    left = tmp_path / left.name.replace(str(other.pid), str(os.getpid()))
    left.mkdir()
    with scratch_folder(path):
        assert not left.is_dir()
    # Names of any length.
    with scratch_folder(tmp_path / ("é" * 127)) as folder:
        assert len(os.fsencode(folder.name)) < 256


def test_paths_are_local_and_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    model, _ = trained(3)
    monkeypatch.chdir(tmp_path)
    for path in ("gs://bucket/m", Path("s3://bucket/m"), "file:///m"):
        with pytest.raises(ValueError, match="`path` must be of a local file"):
            kc.export(model, path)
    assert os.listdir(tmp_path) == []
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kc.export(model, "~/m") == tmp_path / "home" / "m"
    assert os.listdir(tmp_path) == ["home"]


@pytest.mark.parametrize(
    ("name", "operation"),
    [("numpy_function", "PyFunc"), ("py_function", "EagerPyFunc")],
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


def test_a_model_that_is_calibrated_already_is_refused(tmp_path):
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
    kc.export(inside, tmp_path / "m", from_logits=True)
