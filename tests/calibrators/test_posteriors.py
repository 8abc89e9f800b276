"""Calibrators with a posterior: formulas, draws, intervals, refusals."""

import sys

import numpy as np
import pytest
from cases import array
from cases import one_hot
from cases import softmax
from scipy.special import log_softmax
from scipy.special import logsumexp

import keras_calib as kc
from keras_calib.calibrators import bayesian_scaling_sampler as sampler
from keras_calib.calibrators import gaussian_process_solver
from keras_calib.calibrators.posterior import ScaledSamples

K = 3
TABLE = {
    "temperature": 1.5,
    "uniform_share": 0.02,
    "bounds": [-4.0, 0.0],
    "offsets": [0.5, 0.1, -0.3, 0.2, 0.0],
    "deviations": [[0.3, 0.1, 0.0, 0.2, 0.1], [0.0, 0.2, 0.4, 0.1, 0.0]],
}


def drawn(kind, num_draws=20):
    """Known draws of a vector or matrix scaling."""
    rng = np.random.default_rng(0)
    shape = (K,) if kind == "vector" else (K, K)
    middle = np.ones(K) if kind == "vector" else np.eye(K)
    return {
        "temperature": 1.5,
        "uniform_share": 0.02,
        "weights": middle + 0.2 * rng.normal(size=(num_draws, *shape)),
        "biases": 0.2 * rng.normal(size=(num_draws, K)),
    }


def some_logits(n=50, seed=1):
    # Below the table, on it and, as log-probabilities, near 0.
    return 4.0 * np.random.default_rng(seed).normal(size=(n, K))


def log_probs(values, logits):
    share = values["uniform_share"]
    probs = softmax(logits / values["temperature"])
    return np.log((1 - share) * probs + share / K)


def probs_of_scaling(values, logits):
    """Probabilities of each draw `(num_draws, n, K)`, float64."""
    u = log_probs(values, logits)
    weights = values["weights"]
    if weights.ndim == 2:
        weights = weights[:, :, None] * np.eye(K)
    mapped = np.einsum("nk,djk->dnj", u, weights)
    return softmax(mapped + values["biases"][:, None])


def probs_of_curves(values, logits, deviates):
    """The same of curves, `deviates` `(rank, num_draws)`."""
    u = log_probs(values, logits)
    knots = np.linspace(*values["bounds"], len(values["offsets"]))
    curves = values["offsets"] + deviates.T @ np.array(values["deviations"])
    return np.stack([softmax(u + np.interp(u, knots, c)) for c in curves])


@pytest.mark.portable
def test_answers_are_those_of_the_draws():
    logits = some_logits()
    deviates = np.random.default_rng(3).standard_normal((2, 60))
    gaussian = {"num_draws": 60, "seed": 3, **TABLE}
    cases = [
        (
            kc.BayesianScaling(kind=kind, **values),
            probs_of_scaling(values, logits),
        )
        for kind in ("vector", "matrix")
        for values in [drawn(kind)]
    ]
    cases.append(
        (
            kc.GaussianProcessCalibration(average=True, **gaussian),
            probs_of_curves(TABLE, logits, deviates),
        )
    )
    for layer, probs in cases:
        found = array(layer(logits.astype("float32")))
        np.testing.assert_allclose(
            found, np.log(probs.mean(axis=0)), atol=2e-5, err_msg=str(layer)
        )
        lower, upper = layer.credible_interval(logits, 0.8)
        ends = np.quantile(probs, (0.1, 0.9), axis=0, method="weibull")
        np.testing.assert_allclose([lower, upper], ends, atol=2e-6)
    mean = kc.GaussianProcessCalibration(**TABLE)
    found = softmax(array(mean(logits)).astype("float64"))
    (expected,) = probs_of_curves(TABLE, logits, np.zeros((2, 1)))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.portable
