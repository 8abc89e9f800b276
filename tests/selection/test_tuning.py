"""What a guarantee needs, and parts that are fitted on a share."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from selection_data import noisy, tells_of_compiled, temperature

import keras_calib as kc


def test_a_guarantee_says_what_was_certified():
    labels, logits = noisy(n=3000)
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, risk=0.02, delta=0.05)
    chosen = selector.chosen
    assert (chosen.limit, chosen.delta) == (0.02, 0.05)
    assert (chosen.method, chosen.num_samples) == ("ltt", 3000)
    assert 0 < chosen.risk < 0.02
    without = selector.fit(labels, logits, risk=0.02).chosen
    assert without.coverage > chosen.coverage
    assert without.limit is None
    assert without.method is None


def test_pixels_are_refused_and_images_are_not():
    labels, logits = noisy(n=600)
    dense = labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 4)
    selector = kc.SelectiveClassifier()
    with pytest.raises(ValueError, match="needs independent rows"):
        selector.fit(*dense, risk=0.1, delta=0.05)
    with pytest.raises(ValueError, match="needs independent rows"):
        kc.choose_threshold(
            np.ones((6, 10)), np.ones((6, 10)), risk=0.1, delta=0.05
        )
    assert not selector.fitted
    images = np.random.default_rng(0).uniform(size=400)
    chosen = kc.choose_threshold(images, np.ones(400), risk=0.1, delta=0.05)
    assert chosen.coverage == 1.0


def test_a_part_that_is_fitted_again_ends_the_guarantee():
    labels, logits = noisy()
    parts = (
        {"calibrator": temperature()},
        {"score": kc.LogitNormalization().fit(labels, logits)},
    )
    selectors = [
        kc.SelectiveClassifier(**part, name=f"selector_{i}")
        for i, part in enumerate(parts)
    ]
    for selector in selectors:
        selector.fit(labels, logits, risk=0.2)
    inputs = keras.Input((4,))
    # Compiled once for both.
    compiled = keras.Model(inputs, [selector(inputs) for selector in selectors])

    def accepts(i):
        return compiled.predict_on_batch(logits)[i]["accept"].any()

    for i, (part, selector) in enumerate(zip(parts, selectors, strict=True)):
        (fitted,) = part.values()
        known = kc.SelectiveClassifier(**part, threshold=selector.threshold)
        copied = kc.SelectiveClassifier.from_config(selector.get_config())
        assert accepts(i)
        with tells_of_compiled():
            fitted.fit(labels, logits)
        if keras.backend.backend() != "torch":  # There nothing is compiled.
            assert not accepts(i)
        for use in (lambda s: s(logits), lambda s: s.get_config()):
            with pytest.raises(RuntimeError, match="were fitted again"):
                use(selector)
            use(known)
            use(copied)
        selector.fit(labels, logits, risk=0.2)(logits)
        assert accepts(i)


@pytest.mark.portable
def test_after_a_part_is_fitted_again_not_even_infinite_scores_are_accepted():
    labels, logits = noisy()
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, risk=0.2)
    model = keras.Sequential([keras.Input((4,)), selector])
    # The log-odds of a class that is left alone are infinite.
    sure = np.array([[0.0, -np.inf, -np.inf, -np.inf]], "float32")
    assert model.predict_on_batch(sure)["accept"].all()
    with tells_of_compiled():
        selector.calibrator.fit(labels, logits)
    if BACKEND != "torch":  # There nothing is compiled.
        assert not model.predict_on_batch(sure)["accept"].any()
    with pytest.raises(RuntimeError, match="were fitted again"):
        selector(sure)


@pytest.mark.portable
@pytest.mark.skipif(BACKEND != "jax", reason="as JAX compiles")
def test_functions_that_jax_compiled_go_on_and_who_fits_again_is_told():
    import jax

    labels, logits = noisy()
    calibrator = temperature()
    selector = kc.SelectiveClassifier(calibrator=calibrator)
    selector.fit(labels, logits, risk=0.2)
    selector(logits)
    # Nothing is compiled yet, and a model passes its variables.
    keras.Sequential([keras.Input((4,)), selector]).predict_on_batch(logits)
    calibrator.fit(labels, logits)
    selector.fit(labels, logits, risk=0.2)
    function = jax.jit(lambda x: selector(x)["accept"])
    before = array(function(logits))
    with pytest.warns(RuntimeWarning, match="of `TemperatureScaling` that `j"):
        calibrator.fit(labels, logits)
    assert np.array_equal(array(function(logits)), before)
    with pytest.warns(match="of `SelectiveClassifier` that `j"):
        selector.fit(labels, logits, coverage=0.1)


def test_a_guarantee_needs_parts_that_other_data_fitted():
    labels, logits = noisy()
    options = {"risk": 0.05, "delta": 0.05}
    for part in (
        {"calibrator": kc.TemperatureScaling()},
        {"score": kc.LogitNormalization()},
    ):
        selector = kc.SelectiveClassifier(**part)
        with pytest.raises(RuntimeError, match="`tune_fraction`"):
            selector.fit(labels, logits, **options)
    selector = kc.SelectiveClassifier(score=["msp", "gini"])
    with pytest.raises(ValueError, match="needs a `tune_fraction`"):
        selector.fit(labels, logits, **options)
    with pytest.raises(RuntimeError, match="must be one score"):
        selector.fit_scores(np.ones(5), np.ones(5), risk=0.1)
    with pytest.raises(RuntimeError, match="must be fitted"):
        selector.score_of(logits)


def test_weights_are_refused_with_a_guarantee():
    labels, logits = noisy()
    weight = np.where(np.arange(1000) == 3, 2.0, 1.0)
    options = {"risk": 0.05, "delta": 0.05}
    with pytest.raises(ValueError, match="`sample_weight` must be 1"):
        kc.SelectiveClassifier().fit(
            labels, logits, sample_weight=weight, **options
        )
    ones = kc.SelectiveClassifier().fit(
        labels, logits, sample_weight=np.ones(1000), **options
    )
    plain = kc.SelectiveClassifier().fit(labels, logits, **options)
    assert ones.chosen == plain.chosen


def test_a_tuning_share_fits_what_is_unfitted_and_nothing_else():
    labels, logits = noisy(n=2000)
    calibrator, score = kc.TemperatureScaling(), kc.LogitNormalization()
    selector = kc.SelectiveClassifier(calibrator=calibrator, score=score)
    selector.fit(labels, logits, risk=0.02, delta=0.05, tune_fraction=0.3)
    assert selector.chosen.num_samples == 1400
    order = np.random.default_rng(0).permutation(2000)
    rows = np.sort(order[:600])
    expected = kc.TemperatureScaling().fit(labels[rows], logits[rows])
    assert calibrator.temperature == expected.temperature
    assert score.p == kc.LogitNormalization().fit(labels[rows], logits[rows]).p
    rest = np.setdiff1d(np.arange(2000), rows)
    again = kc.SelectiveClassifier(calibrator=calibrator, score=score).fit(
        labels[rest], logits[rest], risk=0.02, delta=0.05
    )
    assert again.chosen == selector.chosen
    other = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling()).fit(
        labels, logits, risk=0.02, tune_fraction=0.3, seed=1
    )
    assert other.calibrator.temperature != calibrator.temperature


def test_a_failed_fit_leaves_the_parts_unfitted():
    labels, logits = noisy(signal=0.5)
    calibrator, score = kc.TemperatureScaling(), kc.LogitNormalization()
    selector = kc.SelectiveClassifier(calibrator=calibrator, score=score)
    with pytest.raises(ValueError, match="No threshold is certified"):
        selector.fit(labels, logits, risk=0.001, delta=0.1, tune_fraction=0.5)
    assert not (selector.fitted or calibrator.fitted or score.fitted)


@pytest.mark.parametrize(
    "calibrator",
    [
        kc.IsotonicCalibration(),
        pytest.param(kc.HistogramBinning(edges="mass"), marks=pytest.mark.slow),
        pytest.param(kc.VectorScaling(), marks=pytest.mark.slow),
    ],
    ids=lambda c: c.name,
)
def test_after_a_failed_fit_other_data_fit_the_parts(calibrator, tmp_path):
    labels, logits = noisy(signal=0.5)
    selector = kc.SelectiveClassifier(calibrator=calibrator)
    with pytest.raises(ValueError, match="No threshold is certified"):
        selector.fit(labels, logits, risk=0.001, delta=0.1, tune_fraction=0.5)
    # Other rows, and another number of classes, take other shapes.
    for num_classes in (4, 3):
        calibrator._fitted = False
        labels, logits = noisy(1, n=600, num_classes=num_classes)
        options = {"coverage": 0.5, "tune_fraction": 0.4}
        selector.fit(labels, logits, **options)
        fresh = type(calibrator).from_config(
            {
                **calibrator.get_config(),
                **dict.fromkeys(calibrator.fitted_values),
            }
        )
        expected = kc.SelectiveClassifier(calibrator=fresh)
        expected.fit(labels, logits, **options)
        assert selector.chosen == expected.chosen
        assert len(calibrator.variables) == len(fresh.variables)
    inputs = keras.Input((3,))
    model = keras.Model(inputs, selector(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = {k: array(v) for k, v in selector(logits).items()}
    for name, value in loaded.layers[-1](logits).items():
        np.testing.assert_array_equal(array(value), expected[name])


def test_the_best_of_several_scores_is_taken():
    labels, logits = noisy()
    logits = logits * np.random.default_rng(0).lognormal(size=(1000, 1))
    logits = logits.astype("float32")
    names = ["max_logit", "p_norm", "msp"]
    areas = [
        kc.aurc(labels, logits, score=name, from_logits=True) for name in names
    ]
    best = names[int(np.argmin(areas))]
    selector = kc.SelectiveClassifier(score=names)
    assert selector.score == tuple(names)
    assert selector.fit(labels, logits, risk=0.05).score == best
    selector.fit(labels, logits, risk=0.05, delta=0.05, tune_fraction=0.5)
    assert selector.score == best
    again = kc.SelectiveClassifier.from_config(selector.get_config())
    assert again.score == best
    np.testing.assert_array_equal(
        array(again(logits)["accept"]), array(selector(logits)["accept"])
    )
