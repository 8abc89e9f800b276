"""Logs that `keras-calib monitor` refuses, and what it says of them."""

import numpy as np
import pytest

from keras_calib import Monitor
from keras_calib.exporting import load_threshold
from keras_calib.exporting.statement import (
    score_of_column,
    stated,
    write_statement,
)
from keras_calib.exporting.statement_facts import facts_of_given
from keras_calib.reporting.command_line import main


def said(capsys, *arguments):
    code = main(["monitor", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


HEAD = "id,confidence,accepted,correct"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--risk=0.2", "--risk must be that of --state"),
        ("--tolerance=none", "--tolerance must be that of --state"),
        ("--restart=risk,coverage", "`--restart` must be one of ['risk', "),
    ],
)
def test_arguments_that_a_state_has_not_are_told(
    tmp_path, capsys, given, words
):
    path = tmp_path / "s.npz"
    Monitor(risk=0.1).save(path)
    kept = path.read_bytes()
    given = (given, "--restart")[: 2 - ("restart" in given)]
    with pytest.raises(SystemExit) as stop:
        main(["monitor", f"--state={path}", *given])
    assert stop.value.code == 2
    assert f"error: {words}" in capsys.readouterr().err
    assert path.read_bytes() == kept


def test_a_column_says_what_was_accepted_and_not_the_threshold(
    tmp_path, capsys
):
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    own.write_text(f"{HEAD}\na,0.95,0,1\nb,0.55,1,0\nc,0.75,1,1")
    other.write_text("id,confidence\nd,0.95\ne,0.55")
    rule = tmp_path / "threshold.json"
    told = stated(
        "given",
        facts_of_given(0.6),
        score=score_of_column("confidence"),
        calibrator={
            "name": "affine",
            "slope": 0.5,
            "intercept": 0.0,
            "num_samples": 9,
        },
        data={},
        weights=None,
        artefact=None,
    )
    write_statement(rule, told)
    state, line = tmp_path / "s.npz", f"{own} says what was accepted, not"
    for threshold, change in (
        ("0.6", lambda c: c),
        (rule, load_threshold(rule)),
    ):
        given = "--risk=0.1", f"--threshold={threshold}", f"--state={state}"
        code, shown = said(capsys, f"--log={own}", f"--log={other}", *given)
        assert code == 0 and shown.count(line) == 1
        assert "5 answers, 3 accepted" in shown
        counts = Monitor.load(state).counts
        assert counts["accepted_wrong"] == 1.0
        confidence = change(np.array([0.95, 0.55, 0.75]))
        if threshold == rule:
            confidence = confidence["confidence"]
        assert counts["confidence"] == pytest.approx(confidence.sum())
        state.unlink()
    code, shown = said(capsys, f"--log={own}", "--risk=0.1")
    assert code == 0 and line not in shown


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "id,accepted\n1,1", "must have a column `confidence`"),
        ("a.csv", "id,conf,accepted\n1,1,1", "['id', 'conf', 'accepted']"),
        ("a.csv", "id,confidence\n1,0.5", "--threshold"),
        ("a.csv", f"{HEAD}\n1,0.5,1,\n,0.5,1,", "`id` must have a value"),
        ("a.csv", f"{HEAD}\n1,0.5,1,\n2,0.5,maybe,1", "row=2, value='maybe'"),
        ("a.csv", f"{HEAD}\n1,0.5,1,2", "nothing without a label"),
        ("a.csv", f"{HEAD}\n1,0.5,1,1\n1,0.5,1,1", "repeated=['1']"),
        ("a.csv", f"{HEAD}\n1,1.5,1,1", "must lie in [0, 1]"),
        ("a.csv", f"{HEAD},time\n1,1,1,1,5\n2,1,1,1,4", "must not go back"),
        (
            "a.csv",
            f"{HEAD},time\n1,1,1,1,2026-01-02\n2,1,1,1,2026-01-01T23:00:00Z",
            "must not go back",
        ),
        ("a.csv", f"{HEAD},time\n1,1,1,1,noon", "value='noon'"),
        ("a.jsonl", '{"id": 1}\n{"id"', "one JSON object in each line"),
        ("a.jsonl", '{"id": 1}\n[]', "line=2"),
        (
            "a.jsonl",
            '{"id": 1, "confidence": "x", "accepted": true}',
            "must hold numbers",
        ),
        ("a.jsonl", None, "No such file"),
        ("a.txt", "", "must end in"),
    ],
)
def test_a_faulty_log_is_refused_in_words(
    tmp_path, capsys, name, content, words
):
    if content is not None:
        (tmp_path / name).write_text(content)
    code, shown = said(capsys, f"--log={tmp_path / name}", "--risk=0.1")
    assert code == 1 and words in shown, shown
    assert f"--log={tmp_path / name}" in shown


