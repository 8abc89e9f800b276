"""What calibrators find: published values, oracles and planted maps."""

import numpy as np
import pytest
from cases import array, softmax
from keras import ops

import keras_calib as kc
from keras_calib.calibrators.binning import interpolate, locate

LABEL_RELAXATION_GRID = [0.25, 0.5, 0.75, *np.arange(10, 21) / 10, 2.5, 3]


@pytest.fixture
def post_hoc(goldens):
    return goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]


def drawn(logits, seed=0):
    """Labels of softmax(logits)."""
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(-1)


def random_logits(n, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, num_classes)) * 2).astype("float32")


# Goldens of the authors' code.


@pytest.mark.portable
def test_temperatures_by_mse_and_on_grids_are_the_goldens(goldens, post_hoc):
    by_mse = kc.TemperatureScaling(objective="mse").fit(*post_hoc)
    expected = goldens["posthoc/ts_mse/T_opt"]
    assert abs(by_mse.temperature / expected - 1) < 1e-6
    by_ece = kc.TemperatureScaling(objective="ece").fit(*post_hoc)
    expected = goldens["posthoc/ts_grid/T_ece"]
    assert abs(by_ece.temperature / expected - 1) < 1e-6
    labels, logits = post_hoc
    value = kc.ece(labels, logits / 2.7, from_logits=True)
    np.testing.assert_allclose(
        value, goldens["posthoc/ts_grid/ece_opt"], rtol=1e-9
    )
    tenths = np.arange(1, 101) / 10
    by_nll = kc.TemperatureScaling(grid=tenths).fit(*post_hoc)
    expected = goldens["posthoc/ts_grid/T_nll"]
    assert abs(by_nll.temperature / expected - 1) < 1e-6


def test_a_grid_gives_its_best_temperature(post_hoc):
    labels, logits = post_hoc
    for objective, function in (
        ("nll", kc.nll),
        ("ece", kc.ece),
        ("mse", kc.brier_score),
    ):
        scaling = kc.TemperatureScaling(
            objective=objective, grid=LABEL_RELAXATION_GRID
        ).fit(labels, logits)
        values = [
            function(labels, logits / t, from_logits=True)
            for t in LABEL_RELAXATION_GRID
        ]
        best = LABEL_RELAXATION_GRID[int(np.argmin(values))]
        assert scaling.temperature == np.float32(best)


@pytest.mark.portable
def test_vector_scaling_is_the_golden_optimum(goldens, post_hoc):
    labels, logits = post_hoc
    scaling = kc.VectorScaling(penalty=None).fit(labels, logits)
    value = kc.nll(labels, array(scaling(logits)), from_logits=True)
    assert abs(value / goldens["posthoc/vector/nll"] - 1) < 1e-6
    # The authors' optimiser stops where the NLL is 2e-9 above.
    assert value <= goldens["posthoc/vector/nll"] + 1e-8
    np.testing.assert_allclose(
        scaling.scale, goldens["posthoc/vector/w"], atol=1e-4
    )
    np.testing.assert_allclose(
        scaling.bias, goldens["posthoc/vector/b_centered"], atol=5e-4
    )
    np.testing.assert_allclose(
        softmax(array(scaling(logits[:20])).astype("float64")),
        goldens["posthoc/vector/probs_first20"],
        atol=1e-4,
    )


@pytest.mark.portable
def test_ensemble_temperature_scaling_is_the_golden(goldens, post_hoc):
    labels, logits = post_hoc
    ets = kc.EnsembleTemperatureScaling(objective="mse").fit(labels, logits)
    np.testing.assert_allclose(
        ets.mixture, goldens["posthoc/ets/w_mixnmatch"], atol=2e-3
    )
    probs = np.exp(array(ets(logits)).astype("float64"))
    np.testing.assert_allclose(
        probs[:20], goldens["posthoc/ets/probs_first20"], atol=1e-5
    )
    mse = kc.brier_score(labels, probs) / probs.shape[-1]
    assert abs(mse / goldens["posthoc/ets/mse"] - 1) < 1e-6
    # By default it lowers the NLL, which a temperature alone does not beat.
    scaling = kc.TemperatureScaling().fit(labels, logits)
    usual = kc.EnsembleTemperatureScaling().fit(labels, logits)
    least, plain = (
        kc.nll(labels, array(fitted(logits)), from_logits=True)
        for fitted in (usual, scaling)
    )
    assert least < plain - 0.01
    assert usual.temperature == scaling.temperature


# Oracles.


