"""The selective classifier as a layer: answers, copies, files."""

import keras
import numpy as np
import pytest
from cases import array, softmax
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_data import accepted, noisy, temperature

import keras_calib as kc


@pytest.mark.portable
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000),
    risk=st.floats(0.0, 0.6),
    levels=st.sampled_from([2, 10, 10_000]),
)
def test_the_coverage_is_that_of_the_metric(seed, risk, levels):
    # Rounded logits: many scores tie.
    labels, logits = noisy(seed, n=200, signal=1.0)
    logits = np.round(logits * levels / 10) * 10 / levels
    selector = kc.SelectiveClassifier()
    expected = kc.functional.coverage_at_risk(
        labels,
        logits,
        risk=risk,
        score=lambda z: array(selector.score_of(z)),
        from_logits=True,
    )
    if expected == 0.0:
        with pytest.raises(ValueError, match="`risk` is below"):
            selector.fit(labels, logits, risk=risk)
        assert not selector.fitted
        return
    selector.fit(labels, logits, risk=risk)
    assert selector.chosen.coverage == expected
    coverage, found = accepted(selector, labels, logits)
    assert abs(coverage - expected) < 1e-12
    assert abs(found - selector.chosen.risk) < 1e-12
    assert found <= risk + 1e-12


@pytest.mark.portable
@pytest.mark.parametrize("score", ["msp", "max_logit", "gini", "p_norm"])
def test_every_score_is_thresholded_where_it_says(score):
    labels, logits = noisy()
    selector = kc.SelectiveClassifier(calibrator=temperature(), score=score)
    selector.fit(labels, logits, risk=0.02)
    coverage, risk = accepted(selector, labels, logits)
    assert abs(coverage - selector.chosen.coverage) < 1e-12
    assert abs(risk - selector.chosen.risk) < 1e-12
    assert 0.1 < coverage < 1.0


def test_a_target_coverage_is_reached_and_not_exceeded():
    labels, logits = noisy()
    for target in (0.001, 0.3, 0.9, 1.0):
        selector = kc.SelectiveClassifier().fit(labels, logits, coverage=target)
        coverage, _ = accepted(selector, labels, logits)
        assert coverage == selector.chosen.coverage == target
    assert selector.threshold == -np.inf


@pytest.mark.portable
def test_confidences_that_round_to_one_are_still_ranked():
    logits = np.array([[60.0, 0.0], [50.0, 0.0], [40.0, 0.0]])
    selector = kc.SelectiveClassifier().fit([0, 0, 1], logits, risk=0.0)
    answer = {k: array(v) for k, v in selector(logits).items()}
    np.testing.assert_array_equal(answer["confidence"], 1.0)
    assert answer["accept"].tolist() == [True, True, False]


@pytest.mark.portable
def test_a_calibrator_that_changes_the_class_decides_what_is_wrong():
    flip = keras.layers.Lambda(lambda z: -z)
    labels, logits = noisy(num_classes=2)
    selector = kc.SelectiveClassifier(calibrator=flip)
    selector.fit(1 - labels, logits, risk=0.01)
    coverage, risk = accepted(selector, 1 - labels, logits)
    assert coverage > 0.5
    assert risk <= 0.01


def test_an_unfitted_layer_refuses_to_answer():
    selector = kc.SelectiveClassifier()
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        selector(np.ones((1, 2), "float32"))
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        _ = selector.threshold
    assert selector.chosen is None
    # A refused call builds the layer; it can be fitted all the same.
    labels, logits = noisy(num_classes=2)
    assert selector.fit(labels, logits, risk=0.05).fitted


@pytest.mark.portable
def test_scores_of_earlier_batches_give_the_same_threshold():
    labels, logits = noisy()
    whole = kc.SelectiveClassifier(calibrator=temperature())
    whole.fit(labels, logits, risk=0.02, delta=0.1)
    parts = kc.SelectiveClassifier(calibrator=temperature())
    scores, correct = [], []
    for i in range(0, 1000, 100):
        rows = slice(i, i + 100)
        calibrated = parts.calibrator(logits[rows])
        scores.append(array(parts.score_of(calibrated)))
        correct.append(logits[rows].argmax(-1) == labels[rows])
    parts.fit_scores(
        np.concatenate(scores), np.concatenate(correct), risk=0.02, delta=0.1
    )
    assert parts.chosen.coverage == whole.chosen.coverage
    assert abs(parts.threshold - whole.threshold) < 1e-5


