"""Export: every format answers as the model does."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import array
from exported import answers
from exported import assert_same
from exported import expected
from exported import segmenter
from exported import selector
from exported import trained
from keras import ops

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES
from keras_calib.selection import SelectiveClassifier

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
ROOT = Path(__file__).parents[1]
CALIBRATORS = [
    thing
    for thing in map(vars(kc).get, kc.__all__)
    if isinstance(thing, type) and kc.Calibrator in thing.__mro__[1:]
]
each_converter = pytest.mark.parametrize("made", ["onnx", "litert"])
each_format = pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])


@each_format
def test_it_answers_as_the_model_for_any_batch_size(tmp_path, made):
    model, x = trained(10)
    logits = array(model(x))
    threshold = float(np.median(expected(logits, 2.5, 0.0)["score"])) + 1e-3
    path = kc.export(
        model, tmp_path / "m", selector=selector(threshold), format=made
    )
    for size in (1, 3, 5, 64):
        given = answers(path, made, x=x[:size])
        assert_same(given, expected(logits[:size], 2.5, threshold))
    assert 0 < given["accept"].sum() < 64


@pytest.mark.parametrize(
    ("made", "score"),
    [
        *(("onnx", score) for score in SCORE_NAMES),
        ("litert", "msp"),
        ("litert", "p_norm"),
    ],
)
def test_every_score_survives(tmp_path, made, score):
    model, x = trained(10)
    chosen = selector(0.0, score=score)
    path = kc.export(model, tmp_path / "m", selector=chosen, format=made)
    wanted = array(chosen(model(x))["score"])
    np.testing.assert_allclose(
        answers(path, made, x=x)["score"], wanted, rtol=1e-4, atol=1e-5
    )


@each_converter
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_every_calibrator_survives(tmp_path, made, calibrator):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(2000, 4)).astype("float32")
    probs = np.exp(logits / 1.5)
    probs /= probs.sum(axis=-1, keepdims=True)
    draws = rng.uniform(size=(2000, 1))
    labels = np.minimum((probs.cumsum(axis=-1) < draws).sum(axis=-1), 3)
    fitted = calibrator().fit(labels, logits)
    model, x = trained(4)
    path = kc.export(model, tmp_path / "m", fitted, format=made)
    wanted = array(ops.softmax(fitted(model(x))))
    np.testing.assert_allclose(
        answers(path, made, x=x)["probabilities"], wanted, atol=1e-5
    )


# LiteRT's own converter writes log(1 + x).
@pytest.mark.parametrize("made", ["savedmodel", "onnx"])
def test_small_values_of_log1p_are_not_rounded_away(tmp_path, made):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Identity()])
    chosen = SelectiveClassifier(
        score=lambda logits: ops.log1p(ops.square(logits[..., 0])),
        threshold=0.0,
    )
    path = kc.export(
        model, tmp_path / "m", selector=chosen, format=made, from_logits=True
    )
    x = np.zeros((61, 2), "float32")
    x[1:, 0] = np.logspace(-15, 6, 60)
    wanted = np.log1p(x[:, 0].astype("float64") ** 2)
    given = answers(path, made, x=x)["score"]
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


@each_format
def test_probabilities_next_to_one_are_compared_as_far_as_they_are_known(
    tmp_path, made
):
    # log(1 - p) of p = 1 - 6e-8 is -17, of p = 1 it is -85.
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(
                1,
                "sigmoid",
                kernel_initializer=keras.initializers.Constant(9.0),
            ),
        ]
    )
    x = np.linspace(-2, 2, 101, dtype="float32")[:, None]
    path = kc.export(
        model,
        tmp_path / "m",
        selector=selector(0.0, temperature=3.0),
        format=made,
        from_logits=False,
        sample_inputs=x,
    )
    far = np.abs(x[:, 0]) < 1
    given = answers(path, made, x=x[far])
    z = np.concatenate([np.zeros_like(x), 9.0 * x], axis=-1)[far]
    p = np.exp(-np.logaddexp(0, [[1, -1]] * (z[:, 1:] - z[:, :1])))
    wanted = expected(np.log(p), 3.0, 0.0)
    np.testing.assert_allclose(
        given["confidence"], wanted["confidence"], rtol=1e-3
    )


@each_format
def test_without_a_selector_all_is_accepted(tmp_path, made):
    model, x = trained(3)
    scaling = kc.TemperatureScaling(temperature=0.5)
    path = kc.export(model, tmp_path / "m", scaling, format=made)
    given = answers(path, made, x=x)
    assert_same(given, expected(array(model(x)), 0.5, -np.inf))
    assert given["accept"].all()


@each_format
def test_models_of_probabilities_and_of_one_output_are_served_as_classes(
    tmp_path, made
):
    x = trained()[1]
    for outputs, activation in ((3, "softmax"), (1, "sigmoid"), (1, None)):
        model, _ = trained(outputs, activation=activation)
        name = f"{outputs}{activation}"
        path = kc.export(
            model,
            tmp_path / name,
            format=made,
            from_logits=activation is None,
        )
        given = answers(path, made, x=x)
        values = array(model(x))
        if activation is None:
            values = 1 / (1 + np.exp(-values))
        if outputs == 1:
            values = np.concatenate([1 - values, values], axis=-1)
        wanted = expected(np.log(values.astype("float64")), 1.0, -np.inf)
        for key in ("probabilities", "confidence", "score", "label"):
            np.testing.assert_allclose(
                given[key], wanted[key], rtol=1e-4, atol=1e-5, err_msg=key
            )


@pytest.mark.parametrize(
    ("made", "outputs", "activation"),
    [
        ("savedmodel", 4, None),
        ("savedmodel", 1, None),
        ("savedmodel", 1, "sigmoid"),
        ("onnx", 4, None),
        ("litert", 1, "sigmoid"),
    ],
)
def test_pixels_have_maps_of_confidence_and_acceptance(
    tmp_path, made, outputs, activation
):
    model = segmenter(outputs, side=8, activation=activation)
    x = np.random.default_rng(1).normal(size=(3, 8, 8, 3)).astype("float32")
    values = array(model(x)).astype("float64")
    if activation == "sigmoid":
        values = np.log(values / (1 - values))
    if outputs == 1:
        values = np.concatenate([np.zeros_like(values), values], axis=-1)
    # Between the two scores in the middle.
    score = np.sort(expected(values, 2.5, 0.0)["score"].ravel())
    threshold = float(score[len(score) // 2 - 1 : len(score) // 2 + 1].mean())
    path = kc.export(
        model,
        tmp_path / "m",
        selector=selector(threshold),
        format=made,
        from_logits=activation is None,
    )
    given = answers(path, made, x=x)
    assert_same(given, expected(values, 2.5, threshold))
    assert given["accept"].shape == given["confidence"].shape == (3, 8, 8)
    assert given["accept"].mean() == 0.5


@each_format
def test_images_of_any_size_are_segmented(tmp_path, made):
    model = segmenter(4, side=None)
    path = kc.export(model, tmp_path / "m", format=made, from_logits=True)
    for height, width in ((8, 12), (16, 6)):
        x = np.random.default_rng(1).normal(size=(2, height, width, 3))
        x = x.astype("float32")
        given = answers(path, made, x=x)
        assert_same(given, expected(array(model(x)), 1.0, -np.inf))


@each_format
def test_inputs_keep_their_names(tmp_path, made):
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    outputs = keras.layers.Dense(3)(keras.layers.Subtract()([first, second]))
    for name, inputs in (
        ("dict", {"b": second, "a": first}),
        ("list", [first, second]),
    ):
        model = keras.Model(inputs, outputs)
        path = kc.export(model, tmp_path / name, format=made, from_logits=True)
        x = np.ones((2, 4), "float32")
        given = answers(path, made, a=x, b=3 * x)
        named = {"a": x, "b": 3 * x}
        wanted = model(named if name == "dict" else [x, 3 * x])
        assert_same(given, expected(array(wanted), 1.0, -np.inf))


@each_format
def test_an_input_without_a_name_is_called_inputs(tmp_path, made):
    model, x = trained(3)
    path = kc.export(model, tmp_path / "m", format=made)
    given = answers(path, made, inputs=x)
    assert_same(given, expected(array(model(x)), 1.0, -np.inf))


@pytest.mark.parametrize("made", ["savedmodel", "onnx"])
def test_half_precision_models_answer_in_float32(tmp_path, made):
    model, x = trained(3, dtype="mixed_float16")
    path = kc.export(model, tmp_path / "m", selector=selector(0.0), format=made)
    given = answers(path, made, x=x)
    # One unit in the last place of float16 at the largest logit.
    wanted = expected(ops.cast(model(x), "float32"), 2.5, 0.0)
    np.testing.assert_allclose(given["logits"], wanted["logits"], atol=2**-9)
    assert given["probabilities"].dtype == np.float32


@each_format
def test_token_ids_are_sampled_within_the_vocabulary(tmp_path, made):
    layers = [
        keras.Input((None,), dtype="int32"),
        keras.layers.Embedding(5, 4),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers)
    samples = np.array([[4, 3, 2], [0, 1, 4]], "int32")
    path = kc.export(
        model,
        tmp_path / "m",
        format=made,
        from_logits=True,
        sample_inputs=samples,
    )
    kc.export(model, tmp_path / "random", format=made, from_logits=True)
    given = answers(path, made, x=samples[:, :2])
    wanted = expected(array(model(samples[:, :2])), 1.0, -np.inf)
    assert_same(given, wanted)


def test_a_model_compiled_by_name_is_read_as_it_was_trained(tmp_path):
    model, x = trained(3, activation="softmax", loss="categorical_crossentropy")
    path = kc.export(model, tmp_path / "m")
    np.testing.assert_allclose(
        answers(path, x=x)["probabilities"], array(model(x)), rtol=1e-5
    )


def test_logits_that_a_client_computed_are_calibrated(tmp_path):
    for outputs in (10, 1):
        model, x = trained(outputs)
        path = kc.export(model, tmp_path / f"{outputs}", selector=selector(0.4))
        whole = answers(path, x=x)
        logits = array(model(x))
        parts = answers(path, signature="serving_logits", logits=logits)
        assert_same(parts, whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_encoded_images_are_decoded_resized_and_preprocessed(tmp_path, dtype):
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((8, 6, 3), dtype=dtype, name="image"),
        keras.layers.Rescaling(1 / 255 if dtype == "uint8" else 1.0),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    preprocessing = {
        "float32": keras.layers.Rescaling(1 / 127.5, offset=-1),
        "uint8": keras.layers.Identity(),
    }[dtype]
    path = kc.export(
        model,
        tmp_path / "m",
        selector=selector(0.4),
        from_logits=True,
        image_preprocessing=preprocessing,
    )
    rng = np.random.default_rng(0)
    encoded, images = [], []
    for encode, shape in (
        (tf.io.encode_png, (8, 6, 3)),
        (tf.io.encode_png, (13, 20, 1)),
        (tf.io.encode_jpeg, (20, 9, 3)),
    ):
        file = encode(rng.integers(256, size=shape, dtype="uint8"))
        encoded.append(file.numpy())
        decode = getattr(tf.io, encode.__name__.replace("encode", "decode"))
        images.append(tf.image.resize(decode(file, channels=3), (8, 6)))
    images = np.stack(images)
    if dtype == "float32":
        inputs = images / 127.5 - 1
    else:
        inputs = np.round(images).astype("uint8")
    given = answers(path, signature="serving_bytes", image_bytes=encoded)
    logits = model.predict(inputs, verbose=0)
    assert_same(given, expected(logits, 2.5, 0.4))


def test_images_for_a_model_of_any_size_are_resized_as_told(tmp_path):
    import tensorflow as tf

    model = segmenter(4, side=None)
    path = kc.export(
        model,
        tmp_path / "m",
        from_logits=True,
        image_preprocessing=lambda images: images / 255.0,
        image_size=(8, 12),
    )
    image = np.random.default_rng(0).integers(256, size=(8, 12, 3))
    encoded = [tf.io.encode_png(image.astype("uint8")).numpy()]
    given = answers(path, signature="serving_bytes", image_bytes=encoded)
    logits = array(model(image[None].astype("float32") / 255))
    assert_same(given, expected(logits, 1.0, -np.inf))


def test_temperature_and_threshold_are_replaced_after_loading(tmp_path):
    import tensorflow as tf

    model, x = trained(10)
    logits = array(model(x))
    path = kc.export(model, tmp_path / "m", selector=selector(0.0))
    loaded = tf.saved_model.load(str(path))
    (temperature,), (threshold,) = loaded.calibration, loaded.threshold
    assert temperature.numpy() == 2.5
    assert temperature.name.endswith("temperature:0")
    assert threshold.numpy() == 0.0
    score = expected(logits, 0.7, 0.0)["score"]
    kept = float(np.sort(score)[::-1][9:11].mean())
    temperature.assign(0.7)
    threshold.assign(kept)
    for signature, inputs in (
        ("serving_default", {"inputs": x}),
        ("serving_logits", {"logits": logits}),
    ):
        inputs = {k: tf.constant(v) for k, v in inputs.items()}
        given = loaded.signatures[signature](**inputs)
        given = {k: v.numpy() for k, v in given.items()}
        assert_same(given, expected(logits, 0.7, kept))
        assert given["accept"].sum() == 10
    # Kept, if it is saved again.
    tf.saved_model.save(loaded, tmp_path / "n", signatures=loaded.signatures)
    again = answers(tmp_path / "n", x=x)
    assert_same(again, expected(logits, 0.7, kept))


def test_the_weights_of_a_score_are_replaced_after_loading(tmp_path):
    import tensorflow as tf

    class Scaled(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(initializer="ones", name="factor")

        def call(self, logits):
            return self.factor * ops.max(logits, axis=-1)

    model, x = trained(3)
    chosen = SelectiveClassifier(score=Scaled(), threshold=0.0)
    path = kc.export(model, tmp_path / "m", selector=chosen)
    loaded = tf.saved_model.load(str(path))
    (factor,) = loaded.score
    largest = array(model(x)).max(axis=-1)
    for value in (1.0, -2.0):
        factor.assign(value)
        given = loaded.signatures["serving_default"](inputs=tf.constant(x))
        np.testing.assert_allclose(given["score"], value * largest, rtol=1e-5)
        np.testing.assert_array_equal(given["accept"], value * largest >= 0)


def test_it_serves_where_keras_cannot_be_imported(tmp_path):
    model, x = trained(3)
    path = kc.export(model, tmp_path / "model", selector=selector(0.0))
    np.save(tmp_path / "x.npy", x)
    script = ROOT / "examples" / "serving" / "reload_savedmodel.py"
    subprocess.run(
        [sys.executable, script, path, tmp_path / "x.npy", tmp_path / "p.npy"],
        check=True,
        capture_output=True,
    )
    wanted = expected(array(model(x)), 2.5, 0.0)["probabilities"]
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), wanted, rtol=1e-5)


def test_a_selector_and_its_own_calibrator_agree(tmp_path):
    model, x = trained(3)
    chosen = selector(0.2)
    path = kc.export(model, tmp_path / "m", chosen.calibrator, chosen)
    assert_same(answers(path, x=x), expected(array(model(x)), 2.5, 0.2))
