"""Fits of few samples, and of samples that are all right.

The likelihood of the latter has no optimum.
"""

import re
import warnings

import numpy as np
import pytest
from cases import array, one_hot
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax

import keras_calib as kc

N, K = 50, 4
WARNED = "ignore:The data have no optimal:RuntimeWarning"


def all_right(n=N, num_classes=K, seed=0):
    """Logits that are three times too large, and are right by chance."""
    labels, logits = drawn(40 * n, num_classes, seed)
    some = np.flatnonzero(labels == logits.argmax(-1))[:n]
    return labels[some], logits[some]


def drawn(n, num_classes=K, seed=1):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, num_classes)).astype("float32")
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, 3 * logits


def smoothed(labels, logits, count=N):
    """One-hot labels of which the next class has the share 1 / (n + 2)."""
    others = np.where(one_hot(labels, logits.shape[-1]) > 0, -np.inf, logits)
    own, following = one_hot(labels, K), one_hot(others.argmax(-1), K)
    return own + (following - own) / (count + 2)


def moved(threshold):
    """Two classes that a threshold of the log-odds separates."""
    s = np.random.default_rng(0).normal(size=100)
    s = np.where(s > 0, s + 0.05, s - 0.05)
    return (s > 0).astype(int), np.stack([0 * s, s + threshold], axis=-1)


def optimum(loss):
    found = minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-10})
    return np.exp(found.x)


@pytest.mark.portable
@pytest.mark.filterwarnings(WARNED)
def test_labels_without_an_error_follow_the_rule_of_succession():
    labels, logits = all_right()
    z, targets = logits.astype("float64"), smoothed(labels, logits)

    def nll(log_t):
        return -np.sum(targets * log_softmax(z / np.exp(log_t), axis=-1))

    expected = optimum(nll)
    rows = np.arange(2 * N) % N
    grid = [expected / 2, expected * 0.99, expected * 2]
    for found, wanted in (
        (kc.TemperatureScaling().fit(labels, logits), expected),
        (kc.TemperatureScaling().fit(one_hot(labels, K), logits), expected),
        (kc.TemperatureScaling(objective="mse").fit(labels, logits), expected),
        (
            kc.TemperatureScaling().fit(labels[rows], logits[rows], rows < 99),
            kc.TemperatureScaling()
            .fit(labels, logits, np.bincount(rows, rows < 99))
            .temperature,
        ),
        (kc.TemperatureScaling(grid=grid).fit(labels, logits), grid[1]),
        (
            kc.TemperatureScaling(objective="ece").fit(labels, logits),
            round(expected, 1),
        ),
    ):
        assert abs(found.temperature / wanted - 1) < 1e-5


def test_one_error_is_enough_for_the_optimum_of_the_likelihood():
    labels, logits = all_right()
    labels[0] = logits[0].argsort()[-2]

    def nll(log_t):
        scaled = logits.astype("float64") / np.exp(log_t)
        return kc.nll(labels, scaled, from_logits=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = kc.TemperatureScaling().fit(labels, logits, num_folds=0)
    assert abs(found.temperature / optimum(nll) - 1) < 1e-5


def test_a_fit_without_an_error_says_what_to_do():
    pair, four = all_right(num_classes=2), all_right()
    for make, data, rule in (
        (kc.TemperatureScaling, four, "temperature.* samples=50, errors=0"),
        (
            kc.StructuredMatrixScaling,
            four,
            "temperature.* samples=50, errors=0",
        ),
        (kc.AffineScaling, pair, "affine_scaling.*=50, errors=0.*'1 of 1'"),
        # The ridge gives a slope of 92.
        (kc.AffineScaling, moved(0.1), "affine_scaling.*=100, errors=0"),
        (kc.QuadraticScaling, moved(0.1), "quadratic_scaling.*=100, errors=0"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            make().fit(*data)
        # Folds without an error do not tell harm.
        (words,) = (str(warning.message) for warning in caught)
        assert "more held-out samples" in words
        assert re.search("no optimal " + rule, words)


@pytest.mark.filterwarnings(WARNED)
def test_a_class_that_is_ruled_out_takes_no_share():
    labels, logits = all_right()
    plain = kc.TemperatureScaling().fit(labels, logits).temperature
    logits[0] = np.where(one_hot(labels[:1], K)[0] > 0, 0.0, -1e9)
    found = kc.TemperatureScaling().fit(labels, logits).temperature
    assert abs(found / plain - 1) < 0.1


@pytest.mark.filterwarnings(WARNED)
def test_classes_that_a_threshold_separates_have_platts_labels():
    labels, logits = all_right(num_classes=2)
    s = logits[:, 1].astype("float64") - logits[:, 0]
    counts = np.bincount(labels)
    targets = np.array([1, counts[1] + 1]) / (counts + 2)
    targets = targets[labels]
    rows = {
        kc.AffineScaling: [s, np.ones(N)],
        kc.BetaCalibration: [
            -np.logaddexp(0, -s),
            np.logaddexp(0, s),
            np.ones(N),
        ],
    }
    for cls, features in rows.items():
        how = {"penalty": None} if cls is kc.AffineScaling else {}
        found = cls(**how).fit(labels, logits).coefficients[0]
        x = np.stack(features)

        def loss(c, x=x):
            return np.sum(np.logaddexp(0, c @ x) - targets * (c @ x))

        bounds = [(0, None)] * (len(x) - 1) + [(None, None)]
        best = minimize(loss, np.full(len(x), 0.1), bounds=bounds, tol=1e-14)
        assert loss(found.astype("float64")) < best.fun + 1e-5, cls


@pytest.mark.filterwarnings(WARNED)
@pytest.mark.parametrize(
    "make",
    [
        kc.TemperatureScaling,
        lambda: kc.TemperatureScaling(objective="mse"),
        lambda: kc.TemperatureScaling(objective="ece"),
        kc.EnsembleTemperatureScaling,
        lambda: kc.EnsembleTemperatureScaling(objective="mse"),
        kc.ParametrizedTemperatureScaling,
        kc.VectorScaling,
        kc.MatrixScaling,
        kc.DirichletCalibration,
        kc.StructuredVectorScaling,
        kc.StructuredMatrixScaling,
        kc.BetaCalibration,
        kc.AffineScaling,
        kc.QuadraticScaling,
    ],
)
def test_few_samples_without_an_error_do_no_harm(make):
    for num_classes in (2, K):
        data = all_right(num_classes=num_classes)
        calibrator = make().fit(*data, force=True, num_folds=0)
        labels, logits = drawn(3000, num_classes)
        before = kc.nll(labels, logits, from_logits=True)
        found = kc.nll(labels, array(calibrator(logits)), from_logits=True)
        # Right by selection, they say little of how wrong others are.
        assert found < 2.0 * before


def test_ignored_samples_are_no_samples():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20, 4)).astype("float32")
    labels = np.where(np.arange(20) < 9, np.arange(20) % 4, 255)
    with pytest.raises(ValueError, match="samples=9, parameters=10"):
        kc.HistogramBinning(num_bins=10).fit(labels, logits, ignore_class=255)