@pytest.mark.portable
@pytest.mark.parametrize("weight", [None, np.arange(2000) % 3 / 2])
def test_isotonic_calibration_is_that_of_scikit_learn(weight):
    from sklearn.isotonic import IsotonicRegression

    # With ties.
    logits = np.round(random_logits(2000, 3))
    labels = drawn(logits / 2)
    calibrator = kc.IsotonicCalibration().fit(labels, logits, weight)
    probs = array(ops.softmax(logits))
    other = random_logits(500, 3, seed=1)
    other_probs = array(ops.softmax(other))
    # Calibrated probabilities before they are renormalised.
    found = np.exp(array(calibrator(other)))
    for k in range(3):
        oracle = IsotonicRegression(out_of_bounds="clip", y_min=0, y_max=1)
        oracle.fit(probs[:, k].astype("float64"), labels == k, weight)
        np.testing.assert_allclose(
            found[:, k], oracle.predict(other_probs[:, k]), atol=1e-5
        )


def test_beta_calibration_is_an_unpenalised_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    logits = random_logits(3000, 3)
    labels = drawn(logits / 2 + [0.5, 0.0, 0.0])
    calibrator = kc.BetaCalibration().fit(labels, logits)
    probs = softmax(logits.astype("float64"))
    for k in range(3):
        p = probs[:, k]
        features = np.stack([np.log(p), -np.log1p(-p)], axis=-1)
        oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000)
        oracle.fit(features, labels == k)
        np.testing.assert_allclose(
            calibrator.coefficients[k],
            [*oracle.coef_[0], oracle.intercept_[0]],
            atol=2e-4,
        )


def test_beta_calibration_never_decreases_with_the_probability():
    logits = random_logits(3000, 2)
    # The surer the model, the less often it is right.
    labels = drawn(-logits)
    calibrator = kc.BetaCalibration().fit(labels, logits)
    assert calibrator.coefficients[:, :2].min() >= 0.0
    rate = np.mean(labels)
    np.testing.assert_allclose(
        softmax(array(calibrator(logits)))[:, 1], rate, atol=1e-5
    )


@pytest.mark.portable
def test_histogram_binning_gives_the_shares_of_its_bins():
    logits = random_logits(2000, 3)
    labels = drawn(logits / 2)
    probs = array(ops.softmax(logits)).astype("float64")
    for options in (
        {"num_bins": 7},
        {"num_bins": 1},
        {"num_bins": 7, "edges": "mass"},
        {"num_bins": 200},
    ):
        calibrator = kc.HistogramBinning(**options).fit(labels, logits)
        found = np.exp(array(calibrator(logits)))
        for k in range(3):
            edges = calibrator.upper_edges[k].astype("float64")
            index = np.searchsorted(edges[:-1], probs[:, k])
            for b in np.unique(index):
                inside = index == b
                np.testing.assert_allclose(
                    found[inside, k], np.mean(labels[inside] == k), atol=1e-6
                )
            if options.get("edges") == "mass":
                count = np.bincount(index)
                assert count.max() - count.min() <= 1


def test_a_bin_holds_its_upper_edge():
    logits = np.array([[0.0, 0.0], [np.log(3.0), 0.0], [0.0, np.log(3.0)]])
    labels = np.array([1, 0, 1])
    calibrator = kc.HistogramBinning(num_bins=2).fit(labels, logits, force=True)
    # The second class: 0.25 and 0.5 are in one bin, 0.75 in the other.
    np.testing.assert_allclose(calibrator.values[0], [0.5, 1.0], atol=1e-6)


def test_an_empty_bin_gives_its_centre_or_zero():
    logits = np.log([[0.05, 0.95], [0.95, 0.05], [0.9, 0.1], [0.5, 0.5]])
    inside = np.log([[0.4, 0.6]])
    for empty, expected in (("centre", 0.625), ("zero", 0.0)):
        binning = kc.HistogramBinning(num_bins=4, empty=empty)
        binning.fit([1, 0, 0, 1], logits)
        found = softmax(array(binning(inside)))[0, 1]
        assert abs(found - expected) < 1e-6


def test_min_prob_bounds_the_loss_of_a_sample():
    logits = random_logits(500, 3)
    labels = logits.argmax(-1)
    for cls in (kc.HistogramBinning, kc.IsotonicCalibration):
        calibrator = cls(min_prob=0.01).fit(labels, logits)
        assert np.exp(array(calibrator(logits))).min() > 0.0099


