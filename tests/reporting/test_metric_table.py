"""Metrics of models as a table: the numbers of the page, and others."""

import keras
import numpy as np
import pytest
from report_pages import few_replicates, report_of, results_alone

import keras_calib as kc

RNG = np.random.default_rng(0)
PROBS = RNG.dirichlet([2.0, 0.7, 0.5], 90)
LABELS = (RNG.random(90)[:, None] > PROBS.cumsum(axis=-1)).sum(axis=-1)
LOGITS = np.log(PROBS)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    results_alone(monkeypatch)
    few_replicates(monkeypatch)


def ends(found):
    return {
        name: [x[k] for k in ("value", "low", "high")]
        for name, x in found.items()
    }


def test_values_and_intervals_are_those_of_the_page():
    p = kc.Predictions(LABELS, LOGITS, from_logits=True)
    q = kc.Predictions(LABELS, 2 * LOGITS, from_logits=True)
    part = kc.TemperatureScaling(temperature=2.0)
    models, parts = {"a": p, "b": q}, {"a": part}
    found = kc.evaluate(models, calibrator=parts, verbose=0).results
    assert [*found] == ["a", "a, calibrated", "b"]
    page = kc.report(models, calibrator=parts, verbose=0).results
    for name, told in (
        ("a", page["a"]["metrics"]),
        ("a, calibrated", page["a"]["calibrated_metrics"]),
        ("b", page["b"]["metrics"]),
    ):
        own = ends(found[name])
        gap = own.pop("confidence_gap")
        assert own == ends(told)
    gap_of_page = ends({"gap": page["b"]["confidence_gap"]})["gap"]
    assert gap == pytest.approx(gap_of_page, abs=1e-6)


def test_logs_and_several_labels_have_tables_too():
    p = kc.Predictions(LABELS, PROBS)
    log = kc.Predictions(correct=p.correct, confidence=p.confidence)
    found = kc.evaluate(log, verbose=0).results["model"]
    page = report_of(LABELS, PROBS, verbose=0).results["model"]["metrics"]
    assert "nll" not in found
    assert found["aurc"]["value"] == pytest.approx(page["aurc"]["value"])
    with pytest.raises(ValueError, match="`metrics` must be of confidence"):
        kc.evaluate(log, metrics=["nll"], verbose=0)
    yes = (RNG.random(PROBS.shape) < PROBS).astype(int)
    several = kc.Predictions(yes, PROBS, multi_label=True)
    found = kc.evaluate(several, verbose=0).results["model"]
    page = kc.report(several, verbose=0).results["model"]
    assert found["macro_ece"]["value"] == page["summary"]["macro"]["ece"]
    for name in ("micro_nll", "macro_auroc", "micro_precision"):
        x = found[name]
        assert x["low"] < x["value"] < x["high"], name
    assert ends({"": found["example_ece"]}) == ends(
        {"": page["examples"]["ece"]}
    )
    picked = kc.evaluate(several, metrics=["micro_nll"], verbose=0)
    assert [*picked.results["model"]] == ["micro_nll"]
    with pytest.raises(ValueError, match="`metrics` must be one of"):
        kc.evaluate(several, metrics=["nll"], verbose=0)


def test_metrics_are_picked_in_every_form():
    p = kc.Predictions(LABELS, PROBS)
    forms = [
        *("accuracy", kc.nll, kc.ECE),
        kc.metrics.ClasswiseECE(num_classes=3),
        keras.metrics.SparseCategoricalAccuracy(name="of_keras"),
    ]
    found = kc.evaluate(p, metrics=forms, verbose=0).results["model"]
    assert [*found] == ["accuracy", "nll", "ece", "classwise_ece", "of_keras"]
    assert found["nll"]["value"] == pytest.approx(kc.nll(p), rel=1e-6)
    value = kc.functional.classwise_ece(p)
    assert found["classwise_ece"]["value"] == pytest.approx(value, abs=1e-6)
    assert found["of_keras"]["value"] == pytest.approx(
        found["accuracy"]["value"]
    )
    assert np.isnan(found["of_keras"]["low"])
    at = kc.evaluate(
        p,
        metrics=["risk_at_coverage", *map(kc.CoverageAtRisk, (0.1, 0.2))],
        verbose=0,
    )
    assert at.results["model"]["risk_at_coverage"]["coverage"] == 0.8
    names = "risk_at_coverage=0.8", "coverage_at_risk=0.1", "coverage_at_risk=0"
    assert all(name in str(at) for name in names)
    alone = kc.evaluate(p, metrics=keras.metrics.SparseCategoricalAccuracy)
    assert len(alone.results["model"]) == 1
    for wrong, error, rule in (
        (["eec"], ValueError, "did you mean 'ece'"),
        ([lambda y, p: 0.0], TypeError, "cannot be streamed"),
        ([], ValueError, "`metrics` must have a metric"),
        (
            [kc.metrics.ClasswiseECE(num_classes=3, from_logits=True)],
            ValueError,
            "must read outputs as they are",
        ),
        (["ece", kc.ECE(num_bins=3)], ValueError, "different names: pass"),
        (["ece", kc.CalibrationMetrics(["ece"])], ValueError, "names=..ece.."),
    ):
        with pytest.raises(error, match=rule):
            kc.evaluate(p, metrics=wrong, verbose=0)
    with pytest.raises(TypeError, match="must be told to the `Predictions`"):
        kc.evaluate(p, from_logits=True)


