"""Export: every score, calibrator and form of model survives conversion."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from exported import (
    answers,
    assert_same,
    expected,
    segmenter,
    selector,
    trained,
)
from keras import ops
from paths import ROOT
from public_names import PUBLIC

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES
from keras_calib.selection import SelectiveClassifier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BACKEND != "tensorflow", reason="export needs TensorFlow"
    ),
]
CALIBRATORS = [
    thing
    for thing in PUBLIC.values()
    if isinstance(thing, type)
    and kc.calibrators.Calibrator in thing.__mro__[1:]
    # Those of images are exported in tests of their own.
    if thing is not kc.LocalTemperatureScaling
]


def unfitted(cls):
    """A calibrator of four classes."""
    if cls is kc.PriorCorrection:
        inner = kc.IsotonicCalibration()
        return cls([0.25] * 4, [0.4, 0.3, 0.2, 0.1], calibrator=inner)
    return cls()


each_format = pytest.mark.parametrize("made", ["savedmodel", "onnx", "litert"])


def test_every_score_survives(tmp_path):
    model, x = trained(10)
    for score in SCORE_NAMES:
        chosen = selector(0.0, score=score)
        path = tmp_path / f"{score}.onnx"
        kc.export(model, path, selector=chosen)
        np.testing.assert_allclose(
            answers(path, "onnx", x=x)["score"],
            array(chosen(model(x))["score"]),
            rtol=1e-4,
            atol=1e-5,
            err_msg=score,
        )


@each_format
def test_classes_that_are_ruled_out_stay_so_in_every_file(tmp_path, made):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(600, 4)).astype("float32")
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    low = rng.random(logits.shape) < 0.4
    low[np.arange(600), labels] = False
    others = np.where(low, -np.inf, 0.9 * logits).astype("float32")[:50]
    logits = np.where(low, -np.inf, logits).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    kinds = [] if made == "savedmodel" else [kc.VectorScaling, kc.VennAbers]
    kinds = CALIBRATORS if made == "onnx" else kinds
    cases = [selector(0.0, score=score) for score in SCORE_NAMES]
    for kind in kinds:
        calibrator = unfitted(kind).fit(labels, logits, num_folds=0)
        cases.append(SelectiveClassifier(calibrator=calibrator, threshold=0.0))
    suffix = {"savedmodel": "", "onnx": ".onnx", "litert": ".tflite"}[made]
    for i, chosen in enumerate(cases):
        path = tmp_path / f"{i}{suffix}"
        kc.export(model, path, selector=chosen, from_logits=True)
        given, wanted = answers(path, made, x=others), chosen(others)
        assert (given["probabilities"][low[:50]] == 0.0).all(), chosen
        for name in ("probabilities", "score", "accept"):
            # LiteRT has no infinite score of a class that is left alone.
            np.testing.assert_allclose(
                np.nan_to_num(given[name].astype("float32")),
                np.nan_to_num(array(wanted[name]).astype("float32")),
                rtol=1e-4,
                atol=1e-4,
                err_msg=f"{chosen} {name}",
            )


@pytest.mark.parametrize("made", ["onnx", "litert"])
def test_every_calibrator_survives(tmp_path, made):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(2000, 4)).astype("float32")
    probs = np.exp(logits / 1.5)
    probs /= probs.sum(axis=-1, keepdims=True)
    draws = rng.uniform(size=(2000, 1))
    labels = np.minimum((probs.cumsum(axis=-1) < draws).sum(axis=-1), 3)
    model, x = trained(4)
    # LiteRT has operators of its own for bins, logarithms and sorting.
    few = (
        *(kc.BetaCalibration, kc.HistogramBinning, kc.IsotonicCalibration),
        *(kc.ParametrizedTemperatureScaling, kc.PriorCorrection),
        *(kc.QuadraticScaling, kc.VennAbers),
    )
    for calibrator in CALIBRATORS if made == "onnx" else few:
        name = calibrator.__name__
        fitted = unfitted(calibrator).fit(labels, logits)
        path = kc.export(model, tmp_path / name, fitted, format=made)
        given = answers(path, made, x=x)
        np.testing.assert_allclose(
            given["probabilities"],
            array(ops.softmax(fitted(model(x)))),
            atol=1e-5,
            err_msg=name,
        )
        if calibrator is kc.VennAbers:
            check_interval(given, fitted, model(x))


def check_interval(given, fitted, logits):
    """The interval of the predicted class is served."""
    low, high = map(array, fitted.interval(logits))
    label = given["label"][:, None]
    for output, ends in (("probability_low", low), ("probability_high", high)):
        ends = np.take_along_axis(ends, label, axis=-1)[:, 0]
        np.testing.assert_allclose(given[output], ends, atol=1e-5)
        assert given[output].dtype == np.float32


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


def test_models_of_probabilities_and_of_one_output_are_served_as_classes(
    tmp_path,
):
    x = trained()[1]
    for made, outputs, activation in (
        ("savedmodel", 1, "sigmoid"),
        ("onnx", 1, None),
        ("litert", 3, "softmax"),
    ):
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


def test_inputs_keep_their_names(tmp_path):
    first, second = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    outputs = keras.layers.Dense(3)(keras.layers.Subtract()([first, second]))
    for made, name, inputs in (
        ("savedmodel", "list", [first, second]),
        ("onnx", "dict", {"b": second, "a": first}),
        ("litert", "dict", {"b": second, "a": first}),
    ):
        model = keras.Model(inputs, outputs)
        path = kc.export(model, tmp_path / made, format=made, from_logits=True)
        x = np.ones((2, 4), "float32")
        given = answers(path, made, a=x, b=3 * x)
        named = {"a": x, "b": 3 * x}
        wanted = model(named if name == "dict" else [x, 3 * x])
        assert_same(given, expected(array(wanted), 1.0, -np.inf))


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
    given = answers(path, made, x=samples[:, :2])
    wanted = expected(array(model(samples[:, :2])), 1.0, -np.inf)
    assert_same(given, wanted)


def test_a_model_compiled_by_name_is_read_as_it_was_trained(tmp_path):
    model, x = trained(3, activation="softmax", loss="categorical_crossentropy")
    path = kc.export(model, tmp_path / "m")
    np.testing.assert_allclose(
        answers(path, x=x)["probabilities"], array(model(x)), rtol=1e-5
    )


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
