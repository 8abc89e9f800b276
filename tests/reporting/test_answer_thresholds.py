"""A threshold file applies what it says to the last digit."""

import json

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.reporting.command_line import main


@pytest.mark.parametrize("grouped", [False, True])
def test_an_answer_at_the_threshold_is_accepted(tmp_path, grouped):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 600)
    correct = rng.uniform(size=600) < confidence
    group = np.where(np.arange(600) % 2, "odd", "even")
    log, out = tmp_path / "log.csv", tmp_path / "threshold.json"
    lines = zip(confidence, correct.astype(int), group, strict=True)
    rows = ["confidence,correct,task", *(",".join(map(str, x)) for x in lines)]
    log.write_text("\n".join(rows) + "\n")
    given = ["threshold", f"--log={log}", "--risk=0.2", f"--out={out}"]
    given += ["--group=task"] if grouped else []
    assert main([*given, "--quiet"]) == 0
    facts = json.loads(out.read_text())
    told = facts["groups"] if grouped else [facts]
    rule = kc.load_threshold(out)
    for one in told:
        least = np.array([one["threshold"]])
        where = ([one["group"]],) if grouped else ()
        assert rule(least, *where)["accept"].all()
        below = np.nextafter(least, 0.0)
        assert not rule(below, *where)["accept"].any()
