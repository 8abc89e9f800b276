"""Bins of the probability of the second class, and not of the top label."""

import keras
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import keras_calib as kc

# `BinaryCalibrationError` of torchmetrics 1.9.0, in float64.
PEERS = {
    ("l1", 10): 0.06537404538975124,
    ("l2", 10): 0.074146398275543,
    ("max", 10): 0.12852987033479346,
    ("l1", 15): 0.06537404538975125,
    ("l2", 15): 0.07773230941279738,
    ("max", 15): 0.1847036282221477,
}


def binary():
    """Labels, and probabilities of 1 that are too low."""
    rng = np.random.default_rng(0)
    probs = rng.beta(0.7, 1.5, 2000)
    labels = (rng.random(2000) < probs**1.3).astype("int32")
    return labels, probs.astype("float32")[:, None]


@pytest.mark.parametrize(("norm", "num_bins"), PEERS)
def test_the_values_are_those_of_torchmetrics(norm, num_bins):
    labels, probs = binary()
    options = {"num_bins": num_bins, "norm": norm, "closed": "left"}
    exact = kc.ece(labels, probs, mode="binary", **options)
    expected = PEERS[norm, num_bins]
    np.testing.assert_allclose(exact, expected, rtol=1e-6)
    for outputs in (probs, np.concatenate([1 - probs, probs], axis=-1)):
        metric = kc.ECE(mode="binary", **options)
        metric.update_state(labels, outputs)
        np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)
        assert metric.mode == "min"
    assert abs(kc.ece(labels, probs, **options) - expected) > 0.01


def test_the_error_is_that_of_the_curve_of_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    labels, probs = binary()
    share, forecast = calibration.calibration_curve(
        labels, probs[:, 0], n_bins=10
    )
    bins = kc.ECE(10, mode="binary")
    bins.update_state(labels, probs)
    sums = bins.bins()
    filled = sums.weight > 0
    np.testing.assert_allclose(
        (sums.correct / sums.weight)[filled], share, rtol=1e-6
    )
    np.testing.assert_allclose(
        (sums.confidence / sums.weight)[filled], forecast, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("make", "exact"),
    [
        (kc.AECE, kc.functional.aece),
        (kc.MCE, kc.functional.mce),
        (kc.RMSCE, kc.functional.rmsce),
        (kc.AverageCalibrationError, kc.functional.average_calibration_error),
        (kc.DebiasedCalibrationError, kc.functional.debiased_calibration_error),
        (kc.SmoothECE, kc.functional.smooth_ece),
        (kc.ECCE, kc.functional.ecce),
    ],
)
def test_metrics_follow_their_functions_from_logits_too(make, exact):
    labels, probs = binary()
    weight = np.random.default_rng(1).gamma(2.0, size=len(labels))
    # Its bins move with the order of samples of a cell.
    weight = None if make is kc.AECE else weight
    logits = np.log(probs / (1 - probs))
    expected = exact(labels, probs, mode="binary", sample_weight=weight)
    for outputs, from_logits in ((probs, False), (logits, True)):
        metric = make(mode="binary", from_logits=from_logits)
        metric.update_state(labels, outputs, weight)
        if make is kc.ECCE:
            # Its cells hide steps, as its bounds say.
            low, high = metric.bounds()
            assert low - 1e-6 <= expected <= high + 1e-6 < low + 1e-3
            continue
        # The fine histogram of the smooth error rounds confidences.
        rtol = 1e-3 if make is kc.SmoothECE else 1e-4
        np.testing.assert_allclose(metric.result(), expected, rtol=rtol)
    again = type(metric).from_config(metric.get_config())
    again.merge_state(metric)
    assert float(again.result()) == float(metric.result())
    with pytest.raises(ValueError, match="of one configuration"):
        make(from_logits=True).merge_state(metric)


def smooth_error(forecast, outcome, points=4001):
    """The definition of Blasiok and Nakkiran, by a loop in float64."""
    t = np.linspace(0, 1, points)

    def error(width):
        total = np.zeros(points)
        for p, y in zip(forecast, outcome, strict=True):
            # A Gaussian that is reflected at 0 and 1.
            for mirror in (p - 2, p, p + 2, -p - 2, -p, 2 - p, 4 - p):
                total += (y - p) * norm.pdf(t, mirror, width)
        return np.trapezoid(abs(total), t) / len(forecast)

    return brentq(lambda s: error(s) - s, 0.005, 1.0, xtol=1e-7)


def test_errors_without_bins_are_those_of_their_definitions():
    labels, probs = binary()
    labels, probs = labels[:80], probs[:80]
    forecast = probs[:, 0].astype("float64")
    found = kc.functional.smooth_ece(labels, probs, mode="binary")
    np.testing.assert_allclose(found, smooth_error(forecast, labels), rtol=1e-4)
    order = np.argsort(forecast)
    steps = np.cumsum((forecast - labels)[order]) / len(labels)
    steps = np.append(0.0, steps)
    for kind, expected in (
        ("range", steps.max() - steps.min()),
        ("maximum", abs(steps).max()),
    ):
        found = kc.functional.ecce(labels, probs, kind=kind, mode="binary")
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        assert (
            abs(kc.functional.ecce(labels, probs, kind=kind) - expected) > 0.01
        )


