"""A file is calibrated on its own answers, and what ships is that."""

import itertools
import json
import warnings

import keras
import numpy as np
import pytest
from cases import BACKEND
from exported import assert_same, expected, selector, trained
from forged import changed

import keras_calib as kc
from keras_calib.exporting.statement import statement_path
from keras_calib.reporting.command_line import main

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1500, 4)).astype("float32")
# A network of weights W is three times too sure of these labels.
W = 6.0 * np.eye(4, 3, dtype="float32")
NOISE = RNG.gumbel(size=(1500, 3))
Y = (X @ W / 3.0 + NOISE).argmax(axis=-1)
TARGET = {"risk": 0.2, "delta": 0.1}
QUIET = {"verbose": 0}
# A file that was quantised takes the converter of LiteRT seconds.
KINDS = ("onnx", "savedmodel", pytest.param("int8", marks=pytest.mark.slow))


def network(activation=None):
    layer = keras.layers.Dense(3, activation)
    model = keras.Sequential([keras.Input((4,)), layer])
    layer.set_weights([W, np.zeros(3)])
    return model


def quantised(model, path, inputs=None):
    """An int8 file of a network, by the converter of LiteRT."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [X[i : i + 1]] for i in range(100)
    )
    if inputs is not None:
        converter.inference_input_type = getattr(tf, inputs)
    with warnings.catch_warnings():
        # The converter's own interpreter says that it will move.
        warnings.simplefilter("ignore")
        path.write_bytes(converter.convert())
    return path


def made(kind, folder, **options):
    """A file of a kind, which has no calibrator and accepts all."""
    if kind == "int8":
        pytest.importorskip("ai_edge_litert")
        return quantised(network(), folder / "int8.tflite", **options)
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    name = {"savedmodel": "saved"}.get(kind, f"m.{kind}")
    return kc.export(network(), folder / name, from_logits=True)


def opened(path):
    """The file as a model; that of a converter does not say what it gives."""
    options = {"from_logits": True} if path.suffix == ".tflite" else {}
    return kc.exporting.FileModel(path, **options)


@pytest.fixture(scope="module", params=KINDS)
def shipped(request, tmp_path_factory):
    """A file with what was fitted on it in a certificate, and that selector."""
    path = made(request.param, tmp_path_factory.mktemp("shipped"))
    file = opened(path)
    scaling = kc.TemperatureScaling().fit_on(file, (X[:500], Y[:500]), **QUIET)
    fitted = kc.SelectiveClassifier(calibrator=scaling)
    fitted.fit_on(file, (X[500:], Y[500:]), **TARGET, **QUIET)
    assert file.attach(fitted, X[:12]) == statement_path(path)
    kc.exporting.save_records(fitted, path.parent / "records.npz")
    return path, fitted


def test_what_ships_is_what_was_calibrated(shipped):
    path, fitted = shipped
    logits = opened(path).predict(X, batch_size=400, verbose=0)
    assert fitted.calibrator.temperature == pytest.approx(3.0, rel=0.2)
    served = kc.exporting.FileModel(path)
    given = served.answers(X)
    threshold, temperature = fitted.threshold, fitted.calibrator.temperature
    wanted = expected(logits, temperature, threshold)
    assert_same(given, {**wanted, "accept": given["accept"]})
    accept = given["score"] >= np.float32(threshold)
    np.testing.assert_array_equal(given["accept"], accept)
    # The rows that chose the threshold, as the file answers them.
    accept, right = given["accept"][500:], (given["label"] == Y)[500:]
    assert fitted.chosen.coverage == pytest.approx(accept.mean())
    assert fitted.chosen.risk == pytest.approx(1.0 - right[accept].mean())
    facts = kc.exporting.check_certificate(path).certificate
    assert facts["guarantee"]["delta"] == 0.1
    # What is attached changes no output that is read.
    np.testing.assert_array_equal(served.predict(X[:9], verbose=0), logits[:9])


def test_the_command_checks_file_calibrator_and_threshold(shipped, capsys):
    path, _ = shipped
    data = f"--data={path.parent / 'records.npz'}"
    assert main(["verify", str(path), data]) == 0
    told = capsys.readouterr().out
    assert "checked: answers of file, calibrator and threshold" in told
    assert "The certificate holds." in told


def replaced(part, *at):
    """Changes an array of recorded samples, or a number of the selector."""

    def change(facts):
        place = facts["replay"][part]
        for name in at[:-1]:
            place = place[name]
        old = place[at[-1]]
        if isinstance(old, float):
            place[at[-1]] = 0.99 * old
        else:
            # The last values of the array become 0.
            place[at[-1]] = old[:-24] + "A" * 20 + old[-4:]

    return change


@pytest.mark.parametrize(
    "change",
    [
        replaced("selector", "config", "calibrator", "config", "temperature"),
        replaced("selector", "config", "threshold"),
        replaced("outputs", "values"),
        replaced("answers", "probabilities", "values"),
        replaced("answers", "confidence", "values"),
        lambda x: x["replay"]["selector"]["config"].update(score="neg_entropy"),
        lambda x: x["replay"]["answers"].pop("score"),
        lambda x: x["replay"].update(batch_size="1"),
        lambda x: x["replay"].update(approved=True),
        lambda x: x["replay"].pop("outputs"),
        lambda x: x["replay"].update(selector={}),
        lambda x: x["replay"]["selector"].update(config=[]),
        lambda x: x["replay"]["selector"].update(registered_name="Dense"),
        lambda x: x["replay"].update(inputs={}),
        lambda x: x["replay"]["outputs"].update(values="A"),
        lambda x: x["replay"]["outputs"].pop("dtype"),
        lambda x: x.update(kind="given"),
    ],
)
def test_a_change_of_what_was_attached_is_found(shipped, change):
    path, _ = shipped
    file, text = changed(path, change)
    try:
        assert not kc.exporting.check_certificate(path).holds
    except ValueError as error:
        assert "certificate" in str(error)
    finally:
        file.write_text(text)
    assert kc.exporting.check_certificate(path).holds


def test_another_file_has_no_such_answers(shipped, tmp_path):
    path, _ = shipped
    if path.is_dir():
        return
    other = tmp_path / path.name
    other.write_bytes(path.read_bytes() + b"\0")
    statement_path(other).write_bytes(statement_path(path).read_bytes())
    found = kc.exporting.check_certificate(other)
    assert "files: model has other content" in found.differences[0]
    assert "something differs already" in found.not_checked[-1]
    with pytest.raises(ValueError, match="the file that the certificate besi"):
        kc.exporting.FileModel(other)
    facts = json.loads(statement_path(path).read_text())
    facts["replay"]["output"] = "probabilities"
    statement_path(other).write_text(json.dumps(facts, indent=2) + "\n")
    with pytest.raises(ValueError, match="must be unchanged since it was"):
        kc.exporting.FileModel(other)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A file without a certificate."""
    return made("onnx", tmp_path_factory.mktemp("plain"))


