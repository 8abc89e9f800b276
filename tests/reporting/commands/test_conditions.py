"""Conditions that fail a report, and the numbers on the terminal."""

import argparse
import json

import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from report_pages import results_alone

import keras_calib as kc
from keras_calib.reporting.command_line import main
from keras_calib.reporting.commands.conditions import (
    FAILED,
    conditions,
    failures,
)
from keras_calib.reporting.measures import (
    METRICS_BY_KIND,
    cell,
    estimates_by_stage,
)


def estimate(value, low=np.nan, high=np.nan):
    return {"value": value, "low": low, "high": high}


RESULTS = {
    "confidence_gap": estimate(0.1),
    "metrics": {"ece": estimate(0.1, 0.05, 0.2), "nll": estimate(np.nan)},
    "calibrated_confidence_gap": estimate(0.0),
    "calibrated_metrics": {"ece": estimate(0.02, 0.01, 0.03)},
}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ece > 0.02", None),
        ("ece>=0.02", "ece of m is 0.020 (0.010 to 0.030), for ece>=0.02"),
        ("ece<2e-2, ece <= .02", "for ece <= .02"),
        ("confidence_gap<-1", None),
        ("confidence_gap < 1", "confidence_gap of m is +0.0000, for"),
        # What is not known holds no promise.
        ("nll > 9", "nll of m is unknown, for nll > 9"),
    ],
)
def test_conditions_are_of_what_users_get(text, words):
    failed = failures({"m": RESULTS}, conditions(text))
    assert len(failed) == (words is not None)
    assert words is None or words in failed[0]
    uncalibrated = {k: RESULTS[k] for k in ("confidence_gap", "metrics")}
    assert failures({"m": uncalibrated}, conditions("ece > 0.09, nll > 9"))[1:]


@pytest.mark.parametrize(
    "text", ["", "ece", "ece > ", "ece = 1", "ece > nan", "> 1", "ece > 1 2"]
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be a metric"):
        conditions(text)


@pytest.mark.parametrize("kind", METRICS_BY_KIND)
def test_every_metric_of_a_kind_may_fail_it(
    tmp_path, monkeypatch, capsys, kind
):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(200, 3)
    facts = {"from_logits": True}
    if kind == "labels":
        labels, facts = np.eye(3, dtype=int)[labels], {"multi_label": True}
        logits = 1.0 / (1.0 + np.exp(-logits))
    elif kind == "votes":
        labels = np.eye(3, dtype=int)[labels] + (logits > 0)
        facts["votes"] = True
    p = kc.Predictions(labels, logits, **facts)
    if kind == "records":
        p = kc.Predictions(correct=p.correct, confidence=p.confidence)
    p.write(tmp_path / "m.npz")
    names = METRICS_BY_KIND[kind]
    given = [f"--fail-if={name} > -9, {name} < -9" for name in names]
    path = str(tmp_path / "m.npz")
    assert main(["report", path, *given, "--json", "--quiet"]) == FAILED
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert len(found["failed"]) == len(names) and found["out"] is None
    assert shown.err.count("> -9") == len(names)
    assert "unknown" not in shown.err
    # The terminal has the same numbers, and writes no page.
    assert main(["report", path, f"--fail-if={names[0]} < -9"]) == 0
    shown = capsys.readouterr().out
    (final,) = estimates_by_stage(found["models"]["m"])
    ece = "macro_ece" if kind == "labels" else "ece"
    value, ends, _ = cell(ece, final[ece])
    assert f"{value} ({ends})" in shown
    assert shown.startswith(found["models"]["m"]["verdict"]["answer"])
    assert [x.name for x in tmp_path.iterdir()] == ["m.npz"]
