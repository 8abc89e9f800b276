"""Gaussian process calibration: bound, table, draws, intervals, refusals."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from cases import array, one_hot, softmax
from scipy.stats import multivariate_normal

import keras_calib as kc
from keras_calib.calibrators import gaussian_process

fits = pytest.mark.skipif(
    find_spec("tensorflow_probability") is None,
    reason="needs tensorflow_probability",
)
K = 3
TABLE = {
    "temperature": 1.5,
    "uniform_share": 0.02,
    "bounds": [-4.0, 0.0],
    "offsets": [0.5, 0.1, -0.3, 0.2, 0.0],
    "deviations": [[0.3, 0.1, 0.0, 0.2, 0.1], [0.0, 0.2, 0.4, 0.1, 0.0]],
}


def overconfident(n, seed=0, num_classes=K):
    """Labels, logits of twice the right size, and the true probabilities."""
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.normal(size=(n, num_classes))
    probs = softmax(logits / 2.0)
    labels = (probs.cumsum(-1) < rng.uniform(size=(n, 1))).sum(-1)
    return np.minimum(labels, num_classes - 1), logits, probs


def dense_bound(theta, x, labels, weight, inducing):
    """The same with the covariance of each sample written out."""
    num = len(inducing)
    amplitude, length, noise = np.exp(theta[:3])
    mean = theta[3 : 3 + num]
    # The order of TensorFlow Probability.
    root = np.zeros((num, num))
    packed = theta[3 + num :]
    whole = np.concatenate([packed[num:], packed[::-1]]).reshape(num, num)
    root = np.tril(whole)
    root[np.diag_indices(num)] = np.exp(np.diag(root))

    def kernel(a, b):
        gap = (a[:, None] - b) / length
        return amplitude**2 * np.exp(-0.5 * gap**2)

    prior = kernel(inducing, inducing)
    prior += (noise**2 + 1e-6 * amplitude**2) * np.eye(num)
    factor = np.linalg.cholesky(prior)
    total = 0.0
    for u, y, w in zip(x, labels, weight, strict=True):
        maps = np.linalg.solve(factor, kernel(inducing, u))
        latent = u + maps.T @ mean
        rest = amplitude**2 + noise**2 - np.sum(maps**2, axis=0)
        covariance = maps.T @ root @ root.T @ maps + np.diag(rest)
        p = softmax(latent[None])[0]
        curvature = np.diag(p) - np.outer(p, p)
        right = y @ np.log(p) - 0.5 * np.trace(curvature @ covariance)
        total += w * right
    both = [
        multivariate_normal(mean, root @ root.T),
        multivariate_normal(np.zeros(num), np.eye(num)),
    ]
    divergence = both[1].entropy() - both[0].entropy()
    divergence += 0.5 * (np.sum(root**2) + mean @ mean - num)
    medians = gaussian_process._MEDIANS
    away = (theta[:3] - np.log(medians)) / gaussian_process._SPREADS
    return divergence - total + 0.5 * away @ away


@fits
def test_the_bound_is_that_of_the_dense_covariance():
    rng = np.random.default_rng(0)
    num = 5
    x = np.log(softmax(2.0 * rng.normal(size=(12, K))))
    data = (
        x,
        one_hot(rng.integers(K, size=12), K),
        rng.uniform(0.5, 2.0, 12),
        np.linspace(-5.0, 0.0, num),
    )
    theta = 0.3 * rng.normal(size=3 + num + num * (num + 1) // 2)
    found = gaussian_process._negative_bound(theta, data, num)
    np.testing.assert_allclose(found, dense_bound(theta, *data), rtol=1e-8)


@fits
def test_the_table_is_the_curve(monkeypatch):
    labels, logits, _ = overconfident(400, num_classes=4)
    calibrator = kc.GaussianProcessCalibration(num_inducing_points=8)
    curves, fit_curve = [], gaussian_process._fit_curve

    def kept(*arguments):
        curves.append(fit_curve(*arguments))
        return curves[-1]

    monkeypatch.setattr(gaussian_process, "_fit_curve", kept)
    offsets = calibrator.fit(labels, logits).offsets
    (curve,), knots = curves, len(offsets)
    between = curve.knots(8 * knots - 7)
    table = np.interp(between, curve.knots(knots), offsets)
    assert 0.0 < np.abs(table - curve.at(between)[0]).max() < 1e-4
    copy = kc.GaussianProcessCalibration.from_config(calibrator.get_config())
    np.testing.assert_array_equal(
        array(copy(logits)), array(calibrator(logits))
    )
    # Beyond its ends the curve is the prior mean and an offset.
    share, low = float(calibrator.uniform_share), calibrator.bounds[0]
    probs = np.array([[1.0 - 3e-9, 1e-9, 1e-9, 1e-9]])
    u = np.log((1.0 - share) * probs + share / 4)
    assert u.min() < low + 0.5
    found = array(calibrator(np.log(probs) * calibrator.temperature))
    offsets = np.interp(
        u, np.linspace(*calibrator.bounds, 513), calibrator.offsets
    )
    np.testing.assert_allclose(found, u + offsets, atol=2e-5)


@fits
def test_it_bends_where_a_temperature_cannot():
    # A fifth of the labels is noise: confidence has a ceiling.
    rng = np.random.default_rng(1)
    labels, logits, _ = overconfident(3000, seed=1)
    noise = rng.uniform(size=len(labels)) < 0.2
    labels = np.where(noise, rng.integers(K, size=len(labels)), labels)
    some, rest = slice(0, 1000), slice(1000, None)
    losses = []
    for calibrator in (
        kc.TemperatureScaling(),
        kc.GaussianProcessCalibration(num_inducing_points=8),
    ):
        calibrator.fit(labels[some], logits[some], num_folds=0)
        after = array(calibrator(logits[rest]))
        losses.append(kc.nll(labels[rest], after, from_logits=True))
    assert losses[0] - losses[1] > 0.004


@pytest.mark.slow
@fits
def test_credible_intervals_cover_the_true_probabilities():
    inside = []
    for seed in range(8):
        labels, logits, probs = overconfident(1100, seed)
        calibrator = kc.GaussianProcessCalibration()
        calibrator.fit(labels[:100], logits[:100], num_folds=0)
        lower, upper = calibrator.credible_interval(logits[100:])
        inside.append((lower <= probs[100:]) & (probs[100:] <= upper))
    # 0.95, less what the plug-in temperature and eight fits leave open.
    assert 0.85 < np.mean(inside) < 0.999


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
    # One that has not found it yet.
    unused = type(gaussian_process.tfp)("tensorflow_probability", "bayes")
    monkeypatch.setattr(gaussian_process, "tfp", unused)
    gaussian_process._bound.cache_clear()
    layer = kc.GaussianProcessCalibration()
    with pytest.raises(ImportError, match=r"'keras-calib\[bayes\]'"):
        layer.fit([0, 1, 2, 0], some_logits(4))
    assert not layer.fitted
