"""Signs of life: a bar for what takes long, and silence elsewhere."""

import numpy as np
import pytest
from noisy_predictions import noisy_predictions

import keras_calib as kc
from keras_calib.backend import progress
from keras_calib.backend.progress import (
    shows_progress,
    tick,
    tracked,
    with_progress,
)

LABELS, LOGITS = noisy_predictions(60)


@shows_progress
def slow(*, verbose="auto"):
    """A loop with a loop within, as in fits of candidates."""
    for _ in tracked(range(3), 3):
        for _ in tracked(range(5), 5):
            tick()


@shows_progress
def unknown(*, verbose="auto"):
    for _ in range(4):
        tick()


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)


def test_the_outermost_loop_moves_the_bar(at_once, capsys):
    slow(verbose=1)
    said = capsys.readouterr().out
    assert "3/3" in said
    assert "/5" not in said
    unknown(verbose=1)
    assert "4/Unknown" in capsys.readouterr().out
    slow(verbose=2)
    assert capsys.readouterr().out.count("\n") == 1


def test_what_is_quick_or_seen_by_nobody_says_nothing(capsys, monkeypatch):
    slow(verbose=1)
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    slow(verbose=0)
    # The output of tests is no terminal.
    slow()
    list(with_progress(range(3), 3))
    # Outside of such a call nothing is shown either.
    tick()
    assert [*tracked(range(3))] == [0, 1, 2]
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(progress.sys.stdout, "isatty", lambda: True)
    slow()
    assert "3/3" in capsys.readouterr().out


LONG = {
    "choose_calibrator": lambda **o: kc.choose_calibrator(
        LABELS, LOGITS, candidates=kc.TemperatureScaling(), num_folds=2, **o
    ),
    "compare": lambda **o: kc.compare(
        *(
            kc.Predictions(LABELS, x, from_logits=True)
            for x in (LOGITS, 2 * LOGITS)
        ),
        kc.nll,
        **o,
    ),
    "estimate_prior": lambda **o: kc.functional.estimate_prior(
        *(LOGITS[:, :2], [0.5, 0.5]), from_logits=True, **o
    ),
    "IsotonicCalibration": lambda **o: kc.IsotonicCalibration().fit(
        LABELS, LOGITS, num_folds=0, **o
    ),
    "ParametrizedTemperatureScaling": lambda **o: (
        kc.ParametrizedTemperatureScaling().fit(
            LABELS, LOGITS, num_folds=0, force=True, **o
        )
    ),
    "MultiLabel": lambda **o: kc.MultiLabel(kc.AffineScaling()).fit(
        (LOGITS > 0).astype("int32"),
        LOGITS + np.sin(9 * LOGITS),
        num_folds=0,
        force=True,
        **o,
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LONG)
def test_long_calls_have_a_bar_and_can_be_silent(name, at_once, capsys):
    LONG[name](verbose=0)
    assert capsys.readouterr().out == ""
    LONG[name](verbose=1)
    assert "step" in capsys.readouterr().out
    with pytest.raises(ValueError, match="`verbose` must be"):
        LONG[name](verbose="yes")
