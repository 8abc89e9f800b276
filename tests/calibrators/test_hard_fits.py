"""Fits of logits that no textbook has: masks, low rank, separated classes."""

import warnings

import numpy as np
import pytest
from cases import array
from keras import ops

import keras_calib as kc

SCALINGS = {
    "temperature": kc.TemperatureScaling,
    "mse": lambda: kc.TemperatureScaling(objective="mse"),
    "vector": lambda: kc.VectorScaling(penalty=None),
    "matrix": lambda: kc.MatrixScaling(penalty=None),
    "vector, ridge": kc.VectorScaling,
    "matrix, ridge": kc.MatrixScaling,
    "penalised": lambda: kc.MatrixScaling(
        off_diagonal_penalty=0.1, intercept_penalty=0.1
    ),
    "dirichlet": lambda: kc.DirichletCalibration(penalty=None),
    "ensemble": kc.EnsembleTemperatureScaling,
    "beta": kc.BetaCalibration,
}


def sample(n=4000, num_classes=5, seed=0):
    """Logits, and labels drawn at temperature 2."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 3
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, logits.astype("float32")


def low_rank(n, num_classes, rank, seed=0):
    """Logits of `rank` features, and labels drawn from a map of them."""
    rng = np.random.default_rng(seed)
    features = np.maximum(rng.normal(size=(n, rank)), 0.0)
    logits = 0.3 * features @ rng.normal(size=(rank, num_classes))
    scores = logits * rng.uniform(0.3, 0.8, num_classes)
    labels = (scores + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, logits.astype("float32")


def clusters(n, num_classes, rank, seed=0):
    """Logits of a network that is mostly sure, of few features."""
    rng = np.random.default_rng(seed)
    centres = 2.2 * rng.normal(size=(num_classes, rank))
    labels = rng.integers(num_classes, size=n)
    features = centres[labels] + rng.normal(size=(n, rank))
    distances = np.square(features[:, None] - centres).sum(axis=-1)
    logits = rng.normal(size=(n, num_classes)) * 0.3 - 1.5 * distances
    return labels, logits.astype("float32")


def nll(labels, calibrator, logits):
    return kc.nll(labels, array(calibrator(logits)), from_logits=True)


def fitted_quietly(make, labels, logits):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        # Whether it helps other samples has a test of its own.
        return make().fit(labels, logits, num_folds=0, force=True)


def masked(kind):
    """Samples with classes that are ruled out, and without them."""
    labels, logits = sample()
    rng = np.random.default_rng(1)
    other = logits.copy()
    if kind == "one":
        other[7, (labels[7] + 1) % 5] = -1e9
    elif kind == "some":
        mask = rng.random(logits.shape) < 0.3
        mask[np.arange(len(labels)), labels] = False
        other[mask] = -1e9
    else:
        column = np.full((len(logits), 1), float(kind), "float32")
        other = np.concatenate([logits, column], axis=-1)
    return labels, logits, other


@pytest.mark.parametrize("kind", ["-65504", "-1e9", "-3.4e38", "one", "some"])
def test_classes_that_are_ruled_out_spoil_no_fit(kind):
    labels, logits, other = masked(kind)
    scaled = fitted_quietly(kc.TemperatureScaling, labels, other)
    best = nll(labels, scaled, other)
    assert best < kc.nll(labels, other, from_logits=True)
    # Squared errors have their optimum, and the beta family, elsewhere.
    for name, make in SCALINGS.items():
        found = nll(labels, fitted_quietly(make, labels, other), other)
        assert found < best + 2e-3, name
    if kind not in ("one", "some"):
        # As if the class were not there.
        plain = kc.TemperatureScaling().fit(labels, logits).temperature
        assert abs(scaled.temperature / plain - 1) < 1e-6


@pytest.mark.parametrize(
    "make",
    [
        SCALINGS["matrix"],
        lambda: kc.MatrixScaling(intercept_penalty=0.01),
        SCALINGS["dirichlet"],
    ],
    ids=["matrix", "intercept", "dirichlet"],
)
@pytest.mark.parametrize(("num_classes", "rank"), [(5, 3), (40, 20), (20, 30)])
def test_matrices_of_logits_of_low_rank_stay_small(make, num_classes, rank):
    labels, logits = low_rank(4000, num_classes, rank)
    matrix = fitted_quietly(make, labels, logits)
    assert np.abs(array(matrix.matrix)).max() < 10.0
    # What float32 makes of them is what was fitted.
    x = logits.astype("float64")
    if make is SCALINGS["dirichlet"]:
        x = x - np.log(np.exp(x).sum(-1, keepdims=True))
    exact = x @ np.float64(matrix.matrix).T + np.float64(matrix.bias)
    exact = kc.nll(labels, exact, from_logits=True)
    assert abs(nll(labels, matrix, logits) / exact - 1) < 1e-6
    scaled = kc.TemperatureScaling().fit(labels, logits)
    assert exact < nll(labels, scaled, logits)


@pytest.mark.parametrize(
    ("make", "size", "gain"),
    [(low_rank, (10_000, 80, 40), 0.05), (clusters, (3000, 10, 6), 0.01)],
    ids=["many", "few"],
)
def test_matrices_of_correlated_classes_converge(make, size, gain):
    labels, logits = make(*size)
    matrix = fitted_quietly(SCALINGS["matrix"], labels, logits)
    scaled = kc.TemperatureScaling().fit(labels, logits)
    best = nll(labels, matrix, logits)
    assert best < nll(labels, scaled, logits) - gain
    # No step downhill is left.
    x = np.column_stack([logits, np.ones(len(logits))]).astype("float64")
    theta = np.column_stack([matrix.matrix, matrix.bias]).astype("float64")
    z = x @ theta.T
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1.0
    assert np.abs(p.T @ x / len(labels)).max() < 1e-4


def test_what_puts_every_sample_right_has_no_optimum_and_says_so():
    labels, logits = sample()
    logits[np.arange(len(labels)), labels] += 40
    for name, make in SCALINGS.items():
        with pytest.warns(RuntimeWarning, match="have no optimal"):
            calibrator = make().fit(labels, logits, num_folds=0)
        # As sure as 4000 samples without an error allow.
        assert 1e-4 < nll(labels, calibrator, logits) < 3e-3, name


@pytest.mark.parametrize(
    "make", [SCALINGS["vector"], SCALINGS["matrix"], kc.BetaCalibration]
)
def test_what_a_shift_puts_right_has_no_optimum_and_says_so(make):
    _, logits = sample(num_classes=2)
    labels = logits.argmax(-1)
    logits[:, 0] -= 3
    for given in (labels, np.eye(2)[labels]):
        with pytest.warns(RuntimeWarning, match="on the right side"):
            make().fit(given, logits)


def test_labels_that_are_nearly_one_hot_have_an_optimum():
    _, logits = sample(10, num_classes=2)
    labels = np.clip(np.eye(2)[logits.argmax(-1)], 1e-3, 1 - 1e-3)
    logits[:, 0] -= 3
    for make in (SCALINGS["vector"], SCALINGS["matrix"], kc.BetaCalibration):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*on the right side")
            calibrator = make().fit(labels, logits, force=True)
        # So small a loss that one-hot labels would have none.
        probs = array(ops.softmax(calibrator(logits)))
        assert -np.sum(labels * np.log(probs)) < np.log(2.0)


def test_squared_errors_of_many_classes_are_minimised_on_all_samples():
    rng = np.random.default_rng(0)
    n, num_classes = 300, 4000
    best = rng.integers(0, num_classes, n)
    logits = rng.normal(size=(n, num_classes)).astype("float32")
    logits[np.arange(n), best] += 13 - np.log(2)
    wrong = (np.arange(n) % 5 > 0) & (rng.uniform(size=n) < 0.08)
    labels = np.where(wrong, rng.integers(0, num_classes, n), best)
    how = {"num_folds": 0}
    found = kc.TemperatureScaling(objective="mse").fit(labels, logits, **how)
    grid = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5]
    other = kc.TemperatureScaling(objective="mse", grid=grid)
    other.fit(labels, logits, **how)
    assert abs(found.temperature - other.temperature) < 0.1


def test_beta_calibration_of_large_logits_is_the_optimum():
    labels, logits = sample()
    large = kc.BetaCalibration().fit(labels, logits * np.float32(1e4))
    rows = array(large(logits * np.float32(1e4)))
    best = kc.nll(labels, rows, from_logits=True)
    for factor in (0.9, 1.1):
        for column in range(3):
            coefficients = np.array(large.coefficients)
            coefficients[:, column] *= factor
            other = kc.BetaCalibration(coefficients=coefficients)
            assert binary_losses(labels, other, logits) > binary_losses(
                labels, large, logits
            )
    assert best < 1.2


def binary_losses(labels, calibrator, logits):
    features = calibrator.features(logits * np.float32(1e4))
    yes, no = map(array, calibrator.both_log_probs(features))
    truth = np.arange(logits.shape[-1]) == labels[:, None]
    return -np.where(truth, yes, no).mean()
