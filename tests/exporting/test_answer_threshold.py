"""Statements of answers: applied to the last digit, and safe from changes."""

import itertools
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from forged import BAD, changed, got, other, places, put
from paths import ROOT

import keras_calib as kc
from keras_calib.exporting.statement import read_statement
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
    told = facts["selection"]
    told = told["groups"] if grouped else [told]
    rule = kc.exporting.load_threshold(out)
    for one in told:
        least = np.array([one["threshold"]])
        where = ([one["group"]],) if grouped else ()
        assert rule(least, *where)["accept"].all()
        below = np.nextafter(least, 0.0)
        assert not rule(below, *where)["accept"].any()


GROUPED = ("groups", "group_coverage")
TARGETS = {
    "errors": ["--risk=0.3", "--calibration=first.csv"],
    "groups": ["--risk=0.35", "--group=task"],
    "coverage": ["--coverage=0.6"],
    "group_coverage": [
        *("--coverage=0.6", "--group=task", "--calibration=first.csv"),
        "--calibrator=beta",
    ],
}


@pytest.fixture(scope="module", params=TARGETS)
def answers(request, tmp_path_factory):
    """A statement of each kind, and the arguments of its check."""
    folder = tmp_path_factory.mktemp("answers")
    for name, seed in (("log", 0), ("first", 1)):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.4, 1.0, 600).round(6)
        correct = (rng.uniform(size=600) < confidence).astype(int)
        task = np.where(np.arange(600) % 3 > 0, "odd", "even")
        rows = zip(confidence, correct, task, strict=True)
        lines = [",".join(map(str, x)) for x in rows]
        text = "\n".join(["confidence,correct,task", *lines])
        (folder / f"{name}.csv").write_text(text)
        if name == "log":
            data = {"confidence": confidence, "correct": correct}
            if request.param in GROUPED:
                data["groups"] = task
    given = ["threshold", "--log=log.csv", "--out=t.json", "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*given, *TARGETS[request.param]]) == 0
    return folder / "t.json", data


def test_predictions_are_checked_and_accepted_as_their_columns(answers):
    path, data = answers
    grouped = "groups" in data
    p = kc.Predictions(
        correct=data["correct"],
        confidence=data["confidence"],
        groups={"task": data["groups"]} if grouped else None,
    )
    name = "task" if grouped else None
    found = kc.exporting.check_certificate(path, p, groups=name)
    assert found.holds, found.differences
    assert not any("numbers" in x for x in found.not_checked)
    log = path.with_name("log.csv")
    assert kc.exporting.check_certificate(path, log).holds
    other = path.with_name("first.csv")
    assert not kc.exporting.check_certificate(path, other).holds
    rule = kc.exporting.load_threshold(path)
    alone = rule(data["confidence"], data.get("groups"))
    for key, values in rule(p).items():
        np.testing.assert_array_equal(values, alone[key])
    with pytest.raises(TypeError, match="`correct` must not be given beside"):
        kc.exporting.check_certificate(path, p, data["correct"], groups=name)
    if grouped:
        np.testing.assert_array_equal(
            rule(p, "task")["accept"], alone["accept"]
        )
        return
    watched = kc.Monitor(risk=0.3).update(p, rule)
    assert watched.counts["accepted"] == alone["accept"].sum()


def checked(path, confidence, correct, groups=None):
    p = kc.Predictions(correct=correct, confidence=confidence)
    return kc.exporting.check_certificate(path, p, groups=groups)


def test_numbered_groups_are_in_the_order_of_their_numbers(tmp_path):
    log, out = tmp_path / "log.csv", tmp_path / "t.json"
    rows = [f"0.9,1,{task}" for task in ("10", "2") * 40]
    log.write_text("\n".join(["confidence,correct,task", *rows]))
    given = ["threshold", str(log), "--risk=0.2", "--groups=task", "--quiet"]
    assert main([*given, f"--out={out}"]) == 0
    assert main(["verify", str(out), f"--data={log}", "--quiet"]) == 0
    groups = kc.exporting.load_threshold(out).facts["selection"]["groups"]
    assert [one["group"] for one in groups] == ["2", "10"]


def test_every_changed_fact_of_answers_is_found(answers):
    path, data = answers
    facts = json.loads(path.read_text())
    found = checked(path, **data)
    assert found.holds, found.differences
    assert (len(found.not_checked) == 1) == (facts["calibrator"] is not None)
    assert len(places(facts)) > 12
    for at in places(facts):
        file, text = changed(
            path, lambda x, at=at: put(x, at, other(got(x, at)))
        )
        try:
            assert not checked(path, **data).holds, at
        except ValueError as error:
            assert re.search("certificate|confidence", str(error)), at
        file.write_text(text)


def test_no_fact_of_answers_has_another_type(answers):
    path, data = answers
    facts = json.loads(path.read_text())
    found = [at for at in places(facts) if not {1} & {*at}]
    found += {at[:k] for at in found for k in range(1, len(at))}
    for at, value in itertools.product(found, BAD):
        if repr(value) == repr(got(facts, at)):
            continue
        file, text = changed(path, lambda x, at=at, v=value: put(x, at, v))
        try:
            is_found = not kc.exporting.check_certificate(path).holds
            if not is_found:
                is_found = not checked(path, **data).holds
            assert is_found, (at, value)
        except ValueError as error:
            told = "certificate|confidence|`score`"
            assert re.search(told, str(error)), (at, value)
        file.write_text(text)


def test_changed_answers_are_found_and_their_order_is_not(answers):
    path, data = answers
    order = np.random.default_rng(0).permutation(600)
    turned = {k: x[order] for k, x in data.items()}
    assert checked(path, **turned).holds
    for name, values in data.items():
        wrong = np.roll(values, 7)
        if name == "confidence":
            wrong = values.copy()
            wrong[3] = np.nextafter(wrong[3], 0.0)
        assert not checked(path, **{**data, name: wrong}).holds
        short = {k: x[1:] for k, x in data.items()}
        (told, *_) = checked(path, **short).differences
        assert "599 rows instead of 600" in told


def test_a_changed_byte_is_refused_by_all_who_read(answers, tmp_path):
    path, _ = answers
    data = path.read_bytes()
    rule = kc.exporting.load_threshold(path)
    assert rule.facts == read_statement(path)
    for place in range(0, len(data), 37):
        made = bytearray(data)
        made[place] ^= 1
        (tmp_path / "t.json").write_bytes(made)
        with pytest.raises(ValueError, match="`path` must be a .json file as"):
            kc.exporting.load_threshold(tmp_path / "t.json")
    for text in ('{"certificate": 1', '{"certificate": 1, "certificate": 1}'):
        (tmp_path / "t.json").write_text(text)
        with pytest.raises(ValueError, match="complete JSON"):
            kc.exporting.load_threshold(tmp_path / "t.json")


@pytest.mark.parametrize("answers", ["group_coverage"], indirect=True)
def test_answers_are_checked_where_no_keras_is(answers):
    path, data = answers
    given = ["verify", str(path), f"--data={path.with_name('log.csv')}"]
    code = (
        "import sys; sys.argv[0] = '/bin/keras-calib'\n"
        "class Absent:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name in ('keras', 'tensorflow', 'jax', 'torch'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent)\n"
        "from keras_calib.reporting.command_line import main\n"
        f"sys.exit(main({given}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "none"},
    )
    assert run.returncode == 0, run.stderr
    assert "The certificate holds." in run.stdout