def test_a_file_is_taken_where_a_model_is(plain):
    file, model = kc.exporting.FileModel(plain), network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss)
    data = X[:600], Y[:600]
    np.testing.assert_allclose(
        file.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5
    )
    assert keras.ops.is_tensor(file(X[:3]))
    pairs = [
        kc.choose_calibrator(
            kc.Predictions.of_model(x, data, **QUIET),
            candidates=[kc.TemperatureScaling()],
        )
        for x in (file, model)
    ]
    temperatures = [x.calibrator.temperature for x in pairs]
    assert temperatures[0] == pytest.approx(temperatures[1], rel=1e-4)


@pytest.mark.slow
def test_a_report_of_a_file_is_that_of_its_model(plain):
    file, model = kc.exporting.FileModel(plain), network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss)
    batches = [(X[i : i + 70], Y[i : i + 70]) for i in range(0, 600, 70)]
    pages = [kc.report(x, batches, **QUIET) for x in (file, model)]
    eces = [page.results["model"]["metrics"]["ece"] for page in pages]
    assert eces[0]["value"] == pytest.approx(eces[1]["value"], abs=1e-5)


@pytest.mark.parametrize("case", ["coverage", "calibrator", "groups", "costs"])
def test_every_kind_of_threshold_is_attached(plain, tmp_path, case):
    path = tmp_path / "m.onnx"
    path.write_bytes(plain.read_bytes())
    file, groups = kc.exporting.FileModel(path), None
    scaling = kc.TemperatureScaling(temperature=3.0)
    fitted, kind = kc.SelectiveClassifier(calibrator=scaling), "given"
    if case == "coverage":
        fitted.fit_on(file, (X, Y), coverage=0.6, **QUIET)
    elif case == "calibrator":
        fitted = kc.VennAbers().fit(Y, file.predict(X, verbose=0))
    elif case == "groups":
        kind, groups = "groups", np.array(["a", "b"])[np.arange(1500) % 2]
        fitted.fit_on(file, (X, Y), groups=groups, risk=0.25, delta=0.1)
        groups = groups[:8]
    else:
        kind, costs = "chow", 1.0 - np.eye(3)
        fitted = kc.SelectiveClassifier(
            calibrator=scaling, costs=costs, threshold=-0.3
        )
    file.attach(fitted, X[:8], groups=groups)
    found = kc.exporting.check_certificate(path)
    assert found.holds, found.differences
    assert found.certificate["kind"] == kind
    given = kc.exporting.FileModel(path).answers(X[:8], groups=groups)
    if case == "calibrator":
        assert given["accept"].all() and "probability_low" in given
        return
    logits = file.predict(X[:8], verbose=0)
    wanted = fitted(logits, groups=groups)
    for name, value in wanted.items():
        value = keras.ops.convert_to_numpy(value)
        np.testing.assert_allclose(given[name], value, rtol=1e-5, atol=1e-6)
    if kind == "given":
        with pytest.raises(ValueError, match="no data chose the threshold"):
            kc.exporting.check_certificate(path, [1.0], [1])
        with pytest.raises(ValueError, match="guarantee"):
            kc.reporting.model_card(path, name="m", intended_use="A test.")


