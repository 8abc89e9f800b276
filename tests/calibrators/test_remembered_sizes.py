"""Fitted calibrators remember how many samples and units they are of."""

import keras
import numpy as np
import pytest

import keras_calib as kc


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(60, 3))
    labels = (logits + rng.gumbel(size=(60, 3))).argmax(axis=-1)
    return labels, logits


def test_samples_weights_and_units_count(data):
    labels, logits = data
    fit = kc.TemperatureScaling()
    assert (fit.num_samples, fit.num_units) == (None, None)

    def sizes(*given, **options):
        fit.fit(*given, num_folds=0, **options)
        return fit.num_samples, fit.num_units

    assert sizes(labels, logits) == (60, None)
    assert sizes(labels, logits, np.arange(60) % 3) == (60, None)
    # A half of the rows, and rows that count in part.
    assert sizes(labels, logits, 1.0 * (np.arange(60) < 30)) == (30, None)
    half = np.where(np.arange(60) < 30, 0.3, 0.1)
    assert sizes(labels, logits, half) == (48, None)
    dense = labels.reshape(6, 10), logits.reshape(6, 10, 3)
    assert sizes(*dense) == (60, 6)
    weight = np.repeat([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], 10).reshape(6, 10)
    assert sizes(*dense, weight) == (30, 3)
    p = kc.Predictions(
        labels, logits, from_logits=True, units=np.arange(60) // 4
    )
    assert sizes(p) == (60, 15)


def test_files_choices_and_parts_keep_them(data, tmp_path):
    labels, logits = data
    fit = kc.TemperatureScaling().fit(labels, logits, num_folds=0)
    model = keras.Sequential([keras.Input((3,)), fit])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").layers[-1]
    assert (loaded.num_samples, loaded.num_units) == (60, None)
    # Files of before do not tell.
    config = fit.get_config()
    assert config.pop("num_samples") == 60
    assert kc.TemperatureScaling.from_config(config).num_samples is None
    assert kc.TemperatureScaling(temperature=2.0).num_samples is None
    with pytest.raises(ValueError, match="`num_units` must be >= 1"):
        kc.TemperatureScaling(temperature=2.0, num_units=0)
    candidates = [kc.TemperatureScaling(), kc.VectorScaling()]
    choice = kc.choose_calibrator(
        labels, logits, candidates=candidates, num_folds=2
    )
    assert choice.calibrator.num_samples == 60
    assert candidates[0].num_samples is None
    several = kc.MultiLabel(kc.TemperatureScaling()).fit(
        (logits > 0.5).astype(int), logits, num_folds=0
    )
    assert several.num_samples == several.of_label(1).num_samples == 60