def test_intervals_take_what_calls_take():
    layer = kc.BayesianScaling(
        temperature=1.0,
        uniform_share=1e-6,
        weights=np.ones((9, 2)),
        biases=np.zeros((9, 2)),
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
    with pytest.raises(ValueError, match="must have 2 classes"):
        layer.credible_interval(np.zeros((2, 3)))
    with pytest.raises(RuntimeError, match="fitted before use"):
        kc.BayesianScaling().credible_interval(z)


def test_what_does_not_fit_is_refused():
    gaussian, bayesian = kc.GaussianProcessCalibration, kc.BayesianScaling
    values, flat = drawn("matrix"), drawn("vector")
    short = {**flat, "biases": flat["biases"][:, :2]}
    for make, rule in {
        lambda: gaussian(num_inducing_points=1): "`num_inducing_points` must",
        lambda: gaussian(num_draws=1): "`num_draws` must be >= 2",
        lambda: gaussian(seed=-1): "`seed` must be >= 0",
        lambda: gaussian(temperature=1.0): "must be given together",
        lambda: gaussian(**{**TABLE, "offsets": [0.0] * 4}): "must have the sh",
        lambda: bayesian(kind="scalar"): "`kind` must be one of",
        lambda: bayesian(num_chains=1): "`num_chains` must be >= 2",
        lambda: bayesian(num_samples=3): "`num_samples` must be >= 4",
        lambda: bayesian(num_draws=401): "<= `num_chains` \\* `num_samples`",
        lambda: bayesian(biases=flat["biases"]): "must be given together",
        lambda: bayesian(kind="vector", **values): "must have the shapes",
        lambda: bayesian(kind="matrix", **flat): "must have the shapes",
        lambda: bayesian(**short): "must have the shapes",
    }.items():
        with pytest.raises(ValueError, match=rule):
            make()
    logits = np.random.default_rng(0).normal(size=(102, 51))
    with pytest.raises(ValueError, match='`kind` must be "vector" for more'):
        bayesian(kind="matrix").fit(np.arange(102) % 51, logits)


def test_a_fit_without_tensorflow_probability_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_probability", None)
    gaussian_process_solver._bound.cache_clear()
    sampler._sampler.cache_clear()
    for cls in (kc.GaussianProcessCalibration, kc.BayesianScaling):
        layer = cls()
        with pytest.raises(ImportError, match=r"'keras-calib\[bayes\]'"):
            layer.fit([0, 1, 2, 0], some_logits(4))
        assert not layer.fitted


def data(n=40, seed=0):
    """Log-probabilities, soft labels and weights of a fit."""
    rng = np.random.default_rng(seed)
    u = log_softmax(2.0 * rng.normal(size=(n, K)), axis=-1)
    labels = one_hot(rng.integers(K, size=n), K)
    labels[0] = [0.5, 0.3, 0.2]
    return ScaledSamples(1.3, 0.02, u, labels, rng.uniform(0.5, 2.0, n))


def log_posterior(theta, samples, kind):
    """Of `(K, 2)` or `(K, K + 1)` added to the map, by its definition."""
    weights = np.diag(theta[:, 0]) if kind == "vector" else theta[:, :-1]
    off = weights - np.diag(np.diag(weights))
    logits = samples.log_probs @ (np.eye(K) + weights).T + theta[:, -1]
    right = (samples.labels * logits).sum(-1) - logsumexp(logits, axis=-1)
    squares = np.sum(np.diag(weights) ** 2) + np.sum(theta[:, -1] ** 2)
    penalty = K * squares + K * (K - 1) * np.sum(off**2)
    return samples.weight @ right - penalty


@pytest.mark.parametrize("kind", ["vector", "matrix"])
def test_the_sampled_density_is_that_of_structured_scaling(kind):
    pytest.importorskip("tensorflow_probability")
    samples = data()
    size = 2 if kind == "vector" else K + 1
    penalty = sampler._penalty(K, kind)
    mode = sampler._mode(samples, kind, penalty)
    rng = np.random.default_rng(0)
    places = 0.3 * rng.normal(size=(4, K * size))
    root = rng.normal(size=(K * size, K * size))
    found = sampler._log_posterior(
        places, (mode.ravel(), root, penalty.ravel(), *samples[2:]), kind
    )
    thetas = mode + (places @ root.T).reshape(4, K, size)
    np.testing.assert_allclose(
        found, [log_posterior(x, samples, kind) for x in thetas], rtol=1e-10
    )
    # At the mode nothing rises, and the curvature is that of differences.
    best = log_posterior(mode, samples, kind)
    hessian = sampler._derivatives(mode, samples, kind, penalty)[1]
    for _ in range(5):
        step = rng.normal(size=mode.shape)
        up, down = (
            log_posterior(mode + h * step, samples, kind) for h in (1e-3, -1e-3)
        )
        assert abs(up - down) < 1e-5
        curvature = step.ravel() @ hessian @ step.ravel()
        np.testing.assert_allclose(
            2 * best - up - down, 1e-6 * curvature, rtol=1e-4
        )


@pytest.mark.slow
def test_draws_have_the_moments_of_the_posterior():
    pytest.importorskip("tensorflow_probability")
    samples = data()
    chains = sampler.Chains(16, 40, 60, 0)
    draws = sampler.sample_posterior(samples, "vector", chains).values
    # The same by importance sampling from a wide Gaussian.
    penalty = sampler._penalty(K, "vector")
    mode = sampler._mode(samples, "vector", penalty)
    hessian = sampler._derivatives(mode, samples, "vector", penalty)
    root = np.linalg.inv(np.linalg.cholesky(hessian[1])).T * 1.2
    noise = np.random.default_rng(0).standard_normal((20_000, mode.size))
    others = mode + (noise @ root.T).reshape(-1, *mode.shape)
    log_ratio = np.array([log_posterior(x, samples, "vector") for x in others])
    log_ratio += 0.5 * np.sum(noise**2, axis=-1)
    share = np.exp(log_ratio - logsumexp(log_ratio))
    mean = np.tensordot(share, others, 1)
    spread = np.sqrt(np.tensordot(share, (others - mean) ** 2, 1))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 0.12 * spread)
    np.testing.assert_allclose(draws.std(axis=0), spread, rtol=0.1)
