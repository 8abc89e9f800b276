"""`keras-calib plan`: what it says of each kind of file, and refuses."""

import json

import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from report_pages import write_file

import keras_calib as kc
from keras_calib import selection
from keras_calib.reporting.command_line import main

QUICK = "--max-samples=1000", "--quiet"


@pytest.fixture(scope="module")
def planned():
    return kc.plan(accuracy=0.95, risk=0.05, max_samples=1000)


def test_the_command_says_what_the_function_does(capsys, planned):
    assert main(["plan", "--accuracy=0.95", "--risk=0.05", *QUICK]) == 0
    assert capsys.readouterr().out == f"{planned}\n"
    given = ["plan", "--accuracy=0.95", "--risk=0.05", "--json", *QUICK]
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out)["fewest"] == planned.fewest


@pytest.fixture
def asked(monkeypatch):
    """What the command gave to `plan`, which takes longer than to read it."""
    calls = []
    monkeypatch.setattr(selection, "plan", lambda **given: calls.append(given))
    return calls


@pytest.mark.parametrize("name", ["p.csv", "p.parquet", "lists.parquet"])
def test_pilots_of_every_format_are_read_alike(tmp_path, asked, name):
    labels, logits = noisy_predictions(500)
    logits = logits.astype("float64").round(3)
    for file in (tmp_path / "p.npz", tmp_path / name):
        write_file(file, labels, logits=logits)
        assert main(["plan", f"--pilot={file}", "--risk=0.2", *QUICK]) == 0
    one, other = (call.pop("pilot") for call in asked)
    for p in (one, other):
        np.testing.assert_array_equal(p.labels, labels)
        np.testing.assert_allclose(p.logits, logits, rtol=1e-6)
    assert asked[0] == asked[1]
    assert (asked[0]["risk"], asked[0]["max_samples"]) == (0.2, 1000)


def test_the_command_reads_logs_of_the_predicted_class(tmp_path, asked):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400).round(6)
    correct = (rng.random(400) < confidence).astype(int)
    path = tmp_path / "log.csv"
    rows = zip(confidence, correct, strict=True)
    text = "".join(f"{c},{k}\n" for c, k in rows)
    path.write_text(f"confidence,correct\n{text}")
    assert main(["plan", f"--pilot={path}", "--risk=0.2", *QUICK]) == 0
    (given,) = asked
    np.testing.assert_allclose(given["pilot"].confidence, confidence)
    np.testing.assert_array_equal(given["pilot"].correct, correct)
    assert given["risk"] == 0.2


def test_rows_of_one_unit_are_no_pilot(tmp_path, capsys):
    path = tmp_path / "log.csv"
    rows = [f"{0.5 + k / 200},1,{k // 2}" for k in range(100)]
    path.write_text("\n".join(["confidence,correct,patient", *rows]))
    given = f"--pilot={path}", "--risk=0.2", "--units=patient", *QUICK
    assert main(["plan", *given]) == 1
    assert "other rows of one unit are not" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["json", "csv", "svg", "png"])
def test_the_command_writes_files(tmp_path, capsys, monkeypatch, planned, kind):
    def plan(risk, accuracy, max_samples, **others):
        assert (risk, accuracy, max_samples) == (0.05, 0.95, 1000)
        return planned

    monkeypatch.setattr(selection, "plan", plan)
    out, other = tmp_path / f"plan.{kind}", tmp_path / "other"
    other.write_text("of before")
    out.hardlink_to(other)
    given = ["plan", "--accuracy=0.95", "--risk=0.05", f"--out={out}", *QUICK]
    assert main(given) == 0
    assert "labels certify a risk of 0.05" in capsys.readouterr().out
    if kind == "json":
        assert json.loads(out.read_text())["fewest"] == 59
    elif kind == "csv":
        assert out.read_text().startswith("samples,power,")
    else:
        assert out.stat().st_size > 5000
    # The file was replaced whole, so its other name has the old content.
    assert other.read_text() == "of before"


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (("--accuracy=0.9",), 2, "--risk must be given"),
        (("--risk=0.1",), 2, "One of --pilot and --accuracy must be given"),
        (("--risk=2", "--accuracy=0.9"), 2, "--risk: must be a number"),
        (("--risk=0.1", "--pilot=x", "--accuracy=0.9"), 2, "exclude"),
        (("--risk=0.1", "x", "--coverage=1"), 2, "--coverage exclude"),
        (("--risk=0.1", "x", "--groups=a"), 2, "the rows of each group"),
        (("--risk=0.1", "--accuracy=0.9", "--out=o.doc"), 2, "--out must"),
        (("--risk=0.1", "--pilot=absent.npz"), 1, "error: --pilot=absent.npz"),
        # Without a pilot no file can be at fault.
        (("--risk=0.001", "--accuracy=0.9", *QUICK), 2, "--max-samples must"),
        (("--risk=0.1", "--pilot=x", "--max-samples=0"), 2, "--max-samples"),
    ],
)
def test_wrong_arguments_are_refused(capsys, given, code, message):
    try:
        found = main(["plan", *given])
    except SystemExit as stop:
        found = stop.code
    assert found == code
    assert message in capsys.readouterr().err
