"""`keras-calib plan`: what it says of each kind of file, and refuses."""

import json

import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from report_pages import write_file

import keras_calib as kc
from keras_calib.reporting.command_line import main

QUICK = "--max-samples=1000", "--quiet"


@pytest.mark.parametrize(
    "name", ["p.npz", "p.csv", "p.parquet", "lists.parquet"]
)
def test_the_command_says_what_the_function_does(tmp_path, capsys, name):
    labels, logits = noisy_predictions(500)
    logits = logits.round(3)
    path = write_file(tmp_path / name, labels, logits=logits)
    assert main(["plan", f"--pilot={path}", "--risk=0.2", *QUICK]) == 0
    expected = kc.plan(risk=0.2, pilot=(labels, logits), max_samples=1000)
    assert capsys.readouterr().out == f"{expected}\n"


def test_the_command_reads_logs_of_the_predicted_class(tmp_path, capsys):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400).round(6)
    correct = (rng.random(400) < confidence).astype(int)
    path = tmp_path / "log.csv"
    rows = zip(confidence, correct, strict=True)
    text = "".join(f"{c},{k}\n" for c, k in rows)
    path.write_text(f"confidence,correct\n{text}")
    pilot = confidence, correct
    assert main(["plan", f"--pilot={path}", "--risk=0.2", *QUICK]) == 0
    expected = kc.plan(risk=0.2, pilot=pilot, max_samples=1000)
    assert capsys.readouterr().out == f"{expected}\n"
    assert main(["plan", f"--pilot={path}", "--ece=0.1", *QUICK]) == 0
    expected = kc.plan(ece=0.1, pilot=pilot, max_samples=1000)
    assert capsys.readouterr().out == f"{expected}\n"


def test_the_command_compares_two_files_of_the_same_labels(tmp_path, capsys):
    labels, logits = noisy_predictions(400)
    noise = np.random.default_rng(1).normal(size=logits.shape)
    other = logits + noise
    one = write_file(tmp_path / "a.npz", labels, logits=logits)
    two = write_file(tmp_path / "b.npz", labels, logits=other)
    given = ["plan", f"--pilot={one}", f"--pilot={two}", "--compare=0.05"]
    assert main([*given, "--quiet"]) == 0
    right = [x.argmax(-1) == labels for x in (logits, other)]
    expected = kc.plan(compare=0.05, pilot=right)
    assert capsys.readouterr().out == f"{expected}\n"
    write_file(tmp_path / "b.npz", labels[::-1], logits=other)
    assert main([*given, "--quiet"]) == 1
    assert "the same labels" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["json", "csv", "svg", "png"])
def test_the_command_writes_files(tmp_path, capsys, kind):
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
        (("--accuracy=0.9",), 2, "One of --risk, --ece and --compare"),
        (
            ("--risk=0.1",),
            2,
            "needs 1 --pilot, or --accuracy. Received: --pilot=[]",
        ),
        (("--risk=2", "--accuracy=0.9"), 2, "--risk must be a number"),
        (("--risk=0.1", "--pilot=x", "--accuracy=0.9"), 2, "exclude"),
        (("--compare=0.1", "--pilot=x.npz"), 2, "needs 2 --pilot"),
        (("--risk=0.1", "--accuracy=0.9", "--out=o.doc"), 2, "--out must"),
        (("--ece=0.1", "--accuracy=0.9", "--out=o.png"), 2, "--out must"),
        (("--risk=0.1", "--pilot=absent.npz"), 1, "error: --pilot=absent.npz"),
        (("--risk=0.001", "--accuracy=0.9", *QUICK), 1, "--max-samples must"),
    ],
)
def test_wrong_arguments_are_refused(capsys, given, code, message):
    try:
        found = main(["plan", *given])
    except SystemExit as stop:
        found = stop.code
    assert found == code
    assert message in capsys.readouterr().err