def test_diagrams_are_of_the_second_class():
    calibration = pytest.importorskip("sklearn.calibration")
    labels, probs = binary()
    share, forecast = calibration.calibration_curve(
        labels, probs[:, 0], n_bins=15
    )
    metric = kc.ECE(mode="binary")
    metric.update_state(labels, probs)
    for display in (
        kc.ReliabilityDisplay(kc.Predictions(labels, probs), mode="binary"),
        kc.ReliabilityDisplay(metric),
    ):
        filled = display.sums.weight > 0
        np.testing.assert_allclose(
            display.sums.accuracy[filled], share, rtol=1e-6
        )
        np.testing.assert_allclose(
            display.sums.mean_confidence[filled], forecast, rtol=1e-5
        )
        display.plot()
        assert display.counts_ax_.get_xlabel().endswith("second class")
    with pytest.raises(ValueError, match='must be of the mode "top_label"'):
        kc.plots.ConfidenceDisplay(metric)
    sums = kc.ECCE(mode="binary")
    sums.update_state(labels, probs)
    streamed = kc.plots.CumulativeDisplay(sums)
    exact = kc.plots.CumulativeDisplay(
        kc.Predictions(labels, probs), mode="binary"
    )
    assert abs(streamed.ecce_range - exact.ecce_range) < 1e-4
    assert streamed.mode == exact.mode == "binary"


def test_three_classes_have_no_second_of_two():
    probs = np.full((2, 3), 1 / 3, "float32")
    with pytest.raises(ValueError, match='`mode="binary"` needs one output'):
        kc.ECE(mode="binary").update_state([0, 1], probs)
    with pytest.raises(ValueError, match='`mode="binary"` needs one output'):
        kc.ece([0, 1], probs, mode="binary")
    with pytest.raises(ValueError, match="`mode` must be one of"):
        kc.ECE(mode="multiclass")


IN_BINARY_MODE = {
    "ece": kc.ECE,
    "mce": kc.MCE,
    "rmsce": kc.RMSCE,
    "smooth_ece": kc.SmoothECE,
    "ecce": kc.ECCE,
}
CLEAR = {"nll": kc.NLL, "brier_score": kc.BrierScore, "accuracy": kc.Accuracy}


@pytest.mark.portable
def test_one_probability_a_sample_is_that_of_the_second_class():
    rng = np.random.default_rng(3)
    probs = rng.uniform(size=50)
    labels = rng.integers(0, 2, 50)
    cases = [(name, {"mode": "binary"}) for name in IN_BINARY_MODE]
    for name, mode in [*cases, *((name, {}) for name in CLEAR)]:
        make = (IN_BINARY_MODE | CLEAR)[name]
        exact = getattr(kc.functional, name)
        wanted = exact(labels, probs[:, None], **mode)
        assert exact(labels, probs, **mode) == wanted
        assert exact(labels.tolist(), probs.tolist(), **mode) == wanted
        metric, same = make(**mode), make(**mode)
        same.update_state(labels, probs[:, None])
        for tensor in (False, True):
            given = keras.ops.convert_to_tensor(probs) if tensor else probs
            metric.reset_state()
            metric.update_state(labels, given)
            wanted = float(same.result())
            assert float(metric.result()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.portable
def test_outputs_of_one_axis_are_taken_by_a_compiled_model():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(40, 3)).astype("float32")
    y = rng.integers(0, 2, 40)
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(1, activation="sigmoid")(inputs)
    model = keras.Model(inputs, keras.layers.Reshape(())(outputs))
    metrics = [kc.ECE(mode="binary"), kc.NLL(), kc.Accuracy()]
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    found = model.evaluate(x, y, batch_size=20, return_dict=True, verbose=0)
    probs = model.predict(x, verbose=0)
    assert probs.shape == (40,)
    wanted = kc.ece(y, probs, mode="binary")
    assert found["ece"] == pytest.approx(wanted, rel=1e-4)
    assert found["nll"] == pytest.approx(kc.nll(y, probs), rel=1e-4)
    assert found["accuracy"] == pytest.approx(kc.functional.accuracy(y, probs))


def test_one_output_without_a_mode_is_refused_with_what_to_do():
    told = (
        r"the second of two classes need an axis more: `{}\[:, None\]`, or "
        '`mode="binary"` if it is an argument'
    )
    with pytest.raises(ValueError, match=told.format("outputs")):
        kc.ece([0, 1], [0.2, 0.7])
    with pytest.raises(ValueError, match=told.format("y_pred")):
        kc.ECE().update_state([0, 1], [0.2, 0.7])
