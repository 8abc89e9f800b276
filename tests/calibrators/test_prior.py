"""Prior correction: Bayes' rule for other shares of the classes."""

import keras
import numpy as np
import pytest
from cases import array, softmax

import keras_calib as kc

SOURCE, TARGET = [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]


def shifted(n=4000, seed=0):
    """Labels of source and target, and logits that are twice too large."""
    rng = np.random.default_rng(seed)
    data = []
    for prior in (SOURCE, TARGET):
        labels = rng.choice(3, n, p=prior)
        x = rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[labels]
        logits = 2 * (1.5 * x + np.log(SOURCE))
        data.append((labels, logits.astype("float32")))
    return data


@pytest.mark.portable
def test_it_is_the_rule_of_bayes():
    probs = np.array([[0.2, 0.5, 0.3], [0.9, 0.05, 0.05]])
    layer = kc.PriorCorrection(SOURCE, TARGET)
    assert layer.fitted
    expected = probs * TARGET / SOURCE
    expected /= expected.sum(axis=-1, keepdims=True)
    for found in (layer(np.log(probs)), layer(probs, from_logits=False)):
        np.testing.assert_allclose(softmax(array(found)), expected, atol=1e-6)
    # Negatives of which one in ten was kept.
    odds = kc.PriorCorrection([0.5, 0.5], [10 / 11, 1 / 11])
    found = array(odds(np.array([[1.3]])))
    np.testing.assert_allclose(found, 1.3 - np.log(10), rtol=1e-6)


def test_a_class_that_the_target_lacks_is_never_predicted():
    layer = kc.PriorCorrection([0.5, 0.5, 0.0], [1.0, 0.0, 0.0])
    probs = softmax(array(layer(np.array([[0.0, 200.0, 300.0]]))))
    np.testing.assert_array_equal(probs, [[1.0, 0.0, 0.0]])


@pytest.mark.portable
def test_a_calibrator_comes_first_and_is_fitted_inside(tmp_path):
    (labels, logits), (others, other_logits) = shifted()
    layer = kc.PriorCorrection(
        SOURCE, TARGET, calibrator=kc.TemperatureScaling()
    )
    assert not layer.fitted and repr(layer) == "PriorCorrection(not fitted)"
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        layer(logits)
    assert layer.fit(labels, logits) is layer
    alone = kc.TemperatureScaling().fit(labels, logits)
    assert layer.calibrator.temperature == alone.temperature
    expected = array(alone(other_logits)) + np.log(np.divide(TARGET, SOURCE))
    found = array(layer(other_logits))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # It helps where the shares are others.
    before = kc.nll(others, array(alone(other_logits)), from_logits=True)
    after = kc.nll(others, found, from_logits=True)
    assert after < before - 0.1
    assert abs(alone.temperature - 2.0) < 0.2
    # Copies and files are fitted.
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    copy = kc.PriorCorrection.from_config(layer.get_config())
    assert copy.fitted and copy.get_config() == layer.get_config()
    assert repr(copy) == repr(layer)
    for answer in (
        copy(other_logits),
        loaded.predict_on_batch(other_logits),
        model.predict_on_batch(other_logits),
    ):
        np.testing.assert_allclose(array(answer), found, atol=1e-5)


def test_a_selector_fits_and_forgets_it_as_any_calibrator():
    (labels, logits), _ = shifted(600)
    layer = kc.PriorCorrection(SOURCE, TARGET, calibrator=kc.VectorScaling())
    selector = kc.SelectiveClassifier(calibrator=layer)
    with pytest.raises(RuntimeError, match="must be fitted on other data"):
        selector.fit(labels, logits, coverage=0.5)
    with pytest.raises(ValueError, match="`risk`"):
        selector.fit(labels, logits, risk=-1.0, tune_fraction=0.5)
    assert not layer.fitted
    selector.fit(labels, logits, coverage=0.5, tune_fraction=0.5)
    assert layer.fitted and layer.calibrator.fitted
    copy = kc.SelectiveClassifier.from_config(selector.get_config())
    np.testing.assert_allclose(
        array(copy(logits)["score"]), array(selector(logits)["score"]), 1e-5
    )


def test_bad_priors_are_refused():
    for source, target, rule in (
        ([0.5, 0.6], [0.5, 0.5], "`source` must be shares >= 0 that sum to 1"),
        ([0.5, 0.5, 1e-310], [0.3, 0.3, 0.4], "0 or above 1e-37"),
        ([0.5, 0.5], [-0.5, 1.5], "`target` must be shares >= 0"),
        ([0.5, 0.5], [np.nan, 1.0], "`target` must be shares >= 0"),
        ([0.5, 0.5], SOURCE, "`target` must have a share for each class"),
        ([[0.5, 0.5]], [0.5, 0.5], "`source` must have a share for each"),
        ([1.0, 0.0], [0.5, 0.5], r"absent from `source`.*absent=\[1\]"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.PriorCorrection(source, target)
    with pytest.raises(TypeError, match="`calibrator` must be a Calibrator"):
        kc.PriorCorrection(SOURCE, TARGET, calibrator="temperature")
    layer = kc.PriorCorrection(SOURCE, TARGET)
    with pytest.raises(RuntimeError, match="`calibrator` must be given"):
        layer.fit([0, 1], np.zeros((2, 3)))
    with pytest.raises(ValueError, match="must have 3 classes"):
        layer(np.zeros((2, 4)))
