"""The p-norm score: what its fit chooses, and life as a Keras layer."""

import keras
import numpy as np
import pytest
from cases import array, one_hot, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import keras_calib as kc


def smoothed(seed=0, n=3000, num_classes=8):
    """Logits whose rows have arbitrary scales: the softmax score misleads."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=n)
    z = rng.normal(size=(n, num_classes)) + 2.0 * one_hot(labels, num_classes)
    z -= z.mean(-1, keepdims=True)
    return labels, z * rng.lognormal(sigma=1.0, size=(n, 1))


def area(labels, logits, score):
    return kc.aurc(labels, logits, score=score, from_logits=True)


def test_areas_by_p_are_those_of_the_released_code(goldens):
    labels, logits = goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]
    for p, expected in enumerate(goldens["posthoc/pnorm/aurc_by_p_0to9"]):
        value = kc.aurc(
            labels,
            logits,
            score=lambda z, p=p: kc.functional.p_norm(z, p=p),
            from_logits=True,
            area="origin",
        )
        assert abs(value - expected) < 1e-12, p


@pytest.mark.portable
def test_the_softmax_score_stays_where_the_released_code_keeps_it(goldens):
    labels, logits = goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]
    assert goldens["posthoc/pnorm/p_opt_lfpc"] == -1
    score = kc.LogitNormalization().fit(labels, logits)
    assert score.p == "msp"
    np.testing.assert_allclose(
        kc.functional.msp(logits), keras.ops.sigmoid(score(logits)), rtol=1e-5
    )


@pytest.mark.portable
def test_p_is_that_of_the_released_code_on_scaled_rows(goldens):
    # Scaled rows change the softmax score and p = 0, not the other p.
    labels, logits = goldens["in/posthoc/labels"], goldens["in/posthoc/logits"]
    rng = np.random.default_rng(0)
    scaled = logits - logits.mean(-1, keepdims=True)
    scaled = scaled * rng.lognormal(sigma=2.0, size=(len(labels), 1))
    areas = goldens["posthoc/pnorm2/aurc_by_p_0to9"]
    assert area(labels, scaled, "msp") > areas[1:].min() + 0.01
    assert goldens["posthoc/pnorm2/p_opt_lfpc"] == np.argmin(areas)
    score = kc.LogitNormalization().fit(labels, scaled)
    assert score.p == np.argmin(areas)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), center=st.booleans())
def test_no_other_p_of_the_grid_and_no_softmax_score_is_better(seed, center):
    labels, logits = smoothed(seed, n=300)
    # What centring takes away makes another p the best without it.
    offset = np.random.default_rng(seed).normal(size=(300, 1))
    logits = logits + 3.0 * offset * np.std(logits)
    score = kc.LogitNormalization(center=center).fit(labels, logits)
    areas = [
        area(
            labels,
            logits,
            lambda z, p=p: kc.functional.p_norm(z, p=p, center=center),
        )
        for p in range(10)
    ]
    areas.append(area(labels, logits, "msp"))
    assert areas[-1 if score.p == "msp" else int(score.p)] == min(areas)


def test_normalising_repairs_a_ranking_that_scales_have_spoilt():
    labels, logits = smoothed()
    score = kc.LogitNormalization().fit(labels, logits)
    new_labels, new_logits = smoothed(seed=1)
    fitted = area(new_labels, new_logits, lambda z: array(score(z)))
    assert fitted < 0.8 * area(new_labels, new_logits, "msp")


def test_a_ranking_that_is_right_keeps_the_softmax_score():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 5)) * rng.uniform(0.2, 6.0, (4000, 1))
    cumulated = np.cumsum(array(keras.ops.softmax(logits)), axis=-1)
    labels = np.sum(rng.random((4000, 1)) > cumulated[:, :-1], axis=-1)
    assert kc.LogitNormalization().fit(labels, logits).p == "msp"


@pytest.mark.portable
def test_two_classes_keep_the_softmax_score():
    labels, logits = sample(num_classes=2, n=200)
    assert kc.LogitNormalization().fit(labels, logits).p == "msp"
    one = kc.LogitNormalization().fit(labels, logits[:, 1:] - logits[:, :1])
    assert one.p == "msp"
    np.testing.assert_allclose(
        array(one(logits[:, 1:] - logits[:, :1])),
        array(one(logits)),
        rtol=1e-5,
    )


@pytest.mark.portable
def test_p_norm_of_arrays_is_computed_in_their_precision():
    _, logits = sample(n=50)
    wide = logits.astype("float64")
    for p in (0, 1, 3.5):
        exact = kc.functional.p_norm(wide, p=p)
        assert exact.dtype == np.float64
        v = wide - wide.mean(-1, keepdims=True)
        norm = np.sum(np.abs(v) ** p, -1) ** (1.0 / p) if p else 5.0
        np.testing.assert_allclose(exact, v.max(-1) / norm, rtol=1e-13)
        tensor = kc.functional.p_norm(keras.ops.convert_to_tensor(logits), p=p)
        np.testing.assert_allclose(array(tensor), exact, rtol=2e-6)
    np.testing.assert_array_equal(
        kc.functional.p_norm(np.ones((2, 3)), p=2), 0.0
    )


def test_near_ties_are_ranked_in_float64():
    # Of one scale, the normalised logits differ by less than float32 can say.
    rng = np.random.default_rng(0)
    shift = 1e-9 * rng.normal(size=(400, 1))
    logits = np.array([[3.0, 0.0, 0.0, -1.0]]) + shift * [[1.0, 0, 0, 0]]
    labels = np.where(shift[:, 0] > 0, 0, 1)
    logits = logits * rng.lognormal(sigma=1.0, size=(400, 1))
    narrow = kc.functional.p_norm(
        ops.convert_to_tensor(logits.astype("float32")), p=2
    )
    assert len(np.unique(ops.convert_to_numpy(narrow))) < 20
    assert area(labels, logits, lambda z: kc.functional.p_norm(z, p=2)) < 0.2
    assert kc.LogitNormalization().fit(labels, logits).p != "msp"


def test_label_forms_dense_outputs_and_whole_weights_agree():
    labels, logits = smoothed(n=600)
    expected = kc.LogitNormalization().fit(labels, logits).p
    assert expected != "msp"
    shaped = {
        "one-hot": (one_hot(labels, 8), logits),
        "column": (labels[:, None], logits),
        "dense": (labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 8)),
    }
    for name, data in shaped.items():
        assert kc.LogitNormalization().fit(*data).p == expected, name
    weight = np.arange(600) % 3
    index = np.repeat(np.arange(600), weight)
    weighted = kc.LogitNormalization().fit(labels, logits, weight)
    repeated = kc.LogitNormalization().fit(labels[index], logits[index])
    assert weighted.p == repeated.p


def test_an_ignored_class_counts_nowhere():
    labels, logits = smoothed(n=600)
    expected = kc.LogitNormalization().fit(labels, logits).p
    # Certain and wrong.
    void = np.where(np.arange(8) == 1, 1e3, 0.0) + np.zeros((600, 1))
    labels = np.stack([labels, np.zeros(600, int)], axis=-1)
    logits = np.stack([logits, void], axis=-2)
    assert kc.LogitNormalization().fit(labels, logits).p != expected
    labels[:, 1] = 255
    for weight in (None, np.ones(600)):
        found = kc.LogitNormalization()
        assert found.fit(labels, logits, weight, ignore_class=255) is found
        assert found.p == expected
    with pytest.raises(ValueError, match="a class that is not ignored"):
        found.fit(np.full(600, 255), logits[:, 0], ignore_class=255)
    assert found.p == expected


def test_an_unfitted_layer_refuses_to_score():
    score = kc.LogitNormalization()
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        score(np.ones((1, 3), "float32"))
    with pytest.raises(RuntimeError, match="Received: fitted=False"):
        _ = score.p


def test_bad_logits_leave_the_layer_as_it_was():
    labels, logits = smoothed(n=100)
    score = kc.LogitNormalization(p=3)
    for bad, word in ((np.nan, "NaN"), (-np.inf, "rule out"), (np.inf, "inf")):
        with pytest.raises(ValueError, match=word):
            score.fit(labels, np.where(logits > 2, bad, logits))
    assert score.p == 3.0
    with pytest.raises(ValueError, match="`p` must be >= 0"):
        kc.LogitNormalization(p=-1)


def test_mixed_precision_changes_nothing():
    labels, logits = smoothed(n=100)
    expected = array(kc.LogitNormalization(p=4)(1e4 * logits))
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        scores = array(kc.LogitNormalization(p=4)(1e4 * logits))
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize("p", [None, 2.5, "msp"])
def test_copies_are_fitted_alike(p, tmp_path):
    _, logits = smoothed(n=20)
    score = kc.LogitNormalization(p=p, center=False, name="mine")
    again = kc.LogitNormalization.from_config(score.get_config())
    assert again.fitted == (p is not None)
    assert (again.name, again.center) == ("mine", False)
    if p is None:
        return
    inputs = keras.Input((8,))
    model = keras.Model(inputs, score(inputs))
    assert model.output.shape == (None,)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for copy in (again, loaded.layers[-1]):
        assert copy.p == score.p
        np.testing.assert_array_equal(array(copy(logits)), array(score(logits)))