def test_what_nobody_could_load_is_not_attached(plain, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(plain.read_bytes())
    file = kc.exporting.FileModel(path)

    def unregistered(logits):
        return logits[..., 0]

    made = kc.SelectiveClassifier(score=unregistered, threshold=0.0)
    with pytest.raises(TypeError, match="`selector` must be one that Keras"):
        file.attach(made, X[:3])
    with pytest.raises(TypeError, match="`selector` must be a SelectiveClas"):
        file.attach(kc.labels.MultiLabelCalibrator(kc.AffineScaling()), X[:3])
    with pytest.raises(RuntimeError):
        file.attach(kc.SelectiveClassifier(), X[:3])
    assert file.selector is None and not statement_path(path).exists()
    file.attach(selector(0.5), X[:3])
    with pytest.raises(ValueError, match="must have no certificate"):
        file.attach(selector(0.7), X[:3])
    file.attach(selector(0.7), X[:3], overwrite=True)
    assert kc.exporting.FileModel(path).selector.threshold == pytest.approx(0.7)
    with pytest.raises(ValueError, match="`output` must be that of the cert"):
        kc.exporting.FileModel(path, output="probabilities")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (X[:, :3], "`inputs` must have the shape"),
        (X[:0], "`inputs` must have the shape"),
        ({"other": X}, "`inputs` must be an array for each"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(plain, inputs, message):
    with pytest.raises(ValueError, match=message):
        kc.exporting.FileModel(plain).predict_on_batch(inputs)


def test_a_file_says_what_it_returns_or_is_asked(plain, tmp_path):
    assert kc.exporting.FileModel(plain).returns_logits is True
    probs = kc.exporting.FileModel(plain, output="probabilities")
    assert probs.returns_logits is False
    found = probs.predict_on_batch(X[:5])
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-5)
    fits = [
        kc.TemperatureScaling().fit_on(file, (X, Y), **QUIET).temperature
        for file in (probs, kc.exporting.FileModel(plain))
    ]
    assert fits[0] == pytest.approx(fits[1], rel=1e-3)
    with pytest.raises(ValueError, match="`from_logits` must be None or True"):
        kc.exporting.FileModel(plain, from_logits=False)
    score = kc.exporting.FileModel(plain, output="score")
    with pytest.raises(ValueError, match="`from_logits` must be True or Fals"):
        kc.TemperatureScaling().fit_on(score, (X, Y))
    with pytest.raises(ValueError, match="does not say whether it returns"):
        score.attach(selector(0.5), X[:3])
    for options, error in (
        ({"output": "other"}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"from_logits": 1}, TypeError),
    ):
        name = next(iter(options))
        with pytest.raises(error, match=f"`{name}` must be"):
            kc.exporting.FileModel(plain, **options)
    for name in ("absent.onnx", "m.txt"):
        (tmp_path / "m.txt").touch()
        with pytest.raises(ValueError, match="`path` must be the folder of"):
            kc.exporting.FileModel(tmp_path / name)
    broken = tmp_path / "m.onnx"
    broken.write_bytes(b"no model at all")
    with pytest.raises(ValueError, match="runtime of onnx can load"):
        kc.exporting.FileModel(broken)


