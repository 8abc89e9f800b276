"""The selective classifier: thresholds, targets, and life as a Keras layer."""

import re

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import CALIBRATORS
from cases import array
from cases import one_hot
from cases import sample
from cases import softmax
from exported import answers
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import keras_calib as kc
from keras_calib.exporting.served_model import ServedModel

pytestmark = pytest.mark.portable


def noisy(seed=0, n=1000, num_classes=4, signal=2.5):
    """Class ids, and float32 logits that are right more often than not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=n)
    logits = rng.normal(size=(n, num_classes))
    logits = 2.0 * (logits + signal * one_hot(labels, num_classes))
    return labels, logits.astype("float32")


def accepted(selector, labels, logits):
    """Coverage and risk of what the layer answers."""
    answer = {k: array(v) for k, v in selector(logits).items()}
    accept = answer["accept"]
    wrong = answer["label"] != labels
    return accept.mean(), (wrong & accept).sum() / max(accept.sum(), 1)


def temperature(value=2.0):
    return kc.TemperatureScaling(temperature=value)


# Targets on the data themselves.


@settings(max_examples=25, deadline=None)
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
    expected = kc.coverage_at_risk(
        labels,
        logits,
        risk,
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


def test_tied_samples_are_accepted_together():
    scores, correct = [3, 2, 2, 2, 1], [1, 1, 0, 1, 0]
    chosen = kc.choose_threshold(scores, correct, coverage=0.3)
    assert (chosen.coverage, chosen.risk) == (0.8, 0.25)
    chosen = kc.choose_threshold(scores, correct, risk=0.2)
    assert (chosen.coverage, chosen.risk) == (0.2, 0.0)
    assert chosen.threshold == 2.5


def test_neighbouring_floats_are_told_apart():
    upper = np.float32(1.0)
    scores = np.array([upper, np.nextafter(upper, np.float32(0))])
    chosen = kc.choose_threshold(scores, [1, 0], risk=0.0)
    assert list(scores >= np.float32(chosen.threshold)) == [True, False]


def test_confidences_that_round_to_one_are_still_ranked():
    logits = np.array([[60.0, 0.0], [50.0, 0.0], [40.0, 0.0]])
    selector = kc.SelectiveClassifier().fit([0, 0, 1], logits, risk=0.0)
    answer = {k: array(v) for k, v in selector(logits).items()}
    np.testing.assert_array_equal(answer["confidence"], 1.0)
    assert answer["accept"].tolist() == [True, True, False]


def test_a_calibrator_that_changes_the_class_decides_what_is_wrong():
    flip = keras.layers.Lambda(lambda z: -z)
    labels, logits = noisy(num_classes=2)
    selector = kc.SelectiveClassifier(calibrator=flip)
    selector.fit(1 - labels, logits, risk=0.01)
    coverage, risk = accepted(selector, 1 - labels, logits)
    assert coverage > 0.5
    assert risk <= 0.01


# Forms of data.


def test_label_forms_dense_outputs_and_whole_weights_agree():
    labels, logits = noisy(n=600)
    expected = kc.SelectiveClassifier().fit(labels, logits, risk=0.02).chosen
    shaped = {
        "one-hot": (one_hot(labels, 4), logits),
        "soft": (0.8 * one_hot(labels, 4) + 0.05, logits),
        "column": (labels[:, None], logits),
        "lists": (labels.tolist(), logits.tolist()),
        "dense": (labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 4)),
    }
    for name, data in shaped.items():
        found = kc.SelectiveClassifier().fit(*data, risk=0.02).chosen
        assert found == expected, name
    weight = np.arange(600) % 3
    index = np.repeat(np.arange(600), weight)
    weighted = kc.SelectiveClassifier().fit(
        labels, logits, risk=0.02, sample_weight=weight
    )
    repeated = kc.SelectiveClassifier().fit(
        labels[index], logits[index], risk=0.02
    )
    assert weighted.threshold == repeated.threshold
    assert abs(weighted.chosen.coverage - repeated.chosen.coverage) < 1e-12


def test_one_output_means_two_classes():
    labels, logits = noisy(num_classes=2)
    z = logits[:, 1:] - logits[:, :1]
    two = kc.SelectiveClassifier().fit(labels, logits, risk=0.01)
    for form in (labels, labels[:, None], labels.astype("float32")):
        one = kc.SelectiveClassifier().fit(form, z, risk=0.01)
        assert one.chosen.coverage == two.chosen.coverage
    assert array(one(z)["probabilities"]).shape == (1000, 2)


def one_output(n=600):
    """Labels, inputs of shape `(n, 2)`, and a network with one logit."""
    labels, x = noisy(n=n, num_classes=2, signal=1.0)
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    network.layers[0].set_weights([np.array([[-0.7], [0.7]]), np.array([0.5])])
    return labels, x, network


@pytest.mark.filterwarnings("ignore:.*too many parameters:RuntimeWarning")
@pytest.mark.parametrize("case", CALIBRATORS, ids=str)
def test_the_threshold_of_one_output_fits_the_scores_that_are_served(case):
    labels, x, network = one_output()
    logits = network.predict(x, verbose=0)
    calibrator = case.make().fit(labels, logits)
    # Scores that a constant on both logits changes.
    for score in ("max_logit", "neg_energy"):
        selector = kc.SelectiveClassifier(calibrator=calibrator, score=score)
        selector.fit(labels, logits, coverage=0.6)
        given = {k: array(v) for k, v in selector(logits).items()}
        assert abs(given["accept"].mean() - selector.chosen.coverage) < 1e-12
        served = ServedModel(network, selector, from_logits=True)
        for name, value in served.answers(array(network(x))).items():
            np.testing.assert_allclose(
                value, given[name], rtol=1e-5, atol=1e-5, err_msg=name
            )


def test_labels_of_one_output_may_be_probabilities_of_the_second_class():
    labels, x, network = one_output()
    logits = network.predict(x, verbose=0).reshape(6, 10, 10, 1)
    calibrator = kc.VectorScaling().fit(labels.reshape(6, 10, 10), logits)
    soft = np.where(labels, 0.9, 0.2).reshape(6, 10, 10)
    weight = np.arange(600).reshape(6, 10, 10) % 3
    hard, same = (
        kc.SelectiveClassifier(calibrator=calibrator).fit(
            given, logits, coverage=0.6, sample_weight=weight
        )
        for given in (labels.reshape(6, 10, 10), soft)
    )
    assert hard.chosen == same.chosen


def test_scores_of_one_output_need_both_logits():
    labels, x, network = one_output()
    logits = network.predict(x, verbose=0)
    selector = kc.SelectiveClassifier(score="max_logit")
    with pytest.raises(ValueError, match="`logits` must be of every class"):
        selector.score_of(logits)
    pairs = np.append(np.zeros_like(logits), logits, axis=-1)
    correct = (logits[:, 0] > 0) == labels
    selector.fit_scores(selector.score_of(pairs), correct, coverage=0.5)
    whole = kc.SelectiveClassifier(score="max_logit")
    assert whole.fit(labels, logits, coverage=0.5).chosen == selector.chosen


@pytest.mark.skipif(BACKEND != "tensorflow", reason="export needs TensorFlow")
def test_a_file_of_one_output_accepts_what_the_layer_accepts(tmp_path):
    labels, x, network = one_output()
    logits = network.predict(x, verbose=0)
    calibrator = kc.BetaCalibration().fit(labels, logits)
    selector = kc.SelectiveClassifier(calibrator=calibrator, score="max_logit")
    selector.fit(labels, logits, coverage=0.6)
    path = kc.export(
        network, tmp_path / "m", selector=selector, from_logits=True
    )
    given = {k: array(v) for k, v in selector(logits).items()}
    for name, value in answers(path, x=x).items():
        np.testing.assert_allclose(value, given[name], rtol=1e-5, atol=1e-5)
    assert given["accept"].mean() == 0.6


def test_an_ignored_class_counts_nowhere():
    labels, logits = noisy(n=400)
    keep = np.arange(400) % 4 > 0
    marked = np.where(keep, labels, 255)
    options = {"risk": 0.02, "ignore_class": 255}
    expected = kc.SelectiveClassifier().fit(
        labels[keep], logits[keep], risk=0.02
    )
    for shape in ((400,), (4, 10, 10)):
        found = kc.SelectiveClassifier().fit(
            marked.reshape(shape), logits.reshape(*shape, 4), **options
        )
        assert found.chosen == expected.chosen
    tuned = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling()).fit(
        marked.reshape(40, 10),
        logits.reshape(40, 10, 4),
        tune_fraction=0.5,
        sample_weight=np.ones(40),
        **options,
    )
    assert tuned.chosen.num_samples < 200


def test_dense_outputs_answer_per_pixel():
    labels, logits = noisy(n=600)
    labels, logits = labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 4)
    selector = kc.SelectiveClassifier().fit(labels, logits, coverage=0.8)
    answer = selector(logits)
    for name in ("confidence", "score", "accept", "label"):
        assert array(answer[name]).shape == (6, 10, 10), name
    assert array(answer["accept"]).mean() == 0.8


# Guarantees: what they need.


def test_a_guarantee_says_what_was_certified():
    labels, logits = noisy(n=3000)
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, risk=0.02, delta=0.05)
    chosen = selector.chosen
    assert (chosen.certified_risk, chosen.delta) == (0.02, 0.05)
    assert (chosen.method, chosen.num_samples) == ("ltt", 3000)
    assert 0 < chosen.risk < 0.02
    without = selector.fit(labels, logits, risk=0.02).chosen
    assert without.coverage > chosen.coverage
    assert without.certified_risk is None
    assert without.method is None


def test_pixels_are_refused_and_images_are_not():
    labels, logits = noisy(n=600)
    dense = labels.reshape(6, 10, 10), logits.reshape(6, 10, 10, 4)
    selector = kc.SelectiveClassifier()
    with pytest.raises(ValueError, match="one correctness per image"):
        selector.fit(*dense, risk=0.1, delta=0.05)
    with pytest.raises(ValueError, match="one correctness per image"):
        kc.choose_threshold(
            np.ones((6, 10)), np.ones((6, 10)), risk=0.1, delta=0.05
        )
    assert not selector.fitted
    images = np.random.default_rng(0).uniform(size=400)
    chosen = kc.choose_threshold(images, np.ones(400), risk=0.1, delta=0.05)
    assert chosen.coverage == 1.0


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


def test_an_unreachable_risk_names_what_could_be_had():
    labels, logits = noisy(signal=0.5)
    selector = kc.SelectiveClassifier().fit(labels, logits, risk=0.3)
    before = selector.threshold, selector.chosen
    for method in ("ltt", "sgr"):
        options = {"delta": 0.05, "method": method}
        with pytest.raises(ValueError, match="takes 2995 samples") as error:
            selector.fit(labels, logits, risk=0.001, **options)
        words = re.search(
            r"ask for `risk=(.*?)`, .* be (.*?) here", str(error.value)
        )
        lowest, coverage = (float(word) for word in words.groups())
        assert (selector.threshold, selector.chosen) == before
        other = kc.SelectiveClassifier().fit(
            labels, logits, risk=lowest, **options
        )
        assert abs(other.chosen.coverage - coverage) < 1e-3
        # Rounded to two digits, and no more than that.
        with pytest.raises(ValueError, match="No threshold is certified to"):
            other.fit(labels, logits, risk=lowest - 0.01, **options)
    with pytest.raises(ValueError, match="lowest risk=0.3333333333333333"):
        selector.fit_scores([3.0, 2.0, 1.0], [0, 1, 1], risk=0.1)
    assert (selector.threshold, selector.chosen) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "One of `risk` and `coverage`"),
        ({"risk": 0.1, "coverage": 0.5}, "One of `risk` and `coverage`"),
        ({"coverage": 0.0}, "`coverage` must be > 0"),
        ({"coverage": 1.1}, "`coverage` must be <= 1"),
        ({"risk": -0.1}, "`risk` must be >= 0"),
        ({"risk": 1.1}, "`risk` must be <= 1"),
        ({"risk": 0.1, "delta": 0.0}, "`delta` must be > 0"),
        ({"risk": 0.1, "delta": 1.0}, "`delta` must be < 1"),
        ({"risk": 0.0, "delta": 0.1}, "needs a `risk`"),
        ({"coverage": 0.5, "delta": 0.1}, "needs a `risk`"),
        ({"risk": 0.1, "method": "best"}, "`method` must be one of"),
        ({"risk": 0.1, "tune_fraction": 0.0}, "`tune_fraction` must be > 0"),
        ({"risk": 0.1, "tune_fraction": 1.0}, "rows on both sides"),
    ],
)
def test_bad_targets_are_refused(options, message):
    labels, logits = noisy(n=50)
    selector = kc.SelectiveClassifier()
    with pytest.raises(ValueError, match=message):
        selector.fit(labels, logits, **options)
    assert not selector.fitted


def test_bad_data_are_refused():
    labels, logits = noisy(n=50)
    selector = kc.SelectiveClassifier()
    bad = np.where(logits > 6, np.nan, logits)
    with pytest.raises(ValueError, match="`logits` must not contain NaN"):
        selector.fit(labels, bad, risk=0.1)
    with pytest.raises(ValueError, match="`logits` must have shape"):
        selector.fit(labels, logits[:, 0], risk=0.1, delta=0.1)
    with pytest.raises(ValueError, match="`logits` must not be empty"):
        selector.fit(labels[:0], logits[:0], risk=0.1)
    for tuned in (None, 0.5):
        with pytest.raises(ValueError, match="`labels` must"):
            selector.fit(labels[:9], logits, risk=0.1, tune_fraction=tuned)
    with pytest.raises(ValueError, match="`scores` must not be NaN"):
        kc.choose_threshold([1.0, np.nan], [1, 0], risk=0.1)
    with pytest.raises(ValueError, match="must have one shape"):
        kc.choose_threshold([1.0, 2.0], [1], risk=0.1)
    with pytest.raises(ValueError, match="`correct` must be 0 or 1"):
        kc.choose_threshold([1.0, 2.0], [1, 2], risk=0.1)
    with pytest.raises(ValueError, match="one value per sample"):
        kc.SelectiveClassifier(score=lambda z: z).fit(labels, logits, risk=0.1)
    with pytest.raises(ValueError, match="`score` must be"):
        kc.SelectiveClassifier(score="entropy")
    with pytest.raises(ValueError, match="one score if `threshold`"):
        kc.SelectiveClassifier(score=["msp", "gini"], threshold=0.0)
    assert not selector.fitted


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([-1.0, 1.0, 1.0], "finite and >= 0"),
        ([np.nan, 1.0, 1.0], "finite and >= 0"),
        ([np.inf, 1.0, 1.0], "finite and >= 0"),
        ([0.0, 0.0, 0.0], "must not be 0 everywhere"),
        ([1.0, 1.0], "must have the shape"),
    ],
)
def test_bad_weights_of_scores_are_refused(weight, message):
    data, options = ([3.0, 2.0, 1.0], [0, 1, 1]), {"sample_weight": weight}
    with pytest.raises(ValueError, match=message):
        kc.choose_threshold(*data, coverage=0.5, **options)
    selector = kc.SelectiveClassifier()
    with pytest.raises(ValueError, match=message):
        selector.fit_scores(*data, coverage=0.5, **options)
    assert not selector.fitted


def test_one_weight_per_image_counts_for_its_scores():
    rng = np.random.default_rng(0)
    scores, correct = rng.random((20, 30)), rng.random((20, 30)) < 0.9
    weight = rng.random(20)
    each = np.repeat(weight[:, None], 30, axis=1)
    for form in (weight, weight[:, None], weight.tolist()):
        found, expected = (
            kc.choose_threshold(scores, correct, risk=0.1, sample_weight=w)
            for w in (form, each)
        )
        assert found == expected


@pytest.mark.parametrize("n", [12, 10_000, 100_000])
def test_fractional_weights_reach_their_targets_as_counts_do(n):
    scores, correct = -np.arange(n), np.arange(n) % 4 > 0
    weight = np.full(n, 0.3)
    for target in (
        {"coverage": 0.25},
        {"coverage": 0.5},
        {"coverage": 1.0},
        {"risk": 0.25},
        {"risk": 1.0},
    ):
        counted = kc.choose_threshold(scores, correct, **target)
        weighed = kc.choose_threshold(
            scores, correct, sample_weight=weight, **target
        )
        assert weighed.threshold == counted.threshold, target
        np.testing.assert_allclose(weighed[:4], counted[:4], rtol=1e-12)
        assert weighed.coverage <= 1.0


# Tuning inside.


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


def test_a_risk_out_of_reach_says_how_many_samples_would_do():
    # Right with log-odds of 3 more than of the score that decides.
    rng = np.random.default_rng(0)
    scores = rng.normal(2.0, 2.0, 200_000)
    correct = rng.random(200_000) < 1.0 / (1.0 + np.exp(-1.5 * scores))
    options = {"risk": 0.02, "delta": 0.05}
    with pytest.raises(ValueError, match="about [0-9]+ samples") as error:
        kc.choose_threshold(scores[:300], correct[:300], **options)
    enough = int(re.search(r"about (\d+) samples", str(error.value))[1])
    assert 300 < enough <= 6000
    found = kc.choose_threshold(scores[:enough], correct[:enough], **options)
    assert found.risk < 0.02
    # No number of samples helps where the surest are wrong too often.
    with pytest.raises(ValueError, match="No threshold") as error:
        kc.choose_threshold(
            scores, correct & (rng.random(200_000) < 0.5), **options
        )
    assert "samples like these" not in str(error.value)


def test_a_threshold_in_log_odds_says_the_same_cut_as_a_confidence():
    labels, logits = noisy(n=400)
    selector = kc.SelectiveClassifier().fit(labels, logits, coverage=0.7)
    chosen = selector.chosen
    answers = selector(logits)
    accept = np.asarray(answers["accept"])
    confidence = np.asarray(answers["confidence"])
    np.testing.assert_array_equal(accept, confidence >= chosen.confidence)
    assert np.any(accept != (confidence >= chosen.threshold))
    assert f"threshold={chosen.threshold} (log-odds)" in repr(chosen)
    assert f"confidence={chosen.confidence} (probability)" in repr(chosen)
    again = kc.SelectiveClassifier.from_config(selector.get_config())
    assert again.chosen == chosen
    every = kc.SelectiveClassifier().fit(labels, logits, coverage=1.0).chosen
    assert (every.threshold, every.confidence) == (-np.inf, 0.0)
    # Other scores are no confidence, and neither are scores of one's own.
    other = kc.SelectiveClassifier(score="max_logit")
    assert other.fit(labels, logits, coverage=0.7).chosen.confidence is None
    assert "log-odds" not in repr(other.chosen)
    found = kc.choose_threshold([2.0, 1.0], [1, 0], coverage=0.5)
    assert found.confidence is None


@pytest.mark.parametrize(
    "calibrator",
    [
        kc.IsotonicCalibration(),
        kc.HistogramBinning(edges="mass"),
        kc.VectorScaling(),
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
    # What is fitted keeps its shape.
    labels, logits = noisy(n=600)
    with pytest.raises(ValueError, match="was fitted for another number"):
        calibrator.fit(labels, logits)


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


# Table.


def test_the_table_lists_every_threshold():
    labels, logits = noisy()
    selector = kc.SelectiveClassifier().fit(labels, logits, risk=0.05)
    table = selector.table()
    curve = kc.risk_coverage_curve(labels, logits, from_logits=True)
    np.testing.assert_allclose(table.coverage, curve.coverage, rtol=1e-12)
    np.testing.assert_allclose(table.risk, curve.risk, rtol=1e-12)
    scores = array(selector(logits)["score"])
    for row in (0, 100, 700, len(table.threshold) - 1):
        share = np.mean(scores >= table.threshold[row])
        assert abs(share - table.coverage[row]) < 1e-12
    assert not table.certified.any()
    _, upper = kc.clopper_pearson(
        np.round(table.risk * table.coverage * 1000),
        np.round(table.coverage * 1000),
        level=0.9,
    )
    np.testing.assert_allclose(table.upper_bound, upper, rtol=1e-12)


def test_the_table_marks_what_is_certified():
    labels, logits = noisy(n=3000)
    selector = kc.SelectiveClassifier()
    selector.fit(labels, logits, risk=0.03, delta=0.1)
    table = selector.table()
    last = np.flatnonzero(table.certified)[-1]
    assert table.threshold[last] == selector.threshold
    assert np.all(table.upper_bound[table.certified] <= 0.03)
    weight = 1.0 + np.arange(3000) % 2
    selector.fit(labels, logits, risk=0.03, sample_weight=weight)
    assert np.isnan(selector.table().upper_bound).all()


# Life as a layer.


def test_an_unfitted_layer_refuses_to_answer():
    selector = kc.SelectiveClassifier()
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        selector(np.ones((1, 2), "float32"))
    with pytest.raises(RuntimeError, match="must be fitted before use"):
        _ = selector.threshold
    with pytest.raises(RuntimeError, match="needs the data of a `fit`"):
        selector.table()
    # A refused call builds the layer; it can be fitted all the same.
    labels, logits = noisy(num_classes=2)
    assert selector.fit(labels, logits, risk=0.05).fitted


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


def test_compiled_and_batched_it_answers_alike():
    labels, logits = noisy()
    score = kc.LogitNormalization(p=3)
    for part in ("msp", "neg_entropy", score):
        selector = kc.SelectiveClassifier(calibrator=temperature(), score=part)
        selector.fit(labels, logits, risk=0.02)
        inputs = keras.Input((4,))
        model = keras.Model(inputs, selector(inputs))
        served = model.predict(logits, batch_size=300, verbose=0)
        expected = {k: array(v) for k, v in selector(logits).items()}
        for name, value in served.items():
            assert value.dtype == expected[name].dtype
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-5, atol=1e-6
            )
        assert served["accept"].mean() == selector.chosen.coverage


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
            copy.table()


@keras.saving.register_keras_serializable(package="tests")
def spread(logits):
    """A score of the user's own."""
    return keras.ops.std(logits, axis=-1)


