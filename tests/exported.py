"""Models to export, and how to ask what was exported."""

import keras
import numpy as np

import keras_calib as kc
from keras_calib.selection import SelectiveClassifier

NAMES = ("logits", "probabilities", "confidence", "score", "accept", "label")


def trained(num_outputs=10, *, activation=None, loss=None, dtype=None):
    """A small network with inputs `(batch, 4)`, and those inputs."""
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(num_outputs, activation, dtype=dtype)
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(loss=loss or kc.ACLS(from_logits=True))
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    return model, x


def segmenter(num_outputs, *, side, activation=None):
    """A network of images `(batch, side, side, 3)` that labels pixels."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((side, side, 3)),
        keras.layers.Conv2D(8, 3, 2, padding="same", activation="relu"),
        keras.layers.Conv2DTranspose(
            num_outputs, 2, 2, padding="same", activation=activation
        ),
    ]
    return keras.Sequential(layers)


def selector(threshold, temperature=2.5, score="msp"):
    """Accepts what scores `threshold` after a temperature that is known."""
    scaling = kc.TemperatureScaling(temperature=temperature)
    return SelectiveClassifier(
        calibrator=scaling, score=score, threshold=threshold
    )


def answers(path, made="savedmodel", signature="serving_default", **inputs):
    """What a file answers to inputs by name, or to `x` alone."""
    if made == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        if set(inputs) == {"x"}:
            inputs = {session.get_inputs()[0].name: inputs["x"]}
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))
    if made == "litert":
        from ai_edge_litert.interpreter import Interpreter

        runner = Interpreter(str(path)).get_signature_runner(signature)
        if set(inputs) == {"x"}:
            (name,) = runner.get_input_details()
            inputs = {name: inputs["x"]}
        return {k: np.array(v) for k, v in runner(**inputs).items()}
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    function = loaded.signatures[signature]
    if set(inputs) == {"x"}:
        (name,) = function.structured_input_signature[1]
        inputs = {name: inputs["x"]}
    given = {k: tf.constant(v) for k, v in inputs.items()}
    return {k: v.numpy() for k, v in function(**given).items()}


def expected(logits, temperature, threshold):
    """The named outputs of two-dimensional or dense logits, in NumPy."""
    logits = np.asarray(logits, "float64") / temperature
    shifted = logits - logits.max(axis=-1, keepdims=True)
    probs = np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)
    confidence = probs.max(axis=-1)
    score = np.log(confidence / (1 - confidence))
    return {
        "logits": logits,
        "probabilities": probs,
        "confidence": confidence,
        "score": score,
        "accept": score >= threshold,
        "label": logits.argmax(axis=-1),
    }


def assert_same(given, wanted, rtol=1e-4, atol=1e-5):
    """Every output by name, with its type."""
    assert set(given) == set(NAMES)
    for name in NAMES:
        np.testing.assert_allclose(
            given[name], wanted[name], rtol, atol, err_msg=name
        )
    assert given["accept"].dtype == bool
    assert given["label"].dtype == np.int32
    for name in NAMES[:4]:
        assert given[name].dtype == np.float32