@pytest.mark.slow
def test_inputs_of_whole_numbers_are_quantised_as_a_client_would(tmp_path):
    path = made("int8", tmp_path, inputs="int8")
    file, other = opened(path), made("onnx", tmp_path)
    near = np.abs(
        file.predict(X, verbose=0) - opened(other).predict(X, verbose=0)
    )
    assert near.mean() < 0.2
    for bad in (np.nan, np.inf, -np.inf):
        inputs = X.copy()
        inputs[7, 2] = bad
        with pytest.raises(ValueError, match="`inputs` must be finite for a"):
            file.predict_on_batch(inputs)


@pytest.mark.parametrize(
    "ending", ["onnx", pytest.param("tflite", marks=pytest.mark.slow)]
)
def test_whole_numbers_outside_the_files_type_are_refused(tmp_path, ending):
    layer = keras.layers.Dense(3)
    inputs = keras.Input((4,), dtype="int32")
    model = keras.Sequential([inputs, keras.layers.Rescaling(0.25), layer])
    layer.set_weights([W, np.zeros(3)])
    if ending == "tflite":
        pytest.importorskip("ai_edge_litert")
    path = tmp_path / f"model.{ending}"
    file = kc.exporting.FileModel(kc.export(model, path, from_logits=True))
    whole = np.round(4.0 * X).astype("int64")
    # Each of these would wrap around to another number of int32.
    for wrong in (whole + 2**32, whole - 2**32, np.uint32(2**31) + 0 * whole):
        with pytest.raises(ValueError, match="`inputs` must lie in the range"):
            file.predict_on_batch(wrong)
    with pytest.raises(ValueError, match="`inputs` must be whole numbers"):
        file.predict_on_batch(X)
    wanted = model.predict(whole, verbose=0)
    given = file.predict(whole, verbose=0)
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4)


