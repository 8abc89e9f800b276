"""Local temperature scaling: what it finds, and its life as a layer."""

import contextlib
from functools import partialmethod

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from small_trainings import EAGER

import keras_calib as kc

K, SIDE = 4, 16
# A small tree, for few pixels.
QUICK = {
    "validation_fraction": 0.3,
    "depth": 1,
    "kernel_size": 3,
    "dilation_rate": 1,
    "epochs": 12,
    "learning_rate": 0.03,
}


def scenes(n=12, seed=0, varies=True):
    """Checkerboards of two kinds of things, and logits too sure of one."""
    rng = np.random.default_rng(seed)
    tile = np.arange(SIDE) // 8
    kind = (tile[:, None] + tile + rng.integers(2, size=(n, 1, 1))) % 2
    logits = 1.5 * rng.normal(size=(n, SIDE, SIDE, K))
    logits += 1.5 - 3.0 * (kind[..., None] != np.arange(K) // 2)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    scale = np.where(kind == 1, 4.0, 1.0) if varies else np.full_like(kind, 2)
    image = np.stack([kind * 255, kind * 0 + 7, kind], axis=-1)
    logits = logits * scale[..., None]
    return labels, logits.astype("float32"), image.astype("uint8")


def nll(calibrator, labels, inputs):
    return kc.nll(labels, array(calibrator(inputs)), from_logits=True)


@contextlib.contextmanager
def eager_steps():
    """Steps of `fit` are not traced, which takes longer than to run them."""
    eager = partialmethod(keras.Model.compile, **EAGER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "compile", eager)
        yield


@pytest.fixture(scope="module")
def fitted():
    labels, logits, _ = scenes()
    return kc.LocalTemperatureScaling(**QUICK).fit(labels, logits)


@pytest.mark.portable
@pytest.mark.slow
def test_it_finds_where_a_segmenter_is_too_sure(fitted):
    labels, logits, image = scenes(seed=1)
    seen = scenes()
    same = kc.TemperatureScaling().fit(*seen[:2])
    gain = nll(same, labels, logits) - nll(fitted, labels, logits)
    assert gain > 0.07
    assert nll(fitted, *seen[:2]) < nll(same, *seen[:2])
    assert abs(fitted.temperature / same.temperature - 1) < 1e-6
    found = array(fitted.temperature_map(logits))
    sure = image[..., 2] == 1
    assert found[sure].mean() > 2.0 * found[~sure].mean()
    after = array(fitted(logits))
    np.testing.assert_array_equal(after.argmax(-1), logits.argmax(-1))
    np.testing.assert_allclose(after, logits / found[..., None], rtol=1e-5)


def test_where_nothing_varies_it_is_a_temperature():
    seen, rest = scenes(varies=False), scenes(seed=1, varies=False)
    local = kc.LocalTemperatureScaling(patience=2, **QUICK)
    with eager_steps():
        local.fit(*seen[:2])
    same = kc.TemperatureScaling().fit(*seen[:2])
    for data in (seen, rest):
        gain = nll(same, *data[:2]) - nll(local, *data[:2])
        assert gain > -1e-3


@pytest.mark.portable
@pytest.mark.slow
def test_forms_of_the_same_images_agree():
    labels, logits, image = scenes(6)
    how = {"epochs": 2, "learning_rate": 0.01}

    def fit(*data, seed=0, **options):
        made = kc.LocalTemperatureScaling(seed=seed, **how)
        return array(made.fit(*data, **options)(logits))

    expected = fit(labels, logits)
    assert np.abs(fit(labels, logits, seed=1) - expected).max() > 1e-3
    ignored = np.where(image[..., 2] == 1, 255, labels)
    weight = np.where(image[..., 2] == 1, 0.0, 1.0)
    parts = (labels[:4], logits[:4]), (labels[4:], logits[4:])
    for name, found, wanted in (
        ("one-hot", fit(np.eye(K)[labels], logits), expected),
        (
            "batches",
            fit(kc.Predictions.of_batches(parts, from_logits=True)),
            expected,
        ),
        (
            "ignored",
            fit(ignored, logits, ignore_class=255),
            fit(labels, logits, weight),
        ),
    ):
        np.testing.assert_allclose(
            found, wanted, rtol=1e-4, atol=1e-4, err_msg=name
        )


@pytest.mark.portable
@pytest.mark.slow
def test_an_image_can_tell_what_logits_do_not():
    labels, _, image = scenes()
    # Nothing but the image says where the model is too sure.
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(12, SIDE, SIDE, K)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    logits *= np.where(image[..., 2:] == 1, 4.0, 1.0)
    local = kc.LocalTemperatureScaling(use_image=True, **QUICK)
    local.fit(labels, (logits, image))
    same = kc.TemperatureScaling().fit(labels, logits)
    gain = nll(same, labels, logits) - nll(local, labels, (logits, image))
    assert gain > 0.03
    copy = type(local).from_config(local.get_config())
    np.testing.assert_array_equal(
        array(copy((logits, image))), array(local((logits, image)))
    )
    inputs = keras.Input((None, None, K)), keras.Input((None, None, 3))
    model = keras.Model(inputs, local(inputs))
    np.testing.assert_allclose(
        model.predict_on_batch([logits, image.astype("float32")]),
        array(local((logits, image))),
        rtol=1e-4,
        atol=1e-4,
    )
    with pytest.raises(ValueError, match="must be the pair"):
        local(logits)
    with pytest.raises(ValueError, match="`image` must be"):
        local((logits, image[:, 1:]))
    with pytest.raises(ValueError, match="`image` must be"):
        local((logits, image[..., :1]))


@pytest.mark.portable
def test_copies_and_files_are_fitted_alike_at_any_size(fitted, tmp_path):
    inputs = keras.Input((None, None, K))
    model = keras.Model(inputs, fitted(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    _, logits, _ = scenes(2, seed=3)
    for size in (slice(0, 16), slice(3, 12), slice(5, 6)):
        part = logits[:, size, :7]
        expected = array(fitted(part))
        copy = type(fitted).from_config(fitted.get_config())
        np.testing.assert_array_equal(array(copy(part)), expected)
        np.testing.assert_allclose(
            loaded.predict_on_batch(part), expected, rtol=1e-4, atol=1e-5
        )


def segmenter(channels=K, activation=None):
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(channels, 3, padding="same", name="filters"),
            keras.layers.Activation(activation),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=activation is None, ignore_class=255
    )
    model.compile(loss=loss)
    return model


@pytest.mark.portable
@pytest.mark.slow
def test_it_fits_on_a_segmenter_as_on_its_logits():
    _, _, image = scenes(6)
    model, how = segmenter(), {"epochs": 2}
    data = image.astype("float32")
    logits = model.predict_on_batch(data)
    rng = np.random.default_rng(0)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    labels[:, :3] = 255
    for use_image in (False, True):
        how["use_image"] = use_image
        inputs = (logits, data) if use_image else logits
        expected = kc.LocalTemperatureScaling(**how).fit(
            labels, inputs, ignore_class=255
        )
        found = kc.LocalTemperatureScaling(**how)
        batches = [(data[:4], labels[:4]), (data[4:], labels[4:])]
        for given in (data, labels), batches:
            found.fit_on(model, given, verbose=0)
            np.testing.assert_allclose(
                array(found(inputs)),
                array(expected(inputs)),
                rtol=1e-3,
                atol=1e-3,
            )
    with pytest.raises(ValueError, match="without `pixels_per_image`"):
        found.fit_on(model, (data, labels), pixels_per_image=5)


@pytest.mark.portable
@pytest.mark.slow
def test_one_channel_is_the_second_of_two_classes(tmp_path):
    labels, logits, image = scenes(6)
    z = logits[..., 1:2] - logits[..., :1]
    pair = np.concatenate([np.zeros_like(z), z], axis=-1)
    how = {**QUICK, "epochs": 2}
    one = kc.LocalTemperatureScaling(**how).fit(labels % 2, z)
    two = kc.LocalTemperatureScaling(**how).fit(labels % 2, pair)
    difference = array(two(pair))[..., 1:] - array(two(pair))[..., :1]
    np.testing.assert_allclose(array(one(z)), difference, rtol=1e-4, atol=1e-4)
    # Larger logits round to probabilities of 0 and 1.
    small = z / 8
    probs = 1 / (1 + np.exp(-small))
    np.testing.assert_allclose(
        array(one(probs, from_logits=False)), array(one(small)), atol=1e-4
    )
    found = array(one.temperature_map(small))
    np.testing.assert_allclose(found, (small / array(one(small)))[..., 0], 1e-5)
    for same in (
        two.temperature_map(pair / 8),
        one.temperature_map(probs, from_logits=False),
    ):
        np.testing.assert_allclose(array(same), found, rtol=1e-4)
    x = keras.Input((None, None, 1))
    keras.Model(x, one(x)).save(tmp_path / "m.keras")
    copy = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(array(copy(small)), array(one(small)))
    if BACKEND == "tensorflow":
        convolution = keras.layers.Conv2D(1, 1, activation="sigmoid")
        segmenter = keras.Sequential([x, convolution])
        kc.export(segmenter, tmp_path / "m", one, from_logits=False)
        served = served_probs(tmp_path / "m", small)
        expected = array(one(segmenter(small), from_logits=False))
        expected = 1 / (1 + np.exp(-expected[..., 0]))
        np.testing.assert_allclose(served[..., 1], expected, atol=1e-5)


def served_probs(path, inputs):
    import tensorflow as tf

    serve = tf.saved_model.load(str(path)).signatures["serving_default"]
    return array(serve(tf.constant(inputs))["probabilities"])


def test_what_is_no_image_is_refused(fitted):
    labels, logits, _ = scenes(3)
    make = kc.LocalTemperatureScaling
    for data, rule in (
        ((labels.reshape(-1), logits.reshape(-1, K)), "those of images"),
        ((labels[:2], logits[:2]), "three images or more"),
    ):
        with pytest.raises(ValueError, match=rule):
            make().fit(*data)
    with pytest.raises(ValueError, match="parameters=708"):
        make().fit(labels[:, :2, :2], logits[:, :2, :2])
    with pytest.raises(ValueError, match="those of images"):
        fitted(logits.reshape(-1, K))
    with pytest.raises(ValueError, match="`logits` must have 4 classes"):
        fitted(logits[..., :3])
    with pytest.raises(ValueError, match="`logits` must have 4 classes"):
        fitted.temperature_map(logits[..., :3])
    with pytest.raises(ValueError, match="`kernel_size` must be odd"):
        make(kernel_size=4)
    with pytest.raises(ValueError, match="must be given together"):
        make(temperature=2.0)
    with pytest.raises(ValueError, match="`bias` must have the shape"):
        make(temperature=2.0, kernel=np.zeros((5, 5, 4, 7)), bias=[0.0])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="export needs TensorFlow")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param("served", marks=pytest.mark.slow),
        "m.onnx",
        pytest.param("m.tflite", marks=pytest.mark.slow),
    ],
)
def test_a_segmenter_is_exported_with_it(fitted, path, tmp_path):
    model = segmenter()
    kc.export(model, tmp_path / path, calibrator=fitted)


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="export needs TensorFlow")
def test_with_an_image_it_is_exported_inside_a_model(tmp_path):
    labels, logits, image = scenes(4)
    local = kc.LocalTemperatureScaling(use_image=True, epochs=1)
    local.fit(labels, (logits, image))
    network = segmenter()
    with pytest.raises(ValueError, match="reads the image"):
        kc.export(network, tmp_path / "no", calibrator=local)
    inputs = keras.Input((SIDE, SIDE, 3))
    whole = keras.Model(inputs, local([network(inputs), inputs]))
    kc.export(whole, tmp_path / "served", from_logits=True)
