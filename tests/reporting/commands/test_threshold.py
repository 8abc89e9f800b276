"""`keras-calib threshold`: what it chooses, writes and refuses."""

import json

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.exporting.statement import write_statement
from keras_calib.predictions import Predictions
from keras_calib.reporting.command_line import main


def answers(count=2000, seed=0, gap=0.15):
    """Confidences too large by up to `gap`, and correctness."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4.0, 1.0, count).round(6)
    correct = rng.random(count) < confidence - gap * confidence
    return confidence, correct.astype(int)


def write(path, confidence, correct, **columns):
    columns = {"confidence": confidence, "correct": correct, **columns}
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*given):
    return main(["threshold", *map(str, given), "--quiet"])


def test_the_threshold_is_that_of_the_function(tmp_path, capsys):
    confidence, correct = answers()
    log = write(tmp_path / "log.csv", confidence, correct)
    out = tmp_path / "threshold.json"
    assert run(f"--log={log}", "--risk=0.25", f"--out={out}") == 0
    expected = kc.choose_threshold(confidence, correct, risk=0.25, delta=0.05)
    facts = json.loads(out.read_text())
    told = facts["selection"]
    for name in ("threshold", "coverage", "risk", "num_samples"):
        assert told[name] == getattr(expected, name)
    assert facts["guarantee"]["certified_risk"] == expected.limit
    assert facts["guarantee"]["delta"] == expected.delta
    assert told["num_samples"] == 2000
    assert facts["calibrator"] is None
    text = capsys.readouterr().out
    assert f"at least {expected.threshold:.9g}" in text
    assert "at most 0.25 of the accepted" in text
    # The monitor takes risk and coverage from it.
    given = ["monitor", f"--log={log}", f"--selector={out}", "--quiet"]
    given += [f"--threshold={expected.threshold}", "--tolerance=none"]
    assert main(given) == 0
    text = capsys.readouterr().out
    assert "risk (at most 0.25)" in text
    assert "coverage (" in text


def test_a_log_is_given_with_its_flag_or_without(tmp_path, capsys):
    log = write(tmp_path / "log.csv", *answers())
    told = []
    for given in ([log], [f"--log={log}"]):
        assert run(*given, "--coverage=0.5") == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    for given in ([], [log, log], [log, f"--log={log}"]):
        with pytest.raises(SystemExit) as stop:
            run(*given, "--coverage=0.5")
        assert stop.value.code == 2
        assert "One file must be given, by --log" in capsys.readouterr().err


def test_python_and_the_monitor_apply_the_file(tmp_path, capsys):
    (c, correct), out = answers(), tmp_path / "threshold.json"
    log = write(tmp_path / "log.csv", c, correct)
    first = write(tmp_path / "first.csv", *answers(seed=1))
    for kind in ("affine", "beta", "temperature"):
        given = f"--calibration={first}", f"--calibrator={kind}"
        assert run(f"--log={log}", *given, "--risk=0.25", f"--out={out}") == 0
        rule = kc.exporting.load_threshold(out)
        answer, selection = rule(c), rule.facts["selection"]
        # Exactly what the command accepted, ties at the threshold too.
        assert answer["accept"].mean() == selection["coverage"]
        error = 1.0 - correct[answer["accept"]].mean()
        assert error == pytest.approx(selection["risk"], abs=1e-12)
    assert rule.facts["calibrator"]["intercept"] == 0.0
    given = [f"--selector={out}", f"--threshold={out}", "--tolerance=none"]
    assert main(["monitor", f"--log={log}", *given, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert f"{answer['accept'].sum():,} accepted" in text
    # Groups have thresholds of their own; other groups get no answer.
    names = np.where(np.arange(2000) % 2, "odd", "even")
    log = write(tmp_path / "log.csv", c, correct, task=names)
    given = "--groups=task", "--risk=0.3", f"--out={out}"
    assert run(f"--log={log}", *given) == 0
    rule = kc.exporting.load_threshold(out)
    accept = rule(c, names)["accept"]
    assert accept.mean() == pytest.approx(rule.facts["selection"]["coverage"])
    assert not rule(c, np.full(2000, "new"))["accept"].any()
    with pytest.raises(ValueError, match="`group` must be given"):
        rule(c)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
        rule(np.array([80.0]), ["odd"])
    with pytest.raises(ValueError, match="must be a .json file"):
        kc.exporting.load_threshold(log)


def test_the_file_is_verified_by_its_log(tmp_path, capsys):
    confidence, correct = answers()
    log = write(tmp_path / "log.csv", confidence, correct)
    first = write(tmp_path / "first.csv", *answers(seed=1))
    out = tmp_path / "threshold.json"
    given = f"--calibration={first}", "--risk=0.25", f"--out={out}"
    assert run(f"--log={log}", *given) == 0
    # The order of rows does not matter.
    turned = write(tmp_path / "turned.csv", confidence[::-1], correct[::-1])
    check = ["verify", str(out), "--quiet", "--data"]
    assert main([*check, str(turned)]) == 0
    assert "numbers of the guarantee, from the" in capsys.readouterr().out
    assert main([*check, str(first)]) == 1
    assert "data: another log" in capsys.readouterr().out
    facts = json.loads(out.read_text())
    facts["selection"]["threshold"] = 0.5
    write_statement(out, facts)
    assert main([*check, str(log)]) == 1
    text = capsys.readouterr().out
    assert "digest: the certificate was changed" in text
    assert "threshold: the data give" in text and "certified 0.5" in text


@pytest.mark.parametrize("kind", ["affine", "beta"])
def test_a_calibrator_of_other_answers_comes_first(tmp_path, capsys, kind):
    log = write(tmp_path / "log.csv", *answers())
    # A confidence of 1 has infinite log-odds.
    confidence, correct = answers(seed=1)
    confidence[:2] = 0.0, 1.0
    first = write(tmp_path / "first.csv", confidence, correct)
    out = tmp_path / "threshold.json"
    given = f"--log={log}", f"--calibration={first}", f"--calibrator={kind}"
    assert run(*given, "--risk=0.25", f"--out={out}") == 0
    facts = json.loads(out.read_text())
    told, c = facts["calibrator"], answers()[0]
    if kind == "affine":
        odds = told["slope"] * np.log(c / (1 - c)) + told["intercept"]
    else:
        odds = told["a"] * np.log(c) - told["b"] * np.log1p(-c) + told["c0"]
    calibrated, correct = 1 / (1 + np.exp(-odds)), answers()[1]
    expected = kc.choose_threshold(calibrated, correct, risk=0.25, delta=0.05)
    found = facts["selection"]
    assert found["threshold"] == pytest.approx(expected.threshold, abs=1e-5)
    assert found["coverage"] == expected.coverage
    assert abs(calibrated.mean() - correct.mean()) < 0.03
    assert abs(c.mean() - correct.mean()) > 0.09
    assert "Calibrated on 2,000 answers" in capsys.readouterr().out


def test_groups_have_thresholds_of_their_own(tmp_path, capsys):
    confidence, correct = answers()
    tasks = np.array(["law", "code"])[np.arange(2000) % 2]
    log = write(tmp_path / "log.csv", confidence, correct, task=tasks)
    out = tmp_path / "threshold.json"
    given = f"--log={log}", "--risk=0.3", "--groups=task", f"--out={out}"
    assert run(*given) == 0
    expected = kc.choose_threshold(
        confidence, correct, tasks, risk=0.3, delta=0.05
    )
    groups = json.loads(out.read_text())["selection"]["groups"]
    assert [one["threshold"] for one in groups] == list(expected.threshold)
    assert [one["group"] for one in groups] == ["code", "law"]
    assert "2 of 2 groups answer" in capsys.readouterr().out
    given = ["monitor", f"--log={log}", f"--selector={out}", "--quiet"]
    assert main([*given, "--threshold=0.9"]) == 1
    assert "not one for each group" in capsys.readouterr().err


def test_scores_of_any_scale_and_late_labels_are_read(tmp_path, capsys):
    confidence, correct = answers()
    score = np.log(confidence)
    log = tmp_path / "log.jsonl"
    with open(log, "w") as file:
        for k, (s, right) in enumerate(zip(score, correct, strict=True)):
            label = {"correct": int(right)} if k >= 100 else {}
            file.write(json.dumps({"score": s, **label}) + "\n")
    assert run(f"--log={log}", "--coverage=0.5") == 0
    expected = kc.choose_threshold(score[100:], correct[100:], coverage=0.5)
    text, told = capsys.readouterr()
    assert "warning: log.jsonl has 100 rows without a label" in told
    assert f"score of at least {expected.threshold:.9g}" in text


@pytest.mark.parametrize("kind", ["logit", "prob"])
def test_predictions_of_all_classes_are_a_log_of_their_confidence(
    tmp_path, capsys, kind
):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([3.0, 1.0, 0.5], 600).round(5)
    probs[:, 0] = 1.0 - probs[:, 1:].sum(-1)
    labels = (rng.random(600)[:, None] > probs.cumsum(-1)).sum(-1)
    outputs = probs if kind == "prob" else np.log(np.maximum(probs, 1e-6))
    columns = {f"{kind}_{k}": outputs[:, k] for k in range(3)}
    path, out = tmp_path / "p.csv", tmp_path / "t.json"
    rows = [
        ",".join(["label", *columns, "patient"]),
        *(
            ",".join(map(str, (y, *x, i // 2)))
            for i, (y, x) in enumerate(zip(labels, outputs, strict=True))
        ),
    ]
    path.write_text("\n".join(rows))
    assert run(path, "--risk=0.25", f"--out={out}") == 0
    p = Predictions.read(path)
    expected = kc.choose_threshold(
        p.confidence, p.correct, risk=0.25, delta=0.05
    )
    found = json.loads(out.read_text())["selection"]
    assert found["coverage"] == expected.coverage
    assert found["threshold"] == pytest.approx(expected.threshold, abs=1e-6)
    verify = ["verify", str(out), "--quiet"]
    assert main([*verify, f"--data={path}"]) == 0
    renamed = path.with_name("renamed.csv")
    renamed.write_text(path.read_text().replace("label,", "truth,"))
    assert main([*verify, f"--data={renamed}", "--labels=truth"]) == 0
    capsys.readouterr()
    # Rows of one unit are not independent; without a promise they may be.
    assert run(path, "--risk=0.4", "--units=patient") == 1
    assert "other rows of one unit are not" in capsys.readouterr().err
    assert run(path, "--coverage=0.5", "--units=patient") == 0
    capsys.readouterr()
    other = path.with_name("other.csv")
    other.write_text(path.read_text())
    assert run(path, f"--calibration={other}", "--coverage=0.5") == 0
    assert "maps the largest probability alone" in capsys.readouterr().out


def test_the_printed_threshold_accepts_the_same_answers(tmp_path, capsys):
    confidence = 1.0 - np.arange(1, 41) * 1e-11
    log = write(tmp_path / "log.csv", confidence.tolist(), [1] * 40)
    assert run(f"--log={log}", "--coverage=0.5") == 0
    told = capsys.readouterr().out.split("at least ")[1].split(":")[0]
    assert (confidence >= float(told)).mean() == 0.5


def test_every_answer_may_be_accepted(tmp_path, capsys):
    log = write(tmp_path / "log.csv", *answers())
    out = tmp_path / "threshold.json"
    assert run(f"--log={log}", "--risk=0.6", f"--out={out}") == 0
    # JSON has no infinity, and every confidence is at least 0.
    assert json.loads(out.read_text())["selection"]["threshold"] == 0.0
    assert "Accept every answer: 100.00%" in capsys.readouterr().out


def test_a_log_of_names_alone_has_no_answers(tmp_path, capsys):
    log, out = tmp_path / "log.csv", tmp_path / "threshold.json"
    write(log, *answers(200))
    assert run(f"--log={log}", "--risk=0.4", f"--out={out}") == 0
    log.write_text("confidence,correct\n")
    message = f"error: --log={log}: the file must have samples"
    assert run(f"--log={log}", "--risk=0.4") == 1
    assert message in capsys.readouterr().err
    assert main(["verify", str(out), f"--data={log}", "--quiet"]) == 1
    assert "must have samples" in capsys.readouterr().err


ROW = '{"confidence":0.9,"label":1,"predicted":%s}'


@pytest.mark.parametrize(
    ("name", "rows", "given", "words"),
    [
        # What an option names, and not another column.
        (
            "a.csv",
            ["confidence,correct,x,y", *["0.9,1,a,b"] * 50],
            ["--labels=x", "--predicted=y"],
            "50 answers, of which 100.00% are",
        ),
        # A name that is like one of probabilities, beside no label.
        (
            "a.csv",
            ["confidence,correct,prob_note", *["0.9,1,x"] * 50],
            [],
            "50 answers, of which 0.00%",
        ),
        ("a.jsonl", [], [], "a.jsonl must have samples"),
        (
            "a.csv",
            [
                "confidence,label,predicted",
                *["0.9, 1,1"] * 40,
                *["0.9,nan,1"] * 10,
            ],
            [],
            "40 answers, of which 0.00%",
        ),
        ("a.jsonl", [ROW % 1, ROW % "NaN"], [], "`predicted` must have a val"),
        (
            "a.jsonl",
            ['{"confidence":0.9,"correct":0,"correct":1}'],
            [],
            "each name once",
        ),
    ],
)
def test_a_log_says_no_more_than_it_holds(
    tmp_path, capsys, name, rows, given, words
):
    log = tmp_path / name
    log.write_text("\n".join(rows))
    run(f"--log={log}", "--coverage=1", *given)
    shown = capsys.readouterr()
    assert words in shown.out + shown.err


def test_classes_are_compared_as_they_are_spelt(tmp_path, capsys):
    log = tmp_path / "log.csv"
    for label, value in (("1.0", 1), (2**70, 2**70), ("inf", "inf")):
        rows = ["confidence,label,predicted", *[f"0.9,{label},{value}"] * 9]
        log.write_text("\n".join(rows))
        assert Predictions.read(log).correct.tolist() == [1] * 9
    log.write_text("confidence,label,predicted\n0.9,-1,0\n")
    assert main(["report", f"--predictions={log}", "--out=a.html"]) == 1
    assert "`label` must hold class ids >= 0" in capsys.readouterr().err


def test_an_empty_cell_is_no_class(tmp_path, capsys):
    log, page = tmp_path / "log.csv", f"--out={tmp_path / 'a.html'}"
    for right, wrong, column in (
        ("0.9,cat,cat", "0.9,cat,", "predicted"),
        ("0.9,1,1", "0.9,1,", "predicted"),
        ("0.9,cat,cat", "0.9,,cat", "label"),
    ):
        rows = ["confidence,label,predicted", *[right] * 40, *[wrong] * 10]
        log.write_text("\n".join(rows))
        # One behaviour: a row without a label counts nowhere, and it is told.
        told = f"`{column}` must have a value in every row. Received: row=41"
        if column == "label":
            told = "log.csv has 10 rows without a label"
        given = f"--predictions={log}", page, "--quiet"
        code = main(["report", *given])
        assert code == (column != "label")
        assert told in capsys.readouterr().err
        assert run(f"--log={log}", "--coverage=1") == code
        shown = capsys.readouterr()
        assert told in shown.err and ("of 40 answers" in shown.out) == (
            not code
        )


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        ([], 2, "--risk and --coverage"),
        (["--risk=2"], 2, "--risk: must be a number between 0 and 1"),
        (["--risk=0.1", "--out=a.csv"], 2, "ends in .json"),
        (["--risk=0.1", "--calibrator=beta"], 2, "needs --calibration"),
        (["--risk=0.1", "--calibration=log.csv"], 2, "different answers"),
        (["--risk=0.001"], 1, "--log=log.csv: No threshold is certified"),
        (["--risk=0.1", "--groups=task"], 1, "absent=['task']"),
        (["--risk=0.1", "--confidence=score"], 1, "score` must be the prob"),
        (["--risk=0.1", "--confidence=score"], 1, "takes others by --score."),
        (["--risk=0.1", "--correct=a", "--labels=b"], 2, "--labels exclude"),
        (["--risk=0.1", "--correct=shares"], 1, "for example by grade >="),
        (["--risk=0.1", "--ids=correct"], 1, "`id` must be there once"),
        (["--risk=0.1", "--calibration=same.csv", "--ids=id"], 1, "same"),
        (["--risk=0.1", "--calibration=falls.csv"], 1, "must rise"),
        (["--risk=0.1", "--calibration=."], 1, "must end in .npz, .csv"),
    ],
)
def test_the_command_refuses(
    tmp_path, capsys, monkeypatch, given, code, message
):
    monkeypatch.chdir(tmp_path)
    confidence, correct = answers(200)
    columns = {"id": np.arange(200), "shares": confidence}
    columns["score"] = np.log(confidence)
    write(tmp_path / "log.csv", confidence, correct, **columns)
    write(tmp_path / "same.csv", confidence, correct, **columns)
    columns["id"] = columns["id"] + 200
    write(tmp_path / "falls.csv", 1.0 - confidence, correct, **columns)
    try:
        found = run("--log=log.csv", *given)
    except SystemExit as error:
        found = error.code
    assert found == code
    assert message in capsys.readouterr().err