def test_a_planted_vector_and_matrix_are_recovered():
    rng = np.random.default_rng(3)
    logits = random_logits(30_000, 4)
    scale, bias = rng.uniform(0.4, 1.5, 4), rng.normal(size=4)
    found = kc.VectorScaling(penalty=None).fit(
        drawn(logits * scale + bias), logits
    )
    np.testing.assert_allclose(found.scale, scale, atol=0.03)
    np.testing.assert_allclose(found.bias, bias - bias.mean(), atol=0.05)
    matrix = np.eye(4) + rng.normal(size=(4, 4)) * 0.3
    labels = drawn(logits @ matrix.T + bias)
    found = kc.MatrixScaling(penalty=None).fit(labels, logits)
    # Softmax does not see what is added to all rows.
    free = (matrix - found.matrix).mean(axis=0)
    np.testing.assert_allclose(found.matrix + free, matrix, atol=0.05)
    np.testing.assert_allclose(found.bias, bias - bias.mean(), atol=0.05)


def test_a_planted_dirichlet_map_is_recovered():
    rng = np.random.default_rng(4)
    logits = random_logits(30_000, 3)
    log_p = np.log(softmax(logits.astype("float64")))
    matrix = np.eye(3) + rng.normal(size=(3, 3)) * 0.2
    found = kc.DirichletCalibration(penalty=None)
    found.fit(drawn(log_p @ matrix.T), logits)
    free = (matrix - found.matrix).mean(axis=0)
    np.testing.assert_allclose(found.matrix + free, matrix, atol=0.05)


def test_regularisation_shrinks_what_it_says():
    logits = random_logits(500, 4)
    labels = drawn(logits / 2)
    sizes = []
    for strength in (0.0, 0.1, 1000.0):
        scaling = kc.MatrixScaling(
            off_diagonal_penalty=strength, intercept_penalty=strength
        ).fit(labels, logits)
        off = scaling.matrix - np.diag(np.diag(scaling.matrix))
        sizes.append((np.abs(off).max(), np.abs(scaling.bias).max()))
    assert sizes[0] > sizes[1] > sizes[2]
    assert max(sizes[2]) < 1e-3


def test_the_penalty_is_that_of_the_paper():
    # At the optimum the slopes of NLL and penalty cancel.
    logits = random_logits(400, 3).astype("float64")
    labels = drawn(logits / 2)
    scaling = kc.MatrixScaling(
        off_diagonal_penalty=0.3, intercept_penalty=0.7
    ).fit(labels, logits)
    matrix = scaling.matrix.astype("float64")
    bias = scaling.bias.astype("float64")
    residuals = softmax(logits @ matrix.T + bias) - np.eye(3)[labels]
    off = matrix - np.diag(np.diag(matrix))
    slope = residuals.T @ logits / 400 + 2 * 0.3 / 6 * off
    np.testing.assert_allclose(slope, 0.0, atol=1e-5)
    slope = residuals.mean(axis=0) + 2 * 0.7 / 3 * bias
    np.testing.assert_allclose(slope, 0.0, atol=1e-5)


def test_isotonic_probabilities_do_not_saturate_before_float32_does():
    logits = np.array([[20.0, 0.0], [16.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
    calibrator = kc.IsotonicCalibration().fit([0, 0, 1, 1], logits)
    found = softmax(array(calibrator(logits)))
    np.testing.assert_allclose(found[:, 0], [1.0, 1.0, 0.0, 0.0], atol=1e-6)


# Tables inside compiled code.


@pytest.mark.portable
def test_locate_counts_the_edges_below():
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 8):
        edges = np.sort(rng.uniform(size=(3, size)).astype("float32"), axis=-1)
        values = rng.uniform(-0.1, 1.1, size=(5, 20, 3)).astype("float32")
        values[0, :, 0] = edges[0, size // 2]
        found = array(locate(*map(ops.convert_to_tensor, (edges, values))))
        for k in range(3):
            expected = np.searchsorted(edges[k], values[..., k])
            np.testing.assert_array_equal(found[..., k], expected)


@pytest.mark.portable
def test_interpolate_is_that_of_numpy():
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(size=(2, 9)), axis=-1).astype("float32")
    y = rng.normal(size=(2, 9)).astype("float32")
    values = rng.uniform(-0.2, 1.2, size=(50, 2)).astype("float32")
    found = array(interpolate(*map(ops.convert_to_tensor, (x, y, values))))
    for k in range(2):
        expected = np.interp(values[:, k], x[k], y[k])
        np.testing.assert_allclose(found[:, k], expected, atol=1e-5)