@pytest.mark.portable
def test_compiled_and_batched_it_answers_alike():
    labels, logits = noisy()
    selectors = [
        kc.SelectiveClassifier(
            calibrator=temperature(), score=score, name=f"selector_{i}"
        )
        for i, score in enumerate(
            ("msp", "neg_entropy", kc.LogitNormalization(p=3))
        )
    ]
    for selector in selectors:
        selector.fit(labels, logits, risk=0.02)
    inputs = keras.Input((4,))
    # Compiled once for all.
    model = keras.Model(inputs, [selector(inputs) for selector in selectors])
    answers = model.predict(logits, batch_size=300, verbose=0)
    for selector, served in zip(selectors, answers, strict=True):
        expected = {k: array(v) for k, v in selector(logits).items()}
        for name, value in served.items():
            assert value.dtype == expected[name].dtype
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-5, atol=1e-6
            )
        assert served["accept"].mean() == selector.chosen.coverage


@pytest.mark.portable
@pytest.mark.parametrize("coverage", [0.7, 1.0])
def test_it_saves_and_loads_with_what_it_guarantees(coverage, tmp_path):
    labels, logits = noisy()
    score = kc.LogitNormalization(p=3)
    selector = kc.SelectiveClassifier(calibrator=temperature(), score=score)
    selector.fit(labels, logits, risk=0.5 if coverage == 1 else 0.02, delta=0.1)
    assert (selector.threshold == -np.inf) == (coverage == 1.0)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, selector(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = {k: array(v) for k, v in selector(logits).items()}
    for copy in (
        loaded.layers[-1],
        kc.SelectiveClassifier.from_config(selector.get_config()),
        keras.models.clone_model(model).layers[-1],
        keras.models.model_from_json(model.to_json()).layers[-1],
    ):
        assert copy.chosen == selector.chosen
        assert copy.threshold == selector.threshold
        assert copy.calibrator.temperature == 2.0
        assert copy.score.p == 3.0
        for name, value in copy(logits).items():
            np.testing.assert_array_equal(array(value), expected[name])
        with pytest.raises(RuntimeError, match="loaded layers"):
            copy.chosen.table()


@keras.saving.register_keras_serializable(package="tests")
def spread(logits):
    """A score of the user's own."""
    return keras.ops.std(logits, axis=-1)


@pytest.mark.portable
@pytest.mark.parametrize(
    "score", [kc.functional.p_norm, spread], ids=lambda f: f.__name__
)
def test_score_functions_are_saved_and_copied(score, tmp_path):
    labels, logits = noisy(n=200)
    selector = kc.SelectiveClassifier(score=score)
    selector.fit(labels, logits, coverage=0.5)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, selector(inputs))
    model.save(tmp_path / "model.keras")
    for copy in (
        kc.SelectiveClassifier.from_config(selector.get_config()),
        keras.models.clone_model(model).layers[-1],
        keras.models.load_model(tmp_path / "model.keras").layers[-1],
    ):
        assert copy.score is score
        assert copy.threshold == selector.threshold


def test_a_softmax_model_has_the_same_logits_from_selector_and_calibrator():
    labels, logits = noisy()
    p = kc.Predictions(labels, softmax(logits), from_logits=False)
    calibrator = kc.TemperatureScaling().fit(p)
    selector = kc.SelectiveClassifier(calibrator=calibrator).fit(p, risk=0.1)
    calibrated = calibrator.calibrate(p)
    np.testing.assert_array_equal(
        array(selector(p.outputs)["logits"]), calibrated.outputs
    )
    np.testing.assert_allclose(np.exp(calibrated.outputs).sum(-1), 1, 1e-6)
    assert (
        kc.choose_threshold(calibrated, risk=0.1).threshold
        == selector.threshold
    )


def test_the_call_says_what_predictions_are_for():
    labels, logits = noisy(n=50)
    p = kc.Predictions(labels, logits, from_logits=True)
    selector = kc.SelectiveClassifier(threshold=0.0)
    with pytest.raises(TypeError, match=r"`p\.outputs, from_logits=p"):
        selector(p)
    assert selector(p.outputs, from_logits=p.from_logits)["accept"].shape


def test_a_log_has_no_classes_to_select_from():
    log = kc.Predictions(correct=[1, 0, 1], confidence=[0.9, 0.2, 0.6])
    with pytest.raises(ValueError, match="`choose_threshold"):
        kc.SelectiveClassifier().fit(log, coverage=0.5)


def test_an_unfitted_layer_loads_unfitted():
    selector = kc.SelectiveClassifier(
        calibrator=kc.TemperatureScaling(),
        score=["msp", kc.LogitNormalization()],
        name="mine",
    )
    again = kc.SelectiveClassifier.from_config(selector.get_config())
    assert not again.fitted
    assert again.name == "mine"
    assert again.score[0] == "msp"
    assert not again.score[1].fitted
    labels, logits = noisy()
    again.fit(labels, logits, risk=0.05, tune_fraction=0.5)
    assert again.fitted


