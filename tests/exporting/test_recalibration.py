"""Recalibration: a file is calibrated, and certified, on its own answers."""

import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import answers, assert_same, expected, selector

import keras_calib as kc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BACKEND != "tensorflow", reason="export needs TensorFlow"
    ),
]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 4)).astype("float32")
# A network of weights W is three times too sure of these labels.
W = 6.0 * np.eye(4, 3, dtype="float32")
NOISE = RNG.gumbel(size=(1500, 3))
Y = (X @ W / 3.0 + NOISE).argmax(axis=-1)
TARGET = {"risk": 0.2, "delta": 0.1}


def network():
    layer = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((4,)), layer])
    layer.set_weights([W, np.zeros(3)])
    return model


def quantised(model, folder, chosen=None, inputs=None):
    """An int8 file of an export, by the converter of LiteRT."""
    import tensorflow as tf

    chosen = chosen or selector(0.5, 1.0)
    kc.export(model, folder / "saved", selector=chosen, from_logits=True)
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(folder / "saved"), signature_keys=["serving_default"]
    )
    converter.experimental_enable_resource_variables = True
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        {"inputs": X[i : i + 1]} for i in range(100)
    )
    if inputs is not None:
        converter.inference_input_type = getattr(tf, inputs)
    path = folder / "int8.tflite"
    with warnings.catch_warnings():
        # The converter's own interpreter says that it will move.
        warnings.simplefilter("ignore")
        path.write_bytes(converter.convert())
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, model = tmp_path_factory.mktemp("files"), network()
    found = {"int8": quantised(model, folder)}
    for name in ("onnx", "tflite"):
        found[name] = folder / f"float.{name}"
        kc.export(
            model, found[name], selector=selector(0.5, 1.0), from_logits=True
        )
    return found


@pytest.mark.parametrize("kind", ["int8", "tflite", "onnx"])
def test_a_file_is_certified_on_its_own_answers(files, tmp_path, kind):
    path = tmp_path / files[kind].name
    before = files[kind].read_bytes()
    found = kc.recalibrate_file(files[kind], Y, X, out=path, **TARGET)
    assert files[kind].read_bytes() == before
    made = "onnx" if kind == "onnx" else "litert"
    given = answers(path, made, x=X)
    wanted = expected(given["logits"], 1.0, found.chosen.threshold)
    assert_same(given, {**wanted, "accept": given["accept"]})
    cut = np.float32(found.chosen.threshold)
    np.testing.assert_array_equal(given["accept"], given["score"] >= cut)
    # The rows that chose the threshold, as the file answers them.
    order = np.random.default_rng(0).permutation(len(X))
    rest = np.sort(order[found.num_tuned :])
    accept = given["accept"][rest]
    wrong = (given["label"] != Y)[rest]
    assert found.chosen.num_samples == len(rest) == 1050
    assert found.chosen.coverage == pytest.approx(accept.mean())
    assert found.chosen.risk == pytest.approx(wrong[accept].mean())
    assert found.temperature == pytest.approx(3.0, rel=0.2)
    assert found.ece_after < 0.5 * found.ece_before
    # Once more in place: nothing is left to divide by, and nothing grows.
    size = path.stat().st_size
    again = kc.recalibrate_file(path, Y, X, **TARGET)
    assert again.temperature == pytest.approx(1.0, abs=1e-4)
    assert again.chosen.coverage == found.chosen.coverage
    assert path.stat().st_size == pytest.approx(size, abs=256)


@pytest.mark.parametrize("kind", ["int8", "tflite"])
def test_constants_of_a_written_file_are_aligned(files, tmp_path, kind):
    from ai_edge_litert import schema_py_generated as schema

    path = tmp_path / "model.tflite"
    kc.recalibrate_file(files[kind], Y, X, out=path, **TARGET)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    model = schema.Model.GetRootAs(data)
    constants = [model.Buffers(i) for i in range(model.BuffersLength())]
    places = [
        x.DataAsNumpy().ctypes.data - data.ctypes.data
        for x in constants
        if not x.DataIsNone()
    ]
    assert len(places) > 4
    assert not any(place % 16 for place in places)


