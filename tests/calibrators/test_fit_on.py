"""Fits on what a model says of a data set."""

import keras
import numpy as np
import pytest
from cases import BACKEND

import keras_calib as kc


def sample(n=200, num_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)).astype("float32") * 3
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, logits


def drawn(logits, seed=0):
    """Labels of softmax(logits)."""
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(-1)


def test_empty_batches_are_skipped():
    labels, logits = sample()
    parts = [(labels[:0], logits[:0]), (labels, logits)]
    given = kc.Predictions.of_batches(parts, from_logits=True)
    found = kc.TemperatureScaling().fit(given)
    expected = kc.TemperatureScaling().fit(labels, logits)
    assert found.temperature == expected.temperature
    model = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    found = kc.TemperatureScaling().fit_on(
        model,
        [(logits[:0], labels[:0]), (logits, labels)],
        from_logits=True,
        verbose=0,
    )
    assert found.temperature == expected.temperature


class Endless(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __getitem__(self, index):
        part = slice(index * 10, index * 10 + 10)
        return self.x[part], self.y[part]


def test_fit_on_takes_a_data_set_without_a_length():
    labels, logits = sample()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    how = {"from_logits": True, "verbose": 0}
    found = kc.TemperatureScaling().fit_on(
        model, Endless(logits, labels), steps=3, **how
    )
    expected = kc.TemperatureScaling().fit(labels[:30], logits[:30])
    assert abs(found.temperature / expected.temperature - 1) < 1e-6
    with pytest.raises(ValueError, match="`steps` must be given"):
        kc.TemperatureScaling().fit_on(model, Endless(logits, labels), **how)


def test_fit_on_takes_probabilities_of_the_second_class_as_labels():
    _, logits = sample(num_classes=1)
    labels = np.where(logits > 0, 0.8, 0.2)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    found = kc.TemperatureScaling().fit_on(
        model, [(logits, labels)], from_logits=True, verbose=0
    )
    expected = kc.TemperatureScaling().fit(labels, logits)
    assert abs(found.temperature / expected.temperature - 1) < 1e-6


def test_fit_on_keeps_pixels_of_one_output():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 6, 7, 1)).astype("float32")
    labels = np.where(logits > 0, 0.8, 0.2)
    labels[:, :, :1] = 0.0
    model = keras.Sequential([keras.Input((6, 7, 1)), keras.layers.Identity()])
    found = kc.TemperatureScaling().fit_on(
        model,
        [(logits, labels)],
        from_logits=True,
        pixels_per_image=42,
        num_folds=0,
        verbose=0,
    )
    expected = kc.TemperatureScaling().fit(labels, logits, num_folds=0)
    assert abs(found.temperature / expected.temperature - 1) < 1e-5


def model_and_data(dense=False):
    keras.utils.set_random_seed(0)
    shape = (6, 5, 8) if dense else (8,)
    model = keras.Sequential([keras.Input(shape), keras.layers.Dense(4)])
    model.compile(loss=kc.ACLS(from_logits=True))
    x = np.random.default_rng(0).normal(size=(50, *shape)).astype("float32")
    logits = model.predict_on_batch(x)
    return model, x, drawn(logits * 3), logits


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(index * 13, index * 13 + 13)
        return self.x[part], self.y[part]


@pytest.mark.portable
def test_fit_on_runs_a_model_over_a_data_set(capsys):
    model, x, labels, logits = model_and_data()
    expected = kc.VectorScaling().fit(labels, logits, num_folds=0)
    batches = Batches(x, labels)
    datasets = {
        "generator": (batches[i] for i in range(4)),
        "list": [batches[i] for i in range(4)],
        "PyDataset": batches,
    }
    if BACKEND == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, labels))
        datasets["tf.data"] = data.batch(13)
    for name, dataset in datasets.items():
        found = kc.VectorScaling().fit_on(
            model, dataset, num_folds=0, verbose=1
        )
        np.testing.assert_allclose(
            found.scale, expected.scale, atol=1e-4, err_msg=name
        )
        # Keras' progress bar, to its end.
        end = "4/Unknown" if name == "generator" else "4/4"
        assert end in capsys.readouterr().out
    kc.VectorScaling().fit_on(model, batches, verbose=0)
    assert capsys.readouterr().out == ""


def test_fit_on_takes_weights_steps_and_ignored_pixels():
    model, x, labels, logits = model_and_data(dense=True)
    marked = labels.copy()
    marked[:, :2] = 255
    weight = np.random.default_rng(1).integers(1, 3, 50)
    batches = [(x[:20], marked[:20], weight[:20]), (x[20:], marked[20:])]
    found = kc.TemperatureScaling().fit_on(
        model, iter(batches), ignore_class=255, steps=1, verbose=0
    )
    expected = kc.TemperatureScaling().fit(
        marked[:20], logits[:20], weight[:20], ignore_class=255
    )
    assert abs(found.temperature / expected.temperature - 1) < 1e-5


def test_fit_on_can_keep_a_few_pixels_of_each_image():
    model, x, labels, _ = model_and_data(dense=True)
    marked = labels.copy()
    marked[:, 0] = 255
    seen = []

    class Spy(kc.TemperatureScaling):
        def fit_samples(self, samples):
            seen.append(samples)
            super().fit_samples(samples)

    for count, kept in ((7, 7), (100, 25)):
        Spy().fit_on(
            model,
            [(x, marked)],
            ignore_class=255,
            pixels_per_image=count,
            verbose=0,
        )
        assert seen[-1].counts().sum() == 50 * kept
    again = Spy().fit_on(
        model, [(x, marked)], pixels_per_image=7, ignore_class=255, verbose=0
    )
    assert again.fitted
    np.testing.assert_array_equal(seen[-1].logits, seen[0].logits)


def test_fit_on_reads_probabilities_as_the_loss_says():
    keras.utils.set_random_seed(0)
    layer = keras.layers.Dense(1, activation="sigmoid")
    model = keras.Sequential([keras.Input((8,)), layer])
    x = np.random.default_rng(0).normal(size=(200, 8)).astype("float32")
    probs = model.predict_on_batch(x)
    z = np.log(probs) - np.log1p(-probs)
    labels = drawn(np.concatenate([np.zeros_like(z), z], axis=-1))
    expected = kc.TemperatureScaling().fit(labels, z)
    for loss in ("binary_crossentropy", keras.losses.BinaryCrossentropy()):
        model.compile(loss=loss)
        found = kc.TemperatureScaling().fit_on(model, [(x, labels)], verbose=0)
        assert abs(found.temperature / expected.temperature - 1) < 1e-3


def test_fit_on_refuses_what_does_not_end_or_has_no_labels():
    model, x, labels, _ = model_and_data()
    with pytest.raises(ValueError, match="`data` must give labels"):
        kc.TemperatureScaling().fit_on(model, [x], verbose=0)
    with pytest.raises(ValueError, match="`steps` must be >= 1"):
        kc.TemperatureScaling().fit_on(model, [(x, labels)], steps=0)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        data = tf.data.Dataset.from_tensor_slices((x, labels))
        data = data.batch(10).repeat()
        with pytest.raises(ValueError, match="`steps` must be given"):
            kc.TemperatureScaling().fit_on(model, data)
        kc.TemperatureScaling().fit_on(model, data, steps=3, verbose=0)