def test_pixels_are_not_certified_as_samples(tmp_path):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    layer = keras.layers.Dense(3)
    model = keras.Sequential([keras.Input((2, 2, 4)), layer])
    layer.set_weights([W, np.zeros(3)])
    path = kc.export(model, tmp_path / "model.onnx", from_logits=True)
    images, labels = X.reshape(-1, 2, 2, 4), Y.reshape(-1, 2, 2).copy()
    labels[:, 0, 0] = 255
    given = {"ignore_class": 255, "verbose": 0}
    made = kc.SelectiveClassifier(calibrator=selector(0.0).calibrator)
    with pytest.raises(ValueError, match="`delta` needs independent rows"):
        made.fit_on(
            kc.exporting.FileModel(path), (images, labels), **TARGET, **given
        )
    # Without a guarantee the pixels that count choose the threshold.
    made.fit_on(
        kc.exporting.FileModel(path), (images, labels), risk=0.2, **given
    )
    assert made.chosen.num_samples == 1125
    kc.exporting.FileModel(path).attach(made, images[:4])
    assert (
        kc.exporting.FileModel(path).answers(images)["accept"].shape
        == labels.shape
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_a_file_that_onnxruntime_quantised_is_certified(tmp_path, kind):
    quantization = pytest.importorskip("onnxruntime.quantization")
    path, out = made("onnx", tmp_path), tmp_path / f"{kind}.onnx"
    if kind == "dynamic":
        quantization.quantize_dynamic(str(path), str(out))
    else:
        batches = iter([{"inputs": X[i : i + 16]} for i in (0, 16)])

        class Reader(quantization.CalibrationDataReader):
            def get_next(self):
                return next(batches, None)

        with warnings.catch_warnings():
            # Thresholds of -inf have no scale.
            warnings.simplefilter("ignore")
            style = quantization.QuantFormat[kind]
            quantization.quantize_static(
                str(path), str(out), Reader(), quant_format=style
            )
    file = kc.exporting.FileModel(out)
    if kind == "dynamic":
        # Scales of a batch: a row is answered otherwise in another batch.
        with pytest.raises(ValueError, match="quantised dynamically, by the"):
            file.predict(X, verbose=0)
        file = kc.exporting.FileModel(out, batch_size=1)
    made_of = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
    made_of.fit_on(file, (X, Y), **TARGET, tune_fraction=0.3, **QUIET)
    file.attach(made_of, X[:8])
    served = kc.exporting.FileModel(out)
    assert served.batch_size == (1 if kind == "dynamic" else None)
    given = served.answers(X)
    accept = given["score"] >= np.float32(made_of.threshold)
    np.testing.assert_array_equal(given["accept"], accept)
    assert kc.exporting.check_certificate(out).holds
    assert given["accept"].mean() > 0.3


def test_a_file_of_several_inputs_and_a_fixed_batch_is_filled_up(tmp_path):
    import tensorflow as tf

    parts = [keras.Input((2,), name=name) for name in ("left", "right")]
    model = keras.Model(parts, keras.layers.Concatenate()(parts))
    specs = {
        name: tf.TensorSpec((4, 2), tf.float32, name=name)
        for name in ("left", "right")
    }

    @tf.function(input_signature=[specs["left"], specs["right"]])
    def serve(left, right):
        return {"out": model([left, right])}

    module = tf.Module()
    module.model = model
    path = tmp_path / "fixed"
    signatures = {"serving_default": serve}
    tf.saved_model.save(module, str(path), signatures=signatures)
    file = kc.exporting.FileModel(path, from_logits=True)
    assert file.batch_size == 4
    inputs = {"left": X[:11, :2], "right": X[:11, 2:]}
    np.testing.assert_array_equal(file.predict(inputs, verbose=0), X[:11])
    with pytest.raises(ValueError, match="as many rows for each input"):
        file.predict_on_batch({**inputs, "left": X[:3, :2]})


def test_files_of_export_answer_by_themselves(tmp_path):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    chosen = selector(0.5, 2.0)
    path = kc.export(
        network(), tmp_path / "m.onnx", selector=chosen, from_logits=True
    )
    file = kc.exporting.FileModel(path)
    assert_same(file.answers(X[:9]), expected(X[:9] @ W, 2.0, 0.5), atol=1e-4)
    assert list(itertools.islice(tmp_path.iterdir(), 2)) == [path]
    assert trained(3)[0].name != file.name == "m"
