"""What calibrators take and refuse: batches, shapes, tables, data sets."""

import warnings

import keras
import numpy as np
import pytest
from cases import array

import keras_calib as kc

pytestmark = pytest.mark.portable


def sample(n=200, num_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)).astype("float32") * 3
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, logits


def test_weights_beside_batches_are_refused():
    labels, logits = sample()
    weight = np.ones(len(labels))
    with pytest.raises(ValueError, match="must be part of the batches"):
        kc.TemperatureScaling().fit([(labels, logits)], sample_weight=weight)


def test_empty_batches_are_skipped():
    labels, logits = sample()
    parts = [(labels[:0], logits[:0]), (labels, logits)]
    found = kc.TemperatureScaling().fit(parts)
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


@pytest.mark.parametrize(
    "layer",
    [
        kc.TemperatureScaling(temperature=2.0),
        kc.LogitNormalization(p=2),
        kc.SelectiveClassifier(threshold=0.5),
    ],
)
def test_what_a_fit_refuses_a_call_refuses(layer):
    _, logits = sample()
    for rule, bad in {
        "masked array": np.ma.array(logits, mask=logits > 4),
        "real numbers, not complex": logits + 1j,
        "numbers, not strings": logits.astype(str),
    }.items():
        for call in (layer, lambda x: layer(logits=x)):
            with pytest.raises(TypeError, match=f"`logits` must .*{rule}"):
                call(bad)
    listed, traced = layer(logits.tolist()), keras.Input((4,))
    keras.tree.map_structure(
        lambda one, two: np.testing.assert_array_equal(array(one), array(two)),
        listed,
        keras.Model(traced, layer(traced))(logits),
    )


@pytest.mark.parametrize(
    "make",
    [
        kc.VectorScaling,
        kc.MatrixScaling,
        kc.HistogramBinning,
        kc.IsotonicCalibration,
        kc.BetaCalibration,
    ],
)
@pytest.mark.parametrize(("fitted", "asked"), [(4, 2), (4, 3), (2, 3)])
def test_another_number_of_classes_is_refused_at_every_call(
    make, fitted, asked
):
    calibrator = make().fit(*sample(num_classes=fitted))
    right, wrong = np.zeros((3, fitted)), np.zeros((3, asked))
    calibrator(right)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"must have {fitted} classes"):
            calibrator(wrong)
    if fitted == 2:
        assert array(calibrator(np.zeros((3, 1)))).shape == (3, 1)


def test_tables_of_other_shapes_are_refused():
    for tables in (
        {"upper_edges": [[0.5, 1.0]] * 2, "values": [[0.1, 0.9]] * 2},
        {"upper_edges": [0.5, 1.0], "values": [0.1, 0.9]},
    ):
        with pytest.raises(ValueError, match="a row for each class"):
            kc.HistogramBinning(**tables)
    with pytest.raises(ValueError, match="tables must have the same shape"):
        kc.IsotonicCalibration(
            thresholds=[[0.1, 0.5, 0.9]], values=[[0.1, 0.9]]
        )
    with pytest.raises(ValueError, match="a row for each class"):
        kc.BetaCalibration(coefficients=[[1.0, 1.0, 0.0]] * 2)
    with pytest.raises(ValueError, match="`matrix` must be square"):
        kc.MatrixScaling(matrix=[[1, 0, 0], [0, 1, 0]], bias=[0, 0])


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
        verbose=0,
    )
    expected = kc.TemperatureScaling().fit(labels, logits)
    assert abs(found.temperature / expected.temperature - 1) < 1e-5


def test_masks_of_sequences_pass_through():
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(5, 4, mask_zero=True)(inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*mask")
        kc.TemperatureScaling(temperature=2.0)(x)
