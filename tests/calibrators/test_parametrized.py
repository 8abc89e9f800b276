"""Parametrized temperature scaling: its gradient, and what it finds."""

import numpy as np
import pytest
from cases import array

import keras_calib as kc
from keras_calib.calibrators import parametrized as solver
from keras_calib.calibrators.fitting_data import FittingData


def sure_and_unsure(n=3000, num_classes=6, seed=0):
    """Logits that are right where they are small, and too large elsewhere."""
    rng = np.random.default_rng(seed)
    sure = rng.integers(2, size=(n, 1))
    logits = rng.normal(size=(n, num_classes)) * np.where(sure, 2.0, 0.7)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return labels, (logits * np.where(sure, 4.0, 1.0)).astype("float32")


def test_the_gradient_is_that_of_differences():
    rng = np.random.default_rng(0)
    logits = 3.0 * rng.normal(size=(50, 6))
    soft = rng.dirichlet(np.ones(6), 50)
    for labels in (rng.integers(6, size=50), soft):
        samples = FittingData(labels, logits, rng.uniform(size=50))
        few = solver._in_order(samples)
        mean, variance, _ = few.moments(lambda z: z[:, :4])
        scale = np.sqrt(variance)
        shapes = [(4, 3), (3,), (3, 3), (3,), (3,), ()]
        theta = rng.normal(size=31)
        for objective in ("nll", "mse"):
            problem = solver._Problem(
                few, objective, 1.7, mean, scale, 0.3, shapes
            )

            def value(x, problem=problem):
                return solver._value_and_slope(x, problem)

            steps = 1e-6 * np.eye(31)
            wanted = [
                (value(theta + e)[0] - value(theta - e)[0]) / 2e-6
                for e in steps
            ]
            np.testing.assert_allclose(
                value(theta)[1], wanted, rtol=1e-6, atol=1e-8
            )


def test_sure_and_unsure_predictions_get_temperatures_of_their_own():
    labels, logits = sure_and_unsure(seed=1)
    seen = sure_and_unsure()
    same = kc.TemperatureScaling().fit(*seen)
    fitted = kc.ParametrizedTemperatureScaling().fit(*seen, num_folds=0)
    before, after = (
        kc.nll(labels, array(c(logits)), from_logits=True)
        for c in (same, fitted)
    )
    assert after < before - 0.02
    found = array(fitted.temperature_of(logits))[:, 0]
    lead = logits.max(-1) - logits.mean(-1)
    assert found[lead > 8].mean() > 1.5 * found[lead < 2].mean()
    assert found.min() >= 0.5 * same.temperature - 1e-6
    # A network that is given is the one that was fitted.
    given = fitted.get_config()
    copy = kc.ParametrizedTemperatureScaling.from_config(given)
    np.testing.assert_array_equal(array(copy(logits)), array(fitted(logits)))
    # The weights at the start are all that is random.
    again, other = (
        kc.ParametrizedTemperatureScaling(seed=s).fit(*seen, num_folds=0)
        for s in (0, 1)
    )
    np.testing.assert_array_equal(again.kernel_1, fitted.kernel_1)
    assert np.abs(other.kernel_1 - fitted.kernel_1).max() > 1e-3


def test_its_objective_does_not_rise():
    labels, logits = sure_and_unsure(400)
    for objective, measure in (("nll", kc.nll), ("mse", kc.brier_score)):
        how = {"objective": objective}
        same = kc.TemperatureScaling(**how).fit(labels, logits)
        fitted = kc.ParametrizedTemperatureScaling(**how)
        fitted.fit(labels, logits, num_folds=0)
        before, after = (
            measure(labels, array(c(logits)), from_logits=True)
            for c in (same, fitted)
        )
        assert after <= before + 1e-6, objective
        # So strong a ridge leaves nothing but T_0.
        flat = kc.ParametrizedTemperatureScaling(penalty=1e9, **how)
        flat.fit(labels, logits, num_folds=0)
        np.testing.assert_allclose(
            array(flat.temperature_of(logits)), same.temperature, rtol=1e-4
        )


def test_what_does_not_fit_the_network_is_refused():
    labels, logits = sure_and_unsure(400)
    make = kc.ParametrizedTemperatureScaling
    fitted = make(num_inputs=4).fit(labels, logits, num_folds=0)
    assert array(fitted(logits[:, :5])).shape == (400, 5)
    with pytest.raises(ValueError, match="must have 4 classes or more"):
        fitted(logits[:, :3])
    with pytest.raises(ValueError, match="`logits` must have 6 classes"):
        make().fit(labels, logits, num_folds=0)(logits[:, :5])
    with pytest.raises(ValueError, match="must be given together"):
        make(temperature=2.0)
    given = fitted.get_config()
    with pytest.raises(ValueError, match="`bias_1` must have the shape"):
        make(**{**given, "bias_1": [0.0]})
    with pytest.raises(ValueError, match="`kernel_1` must have the shape"):
        make(**{**given, "num_inputs": 3})
