"""The report of several labels says what loops over the columns say."""

import keras
import numpy as np
import pytest
from report_pages import Page, mistakes, report_of

import keras_calib as kc
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.reporting import html, sections

NAMES = ["sky", "car", "dog"]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-np.asarray(x, "float64")))


def tagged(n=800, seed=0, scale=2.0):
    """Labels, and logits that are `scale` times too large."""
    rng = np.random.default_rng(seed)
    logits = rng.normal([-2.0, 0.0, 1.0], 1.5, size=(n, 3))
    labels = (rng.random((n, 3)) < sigmoid(logits)).astype("int32")
    return labels, (scale * logits).astype("float32")


@pytest.fixture
def alone(monkeypatch):
    """Reports without their pages."""
    monkeypatch.setattr(html, "template", lambda: None)
    monkeypatch.setattr(html, "page_of", lambda *_, **__: "")


def report(labels, outputs, **options):
    options = {"from_logits": True, "multi_label": True, **options}
    return report_of(labels, outputs, verbose=0, **options)


def two_classes(p):
    return np.stack([1.0 - p, p], axis=-1)


@pytest.mark.portable
def test_rows_are_those_of_the_columns_alone(alone):
    labels, logits = tagged()
    labels[::7, 1] = -1
    found = report(labels, logits, ignore_class=-1).results["model"]
    rows, aurocs = found["labels"], []
    for k, row in enumerate(rows):
        shown = labels[:, k] >= 0
        y, p = labels[shown, k], sigmoid(logits[shown, k])
        above = p[y == 1][:, None] - p[y == 0]
        aurocs.append(np.mean((above > 0) + 0.5 * (above == 0)))
        expected = {
            "count": len(y),
            "missing": len(labels) - len(y),
            "positives": y.sum(),
            "prevalence": y.mean(),
            "probability": p.mean(),
            "accuracy": np.mean((p > 0.5) == y),
            "confidence_gap": p.mean() - y.mean(),
            "ece": kc.ece(y, two_classes(p), mode="binary"),
            "nll": kc.nll(y, two_classes(p)),
            "brier_score": 2.0 * np.mean((p - y) ** 2),
        }
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, abs=2e-5), (k, name)
        assert row["auroc"] == pytest.approx(aurocs[k], abs=1e-3)
        assert row["ece_low"] < row["ece"]
        rate = y.mean()
        entropy = -np.log(rate) * rate - np.log(1 - rate) * (1 - rate)
        assert row["base_nll"] == pytest.approx(entropy)
    assert found["num_missing"] == found["num_partly_missing"] == 115
    for name in ("ece", "nll", "brier_score", "auroc", "base_nll"):
        mean = np.mean([row[name] for row in rows])
        assert found["summary"]["macro"][name] == pytest.approx(mean), name
    shown = labels >= 0
    pooled = labels[shown], two_classes(sigmoid(logits[shown]))
    micro = found["summary"]["micro"]
    assert micro["ece"] == pytest.approx(kc.ece(*pooled, mode="binary"), 1e-4)
    assert micro["nll"] == pytest.approx(kc.nll(*pooled), 1e-4)


def test_missing_by_weight_is_missing_by_class(alone):
    labels, logits = tagged(200)
    labels[:40] = labels[60:90, 2] = -1
    by_class = report(labels, logits, ignore_class=-1)
    weight = (labels >= 0).astype("float32")
    by_weight = report(np.maximum(labels, 0), logits, sample_weight=weight)
    assert by_class.results == by_weight.results
    assert by_class.results["model"]["num_missing"] == 150
    assert by_class.results["model"]["num_partly_missing"] == 30


def test_the_page_says_what_a_calibrator_repairs_and_a_selector_does(
    monkeypatch,
):
    monkeypatch.setattr(sections, "_NUM_PICTURES", 1)
    labels, logits = tagged(scale=4.0)
    calibrator = kc.labels.MultiLabelCalibrator(
        kc.TemperatureScaling(), class_names=NAMES
    ).fit(*tagged(seed=1, scale=4.0), num_folds=0)
    selector = kc.labels.MultiLabelSelector(calibrator=calibrator)
    selector.fit(*tagged(seed=2, scale=4.0), risk=0.15, delta=0.1)
    made = report(labels, logits, selector=selector)
    found = made.results["model"]
    repaired = sigmoid(np.asarray(calibrator(logits)))
    answers = selector(logits)
    accept = np.asarray(answers["accept"])
    wrong = np.asarray(answers["labels"]) != labels
    for k, row in enumerate(found["labels"]):
        assert row["label"] == NAMES[k]
        ece = kc.ece(labels[:, k], two_classes(repaired[:, k]), mode="binary")
        assert row["ece"] == pytest.approx(ece, abs=1e-5)
        assert row["ece"] < row["before_ece"]
        mine = found["selection"]["labels"][k]
        assert mine["threshold"] == selector.threshold[k]
        assert mine["coverage"] == pytest.approx(accept[:, k].mean())
        assert mine["risk"] == pytest.approx(wrong[accept[:, k], k].mean())
        assert mine["risk_low"] < mine["risk"] < mine["risk_high"]
    sure = np.abs(np.asarray(calibrator(logits)))
    rows, columns = np.nonzero(wrong)
    order = np.argsort(-sure[rows, columns])[:12]
    page = Page(made.html)
    assert mistakes(page) == rows[order].tolist()
    for text in ("dog", "predicted too", "after calibration", "15.00 %"):
        assert text in page.text
    assert f"{found['labels'][0]['before_nll']:.4f} →" in page.text
    # Data of another kind break what was promised.
    assert not found["selection"]["contradicted"]
    other = report(1 - labels, logits, selector=selector).results["model"]
    assert other["selection"]["contradicted"]
    assert "against it for sky" in other["selection"]["sentences"][-1]