def test_a_metric_object_has_the_interval_that_it_gives():
    rng = np.random.default_rng(2)
    second = rng.random((5, 3, 4))
    probs = np.stack([1 - second, second], axis=-1)
    labels = rng.integers(2, size=second.shape)
    rows = labels.reshape(-1), probs.reshape(-1, 2)
    metrics = [
        kc.ECE(mode="binary", name="binary_ece"),
        kc.CalibrationMetrics(["mce"], prefix="their_"),
        kc.metrics.SmoothECE(),
    ]
    p = kc.Predictions(*rows)
    found = kc.evaluate(p, metrics=["ece", *metrics], verbose=0)
    names = ["ece", "binary_ece", "their_mce", "smooth_ece"]
    assert [*found.results["model"]] == names
    for name, metric in zip(names[1:], metrics, strict=True):
        row = found[name]
        ends = row["low"], row["high"]
        if name == "smooth_ece":
            assert np.isnan(ends).all()
            continue
        metric.update_state(*rows)
        expected = metric.interval()
        assert ends == (expected[name] if "mce" in name else expected)
    # That of images is over images.
    metric, p = kc.metrics.PerImage("ece"), kc.Predictions(labels, probs)
    row = kc.evaluate(p, metrics=[metric], verbose=0)["image_ece"]
    metric.update_state(labels, probs)
    assert (row["low"], row["high"]) == metric.interval()


def test_a_list_of_predictions_is_one_table():
    p, q = kc.Predictions(LABELS, PROBS), kc.Predictions(LABELS, PROBS[:, ::-1])
    one = kc.evaluate(p, metrics=["ece", "nll"], verbose=0)
    assert one["ece"] == one.results["model"]["ece"]
    assert one["model"] == one.results["model"]
    table = kc.evaluate([p, q], metrics=["ece", "nll"], verbose=0)
    assert table["model 1"] == one.results["model"]
    assert [*table["ece"]] == ["model 1", "model 2"]
    assert table["ece"]["model 1"] == one["ece"]
    known = "'model 1', 'model 2', 'ece', 'nll'"
    with pytest.raises(ValueError, match=f"`name` must be one of .{known}"):
        table["model"]
    # More models than metrics: a row for each.
    found = kc.evaluate([p, q, p], metrics=["ece", "nll"], verbose=0)
    head, *rows = str(found).split("\n\n")[0].splitlines()
    assert head.split() == ["model", "ece", "nll"]
    assert [x.split("  ")[0] for x in rows] == [f"model {k}" for k in (1, 2, 3)]


@pytest.mark.parametrize("function", [kc.evaluate, kc.report])
def test_what_is_neither_predictions_nor_a_model_is_told(function):
    p = kc.Predictions(LABELS, PROBS)
    selector = kc.SelectiveClassifier()
    for given, words in (
        ((p, p), "`data` must be left out .* several as a list"),
        ((p, selector), "fitted parts by `calibrator=` or `selector=`"),
        ((LABELS, PROBS), r"become `Predictions\(labels, outputs\)`"),
        ((selector,), "`predictions` must be `Predictions`, or a list or a"),
        (([p, PROBS],), "Received: predictions='ndarray'"),
    ):
        with pytest.raises(TypeError, match=words):
            function(*given, verbose=0)


def test_a_table_prints_a_row_for_each_metric():
    p = kc.Predictions(LABELS, PROBS)
    found = kc.evaluate({"a": p, "b": p}, metrics=["ece", "nll"], verbose=0)
    text, note = str(found).split("\n\n")
    head, *rows = text.splitlines()
    assert head.split() == ["metric", "a", "b"]
    heads = [("calibration", "ece"), ("proper score", "nll")]
    assert [tuple(x.split("  ")[0:1]) for x in rows] == [x[:1] for x in heads]
    assert all(x[1] in y for x, y in zip(heads, rows, strict=True))
    assert note == f"{len(LABELS)} predictions; 95 % intervals."
    assert "<th>metric</th><th>a</th>" in found._repr_html_()
    columns = found._columns()
    assert columns["kind"].tolist() == 2 * ["calibration", "proper score"]
    assert columns["model"].tolist() == ["a", "a", "b", "b"]
    assert columns["value"][0] == found.results["a"]["ece"]["value"]


def test_models_are_run_over_data_once():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    data = LOGITS.astype("float32"), LABELS
    found = kc.evaluate(
        model, data, metrics=["ece"], from_logits=True, verbose=0
    )
    p = kc.Predictions(LABELS, data[0], from_logits=True)
    wanted = kc.evaluate(p, metrics=["ece"], verbose=0)
    assert found.results == wanted.results


def test_a_model_of_probabilities_stands_beside_its_calibrated_self():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), 200)
    p = kc.Predictions(probs.argmax(-1), probs)
    repaired = kc.TemperatureScaling(temperature=2.0).calibrate(p)
    table = kc.evaluate(
        {"raw": p, "repaired": repaired}, metrics=["nll"], verbose=0
    )
    for name, x in (("raw", p), ("repaired", repaired)):
        found = table.to_dict()["results"][name]["nll"]["value"]
        assert found == pytest.approx(kc.nll(x), rel=1e-5)


def test_a_calibrator_of_a_log_repairs_the_log():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 400)
    log = kc.Predictions(
        correct=rng.random(400) < confidence**3, confidence=confidence
    )
    calibrator = kc.AffineScaling().fit(log)
    table = kc.evaluate(
        log, calibrator=calibrator, metrics=["confidence_gap"], verbose=0
    )
    values = [
        x["confidence_gap"]["value"]
        for x in table.to_dict()["results"].values()
    ]
    assert values[0] > 0.1 > abs(values[1])