@pytest.mark.portable
def test_mixed_precision_changes_nothing():
    labels, logits = noisy()
    logits = logits * 1e4
    expected = kc.SelectiveClassifier().fit(labels, logits, risk=0.02)
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    try:
        selector = kc.SelectiveClassifier().fit(labels, logits, risk=0.02)
        answer = selector(logits)
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert selector.threshold == expected.threshold
    for name, value in expected(logits).items():
        np.testing.assert_array_equal(array(answer[name]), array(value))


@pytest.mark.portable
def test_a_score_of_exactly_the_threshold_is_accepted():
    logits = np.array([[0.5, 0.0], [0.25, 0.0], [0.75, 0.0]], "float32")
    selector = kc.SelectiveClassifier(score="max_logit", threshold=0.5)
    accept = array(selector(logits)["accept"])
    assert accept.tolist() == [True, False, True]


def test_a_known_threshold_needs_no_fit():
    selector = kc.SelectiveClassifier(threshold=0.0)
    answer = selector(np.array([[0.0, 1.0, -9.0], [0.0, 0.1, 0.2]]))
    assert array(answer["accept"]).tolist() == [True, False]
    assert array(answer["label"]).tolist() == [1, 2]
    np.testing.assert_allclose(
        array(answer["probabilities"])[0],
        softmax(np.array([0.0, 1, -9])),
        rtol=1e-5,
    )
    assert selector.chosen is None
    with pytest.raises(TypeError, match="`threshold` must be a number"):
        kc.SelectiveClassifier(threshold="high")
    for calibrator in ("temperature", kc.TemperatureScaling):
        with pytest.raises(TypeError, match="`calibrator` must be a layer"):
            kc.SelectiveClassifier(calibrator=calibrator)


def with_facts():
    """Selectors with every kind of facts, by the facts' kind."""
    labels, logits = noisy(n=600)
    parts, costs = labels % 2, 1.0 - np.eye(4)
    prior = np.bincount(labels, minlength=4) / len(labels)
    share = {"risk": 0.05, "delta": 0.2}
    shares = {"costs": costs, "max_cost": 0.05, "delta": 0.2}
    for target in (
        share,
        {"groups": parts, **share},
        {"groups": parts, "one_threshold": True, **share},
        {"target_prior": prior, **share},
        shares,
    ):
        yield kc.SelectiveClassifier().fit(labels, logits, **target)
    for by in ("label", "example"):
        yield kc.labels.MultiLabelSelector(by=by).fit(
            logits > 0.5, logits, **share
        )


def test_a_threshold_beside_facts_is_that_of_the_facts():
    for selector in with_facts():
        config, cls = selector.get_config(), type(selector)
        copy = cls.from_config(config)
        assert copy.chosen == selector.chosen
        np.testing.assert_array_equal(copy.threshold, selector.threshold)
        known = np.array(config["threshold"])
        near = np.nextafter(known, 0.0)
        rounded = np.where(np.isinf(known), known, near).tolist()
        assert cls.from_config({**config, "threshold": rounded}).fitted
        for other in (known - 5.0, known + 1e-3, np.r_[known, known], -np.inf):
            other = {**config, "threshold": np.asarray(other).tolist()}
            with pytest.raises(ValueError, match="must be that of `chosen`"):
                cls.from_config(other)
        with pytest.raises(ValueError, match="that of `chosen`.*hold=None"):
            cls.from_config({**config, "threshold": None})
        # Without facts a threshold is free.
        if not getattr(selector, "groups", ()):
            other = (known - 5.0).tolist()
            free = {**config, "threshold": other, "chosen": None}
            assert cls.from_config(free).chosen is None
        if "costs" in config:
            costs = None if config["costs"] else (1.0 - np.eye(4)).tolist()
            with pytest.raises(ValueError, match="`costs` must be those that"):
                cls.from_config({**config, "costs": costs})


@pytest.mark.portable
def test_what_a_fit_covers_is_accepted_though_logits_sum_to_infinity():
    logits = np.array([[2e38, 2e38, 0], [0, 2, 1], [2, 0, 1]], "float32")
    selector = kc.SelectiveClassifier().fit([0, 1, 0], logits, coverage=1.0)
    assert selector.chosen.coverage == 1.0
    assert array(selector(logits)["accept"]).all()


@pytest.mark.portable
@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_a_score_of_another_dtype_is_served_as_it_was_fitted(dtype):
    def score(logits):
        return keras.ops.cast(keras.ops.max(logits, axis=-1), dtype)

    logits = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    selector = kc.SelectiveClassifier(score=score)
    selector.fit(np.arange(60) % 3, 9 * logits, coverage=0.5)
    share = array(selector(9 * logits)["accept"]).mean()
    assert share == pytest.approx(selector.chosen.coverage)
