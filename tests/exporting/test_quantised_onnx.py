"""ONNX files that the tools of onnxruntime quantised, on real digits."""

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
TARGET = {"risk": 0.05, "delta": 0.1}
NUM_TRAINED = 600


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return (x[order] / 16.0).astype("float32"), y[order]


@pytest.fixture(scope="module")
def network(digits):
    """A network of two inputs, the upper and the lower half of a digit."""
    keras.utils.set_random_seed(0)
    parts = [keras.Input((32,), name=name) for name in ("upper", "lower")]
    h = keras.layers.Concatenate()(parts)
    h = keras.layers.Dense(32, "relu")(h)
    model = keras.Model(parts, keras.layers.Dense(10)(h))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    x, y = halves(digits[0][:NUM_TRAINED]), digits[1][:NUM_TRAINED]
    model.fit([x["upper"], x["lower"]], y, epochs=20, verbose=0)
    return model


def halves(x):
    return {"upper": x[:, :32], "lower": x[:, 32:]}


def exported(model, folder, **options):
    path = folder / "float.onnx"
    return kc.export(model, path, from_logits=True, **options)


def quantised(path, kind, rows):
    """The file as `quantize_dynamic` or `quantize_static` writes it."""
    from onnxruntime import quantization

    out = path.with_name(f"{kind}.onnx")
    if kind == "dynamic":
        quantization.quantize_dynamic(str(path), str(out))
        return out
    parts = [{k: x[i : i + 16] for k, x in rows.items()} for i in (0, 16)]
    batches = iter(parts)

    class Reader(quantization.CalibrationDataReader):
        def get_next(self):
            return next(batches, None)

    style = quantization.QuantFormat[kind]
    with warnings.catch_warnings():
        # Thresholds of -inf have no scale.
        warnings.simplefilter("ignore")
        quantization.quantize_static(
            str(path), str(out), Reader(), quant_format=style
        )
    return out


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_a_file_of_onnxruntime_is_certified(digits, network, tmp_path, kind):
    x, y = halves(digits[0][NUM_TRAINED:]), digits[1][NUM_TRAINED:]
    chosen = selector(0.5, 5.0)
    path = exported(network, tmp_path, selector=chosen)
    path = quantised(path, kind, halves(digits[0][:NUM_TRAINED]))
    before, options = path.read_bytes(), {}
    if kind == "QOperator":
        # Its operators are others, so that the old score cannot be told.
        with pytest.raises(ValueError, match="`score` must be given for a"):
            kc.recalibrate_file(path, y, x, **TARGET)
        options = {"score": "msp"}
    if kind == "dynamic":
        # Scales of a batch: a row is answered otherwise in another batch.
        with pytest.raises(ValueError, match="quantised dynamically, by the"):
            kc.recalibrate_file(path, y, x, **TARGET)
        options = {"batch_size": 1}
    assert path.read_bytes() == before
    found = kc.recalibrate_file(path, y, x, **TARGET, **options)
    rows = [slice(None)]
    if kind == "dynamic":
        rows = [slice(i, i + 1) for i in range(40)]
    for row in rows:
        given = answers(path, "onnx", **{k: v[row] for k, v in x.items()})
        wanted = expected(given["logits"], 1.0, found.chosen.threshold)
        assert_same(given, {**wanted, "accept": given["accept"]})
        cut = np.float32(found.chosen.threshold)
        np.testing.assert_array_equal(given["accept"], given["score"] >= cut)
    assert found.ece_after < 0.5 * found.ece_before
    assert found.chosen.coverage > 0.8


def test_a_quantised_file_of_pixels_has_no_guarantee(tmp_path, digits):
    pixels = digits[0].reshape(-1, 8, 8, 1)[:400]
    noise = np.random.default_rng(0).normal(scale=0.2, size=(400, 8, 8))
    labels = (pixels[..., 0] + noise > 0.5).astype(int)
    # A network of the pixel alone that is far too unsure.
    layer = keras.layers.Conv2D(2, 1)
    model = keras.Sequential([keras.Input((8, 8, 1)), layer])
    layer.set_weights([np.array([[[[-1.0, 1.0]]]]), np.array([0.52, -0.52])])
    path = exported(model, tmp_path)
    path = quantised(path, "QDQ", {"inputs": pixels})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="`delta` needs independent samples"):
        kc.recalibrate_file(path, labels, pixels, **TARGET)
    assert path.read_bytes() == before
    found = kc.recalibrate_file(path, labels, pixels, risk=0.05)
    given = answers(path, "onnx", x=pixels)
    wanted = expected(given["logits"], 1.0, found.chosen.threshold)
    assert_same(given, {**wanted, "accept": given["accept"]})
    assert given["label"].shape == labels.shape
    assert found.temperature < 0.5
