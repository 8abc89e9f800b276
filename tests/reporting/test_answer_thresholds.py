"""A threshold file applies what it says to the last digit."""

import json

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.reporting.command_line import main
from keras_calib.reporting.prediction_files.threshold_file import (
    is_threshold_file,
    read_threshold,
)


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
    given += ["--groups=task"] if grouped else []
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


AFFINE = '"calibrator": {"name": "affine", "slope": 2, "intercept": 0}'


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ('"slope": 2', '"slope": -2'),
        ('"slope": 2', '"slope": 0'),
        ('"slope": 2', '"slope": Infinity'),
        ('"slope": 2', '"slope": "2"'),
        ('"intercept": 0', '"intercept": NaN'),
        ('"intercept": 0', '"intercept": 0, "slope": 3'),
        ("0.7", "-Infinity"),
        ("0.7", "NaN"),
        ("0.7", "1e999"),
        ("0.7", "1" + "0" * 400),
        ("0.05", "1" + "0" * 400),
        ("0.01", "-1" + "0" * 400),
        ('"slope": 2', '"slope": 1' + "0" * 400),
        ('"intercept": 0', '"intercept": 1' + "0" * 400),
        (": 9", ": 1" + "0" * 400),
        (": 9", ": 9.5"),
        ('"confidence"', '"foo"'),
        ('"confidence"', '["confidence"]'),
        ('"confidence"', '"score"'),
        ("0.7", "true"),
        ("0.7", '"0.7"'),
        ("0.7", '0.7, "threshold": 0.1'),
        ("0.1", '"0.1"'),
        ("0.1", "-0.1"),
        ("0.1", "[0.1]"),
        ("null", '[{"group": "a", "threshold": "0.5"}]'),
        ("null", '[{"group": "a", "threshold": -Infinity}]'),
        (AFFINE, '"calibrator": {"name": "beta", "a": 1, "b": -1, "c0": 0}'),
    ],
)
def test_what_the_command_does_not_write_is_refused(tmp_path, part, other):
    path = tmp_path / "threshold.json"
    text = (
        '{"answer_threshold": 1, "column": "confidence", "threshold": 0.7, '
        '"coverage": 0.5, "risk": 0.05, "num_samples": 9, "certified_risk": '
        f'0.1, "delta": 0.01, "method": "ltt", "groups": null, {AFFINE}}}'
    )
    path.write_text(text)
    assert kc.load_threshold(path)([0.5, 0.8])["accept"].tolist() == [0, 1]
    assert read_threshold(path).limit == 0.1
    assert text.count(part) == 1
    path.write_text(text.replace(part, other))
    for read in (kc.load_threshold, read_threshold):
        with pytest.raises(ValueError, match="`path` must be") as raised:
            read(path)
        assert str(path) in str(raised.value)
    assert is_threshold_file(path)
