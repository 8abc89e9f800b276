"""The report says what the metrics say, and shows no more than it was given."""

import re

import keras
import numpy as np
import pytest
from noisy_predictions import noisy_predictions, softmax
from report_pages import (
    Page,
    mistakes,
    pictures_left_out,
    report_of,
    results_alone,
    slider,
)

import keras_calib as kc
from keras_calib.inputs import batch
from keras_calib.reporting.measures import cell


@pytest.fixture(scope="module")
def made():
    labels, logits = noisy_predictions()
    with pytest.MonkeyPatch.context() as patch:
        pictures_left_out(patch)
        return report_of(labels, logits, from_logits=True, verbose=0)


@pytest.mark.portable
def test_report_has_the_values_of_the_exact_functions(made):
    labels, logits = noisy_predictions()
    found = made.results["model"]
    metrics = found["metrics"]
    exact = {
        "ece": kc.ece(labels, logits, from_logits=True),
        "nll": kc.nll(labels, logits, from_logits=True),
        "accuracy": np.mean(logits.argmax(-1) == labels),
    }
    for name, value in exact.items():
        assert abs(metrics[name]["value"] - value) < 1e-5, name
        assert metrics[name]["low"] <= value <= metrics[name]["high"]
    streamed = kc.AURC(from_logits=True)
    streamed.update_state(labels, logits)
    assert abs(metrics["aurc"]["value"] - float(streamed.result())) < 1e-6
    confidence = softmax(logits.astype("float64")).max(-1)
    gaps = confidence - (logits.argmax(-1) == labels)
    gap = found["confidence_gap"]
    assert abs(gap["value"] - gaps.mean()) < 1e-6
    error = 1.96 * gaps.std() / np.sqrt(len(gaps))
    assert abs(gap["low"] - (gaps.mean() - error)) < 0.1 * error
    assert found["num_samples"] == len(labels)
    text = Page(made.html).text
    assert found["verdict"]["headline"] in text
    for name in ("ece", "aurc"):
        for shown in cell(name, metrics[name]):
            assert shown in text


