"""The command line before and beside its work: help, log lines."""

import argparse
import os
import subprocess
import sys

import pytest
from noisy_predictions import noisy_predictions
from paths import ROOT
from report_pages import write_file

from keras_calib.reporting.command_line import COMMANDS, command_of, main

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
        "report": {"--predictions", "--notes"},
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