@pytest.mark.parametrize("example", ["worst", "mean"])
def test_examples_are_selected_whole(alone, example):
    labels, logits = tagged()
    labels[::9, 0] = -1
    selector = kc.labels.MultiLabelSelector(by="example", example=example)
    selector.fit(*tagged(seed=1), coverage=0.4)
    made = report(labels, logits, selector=selector, ignore_class=-1)
    found, whole = made.results["model"], (labels >= 0).all(-1)
    wrong = (logits > 0) != labels
    error = wrong.any(-1) if example == "worst" else wrong.mean(-1)
    accept = np.asarray(selector(logits)["accept"]) & whole
    chosen = found["selection"]
    assert chosen["total"] == whole.sum()
    assert chosen["coverage"] == pytest.approx(accept.sum() / whole.sum())
    assert chosen["risk"] == pytest.approx(error[accept].mean())
    shown = ~(wrong & (labels >= 0)).any(-1)
    accuracy = found["examples"]["accuracy"]
    assert accuracy["value"] == pytest.approx(shown.mean())
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]


def test_verdict_names_the_labels_that_are_off(alone):
    labels, logits = tagged(4000, scale=1.0)
    found = report(labels, logits).results["model"]["verdict"]
    assert found["kind"] == "even"
    assert found["answer"].startswith("Yes")
    logits[:, 1] += 1.0
    logits[:, 2] -= 1.0
    found = report(labels, logits, class_names=NAMES).results["model"]
    assert [x["side"] for x in found["labels"]] == ["even", "over", "under"]
    gaps = [100 * abs(x["confidence_gap"]) for x in found["labels"][1:]]
    told = f"car ({gaps[0]:.1f} points too high)"
    low = f"dog ({gaps[1]:.1f} points too low)"
    told = f"{told}, {low}" if gaps[0] > gaps[1] else f"{low}, {told}"
    assert found["verdict"]["answer"] == f"No: 2 of 3 labels are off: {told}."
    found = report(labels[:, :2], logits[:, :2]).results["model"]
    assert found["verdict"]["answer"].startswith("No: 1 of 2 labels is off")
    # Right on average, wrong at both ends.
    labels, logits = tagged(4000, scale=6.0)
    found = report(labels[:, 1:2], logits[:, 1:2]).results["model"]
    assert found["labels"][0]["side"] == "bent"
    assert "label 0 (right on average, ECE 0." in found["verdict"]["answer"]


def test_most_labels_may_be_trusted_and_the_others_are_named(alone):
    rng = np.random.default_rng(0)
    logits = rng.normal(-1.0, 1.5, (20_000, 10))
    labels = (rng.random(logits.shape) < sigmoid(logits)).astype(int)
    given = logits.copy()
    # 2.4 points, where p (1 - p) is 0.16 in the mean.
    given[:, [2, 7]] += 0.15
    found = report(labels, given).results["model"]
    gaps = [100 * found["labels"][k]["confidence_gap"] for k in (2, 7)]
    assert found["verdict"]["answer"].startswith(
        "Yes for 8 of 10 labels; 2 are off: label "
    )
    for k, gap in zip((2, 7), gaps, strict=True):
        told = f"label {k} ({gap:.1f} points too high)"
        assert told in found["verdict"]["answer"]
    advice = found["verdict"]["advice"]
    assert advice.startswith("Use the probabilities of the others. Fit a Multi")


def test_a_fit_on_few_examples_is_no_fault_of_the_calibrator(alone):
    labels, logits = tagged(20_000, scale=2.0)
    few = kc.MultiLabel(kc.TemperatureScaling()).fit(
        *tagged(200, seed=3), num_folds=0
    )
    assert few.num_samples == 200
    found = report(labels, logits, calibrator=few).results["model"]
    assert found["verdict"]["answer"].startswith("Yes, after calibration, as")
    assert "fitted on 200 examples" in found["verdict"]["sentences"][-1]
    sides = [x["side"] for x in found["labels"]]
    few.num_samples = None
    found = report(labels, logits, calibrator=few).results["model"]
    assert sides == ["even"] * 3
    assert [x["side"] for x in found["labels"]] != sides


