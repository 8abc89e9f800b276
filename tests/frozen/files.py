"""Certificates of exports, what exports answer, and files of thresholds."""

import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from exported import answers

from frozen.api import kc
from frozen.data_sets import drawn
from frozen.labels import LABELS
from frozen.results import tried
from frozen.selectors import COSTS
from frozen.stored import Tolerance
from frozen.thresholds import records
from keras_calib.reporting.command_line import main

# Thresholds of float32 scores; bounds by roots.
TOLERANCE = Tolerance(relative=5e-6, absolute=1e-6)

# Today's names in files, and what they stand for.
WORDS = {
    "kind": "kind",
    "guarantee": "guarantee",
    "selection": "selection",
    "score": "score",
    "scale": "scale",
    "costs": "costs",
    "method": "method",
    "risk": "risk",
    "delta": "delta",
    "coverage": "coverage",
    "certified_risk": "limit of the risk",
    "certified_cost": "limit of the cost",
    "mean_cost": "mean cost",
    "max_cost": "mean cost",
    "mean_cost_low": "mean cost, low",
    "mean_cost_high": "mean cost, high",
    "accepted_cost": "mean cost of the accepted",
    "accept_all_cost": "mean cost if all are accepted",
    "reject_all_cost": "mean cost if all are rejected",
    "reject_cost": "price",
    "statement": "statement",
    "num_samples": "size",
    "num_accepted": "number accepted",
    "num_wrong": "number wrong",
    "wrong": "number wrong",
    "upper_bound": "upper bound",
    "threshold": "threshold",
    "confidence": "as confidence",
    "min_count": "least size",
    "groups": "groups",
    "group": "group",
    "tested": "tested",
    "num_classes": "number of classes",
    "largest": "largest",
    "one_cost": "one cost",
    "matrix": "matrix",
    "target": "target",
    "calibrator": "calibrator",
    "slope": "slope",
    "intercept": "intercept",
    "a": "a",
    "b": "b",
    "c0": "c0",
    "column": "column",
    "data": "data",
    "num_tuned": "size of the other log",
}
# Hashes, versions, and what depends on how a file is written.
LEFT_OUT = {
    *("certificate", "answer_threshold", "keras_calib", "digest"),
    *("weights", "artefact", "config", "name"),
}


def _facts(found: Any) -> Any:
    """Facts under neutral keys; an unknown key is an error."""
    if isinstance(found, dict):
        kept = {
            k: x
            for k, x in found.items()
            if k not in LEFT_OUT and not k.endswith("sha256")
        }
        return {WORDS[k]: _facts(x) for k, x in kept.items()}
    if isinstance(found, list):
        return [_facts(x) for x in found]
    return found


def _model(size: int, loss: Any) -> Any:
    inputs = keras.Input((size,), name="x")
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile(loss=loss)
    return model


def _exports(folder: Path) -> Iterator[tuple[str, Any]]:
    labels, logits = drawn(50, 400, 3, sharpness=2.0)
    model = _model(3, kc.LabelSmoothing(from_logits=True))
    names = np.array(["b", "a"])[np.arange(400) % 2]
    prior = {"target_prior": [0.5, 0.3, 0.2], "risk": 0.3, "delta": 0.1}
    for name, (costs, target) in {
        "risk": (None, {"risk": 0.2, "delta": 0.1}),
        "groups": (None, {"risk": 0.25, "delta": 0.1, "groups": names}),
        "costs": (COSTS, {"max_cost": 0.5, "delta": 0.1}),
        "price": (COSTS, {"reject_cost": 0.3}),
        "prior": (None, prior),
    }.items():
        known = kc.TemperatureScaling(temperature=2.0)
        made = kc.SelectiveClassifier(calibrator=known, costs=costs)
        made.fit(labels, logits, **target)
        path = folder / name
        found = tried(kc.export, model, path, selector=made, certificate=True)
        if isinstance(found, dict):
            yield f"certificate, {name}/three classes", found
            continue
        check = kc.exporting.check_certificate(path)
        yield f"certificate, {name}/three classes", _facts(check.certificate)
        if name == "price":
            continue
        kc.exporting.save_records(made, folder / "records.npz")
        with np.load(folder / "records.npz") as file:
            kept = {k: file[k] for k in file.files}
        called = {"score": "scores", "group": "groups"}
        given = {called.get(k, k): x for k, x in kept.items()}
        holds = kc.exporting.check_certificate(path, **given).holds
        yield f"certificate holds, {name}/three classes", holds
        given["correct"] = 1 - given["correct"]
        holds = kc.exporting.check_certificate(path, **given).holds
        yield f"certificate holds of other data, {name}/three classes", holds
        numbers = [x for x in kept.values() if x.dtype.kind in "biuf"]
        sums = [float(np.sum(x, dtype="float64")) for x in numbers]
        yield f"sums of the kept rows, {name}/three classes", sums
        if name == "risk":
            yield f"answers, {name}/three classes", _answers(path, logits)