def test_the_p_value_of_the_ecce_is_that_of_the_test(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(2000, scale=1.0)
    made = report_of(labels, logits, from_logits=True, verbose=0)
    found = made.results["model"]["metrics"]["ecce"]
    wanted = kc.functional.calibration_test(
        labels, logits, from_logits=True, statistic="ecce_range"
    )
    # Predictions of one cell are taken as tied.
    assert found["value"] == pytest.approx(wanted.statistic, rel=0.02)
    assert 0.02 < wanted.p_value < 0.98
    assert found["p_value"] == pytest.approx(wanted.p_value, abs=0.02)


def test_verdict_names_the_side(monkeypatch):
    results_alone(monkeypatch)
    for scale, headline in (
        (3.0, "Overconfident"),
        (0.4, "Underconfident"),
        (1.0, "Neither over- nor underconfident on average"),
    ):
        labels, logits = noisy_predictions(1000, scale=scale)
        made = report_of(labels, logits, from_logits=True, verbose=0)
        assert made.results["model"]["verdict"]["headline"] == headline


@pytest.mark.usefixtures("words_alone")
def test_few_errors_give_no_verdict_and_no_infinite_number():
    for n in (1, 100):
        logits = np.tile(np.array([[6.0, 0.0]], "float32"), (n, 1))
        made = report_of(np.zeros(n, int), logits, from_logits=True, verbose=0)
        found = made.results["model"]
        assert found["verdict"]["kind"] == "few"
        assert found["metrics"]["ecce"]["p_value"] is None
        assert found["verdict"]["headline"] == "Too few errors to say"
        assert 'class="verdict few"' in made.html
        text = Page(made.html).text
        assert "Use more data." in text
        assert not re.search(r"\b(inf|nan)\b", text)


@pytest.mark.slow
def test_calibrated_column_is_of_the_calibrator():
    labels, logits = noisy_predictions()
    calibrator = kc.TemperatureScaling().fit(*noisy_predictions(seed=1))
    made = report_of(
        labels, logits, from_logits=True, calibrator=calibrator, verbose=0
    )
    found = made.results["model"]
    after = kc.ece(labels, np.asarray(calibrator(logits)), from_logits=True)
    assert abs(found["calibrated_metrics"]["ece"]["value"] - after) < 1e-5
    assert after < found["metrics"]["ece"]["value"]
    page = Page(made.html)
    assert "After calibration" in page.text
    assert f"temperature {float(calibrator.temperature):.4g}" in page.text
    # Of probabilities too, whose logarithms are logits.
    again = report_of(labels, softmax(logits), calibrator=calibrator, verbose=0)
    other = again.results["model"]["calibrated_metrics"]["ece"]["value"]
    assert abs(other - after) < 1e-4


@pytest.mark.usefixtures("words_alone")
def test_selector_is_judged_on_the_data():
    labels, logits = noisy_predictions(3000)
    held_out = noisy_predictions(3000, seed=1)
    selector = kc.SelectiveClassifier().fit(*held_out, risk=0.2, delta=0.05)
    made = report_of(
        labels, logits, from_logits=True, selector=selector, verbose=0
    )
    accept = np.asarray(selector(logits)["accept"])
    wrong = logits.argmax(-1) != labels
    found = made.results["model"]["selection"]
    assert abs(found["coverage"] - accept.mean()) < 1e-12
    assert abs(found["risk"]["value"] - wrong[accept].mean()) < 1e-12
    low, high = kc.formulas.intervals.clopper_pearson(
        wrong[accept].sum(), accept.sum()
    )
    np.testing.assert_allclose(
        [found["risk"]["low"], found["risk"]["high"]], [low, high], rtol=1e-9
    )
    text = Page(made.html).text
    assert "certified for a risk of at most 20.00 %" in text
    assert "speak against" not in text
    # The cut as a score and as a confidence, with units.
    assert found["threshold"] == selector.threshold
    assert found["confidence"] == selector.chosen.confidence
    assert (
        f"score from {selector.threshold:.6g} in log-odds, which is "
        f"confidence from {selector.chosen.confidence:.6g}"
    ) in text
    # Data of another kind break what was promised.
    made = report_of(
        (labels + 1) % 4, logits, from_logits=True, selector=selector, verbose=0
    )
    assert "speak against" in Page(made.html).text


def test_classes_and_sure_predictions_are_counted(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions()
    weight = np.tile([1.0, 2.0, 0.0], len(labels))[: len(labels)]
    made = report_of(
        labels, logits, from_logits=True, sample_weight=weight, verbose=0
    )
    found = made.results["model"]
    assert found["num_counted"] == np.count_nonzero(weight)
    confidence = softmax(logits.astype("float64")).max(-1)
    predicted = logits.argmax(-1)
    wrong = predicted != labels
    groups = [(x, predicted == x["group"], 4) for x in found["classes"]]
    for row in found["sure"]:
        level = (0.8, 0.9, 0.95, 0.99)[row["group"]]
        groups.append((row, confidence >= level, 1))
    assert len(groups) == 8
    for row, inside, together in groups:
        w = weight * inside
        error = (w * wrong).sum() / w.sum()
        count = w.sum() ** 2 / (w**2).sum()
        low, high = kc.formulas.intervals.clopper_pearson(
            error * count, count, level=1.0 - 0.05 / together
        )
        expected = [
            *(w.sum(), (w * wrong).sum(), (w * confidence).sum() / w.sum()),
            *(error, low, high),
        ]
        gap = expected[2] - 1.0
        expected += [gap + low, gap + high]
        values = [*row.values()][1:]
        np.testing.assert_allclose(values, expected, rtol=1e-5)


def small_model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 1))
    x = keras.layers.Flatten()(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


@pytest.mark.usefixtures("words_alone")
def test_report_of_models_reads_the_data_once():
    model, other = small_model(), small_model()
    rng = np.random.default_rng(0)
    x = rng.random((70, 6, 6, 1)).astype("float32")
    y = rng.integers(0, 3, 70)
    reads = []

    def batches():
        reads.append(1)
        for start in range(0, 70, 32):
            yield x[start : start + 32], y[start : start + 32]

    made = kc.report(
        {"one": model, "two": other},
        batches(),
        from_logits=True,
        steps=3,
        verbose=0,
    )
    assert len(reads) == 1
    logits = model.predict(x, verbose=0)
    for name in ("one", "two"):
        assert made.results[name]["num_samples"] == 70
    ece = kc.ece(y, logits, from_logits=True)
    assert abs(made.results["one"]["metrics"]["ece"]["value"] - ece) < 1e-5
    # Mistakes have the numbers of their samples in the whole data set.
    wrong = np.flatnonzero(logits.argmax(-1) != y)
    surest = wrong[np.argsort(-softmax(logits).max(-1)[wrong])][:12]
    assert mistakes(Page(made.html))[:12] == surest.tolist()
    assert "All models" in Page(made.html).text
    assert len(slider(Page(made.html))) == 2
    whole = kc.report(model, (x, y), from_logits=True, verbose=0)
    again = report_of(y, logits, from_logits=True, verbose=0)
    one, two = (r.results["model"]["metrics"] for r in (whole, again))
    assert abs(one["aurc"]["value"] - two["aurc"]["value"]) < 1e-6


def test_report_asks_the_models_what_they_return(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(120)
    loss = keras.losses.SparseCategoricalCrossentropy
    models = {}
    for name, activation in (("logits", "linear"), ("probs", "softmax")):
        layers = [keras.Input((4,)), keras.layers.Activation(activation)]
        models[name] = keras.Sequential(layers)
        models[name].compile(loss=loss(from_logits=name == "logits"))
        made = kc.report(models[name], (logits, labels), verbose=0)
        exact = kc.ece(labels, logits, from_logits=True)
        ece = made.results["model"]["metrics"]["ece"]["value"]
        assert abs(ece - exact) < 1e-5
    with pytest.raises(ValueError, match="logits=True, probs=False"):
        kc.report(models, (logits, labels), verbose=0)
    silent = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    with pytest.raises(ValueError, match="from_logits"):
        kc.report(silent, (logits, labels), verbose=0)


def test_pixels_and_weights_count_as_in_metrics(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(240)
    labels[:50] = 9
    rows, outputs = labels.reshape(4, 60), logits.reshape(4, 60, 4)
    made = report_of(rows, outputs, from_logits=True, ignore_class=9, verbose=0)
    kept = labels != 9
    exact = kc.ece(labels[kept], logits[kept], from_logits=True)
    assert abs(made.results["model"]["metrics"]["ece"]["value"] - exact) < 1e-5
    labels = np.where(kept, labels, 0)
    weighted = report_of(
        labels,
        logits,
        from_logits=True,
        sample_weight=kept.astype("float32"),
        verbose=0,
    )
    other = weighted.results["model"]["metrics"]["ece"]["value"]
    assert abs(other - exact) < 1e-5
    one = made.results["model"]["confidence_gap"]["value"]
    other = weighted.results["model"]["confidence_gap"]["value"]
    assert abs(one - other) < 1e-9


def test_a_batch_is_read_once_unless_it_may_have_a_fault(monkeypatch):
    results_alone(monkeypatch)
    reads, standardize = [], batch.standardize

    def counted(*args, **options):
        reads.append(1)
        return standardize(*args, **options)

    monkeypatch.setattr(batch, "standardize", counted)
    labels, logits = noisy_predictions(200)
    calibrator = kc.TemperatureScaling(temperature=2.0)
    selector = kc.SelectiveClassifier(calibrator=calibrator, threshold=0.0)

    def results():
        reads.clear()
        made = report_of(
            labels, logits, from_logits=True, selector=selector, verbose=0
        )
        return made.results["model"]

    results()
    assert len(reads) == 1
    # Too large to be right for sure, and as sure of its class as 60.
    logits[0] = 0.0
    logits[0, labels[0]] = 60.0
    once = results()
    logits[0, labels[0]] = 2e30
    again = results()
    assert len(reads) > 1
    for name in ("metrics", "calibrated_metrics"):
        for measure in ("accuracy", "ece", "nll"):
            found, known = (x[name][measure]["value"] for x in (again, once))
            assert found == pytest.approx(known, abs=1e-6), measure
    assert again["selection"]["coverage"] == once["selection"]["coverage"]


def test_batches_in_which_nothing_counts_are_left_out(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(64)
    made = kc.report(
        keras.Sequential([keras.Input((4,)), keras.layers.Activation(None)]),
        [(logits[:32], np.full(32, 9)), (logits[32:], labels[32:])],
        from_logits=True,
        ignore_class=9,
        verbose=0,
    )
    exact = kc.ece(labels[32:], logits[32:], from_logits=True)
    ece = made.results["model"]["metrics"]["ece"]["value"]
    assert abs(ece - exact) < 1e-5


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"labels": [0, 1]}, ValueError, "must have one length"),
        ({"outputs": {}}, ValueError, "at least one model"),
        ({"class_names": ["ab", "c"]}, ValueError, "a name for each class"),
        ({"class_names": "abcd"}, TypeError, "`class_names`"),
        (
            {"calibrator": kc.TemperatureScaling()},
            RuntimeError,
            "must be fitted",
        ),
        ({"calibrator": "temperature"}, TypeError, "must be a fitted layer"),
        ({"selector": kc.SelectiveClassifier}, TypeError, "a fitted layer"),
        ({"selector": {"b": None}}, ValueError, "models that are there"),
        ({"num_mistakes": -1}, ValueError, "`num_mistakes`"),
        ({"num_bins": 0}, ValueError, "`num_bins`"),
        ({"num_bins": 1001}, ValueError, "`num_bins` must be <= 1000"),
        ({"from_logits": False}, ValueError, "probabilities"),
        ({"ignore_class": 0.5}, TypeError, "`ignore_class`"),
    ],
)
def test_bad_arguments_are_refused(changes, error, match):
    labels, logits = noisy_predictions(50)
    given = {
        "labels": labels,
        "outputs": logits,
        "from_logits": True,
        "verbose": 0,
        **changes,
    }
    with pytest.raises(error, match=match):
        report_of(**given)