def refused(path, **changes):
    given = {"labels": Y, "inputs": X, **TARGET, **changes}
    return kc.recalibrate_file(path, **given)


@pytest.mark.parametrize("kind", ["tflite", "onnx"])
@pytest.mark.parametrize(
    "changes, message",
    [
        ({"inputs": X[:, :3]}, "`inputs` must have the shape"),
        ({"inputs": {"other": X}}, "`inputs` must be an array for each"),
        ({"labels": Y[:9]}, "`labels` must have as many rows"),
        ({"labels": Y + 1}, "`labels` must be class ids of the file"),
        ({"labels": 1.0 * Y}, "`labels` must be class ids"),
        ({"risk": 1e-4}, "out of reach|certif"),
        ({"risk": None}, "One of `risk` and `coverage`"),
        ({"tune_fraction": 1.0}, "`tune_fraction` must leave rows"),
        ({"out": "saved"}, "`out` must not exist, and have the ending"),
    ],
)
def test_what_does_not_fit_leaves_the_file(files, kind, changes, message):
    path = files[kind]
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        refused(path, **changes)
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".*.tmp"))


def test_what_whole_numbers_do_not_have_is_not_quantised(tmp_path):
    path = quantised(network(), tmp_path, inputs="int8")
    before = path.read_bytes()
    for bad in (np.nan, np.inf, -np.inf):
        inputs = X.copy()
        inputs[7, 2] = bad
        with pytest.raises(ValueError, match="`inputs` must be finite for a"):
            refused(path, inputs=inputs)
    assert path.read_bytes() == before
    found = refused(path)
    assert found.temperature == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize("ending", [".tflite", ".onnx"])
def test_a_file_without_marks_is_refused(tmp_path, ending):
    # A SavedModel is a folder.
    with pytest.raises(ValueError, match="for a SavedModel assign its var"):
        refused(tmp_path)
    path = tmp_path / f"other{ending}"
    with pytest.raises(ValueError, match="`path` must be an existing file"):
        refused(path)
    path.write_bytes(b"no model at all")
    with pytest.raises(ValueError, match=r"`path` must be an? \w+ file"):
        refused(path)


def test_a_foreign_model_is_refused(tmp_path):
    import tensorflow as tf

    path = tmp_path / "foreign.tflite"
    converter = tf.lite.TFLiteConverter.from_keras_model(network())
    path.write_bytes(converter.convert())
    with pytest.raises(ValueError, match="a file that `export` wrote"):
        refused(path)


def exported(folder, ending, **facts):
    """A file of a selector, or of a calibrator alone."""
    model = network()
    path = folder / f"model{ending}"
    return kc.export(model, path, from_logits=True, **facts)


@pytest.mark.parametrize("ending", [".tflite", ".onnx"])
def test_answers_that_would_be_lost_are_refused(tmp_path, ending):
    scaling = kc.TemperatureScaling(temperature=2.0)
    logits = X @ W
    venn_abers = kc.VennAbers().fit(Y, logits)
    costs = kc.SelectiveClassifier(
        calibrator=scaling, costs=np.ones((3, 3)) - np.eye(3), threshold=-0.3
    )
    grouped = kc.SelectiveClassifier(calibrator=scaling)
    grouped.fit(Y, logits, coverage=0.5, groups=np.arange(len(Y)) % 2)
    cases = {
        "no intervals of `VennAbers`": {"calibrator": venn_abers},
        "no costs": {"selector": costs},
        "no thresholds by group": {"selector": grouped},
    }
    for place, (message, facts) in enumerate(cases.items()):
        (folder := tmp_path / str(place)).mkdir()
        path = exported(folder, ending, **facts)
        before = path.read_bytes()
        inputs = {"inputs": X}
        if "group" in message:
            inputs["group"] = np.arange(len(Y)) % 2
        with pytest.raises(ValueError, match=f"`path` must have.*{message}"):
            refused(path, inputs=inputs, score="msp")
        assert path.read_bytes() == before


