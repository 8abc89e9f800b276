"""Several labels at once: each as the calibrator of its own column."""

import keras
import numpy as np
import pytest
from cases import array
from keras import ops

import keras_calib as kc

PARTS = [
    kc.TemperatureScaling(),
    kc.AffineScaling(),
    kc.BetaCalibration(clip=1e-6),
    kc.QuadraticScaling(),
    kc.IsotonicCalibration(min_prob=1e-3),
    kc.HistogramBinning(num_bins=5),
    kc.VennAbers(),
]


def several(n=200, num_labels=3, seed=0):
    """Labels that depend on each other, and overconfident logits."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, 1))
    z = 1.5 * (rng.normal(size=(n, num_labels)) + common)
    shift = np.linspace(-0.5, 0.5, num_labels)
    y = rng.random(z.shape) < 1 / (1 + np.exp(-0.6 * z - shift))
    return y.astype(int), z.astype("float32")


def near_an_edge(layer, z, probs):
    """Logits that are an edge, within the rounding of their probability."""
    edges = layer.calibrator.upper_edges.astype("float64")
    scores = z if isinstance(layer.calibrator, kc.VennAbers) else probs
    away = np.abs(edges - scores[..., None]).min(axis=-1)
    rounding = 2.0**-22
    if scores is z:
        rounding /= np.minimum(probs, 1.0 - probs)
    return away <= rounding


def fresh(part):
    return type(part).from_config(part.get_config())


@pytest.mark.parametrize("part", PARTS, ids=lambda x: type(x).__name__)
def test_each_label_is_calibrated_as_its_column_alone(part):
    y, z = several()
    each = kc.labels.MultiLabelCalibrator(part).fit(y, z, num_folds=0)
    found = array(each(z))
    exact = 0.0 if keras.backend.backend() == "tensorflow" else 1e-6
    for k in range(3):
        one = fresh(part).fit(y[:, k], z[:, k, None], num_folds=0)
        for alone in (one, each.of_label(k)):
            difference = array(alone(z[:, k, None]))[:, 0] - found[:, k]
            assert abs(difference).max() <= exact
    shared = kc.labels.MultiLabelCalibrator(part, shared=True).fit(
        y, z, num_folds=0
    )
    pooled = fresh(part).fit(y.reshape(-1), z.reshape(-1, 1), num_folds=0)
    expected = array(pooled(z.reshape(-1, 1))).reshape(z.shape)
    assert abs(array(shared(z)) - expected).max() <= exact
    probs = ops.sigmoid(z)
    again = array(each(probs, from_logits=False))
    # Rounded log-odds may cross an edge of a table, and nothing else changes.
    near = np.zeros(z.shape, bool)
    if "upper_edges" in part.fitted_values:
        near = near_an_edge(each, z, array(probs))
    assert near.mean() < 0.5
    assert np.isclose(again, found, atol=2e-3)[~near].all()


# A map and a table are saved in the fast tier, the other parts alike.
SAVED = (kc.AffineScaling, kc.VennAbers)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(x, marks=() if isinstance(x, SAVED) else pytest.mark.slow)
        for x in PARTS
    ],
    ids=lambda x: type(x).__name__,
)
@pytest.mark.parametrize("shared", [False, True])
def test_it_is_saved_and_loaded_with_its_parts(part, shared, tmp_path):
    y, z = several()
    layer = kc.labels.MultiLabelCalibrator(fresh(part), shared=shared)
    layer.fit(y, z, num_folds=0)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert np.array_equal(array(again(z)), array(layer(z)))


def test_missing_labels_are_left_out_and_batches_are_read():
    y, z = several()
    missing = np.random.default_rng(1).random(y.shape) < 0.3
    expected = [
        fresh(PARTS[1]).fit(y[~m, k], z[~m, k, None], num_folds=0).coefficients
        for k, m in enumerate(missing.T)
    ]
    marked, weight = np.where(missing, -1, y), (~missing).astype("float32")
    cut = [(marked[i : i + 64], z[i : i + 64]) for i in range(0, 200, 64)]
    marks = {"ignore_class": -1, "from_logits": True, "multi_label": True}
    fits = [
        ((marked, z), {"ignore_class": -1}),
        ((marked, z, weight), {}),
        ((kc.Predictions.of_batches(cut, **marks),), {}),
    ]
    for data, options in fits:
        layer = kc.labels.MultiLabelCalibrator(PARTS[1])
        layer.fit(*data, **options, num_folds=0)
        for k in range(3):
            found = layer.of_label(k).coefficients
            assert np.allclose(found, expected[k], atol=1e-5)


def test_a_label_without_both_outcomes_is_named_or_kept():
    y, z = several()
    y[:, 1] = 0
    names = ["cat", "dog", "owl"]
    layer = kc.labels.MultiLabelCalibrator(PARTS[4], class_names=names)
    with pytest.raises(ValueError, match=r"both outcomes .*\['dog'\]"):
        layer.fit(y, z)
    assert not layer.fitted
    with pytest.warns(RuntimeWarning, match=r"not calibrated.*\['dog'\]"):
        layer.fit(y, z, force=True, num_folds=0)
    found = array(layer(z))
    assert np.array_equal(found[:, 1], z[:, 1])
    assert not np.array_equal(found[:, 2], z[:, 2])
    assert np.isfinite(layer.of_label("owl").thresholds).all()
    with pytest.raises(ValueError, match="must be one that is calibrated"):
        layer.of_label("dog")


def test_folds_warn_once_and_name_the_labels():
    y, z = several(n=60)
    with pytest.warns(RuntimeWarning, match="must help samples") as told:
        kc.labels.MultiLabelCalibrator(kc.HistogramBinning()).fit(y, z)
    assert sum("must help" in str(x.message) for x in told) == 1
    assert "It holds for the labels [" in str(told[0].message)


def test_models_of_several_labels_are_read_by_their_loss():
    y, z = several()
    direct = kc.labels.MultiLabelCalibrator(PARTS[1]).fit(y, z, num_folds=0)
    for activation, loss in (
        (None, keras.losses.BinaryCrossentropy(from_logits=True)),
        ("sigmoid", "binary_crossentropy"),
    ):
        model = keras.Sequential([keras.Input((3,))])
        model.add(keras.layers.Activation(activation or "linear"))
        model.compile(loss=loss)
        layer = kc.labels.MultiLabelCalibrator(PARTS[1])
        layer.fit_on(model, (z, y), num_folds=0, verbose=0)
        for k in range(3):
            found = layer.of_label(k).coefficients
            assert np.allclose(
                found, direct.of_label(k).coefficients, atol=1e-3
            )
    model.compile(loss="categorical_crossentropy")
    with pytest.raises(ValueError, match="exclude each other"):
        layer.fit_on(model, (z, y), verbose=0)


def test_venn_abers_has_the_interval_of_each_label():
    y, z = several()
    layer = kc.labels.MultiLabelCalibrator(kc.VennAbers()).fit(
        y, z, num_folds=0
    )
    low, high = map(array, layer.interval(z))
    one = layer.of_label(2).interval(z[:, 2:])
    assert np.array_equal(low[:, 2:], array(one[0]))
    assert np.array_equal(high[:, 2:], array(one[1]))
    p = array(ops.sigmoid(layer(z)))
    assert (low <= p + 1e-6).all() and (p <= high + 1e-6).all()


def test_what_does_not_fit_is_refused():
    y, z = several()
    layer = kc.labels.MultiLabelCalibrator(kc.TemperatureScaling()).fit(y, z)
    with pytest.raises(TypeError, match="must be one of a single output"):
        kc.labels.MultiLabelCalibrator(kc.VectorScaling())
    with pytest.raises(ValueError, match="must have 3 labels"):
        layer(z[:, :2])
    with pytest.raises(TypeError, match="must be `VennAbers`"):
        layer.interval(z)
    with pytest.raises(ValueError, match="number or name"):
        layer.of_label(3)
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        kc.labels.MultiLabelCalibrator(kc.TemperatureScaling())(z)
    with pytest.raises(ValueError, match="must have the shape of"):
        layer.fit(y[:, 0], z)