def test_a_score_of_nan_is_not_rejected_in_silence(tmp_path, capsys):
    np.savez(tmp_path / "log.npz", score=[0.9, np.nan], correct=[1, 1])
    given = "--risk=0.1", "--tolerance=none", "--threshold=0.5"
    code, shown = said(capsys, f"--log={tmp_path / 'log.npz'}", *given)
    assert code == 1 and "`score` must not be NaN. Received: row=2" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,correct\nx,1", "--unknown=skip"),
        ("id,label\na,1", "the answers as `predicted` beside `label`"),
        ("correct\n1", "must have a column `id`"),
    ],
)
def test_faulty_labels_are_refused_in_words(tmp_path, capsys, content, words):
    log, labels = tmp_path / "log.csv", tmp_path / "labels.csv"
    log.write_text(f"{HEAD}\na,0.5,1,")
    labels.write_text(content)
    code, shown = said(
        capsys, f"--log={log}", f"--late-labels={labels}", "--risk=0.1"
    )
    assert code == 1 and words in shown, shown


def test_a_log_without_a_line_has_no_answers(tmp_path, capsys):
    log, labels = tmp_path / "log.jsonl", tmp_path / "labels.jsonl"
    log.write_text("")
    labels.write_text("")
    given = (
        f"--log={log}",
        f"--late-labels={labels}",
        "--risk=0.1",
        "--ids=name",
    )
    code, shown = said(capsys, *given)
    assert code == 0 and "0 answers, 0 accepted" in shown


def test_time_does_not_go_back_from_log_to_log(tmp_path, capsys):
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text(f"{HEAD},time\na,0.9,1,1,5\nb,0.9,1,1,6")
    two.write_text(f"{HEAD},time\nc,0.9,1,1,3")
    code, shown = said(capsys, f"--log={one}", f"--log={two}", "--risk=0.1")
    assert code == 1 and f"--log={two}: `time` must not go back" in shown
    assert said(capsys, f"--log={two}", f"--log={one}", "--risk=0.1")[0] == 0


def test_whole_floats_are_ids_as_integers_are(tmp_path, capsys):
    log, labels = tmp_path / "log.csv", tmp_path / "labels.npz"
    log.write_text("id,confidence,accepted\n1,0.9,1\n2,0.9,1")
    np.savez(labels, id=np.array([1.0, 2.0]), correct=np.ones(2, int))
    given = f"--log={log}", f"--late-labels={labels}", "--risk=0.1"
    code, shown = said(capsys, *given)
    assert code == 0 and "2 labels, 2 of accepted answers" in shown


def test_a_damaged_file_is_that_of_its_option(tmp_path, capsys):
    path = tmp_path / "z.npz"
    path.write_bytes(b"PK123")
    assert main(["threshold", f"--log={path}", "--coverage=1"]) == 1
    shown = capsys.readouterr().err
    assert f"--log={path}: " in shown and "--out" not in shown


def test_labels_without_predictions_are_none(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("id,confidence,accepted,truth\na,0.9,1,x")
    code, shown = said(capsys, f"--log={log}", "--labels=truth", "--risk=0.1")
    assert code == 1 and "`predicted` beside `label`" in shown
