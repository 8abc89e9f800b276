"""What a command shows on the terminal."""

import io
import sys

import numpy as np
import pytest

from keras_calib.predictions.reader import Rows
from keras_calib.reporting.commands import terminal


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_is_one_line_and_gone_at_the_end(monkeypatch, quiet):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "_PAUSE", 0.0)
    line = terminal.Progress(quiet)
    parts = [Rows(np.zeros(5), np.zeros((5, 2)), None)] * 2
    assert list(line.rows(parts, "Reading a.csv", 10)) == parts
    line.clear()
    shown = screen.getvalue()
    assert bool(shown) != quiet
    if shown:
        assert "Reading a.csv: 5 of 10 rows, 50 %, 0 s left" in shown
        assert "\n" not in shown
        assert not shown.split("\r")[-1]
