"""The command line before and beside its work: help, log lines."""

import argparse
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from noisy_predictions import noisy_predictions
from paths import ROOT
from report_pages import write_file

from keras_calib.reporting.command_line import COMMANDS, command_of, main

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def test_help_says_what_files_hold(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for word in ("parquet", "--calibration", "exit codes", "logit_0"):
        assert word in shown


@pytest.mark.parametrize(
    ("start", "arguments", "code"),
    [
        (("-m", "keras_calib"), ("report", "--help"), 0),
        (("-m", "keras_calib"), ("report", "--out=o.pdf"), 2),
        (("-c", "from keras_calib.reporting.command_line import main"), (), 0),
    ],
)
def test_help_and_errors_of_usage_come_without_keras(start, arguments, code):
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *start, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert run.returncode == code
    imported = {
        line.rpartition("|")[2].strip() for line in run.stderr.splitlines()
    }
    assert "keras_calib.reporting.command_line" in imported
    assert not imported & {"keras", "numpy", "tensorflow", "keras_calib.losses"}


def test_a_wrong_file_is_told_without_keras(tmp_path):
    files = {
        "log.csv": "id,confidence,correct\na,0.9,1",
        "unlabelled.jsonl": '{"id": "a", "confidence": 0.9, "accepted": 1}',
        "outputs.tsv": "truth\tprob_0\tprob_1\n0\t0.9\t0.1",
        "given.json": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    np.savez(tmp_path / "bare.npz", logits=np.ones((3, 2)))
    risk, table = "--risk=0.1", pa.table({"confidence": [0.5]})
    pq.write_table(table, tmp_path / "graded.parquet")
    cases = {
        ("report", "absent.npz"): (1, "--predictions=absent.npz: No such file"),
        ("report", "log.csv", "--correct=x"): (1, "absent=['x']"),
        ("report", "outputs.tsv"): (1, "must have `label`"),
        ("report", "graded.parquet"): (1, "what was right"),
        ("report", "log.csv", "--fail-if=nll>1"): (2, "metric='nll'"),
        ("report", "log.csv", "--fail_if=eec > 1"): (2, "metric='eec'"),
        ("report", "log.csv", "--fail-if=ece"): (2, "one of > >= < <="),
        ("threshold", "bare.npz", risk): (1, "must have `label`"),
        ("threshold", "log.csv", risk, "--groups=x"): (1, "absent=['x']"),
        ("threshold", "log.csv", risk, "--group_=x"): (2, "there is --groups"),
        ("monitor", "unlabelled.jsonl", "--ids=x"): (1, "absent=['x']"),
        ("monitor", "log.csv", risk): (1, "must have a column `accepted`"),
        ("monitor", "bare.npz", risk): (1, "must have `label`"),
        ("plan", "outputs.tsv", risk, "--labels=y"): (1, "absent=['y']"),
        ("plan", "graded.parquet", risk): (1, "--pilot=graded.parquet: "),
        ("verify", "absent.json"): (1, "path=absent.json: No such file"),
        ("verify", "given.json", "--data=log.csv", "--ids=x"): (1, "=['x']"),
    }
    code = (
        "import json, sys\n"
        "from keras_calib.reporting.command_line import main\n"
        "def ended(given):\n"
        "    try: return main(given)\n"
        "    except SystemExit as stop: return stop.code\n"
        "codes = [ended(x) for x in json.loads(sys.argv[1])]\n"
        "heavy = {'keras', 'scipy', 'tensorflow'} & {*sys.modules}\n"
        "print(json.dumps([codes, sorted(heavy)]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps([*cases])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    codes, heavy = json.loads(run.stdout)
    lines = run.stderr.splitlines()
    assert heavy == []
    for (given, (code, words)), found, line in zip(
        cases.items(), codes, lines, strict=True
    ):
        assert line.startswith("error: ") and words in line, (given, line)
        assert found == code, given


def options(name):
    """The options of a command that take a value, with a value of each."""
    parser = argparse.ArgumentParser(add_help=False)
    command_of(name).add_arguments(parser)
    values = {"SHARE": "0.5", "LOW,HIGH": "0.5,1", "GAP": "0", "NAMES": "all"}
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            own = values.get(action.metavar, "1")
            yield action, str((action.choices or [own])[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_is_given_once_or_counts_each_time(name, capsys):
    repeated = set()
    for action, value in options(name):
        (flag,) = action.option_strings
        with pytest.raises(SystemExit) as stop:
            main([name, f"{flag}={value}", flag, value, "--decimal=?"])
        assert stop.value.code == 2
        # An option that repeats goes on to the next argument.
        if f"{flag}: must be given once" not in capsys.readouterr().err:
            repeated.add(flag)
    assert repeated == {
        "monitor": {"--log", "--late-labels"},
        "report": {"--predictions", "--notes", "--fail-if"},
    }.get(name, set())


@pytest.mark.slow
def test_a_report_has_no_log_lines(tmp_path):
    labels, logits = noisy_predictions(100)
    write_file(tmp_path / "t.npz", labels, logits=logits)
    environment = {k: v for k, v in os.environ.items() if k != LOG_LEVEL}
    arguments = ("report", "--predictions=t.npz", "--out=o.html")
    run = subprocess.run(
        [sys.executable, "-m", "keras_calib", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("o.html\n")