@pytest.mark.parametrize("by", [None, "label", "example"])
def test_precision_and_recall_are_those_of_yes(alone, by):
    labels, logits = tagged()
    labels[::9, 0] = -1
    options, yes = {"ignore_class": -1}, logits > 0
    if by is not None:
        selector = kc.labels.MultiLabelSelector(by=by)
        selector.fit(*tagged(seed=1), coverage=0.6)
        accept = np.asarray(selector(logits)["accept"])
        yes = yes & (accept if by == "label" else accept[:, None])
        options["selector"] = selector
    found = report(labels, logits, **options).results["model"]
    pairs = {"precision": [], "recall": []}
    for k, row in enumerate(found["labels"]):
        has, said = labels[:, k] == 1, yes[:, k] & (labels[:, k] >= 0)
        for name, of in (("precision", said), ("recall", has)):
            right, count = (said & has).sum(), of.sum()
            assert row[name] == pytest.approx(right / count)
            ends = [row[f"{name}_{end}"] for end in ("low", "high")]
            exact = np.ravel(clopper_pearson(right, count))
            assert ends == pytest.approx(exact)
            pairs[name].append((right, count))
    summary = found["summary"]
    for name, each in pairs.items():
        right, count = np.transpose(each)
        macro, micro = summary["macro"], summary["micro"]
        assert macro[name] == pytest.approx(np.mean(right / count))
        assert micro[name] == pytest.approx(right.sum() / count.sum())
        for means in (macro, micro):
            assert means[f"{name}_low"] < means[name] < means[f"{name}_high"]


def test_labels_without_positives_have_a_page():
    labels, logits = np.zeros((20, 2), int), np.full((20, 2), -6.0)
    labels[:, 1] = -1
    made = report(labels, logits, ignore_class=-1, num_mistakes=0)
    found = made.results["model"]
    assert found["verdict"]["kind"] == "few"
    assert np.isnan(found["labels"][0]["auroc"])
    assert found["verdict"]["sentences"] == [
        "In no example: label 0.",
        "Missing in all examples: label 1.",
    ]
    assert "nan" not in Page(made.html).text


def test_many_labels_are_folded_away_and_escaped(monkeypatch):
    monkeypatch.setattr(sections, "_NUM_PICTURES", 0)
    monkeypatch.setattr(sections, "_NUM_ROWS", 2)
    made = report(*tagged(60), class_names=["a", "b", "<b>c"])
    page = Page(made.html)
    assert "1 more in this table" in page.text
    assert page.all("details") and "<b>c" in page.text
    assert "<b>c" not in made.html


def network(loss):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")]
    model = keras.Sequential(layers)
    model.compile(loss=loss)
    return model


@pytest.mark.parametrize(
    "loss",
    ["binary_crossentropy", kc.MultiLabel(kc.FocalLoss(ignore_class=-1))],
)
def test_the_loss_of_a_model_tells_its_labels(alone, loss):
    model = network(loss)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 4)).astype("float32")
    y = rng.integers(0, 2, (50, 3))
    reads = []

    def batches():
        reads.append(1)
        yield from ((x[i : i + 16], y[i : i + 16]) for i in range(0, 50, 16))

    made = kc.report({"a": model, "b": model}, batches(), verbose=0)
    assert len(reads) == 1
    probs = model.predict(x, verbose=0)
    again = report(y, probs, from_logits=False)
    row, other = (
        each["labels"][2]
        for each in (made.results["b"], again.results["model"])
    )
    assert row["nll"] == pytest.approx(other["nll"], abs=1e-6)
    assert made.results["a"]["num_examples"] == 50


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        (
            {"votes": True, "ignore_class": None},
            ValueError,
            "`votes` must be False",
        ),
        ({"groups": ["a"] * 50}, ValueError, "`groups` must be left out"),
        ({"class_names": NAMES[:2]}, ValueError, "`num_labels` labels"),
        ({"class_names": "abc"}, TypeError, "`class_names`"),
        ({"multi_label": 2}, TypeError, "`multi_label`"),
        (
            {"calibrator": kc.labels.MultiLabelSelector},
            TypeError,
            "a fitted layer",
        ),
        (
            {
                "calibrator": kc.labels.MultiLabelCalibrator(
                    kc.TemperatureScaling()
                )
            },
            RuntimeError,
            "must be fitted",
        ),
        (
            {"calibrator": kc.TemperatureScaling(temperature=2.0)},
            TypeError,
            "must be a `MultiLabelCalibrator`",
        ),
        ({"labels": np.full((50, 3), -1)}, ValueError, "labels that count"),
        ({"labels": np.zeros(50, int)}, ValueError, "the shape of `outputs`"),
        ({"labels": np.full((50, 3), 2)}, ValueError, "must lie in"),
        ({"num_bins": 0}, ValueError, "`num_bins`"),
    ],
)
def test_bad_arguments_are_refused(changes, error, match):
    labels, logits = tagged(50)
    given = {"labels": labels, "outputs": logits, "ignore_class": -1, **changes}
    with pytest.raises(error, match=match):
        report(**given)