def _answers(path: Path, logits: Any) -> Any:
    found = answers(path, x=logits[:8])
    return {
        "class": found["label"],
        "accepted": found["accept"],
        "confidence": found["confidence"],
        "score": found["score"],
        "probabilities": found["probabilities"],
    }


def _of_labels(folder: Path) -> Iterator[tuple[str, Any]]:
    labels, logits, _ = LABELS["labels"]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    made = kc.labels.MultiLabelSelector().fit(
        labels, logits, risk=0.3, delta=0.1
    )
    path = folder / "labels"
    given = {"selector": made, "certificate": True}
    found = tried(kc.export, _model(4, loss), path, **given)
    if not isinstance(found, dict):
        found = _facts(kc.exporting.check_certificate(path).certificate)
    yield "certificate, of labels/labels", found


def _log(path: Path, seed: int) -> Path:
    """A log of confidences that are a little too large."""
    confidence, right = records(seed, 400)
    task = np.arange(400) ** 2 % 7 % 3
    rows = zip(confidence, right, task, strict=True)
    lines = [f"{c},{y},task {t}" for c, y, t in rows]
    path.write_text("\n".join(["confidence,correct,task", *lines]) + "\n")
    return path


def _run(*given: Any) -> Any:
    """What a command tells, and its exit code."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = main([*map(str, given), "--quiet"])
    # Tables begin with the name of their class.
    text = re.sub(r"\bChoice: ", "", told.getvalue())
    return {"code": code, "told": text}


def _of_answers(facts: dict[str, Any]) -> dict[str, Any]:
    """What a statement says of a threshold, on one level."""
    guarantee, selection = facts["guarantee"], facts["selection"]
    claimed = "delta", "certified_risk", "method"
    told = {name: guarantee.get(name) for name in claimed}
    if told["delta"] is None:
        told["method"] = None
    if groups := selection.get("groups"):
        names = "group", "threshold", "num_samples", "coverage", "risk"
        told["groups"] = [{k: one[k] for k in names} for one in groups]
    counted = "coverage", "risk", "num_samples"
    return {
        **told,
        **{name: selection[name] for name in counted},
        "threshold": selection.get("threshold"),
        "column": facts["score"]["name"],
        "calibrator": facts["calibrator"],
        "data": facts["data"],
    }


def _thresholds(folder: Path) -> Iterator[tuple[str, Any]]:
    log = _log(folder / "log.csv", 90)
    first = _log(folder / "first.csv", 91)
    for name, given in {
        "risk": ["--risk=0.15"],
        "coverage": ["--coverage=0.6"],
        "groups": ["--risk=0.25", "--groups=task"],
        "affine": ["--risk=0.15", f"--calibration={first}"],
        "beta": [
            "--risk=0.2",
            f"--calibration={first}",
            "--calibrator=beta",
        ],
        "temperature": [
            "--risk=0.2",
            f"--calibration={first}",
            "--calibrator=temperature",
        ],
    }.items():
        out = folder / "threshold.json"
        told = _run("threshold", f"--log={log}", f"--out={out}", *given)
        yield f"file of a threshold, {name}, told/log", told
        facts = json.loads(out.read_text())
        yield f"file of a threshold, {name}/log", _facts(_of_answers(facts))
        code = _run("verify", out, f"--data={log}")["code"]
        yield f"file of a threshold, {name}, checked/log", code
        rule = kc.exporting.load_threshold(out)
        confidence = np.linspace(0.05, 0.95, 10)
        args = (["task 1"] * 10,) if name == "groups" else ()
        found = rule(confidence, *args)
        yield (
            f"file of a threshold, {name}, applied/log",
            {"accepted": found["accept"], "confidence": found["confidence"]},
        )
        if name in ("risk", "affine"):
            code = _run("verify", out, f"--data={first}")["code"]
            yield f"file of a threshold, {name}, of another log/log", code


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from _thresholds(folder)
        yield from _exports(folder)
        yield from _of_labels(folder)
