"""Temperature scaling: optimum, laws, and life as a Keras layer."""

import numpy as np
import pytest
from cases import array, sample, softmax
from hypothesis import given, settings
from hypothesis import strategies as st

import keras_calib as kc


def planted(temperature, seed=0, n=4000, num_classes=6):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 3
    probs = softmax(logits / temperature)
    drawn = (rng.uniform(size=(n, 1)) > probs.cumsum(-1)).sum(-1)
    return np.minimum(drawn, num_classes - 1), logits.astype("float32")


def nll(labels, logits, temperature=1.0):
    return kc.nll(labels, logits / temperature, from_logits=True)


@pytest.mark.portable
def test_the_golden_optimum_is_found(goldens):
    labels, logits = goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]
    scaling = kc.TemperatureScaling().fit(labels, logits)
    expected = goldens["posthoc/ts_nll/T_opt"]
    assert abs(scaling.temperature / expected - 1) < 1e-6
    value = nll(labels, logits, scaling.temperature)
    assert abs(value / goldens["posthoc/ts_nll/nll_opt"] - 1) < 1e-9


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), temperature=st.floats(0.3, 5.0))
def test_no_other_temperature_has_a_lower_nll(seed, temperature):
    labels, logits = planted(temperature, seed, n=400)
    scaling = kc.TemperatureScaling().fit(labels, logits)
    best = nll(labels, logits.astype("float64"), scaling.temperature)
    for factor in (0.99, 1.01):
        other = scaling.temperature * factor
        assert best <= nll(labels, logits.astype("float64"), other)
    assert best <= nll(labels, logits.astype("float64")) + 1e-12


def test_a_planted_temperature_is_recovered():
    for temperature in (0.5, 2.0):
        labels, logits = planted(temperature, n=40_000)
        found = kc.TemperatureScaling().fit(labels, logits).temperature
        assert abs(found / temperature - 1) < 0.03


def test_scaling_inputs_scales_the_temperature():
    labels, logits = planted(2.0)
    one = kc.TemperatureScaling().fit(labels, logits).temperature
    three = kc.TemperatureScaling().fit(labels, 3 * logits).temperature
    assert abs(three / (3 * one) - 1) < 1e-6


def test_large_logits_do_not_disturb_the_fit():
    labels, logits = planted(2.0)
    one = kc.TemperatureScaling().fit(labels, logits).temperature
    shifted = logits.astype("float64") + 1e4
    other = kc.TemperatureScaling().fit(labels, shifted).temperature
    assert abs(other / one - 1) < 1e-6


def test_without_an_optimum_the_fit_says_so():
    _, logits = sample()
    with pytest.warns(RuntimeWarning, match="no optimal temperature"):
        wrong = kc.TemperatureScaling().fit(logits.argmin(-1), logits)
    assert wrong.temperature > 1000.0


def test_equal_logits_leave_the_temperature_at_one():
    scaling = kc.TemperatureScaling().fit([0, 1], np.ones((2, 3)))
    assert scaling.temperature == 1.0


def test_a_known_temperature_needs_no_fit():
    with pytest.raises(RuntimeError, match="Received: fitted=False"):
        _ = kc.TemperatureScaling().temperature
    scaling = kc.TemperatureScaling(temperature=2.0)
    np.testing.assert_allclose(
        array(scaling(np.array([[2.0, 4.0]]))), [[1.0, 2.0]]
    )
    with pytest.raises(ValueError, match="`temperature` must be > 0"):
        kc.TemperatureScaling(temperature=0.0)