@pytest.mark.parametrize("ignore_class", [None, 255])
def test_pixels_are_not_certified_as_samples(tmp_path, ignore_class):
    layer = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((2, 2, 4)), layer])
    layer.set_weights([W, np.zeros(3)])
    path = kc.export(model, tmp_path / "model.tflite", from_logits=True)
    before = path.read_bytes()
    images, labels = X.reshape(-1, 2, 2, 4), Y.reshape(-1, 2, 2).copy()
    if ignore_class is not None:
        labels[:, 0, 0] = ignore_class
    given = {"labels": labels, "inputs": images, "ignore_class": ignore_class}
    with pytest.raises(ValueError, match="`delta` needs independent samples"):
        refused(path, **given)
    assert path.read_bytes() == before
    # Without a guarantee the pixels that count choose the threshold.
    found = refused(path, **given, delta=None)
    pixels = 1500 if ignore_class is None else 1125
    assert found.chosen.num_samples == pytest.approx(0.7 * pixels, abs=4)


@pytest.mark.parametrize("ending", [".tflite", ".onnx"])
def test_whole_numbers_outside_the_files_type_are_refused(tmp_path, ending):
    layer = keras.layers.Dense(3)
    inputs = keras.Input((4,), dtype="int32")
    model = keras.Sequential([inputs, keras.layers.Rescaling(0.25), layer])
    layer.set_weights([W, np.zeros(3)])
    path = tmp_path / f"model{ending}"
    kc.export(model, path, from_logits=True)
    whole = np.round(4.0 * X).astype("int64")
    # Each of these would wrap around to another number of int32.
    for wrong in (whole + 2**32, whole - 2**32, np.uint32(2**31) + 0 * whole):
        with pytest.raises(ValueError, match="`inputs` must lie in the range"):
            refused(path, inputs=wrong)
    found = refused(path, inputs=whole)
    assert found.temperature == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize("kind", ["int8", "tflite", "onnx"])
@pytest.mark.parametrize("score", ["prob_margin", "neg_entropy"])
def test_a_score_changes_only_when_named(tmp_path, kind, score):
    other = selector(0.1, 1.0, score)
    if kind == "int8":
        path = quantised(network(), tmp_path, other)
    else:
        path = exported(tmp_path, f".{kind}", selector=other)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="`score` must be given for a file"):
        refused(path)
    assert path.read_bytes() == before
    found = refused(path, score=score)
    given = answers(path, "onnx" if kind == "onnx" else "litert", x=X)
    same = selector(found.chosen.threshold, 1.0, score)
    wanted = keras.ops.convert_to_numpy(same(given["logits"])["score"])
    np.testing.assert_allclose(given["score"], wanted, rtol=1e-4, atol=1e-4)
    # The file that was written has this score as well.
    with pytest.raises(ValueError, match="`score` must be given for a file"):
        refused(path)


def test_protected_files_are_refused(files, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(files["tflite"].read_bytes())
    sidecar = tmp_path / "model.tflite.certificate.json"
    sidecar.write_text("{}")
    with pytest.raises(ValueError, match="`path` must have no certificate"):
        refused(path)
    sidecar.unlink()
    path.chmod(0o444)
    with pytest.raises(ValueError, match="`path` must not be read-only"):
        refused(path)
    with pytest.raises(OSError):
        refused(path, out=tmp_path / "absent" / "x.tflite")
    taken = tmp_path / "taken.tflite"
    taken.write_bytes(b"a file of somebody")
    with pytest.raises(ValueError, match="`out` must not exist"):
        refused(path, out=taken)
    assert taken.read_bytes() == b"a file of somebody"
    assert path.read_bytes() == files["tflite"].read_bytes()
