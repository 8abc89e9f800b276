"""Export: every format answers as the model does."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import answers, assert_same, expected, selector, trained
from keras import ops

import keras_calib as kc
from keras_calib.exporting.served_model import ServedModel
from keras_calib.selection import SelectiveClassifier

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A SavedModel of images with all signatures, and its network."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((8, 6, 3), dtype="uint8", name="image"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    network = keras.Sequential(layers)
    path = kc.export(
        network,
        tmp_path_factory.mktemp("saved") / "m",
        selector=selector(0.4),
        from_logits=True,
        image_preprocessing=keras.layers.Identity(),
    )
    return path, network


@pytest.fixture(scope="module")
def pictures():
    shape = (40, 8, 6, 3)
    return np.random.default_rng(0).integers(256, size=shape, dtype="uint8")


@pytest.mark.parametrize("made", ["onnx", "litert"])
def test_it_answers_as_the_model_for_any_batch_size(tmp_path, made):
    model, x = trained(10)
    logits = array(model(x))
    threshold = float(np.median(expected(logits, 2.5, 0.0)["score"])) + 1e-3
    path = kc.export(
        model, tmp_path / "m", selector=selector(threshold), format=made
    )
    for size in (1, 5, 64):
        # An input without a name is called so.
        given = answers(path, made, inputs=x[:size])
        assert_same(given, expected(logits[:size], 2.5, threshold))
    assert 0 < given["accept"].sum() < 64


def test_every_signature_of_a_savedmodel_answers_as_the_model(saved, pictures):
    import tensorflow as tf

    path, network = saved
    logits = array(network(pictures))
    wanted = expected(logits, 2.5, 0.4)
    assert_same(answers(path, image=pictures), wanted)
    given = answers(path, signature="serving_logits", logits=logits)
    assert_same(given, wanted)
    # Decoded, resized and rounded to what the model takes.
    encoded, images = [], []
    for encode, shape in (
        (tf.io.encode_png, (8, 6, 3)),
        (tf.io.encode_png, (13, 20, 1)),
        (tf.io.encode_jpeg, (20, 9, 3)),
    ):
        image = np.random.default_rng(1).integers(256, size=shape)
        file = encode(image.astype("uint8"))
        encoded.append(file.numpy())
        decode = getattr(tf.io, encode.__name__.replace("encode", "decode"))
        images.append(tf.image.resize(decode(file, channels=3), (8, 6)))
    given = answers(path, signature="serving_bytes", image_bytes=encoded)
    inputs = np.round(np.stack(images)).astype("uint8")
    logits = array(network(inputs))
    assert_same(given, expected(logits, 2.5, 0.4))


def test_temperature_and_threshold_are_replaced_after_loading(saved, pictures):
    import tensorflow as tf

    path, network = saved
    logits = array(network(pictures))
    loaded = tf.saved_model.load(str(path))
    (temperature,), (threshold,) = loaded.calibration, loaded.threshold
    assert temperature.numpy() == 2.5
    assert temperature.name.endswith("temperature:0")
    assert abs(threshold.numpy() - 0.4) < 1e-6
    score = expected(logits, 0.7, 0.0)["score"]
    kept = float(np.sort(score)[::-1][9:11].mean())
    temperature.assign(0.7)
    threshold.assign(kept)
    for signature, inputs in (
        ("serving_default", {"image": pictures}),
        ("serving_logits", {"logits": logits}),
    ):
        inputs = {k: tf.constant(v) for k, v in inputs.items()}
        given = loaded.signatures[signature](**inputs)
        given = {k: v.numpy() for k, v in given.items()}
        assert_same(given, expected(logits, 0.7, kept))
        assert given["accept"].sum() == 10


def test_small_values_of_log1p_are_not_rounded_away(tmp_path):
    import tensorflow as tf

    model = keras.Sequential([keras.Input((2,)), keras.layers.Identity()])
    chosen = SelectiveClassifier(
        score=lambda logits: ops.log1p(ops.square(logits[..., 0])),
        threshold=0.0,
    )
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    assert before
    path = kc.export(
        model, tmp_path / "m.onnx", selector=chosen, from_logits=True
    )
    x = np.zeros((61, 2), "float32")
    x[1:, 0] = np.logspace(-15, 6, 60)
    wanted = np.log1p(x[:, 0].astype("float64") ** 2)
    given = answers(path, "onnx", x=x)["score"]
    np.testing.assert_allclose(given, wanted, rtol=1e-6)
    # GPUs compute as exactly as told before.
    assert tf.config.experimental.tensor_float_32_execution_enabled() == before


def test_a_value_that_is_not_taken_may_be_no_number(tmp_path):
    def score(logits):
        first = logits[..., 0]
        return ops.where(first > 0, ops.log(first), ops.zeros_like(first))

    model = keras.Sequential([keras.Input((2,)), keras.layers.Identity()])
    chosen = SelectiveClassifier(score=score, threshold=0.0)
    path = kc.export(
        model, tmp_path / "m.onnx", selector=chosen, from_logits=True
    )
    x = np.array([[-2, 0], [0, 0], [2, 0]], "float32")
    given = answers(path, "onnx", x=x)["score"]
    np.testing.assert_allclose(given, [0, 0, np.log(2)], rtol=1e-6)


def test_a_model_is_served_as_logits_of_every_class():
    x = trained()[1]
    for outputs, activation in ((3, "softmax"), (1, "sigmoid"), (1, None)):
        model, _ = trained(outputs, activation=activation)
        served = ServedModel(model, selector(0.0), activation is None)
        values = array(model(x)).astype("float64")
        if activation is None:
            values = 1 / (1 + np.exp(-values))
        if outputs == 1:
            values = np.concatenate([1 - values, values], axis=-1)
        wanted = expected(np.log(values), 2.5, 0.0)
        given = served.answers(array(model(x)))
        for key in ("probabilities", "confidence", "score", "accept", "label"):
            np.testing.assert_allclose(
                given[key], wanted[key], rtol=1e-4, atol=1e-5, err_msg=key
            )


@pytest.mark.slow
def test_the_interval_of_the_predicted_class_is_served(tmp_path):
    model, x = trained(1)
    z = array(model(x))
    labels = (z[:, 0] > np.random.default_rng(0).logistic(size=64)) * 1
    venn = kc.VennAbers().fit(labels, z)
    path = kc.export(model, tmp_path / "m", venn, from_logits=True)
    low, high = map(array, venn.interval(np.append(0 * z, z, axis=-1)))
    for signature, inputs in (
        ("serving_default", {"x": x}),
        ("serving_logits", {"logits": z}),
    ):
        given = answers(path, signature=signature, **inputs)
        label = given["label"][:, None]
        for output, ends in (
            ("probability_low", low),
            ("probability_high", high),
        ):
            ends = np.take_along_axis(ends, label, axis=-1)[:, 0]
            np.testing.assert_allclose(given[output], ends, atol=1e-6)
        assert (given["probability_low"] <= given["confidence"]).all()
        assert (given["confidence"] <= given["probability_high"]).all()
