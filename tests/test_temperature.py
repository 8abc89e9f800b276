"""Temperature scaling: optimum, laws, and life as a Keras layer."""

import keras
import numpy as np
import pytest
from cases import array
from cases import one_hot
from cases import sample
from cases import softmax
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import keras_calib as kc

pytestmark = pytest.mark.portable


def planted(temperature, seed=0, n=4000, num_classes=6):
    """Logits, and labels drawn from softmax(logits / temperature)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 3
    probs = softmax(logits / temperature)
    drawn = (rng.uniform(size=(n, 1)) > probs.cumsum(-1)).sum(-1)
    return np.minimum(drawn, num_classes - 1), logits.astype("float32")


def nll(labels, logits, temperature=1.0):
    return kc.nll(labels, logits / temperature, from_logits=True)


def test_the_golden_optimum_is_found(goldens):
    labels, logits = goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]
    scaling = kc.TemperatureScaling().fit(labels, logits)
    expected = goldens["posthoc/ts_nll/T_opt"]
    assert abs(scaling.temperature / expected - 1) < 1e-6
    value = nll(labels, logits, scaling.temperature)
    assert abs(value / goldens["posthoc/ts_nll/nll_opt"] - 1) < 1e-9


@settings(max_examples=10, deadline=None)
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


def test_the_predicted_class_never_changes():
    labels, logits = planted(2.0)
    scaled = array(kc.TemperatureScaling().fit(labels, logits)(logits))
    np.testing.assert_array_equal(scaled.argmax(-1), logits.argmax(-1))


def test_label_forms_dense_outputs_and_whole_weights_agree():
    labels, logits = planted(2.0, n=600)
    expected = kc.TemperatureScaling().fit(labels, logits).temperature
    shaped = {
        "one-hot": (one_hot(labels, 6), logits),
        "column": (labels[:, None], logits),
        "dense": (labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 6)),
    }
    for name, data in shaped.items():
        found = kc.TemperatureScaling().fit(*data).temperature
        assert abs(found / expected - 1) < 1e-9, name
    weight = np.arange(600) % 3
    weighted = kc.TemperatureScaling().fit(labels, logits, weight)
    index = np.repeat(np.arange(600), weight)
    repeated = kc.TemperatureScaling().fit(labels[index], logits[index])
    assert abs(weighted.temperature / repeated.temperature - 1) < 1e-6


def test_binary_outputs_are_two_classes():
    labels, logits = planted(2.0, num_classes=2)
    z = logits[:, 1:] - logits[:, :1]
    two = kc.TemperatureScaling().fit(labels, logits).temperature
    one = kc.TemperatureScaling().fit(labels, z).temperature
    assert abs(one / two - 1) < 1e-5


def test_without_an_optimum_the_fit_says_so():
    labels, logits = sample()
    best = logits.argmax(-1)
    with pytest.warns(RuntimeWarning, match="no optimal temperature"):
        right = kc.TemperatureScaling().fit(best, logits)
    assert right.temperature < 0.01
    with pytest.warns(RuntimeWarning, match="no optimal temperature"):
        wrong = kc.TemperatureScaling().fit(logits.argmin(-1), logits)
    assert wrong.temperature > 1000.0


def test_equal_logits_leave_the_temperature_at_one():
    scaling = kc.TemperatureScaling().fit([0, 1], np.ones((2, 3)))
    assert scaling.temperature == 1.0


def test_an_unfitted_calibrator_refuses_to_answer():
    scaling = kc.TemperatureScaling()
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        scaling(np.ones((1, 2), "float32"))
    with pytest.raises(RuntimeError, match="Received: fitted=False"):
        _ = scaling.temperature
    assert not scaling.fitted


def test_a_failed_fit_leaves_the_layer_as_it_was():
    labels, logits = planted(2.0, n=100)
    scaling = kc.TemperatureScaling().fit(labels, logits)
    before = scaling.temperature
    with pytest.raises(ValueError, match="infinity"):
        scaling.fit(labels, np.where(logits > 3, np.inf, logits))
    assert scaling.temperature == before


def test_mixed_precision_changes_nothing():
    labels, logits = planted(2.0, n=100)
    logits = logits * 1e4
    expected = kc.TemperatureScaling().fit(labels, logits)
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        scaling = kc.TemperatureScaling().fit(labels, logits)
        scaled = array(scaling(logits))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, array(expected(logits)))


def test_it_composes_saves_and_loads_fitted(tmp_path):
    labels, logits = planted(2.0, n=200)
    scaling = kc.TemperatureScaling().fit(labels, logits)
    inputs = keras.Input((6,))
    for model in (
        keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), scaling]),
        keras.Model(inputs, scaling(keras.layers.Dense(6)(inputs))),
    ):
        expected = model.predict(logits, verbose=0)
        path = tmp_path / f"{type(model).__name__}.keras"
        model.save(path)
        again = keras.models.load_model(path)
        np.testing.assert_allclose(
            again.predict(logits, verbose=0), expected, rtol=1e-6
        )
        assert again.layers[-1].temperature == scaling.temperature
        assert again.layers[-1].fitted


def test_an_unfitted_layer_loads_unfitted():
    scaling = kc.TemperatureScaling(name="mine")
    again = kc.TemperatureScaling.from_config(scaling.get_config())
    assert not again.fitted
    assert again.name == "mine"


def test_copies_of_a_fitted_layer_are_fitted_alike():
    labels, logits = planted(2.0, n=200)
    scaling = kc.TemperatureScaling().fit(labels, logits)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, scaling(inputs))
    for copy in (
        kc.TemperatureScaling.from_config(scaling.get_config()),
        keras.models.clone_model(model).layers[-1],
        keras.models.model_from_json(model.to_json()).layers[-1],
    ):
        assert copy.temperature == scaling.temperature
        np.testing.assert_array_equal(
            array(copy(logits)), array(scaling(logits))
        )


def test_a_known_temperature_needs_no_fit():
    scaling = kc.TemperatureScaling(temperature=2.0)
    np.testing.assert_allclose(
        array(scaling(np.array([[2.0, 4.0]]))), [[1.0, 2.0]]
    )
    with pytest.raises(ValueError, match="`temperature` must be > 0"):
        kc.TemperatureScaling(temperature=0.0)