@pytest.mark.parametrize("score", [kc.p_norm, spread], ids=lambda f: f.__name__)
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


def test_the_data_of_the_other_laws_give_a_threshold():
    labels, logits = sample()
    kc.SelectiveClassifier().fit(labels, logits, coverage=0.5)


# Fits on a model.


def of_model(activation=None):
    """A model that returns its inputs, or a softmax of them."""
    layers = [keras.Input((4,)), keras.layers.Activation(activation)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy
    model.compile(loss=loss(from_logits=activation != "softmax"))
    return model


@pytest.mark.parametrize("activation", ["linear", "softmax"])
def test_fit_on_chooses_as_fit_does_on_logits(activation):
    labels, logits = noisy(n=500)
    target = {"risk": 0.05, "delta": 0.1, "tune_fraction": 0.3}
    expected = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
    expected.fit(labels, logits, **target)
    for data in ((logits, labels), batches(logits, labels)):
        found = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling())
        assert (
            found.fit_on(of_model(activation), data, verbose=0, **target)
            is found
        )
        np.testing.assert_allclose(
            found.threshold, expected.threshold, rtol=1e-4
        )
        assert found.chosen.coverage == expected.chosen.coverage


def batches(logits, labels, *more):
    return [
        tuple(x[i : i + 90] for x in (logits, labels, *more))
        for i in range(0, len(labels), 90)
    ]


