"""A calibrator with a posterior: formulas, draws, intervals, refusals."""

import sys

import numpy as np
import pytest
from cases import array, softmax

import keras_calib as kc
from keras_calib.calibrators import gaussian_process

K = 3
TABLE = {
    "temperature": 1.5,
    "uniform_share": 0.02,
    "bounds": [-4.0, 0.0],
    "offsets": [0.5, 0.1, -0.3, 0.2, 0.0],
    "deviations": [[0.3, 0.1, 0.0, 0.2, 0.1], [0.0, 0.2, 0.4, 0.1, 0.0]],
}


def some_logits(n=50, seed=1):
    # Below the table, on it and, as log-probabilities, near 0.
    return 4.0 * np.random.default_rng(seed).normal(size=(n, K))


def log_probs(values, logits):
    share = values["uniform_share"]
    probs = softmax(logits / values["temperature"])
    return np.log((1 - share) * probs + share / K)


def probs_of_curves(values, logits, deviates):
    """Probabilities of each draw `(num_draws, n, K)`, float64.

    `deviates` are `(rank, num_draws)`.
    """
    u = log_probs(values, logits)
    knots = np.linspace(*values["bounds"], len(values["offsets"]))
    curves = values["offsets"] + deviates.T @ np.array(values["deviations"])
    return np.stack([softmax(u + np.interp(u, knots, c)) for c in curves])


@pytest.mark.portable
def test_answers_are_those_of_the_draws():
    logits = some_logits()
    deviates = np.random.default_rng(3).standard_normal((2, 60))
    layer = kc.GaussianProcessCalibration(
        average=True, num_draws=60, seed=3, **TABLE
    )
    probs = probs_of_curves(TABLE, logits, deviates)
    found = array(layer(logits.astype("float32")))
    np.testing.assert_allclose(found, np.log(probs.mean(axis=0)), atol=2e-5)
    lower, upper = layer.credible_interval(logits, 0.8)
    ends = np.quantile(probs, (0.1, 0.9), axis=0, method="weibull")
    np.testing.assert_allclose([lower, upper], ends, atol=2e-6)
    mean = kc.GaussianProcessCalibration(**TABLE)
    found = softmax(array(mean(logits)).astype("float64"))
    (expected,) = probs_of_curves(TABLE, logits, np.zeros((2, 1)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.portable
def test_intervals_take_what_calls_take():
    layer = kc.GaussianProcessCalibration(
        temperature=1.0,
        uniform_share=1e-6,
        bounds=[-4.0, 0.0],
        offsets=[0.0, 0.0],
        deviations=[[0.0, 0.0]],
    )
    z = np.array([[[0.3], [2.0]]], "float32")
    lower, upper = layer.credible_interval(z)
    assert lower.shape == upper.shape == z.shape
    # All draws are alike.
    np.testing.assert_allclose(lower, 1 / (1 + np.exp(-z)), atol=1e-6)
    by_probs = layer.credible_interval(1 / (1 + np.exp(-z)), from_logits=False)
    np.testing.assert_allclose(by_probs, [lower, upper], atol=1e-6)
    assert layer.credible_interval(z[:0])[0].shape == (0, 2, 1)
    for level, rule in ((0.0, "> 0"), (1.5, "<= 1")):
        with pytest.raises(ValueError, match=f"`level` must be {rule}"):
            layer.credible_interval(z, level)
    with pytest.raises(RuntimeError, match="fitted before use"):
        kc.GaussianProcessCalibration().credible_interval(z)


def test_what_does_not_fit_is_refused():
    gaussian = kc.GaussianProcessCalibration
    for make, rule in {
        lambda: gaussian(num_inducing_points=1): "`num_inducing_points` must",
        lambda: gaussian(num_draws=1): "`num_draws` must be >= 2",
        lambda: gaussian(seed=-1): "`seed` must be >= 0",
        lambda: gaussian(temperature=1.0): "must be given together",
        lambda: gaussian(**{**TABLE, "offsets": [0.0] * 4}): "must have the sh",
    }.items():
        with pytest.raises(ValueError, match=rule):
            make()


def test_a_fit_without_tensorflow_probability_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_probability", None)
    gaussian_process._bound.cache_clear()
    layer = kc.GaussianProcessCalibration()
    with pytest.raises(ImportError, match=r"'keras-calib\[bayes\]'"):
        layer.fit([0, 1, 2, 0], some_logits(4))
    assert not layer.fitted
