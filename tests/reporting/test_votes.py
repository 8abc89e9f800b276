"""Reports on labels that are votes of annotators."""

import keras
import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from report_pages import (
    Page,
    mistakes,
    pictures_left_out,
    report_of,
    results_alone,
    slider,
)

import keras_calib as kc


def _voted(n=2000, seed=0):
    """Counts of 1 to 9 votes, which agree with class ids mostly, and logits."""
    labels, logits = noisy_predictions(n, seed=seed)
    rng = np.random.default_rng(seed)
    num_classes = logits.shape[-1]
    share = 0.6 * np.eye(num_classes)[labels] + 0.4 / num_classes
    counts = [rng.multinomial(rng.integers(1, 10), p) for p in share]
    return np.array(counts), logits


@pytest.fixture(scope="module")
def made():
    counts, logits = _voted()
    selector = kc.SelectiveClassifier().fit(
        *noisy_predictions(2000, seed=1), risk=0.2, delta=0.05
    )
    with pytest.MonkeyPatch.context() as patch:
        pictures_left_out(patch)
        report = report_of(
            counts,
            logits,
            from_logits=True,
            votes=True,
            selector=selector,
            verbose=0,
        )
    return report, selector


@pytest.mark.portable
def test_figures_of_votes_are_those_of_the_exact_functions(made):
    counts, logits = _voted()
    share = counts / counts.sum(axis=-1, keepdims=True)
    found = made[0].results["model"]
    options = {"votes": True, "from_logits": True}
    for name, function in {
        "ece": kc.ece,
        "nll": kc.nll,
        "brier_score": kc.brier_score,
        "aurc": kc.aurc,
        "failure_auroc": kc.functional.failure_auroc,
    }.items():
        x, exact = found["metrics"][name], function(counts, logits, **options)
        assert x["value"] == pytest.approx(exact, rel=1e-3), name
        assert x["low"] <= x["value"] <= x["high"]
    right = share[np.arange(2000), logits.argmax(axis=-1)]
    probs = np.asarray(keras.ops.softmax(logits))
    confidence = probs.max(axis=-1)
    assert found["metrics"]["accuracy"]["value"] == pytest.approx(right.mean())
    for row in found["sure"]:
        sure = confidence >= (0.8, 0.9, 0.95, 0.99)[row["group"]]
        assert row["error"] == pytest.approx(1.0 - right[sure].mean())
        # Shorter than with one class for each sample, and not too short.
        low, high = kc.formulas.intervals.clopper_pearson(
            row["wrong"], row["weight"]
        )
        width = (row["high"] - row["low"]) / (high - low)
        assert 0.6 < width < 1.0
    for row in found["classes"]:
        own = logits.argmax(axis=-1) == row["group"]
        assert row["error"] == pytest.approx(1.0 - right[own].mean())
    assert found["annotators"] == {
        "num_votes": counts.sum(),
        "agreement": pytest.approx(share.max(axis=-1).mean()),
    }
    # The test of class ids does not hold for votes.
    assert found["metrics"]["ecce"]["p_value"] is None


def test_the_page_says_what_votes_mean_and_shows_dissent(made):
    counts, logits = _voted()
    share = counts / counts.sum(axis=-1, keepdims=True)
    page, selector = Page(made[0].html), made[1]
    for text in (
        "Labels are votes of several annotators",
        "share of votes for the prediction",
        f"{counts.sum():,} votes of several annotators",
        "Errors, by share of votes",
        "of votes)",
    ):
        assert text in page.text, text
    predicted = logits.argmax(axis=-1)
    right = share[np.arange(2000), predicted]
    dissent = np.flatnonzero(right < share.max(axis=-1))
    confidence = np.asarray(keras.ops.softmax(logits)).max(axis=-1)
    order = np.argsort(-confidence[dissent], kind="stable")
    assert mistakes(page) == dissent[order][:12].tolist()
    (rows,) = slider(page)
    assert rows[0]["risk"] == pytest.approx(1.0 - right.mean())
    accept = np.asarray(selector(logits)["accept"])
    selection = made[0].results["model"]["selection"]
    risk = 1.0 - right[accept].mean()
    assert selection["risk"]["value"] == pytest.approx(risk)
    assert risk > 0.2 and not selection["contradicted"]
    assert "votes neither confirm nor contradict it" in page.text
    # The pair of classes that votes against sure predictions are most for.
    sure = confidence >= 0.9
    pairs = np.zeros((4, 4))
    np.add.at(pairs.T, predicted[sure], share[sure])
    np.fill_diagonal(pairs, 0.0)
    label, other = np.unravel_index(pairs.argmax(), pairs.shape)
    start = page.text.index("Errors, by share of votes")
    first = page.text[start:].split("\n")[1].strip()
    assert first == f"class {label}class {other}{pairs.max():,.1f}"


def test_votes_that_all_agree_are_class_ids(monkeypatch):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(500)
    calibrator = kc.TemperatureScaling(temperature=2.0)
    options = {"from_logits": True, "calibrator": calibrator, "verbose": 0}
    of_ids = report_of(labels, logits, **options)
    shares = np.eye(logits.shape[-1])[labels]
    of_votes = report_of(shares, logits, votes=True, **options)
    one, other = (x.results["model"] for x in (of_ids, of_votes))
    assert other.pop("annotators")["agreement"] == 1.0
    for stage in ("metrics", "calibrated_metrics"):
        for name, x in one[stage].items():
            assert other[stage][name]["value"] == pytest.approx(x["value"])
    for name in ("sure", "classes"):
        assert {x["group"]: x["error"] for x in one[name]} == pytest.approx(
            {x["group"]: x["error"] for x in other[name]}
        )


def test_a_report_of_a_model_reads_votes_of_its_data(monkeypatch):
    results_alone(monkeypatch)
    counts, logits = _voted(200)
    shares = (counts / counts.sum(axis=-1, keepdims=True)).astype("float32")
    model = keras.Sequential([keras.layers.Activation("linear")])
    options = {"from_logits": True, "votes": True, "verbose": 0}
    weight = np.ones(200)
    weight[:20] = shares[:20] = 0.0
    of_model = kc.report(model, (logits, shares, weight), **options)
    of_arrays = report_of(counts[20:], logits[20:], **options)
    one, other = (x.results["model"] for x in (of_model, of_arrays))
    assert one["annotators"]["num_votes"] is None
    assert one["num_counted"] == 180
    for name, x in other["metrics"].items():
        assert one["metrics"][name]["value"] == pytest.approx(
            x["value"], rel=1e-4
        )
    for wrong, message in (
        ({"ignore_class": 0}, "without `ignore_class`"),
        ({"labels": counts.argmax(axis=-1)}, "must be rows of votes"),
        ({"votes": False}, "votes=True"),
    ):
        given = {"labels": counts, **options, **wrong}
        with pytest.raises(ValueError, match=message):
            report_of(outputs=logits, **given)
    with pytest.raises(TypeError, match="`votes` must be"):
        kc.report(model, (logits, shares), **{**options, "votes": "votes"})