def test_fit_on_takes_weights_steps_and_ignored_classes():
    labels, logits = noisy(n=500)
    labels[::5] = 255
    weight = np.random.default_rng(1).random(500)
    expected = kc.SelectiveClassifier().fit(
        labels[:180],
        logits[:180],
        coverage=0.5,
        sample_weight=weight[:180],
        ignore_class=255,
    )
    found = kc.SelectiveClassifier().fit_on(
        of_model("linear"),
        batches(logits, labels, weight),
        coverage=0.5,
        ignore_class=255,
        steps=2,
        verbose=0,
    )
    assert found.chosen == expected.chosen


def test_fit_on_refuses_no_batch_and_models_that_do_not_say():
    with pytest.raises(ValueError, match="must have batches"):
        kc.SelectiveClassifier().fit_on(of_model("linear"), [], risk=0.1)
    labels, logits = noisy(n=20)
    mixed = [(logits, labels), (logits, labels, np.ones(20))]
    with pytest.raises(ValueError, match="all have weights or none"):
        kc.SelectiveClassifier().fit_on(of_model("linear"), mixed, risk=0.1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Softmax()])
    with pytest.raises(ValueError, match="from_logits"):
        kc.SelectiveClassifier().fit_on(model, noisy()[::-1], risk=0.1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fits_refuse_probabilities(dtype):
    labels, logits = noisy()
    probs = softmax(logits).astype(dtype)
    for fit in (
        lambda: kc.SelectiveClassifier().fit(labels, probs, risk=0.1),
        lambda: kc.TemperatureScaling().fit(labels, probs),
        lambda: kc.IsotonicCalibration().fit([(labels, probs)]),
        lambda: kc.LogitNormalization().fit(labels, probs),
    ):
        with pytest.raises(ValueError, match="must be logits"):
            fit()
    for right in (np.log(probs + 1e-4), probs - 0.25, 2.0 * probs, logits):
        kc.TemperatureScaling().fit(labels, right)


def test_whole_logits_that_sum_to_one_are_logits():
    labels = np.array([0, 1, 0, 1] * 50)
    logits = one_hot(np.array([0, 1, 1, 1] * 50), 2).astype("float32")
    kc.SelectiveClassifier().fit(labels, logits, coverage=0.5)
