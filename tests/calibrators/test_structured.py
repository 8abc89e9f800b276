"""Structured scaling: the reference's optimum, its ridge, extreme logits."""

import numpy as np
import pytest
from cases import array, softmax

import keras_calib as kc

# NLL of the fitting samples by probmetrics 1.3, SVSCalibrator and
# SMSCalibrator with the ridge, on inputs `in/posthoc`.
REFERENCE = {
    kc.StructuredVectorScaling: 1.288176683,
    kc.StructuredMatrixScaling: 1.275615858,
}


@pytest.mark.portable
def test_the_fit_is_the_optimum_of_the_reference(goldens):
    labels, logits = goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]
    for cls, expected in REFERENCE.items():
        calibrator = cls().fit(labels, logits)
        found = kc.nll(labels, array(calibrator(logits)), from_logits=True)
        assert abs(found - expected) < 1e-6, cls


def overconfident(n, num_classes, seed=0):
    """Logits of classes that are confused with neighbours, and labels."""
    rng = np.random.default_rng(seed)
    logits = 4.0 * rng.normal(size=(n, num_classes))
    true = 0.4 * logits + 0.5 * np.roll(logits, 1, axis=-1)
    labels = (true + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, logits.astype("float32")


def features(calibrator, logits):
    """log((1 - s) softmax(z / T) + s / K), float64."""
    probs = softmax(logits.astype("float64") / float(calibrator.temperature))
    share = float(calibrator.uniform_share)
    return np.log((1.0 - share) * probs + share / logits.shape[-1])


def test_slopes_of_nll_and_ridge_cancel():
    n, count = 400, 5
    labels, logits = overconfident(n, count)
    temperature = kc.TemperatureScaling().fit(labels, logits).temperature
    ridge = np.full((count, count), 2.0 * count * (count - 1) / n)
    np.fill_diagonal(ridge, 2.0 * count / n)
    for calibrator, structured in (
        (kc.StructuredMatrixScaling(penalty=2.0), True),
        (kc.StructuredVectorScaling(penalty=2.0), True),
        (kc.MatrixScaling(penalty=2.0), False),
        (kc.VectorScaling(penalty=2.0), False),
        (kc.DirichletCalibration(penalty=2.0), False),
    ):
        calibrator.fit(labels, logits)
        if structured:
            assert calibrator.temperature == np.float32(temperature)
            assert calibrator.uniform_share == np.float32(1 / (n + 1))
            x = features(calibrator, logits)
        else:
            x = logits / temperature
        if isinstance(calibrator, kc.DirichletCalibration):
            x = np.log(softmax(logits.astype("float64"))) / temperature
        thin = hasattr(calibrator, "scale")
        matrix = np.diag(calibrator.scale) if thin else calibrator.matrix
        matrix = matrix * (1.0 if structured else temperature)
        bias = calibrator.bias.astype("float64")
        residuals = softmax(x @ matrix.T + bias) - np.eye(count)[labels]
        slope = residuals.T @ x / n + 2.0 * ridge * (matrix - np.eye(count))
        slope = np.diag(slope) if thin else slope
        np.testing.assert_allclose(slope, 0.0, atol=1e-5)
        slope = residuals.mean(axis=0) + 2.0 * 2.0 * count / n * bias
        np.testing.assert_allclose(slope, 0.0, atol=1e-5)


def test_weights_of_any_scale_keep_the_ridge():
    labels, logits = overconfident(300, 4)
    plain = kc.StructuredMatrixScaling().fit(labels, logits)
    for weight in (np.full(300, 1.0), np.full(300, 1e-3)):
        other = kc.StructuredMatrixScaling().fit(labels, logits, weight)
        np.testing.assert_allclose(other.matrix, plain.matrix, atol=1e-4)
    # Those above 1 are frequencies, which weaken it.
    twice = kc.StructuredMatrixScaling().fit(labels, logits, np.full(300, 2.0))
    off = [np.abs(c.matrix - np.eye(4)).sum() for c in (plain, twice)]
    assert off[0] < off[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*on the right side|.*not converge")
def test_fewer_samples_than_parameters_gain_on_other_samples():
    labels, logits = overconfident(3300, 20)
    few, rest = slice(0, 300), slice(300, None)
    losses = {}
    for make in (
        kc.TemperatureScaling,
        kc.StructuredMatrixScaling,
        lambda: kc.MatrixScaling(penalty=None),
    ):
        calibrator = make().fit(labels[few], logits[few], force=True)
        found = array(calibrator(logits[rest]))
        losses[type(calibrator)] = kc.nll(labels[rest], found, from_logits=True)
    temperature, structured, matrix = losses.values()
    assert structured < temperature - 0.01
    assert matrix > temperature + 1.0


def test_known_values_must_be_complete():
    whole = {
        "temperature": 2.0,
        "uniform_share": 0.1,
        "scale": [1.0, 1.0],
        "bias": [0.0, 0.0],
    }
    for change, rule in (
        ({"bias": None}, "must be given together"),
        ({"temperature": 0.0}, "`temperature` must be > 0"),
        ({"uniform_share": 0.0}, "`uniform_share` must be > 0"),
        ({"bias": [0.0] * 3}, "must have the shape .*num_classes=2"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.StructuredVectorScaling(**{**whole, **change})
    for penalty in (0.0, -1.0):
        with pytest.raises(ValueError, match="`penalty` must be > 0"):
            kc.StructuredMatrixScaling(penalty=penalty)