def test_what_is_ignored_is_not_selected(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(200)
    selector = kc.SelectiveClassifier().fit(labels, logits, coverage=0.5)
    labels[:80] = 9
    made = report_of(
        labels,
        logits,
        from_logits=True,
        selector=selector,
        ignore_class=9,
        verbose=0,
    )
    accept = np.asarray(selector(logits)["accept"])[80:]
    wrong = (logits.argmax(-1) != labels)[80:]
    found = made.results["model"]["selection"]
    assert found["total"] == 120
    assert abs(found["coverage"] - accept.mean()) < 1e-12
    assert abs(found["risk"]["value"] - wrong[accept].mean()) < 1e-12


def test_calibrators_of_several_models_need_their_names(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(50)
    calibrator = kc.TemperatureScaling().fit(labels, logits)
    models = {"a": logits, "b": logits / 2}
    options = {"from_logits": True, "verbose": 0}
    with pytest.raises(ValueError, match="must be a dict by their names"):
        report_of(labels, models, calibrator=calibrator, **options)
    made = report_of(labels, models, calibrator={"b": calibrator}, **options)
    assert "calibrated_metrics" not in made.results["a"]
    assert "calibrated_metrics" in made.results["b"]


@pytest.mark.slow
def test_the_page_shows_how_a_calibrator_was_chosen():
    choice = kc.choose_calibrator(*noisy_predictions(seed=1))
    page = report_of(
        *noisy_predictions(), from_logits=True, calibrator=choice, verbose=0
    )
    found = page.results["model"]["choice"]
    assert found["name"] == choice.name != "none"
    names = [x["name"] for x in found["candidates"]]
    assert names == [x.name for x in choice.candidates]
    assert "How the calibrator was chosen" in page.html
    assert f"{choice.name}, chosen" in page.html
    assert choice.reason in page.html
    plain = report_of(
        *noisy_predictions(),
        from_logits=True,
        calibrator=choice.calibrator,
        verbose=0,
    )
    assert "How the calibrator was chosen" not in plain.html
    expected = plain.results["model"]["calibrated_metrics"]
    assert page.results["model"]["calibrated_metrics"] == expected
