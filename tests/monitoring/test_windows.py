"""Sums of windows on Apache Beam are those of a loop over the windows."""

import functools
import pickle

import numpy as np
import pytest
from cases import BACKEND

from keras_calib import Monitor, add_windows, window_sums
from keras_calib.monitoring.windows import _sums_of

NUM, WIDTH = 1200, 200.0


def made(tolerance=0.01):
    return Monitor(risk=0.1, coverage=(0.5, 0.8), tolerance=tolerance)


@functools.cache
def answers():
    """Answers, one a second, that become worse."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.8, 1.0, NUM)
    truth = rng.random(NUM) < confidence - 0.2 * (np.arange(NUM) > NUM // 2)
    correct = np.where(rng.random(NUM) < 0.7, truth, np.nan)
    return confidence, confidence > 0.86, correct


def in_a_loop(tolerance=0.01):
    monitor, columns = made(tolerance), answers()
    for start in range(0, NUM, int(WIDTH)):
        part = [x[start : start + int(WIDTH)] for x in columns]
        if tolerance is None:
            part[0] = None
        monitor.add_sums(monitor.sums(*part))
    return monitor


def elements(form):
    rows = zip(*(x.tolist() for x in answers()), strict=True)
    for second, (confidence, accepted, correct) in enumerate(rows):
        is_known = correct == correct
        if form == "batch":
            if second % 100 == 0:
                part = slice(second, second + 100)
                yield second, tuple(x[part] for x in answers())
        elif form == "dict":
            row = {"confidence": confidence, "accepted": accepted}
            yield second, row | {"correct": correct} if is_known else row
        elif form == "score":
            yield second, (None, accepted, correct if is_known else None)
        else:
            row = (confidence, accepted)
            yield second, (*row, correct) if is_known else row


FORMS = {"tuple": 0.01, "dict": 0.01, "batch": 0.01, "score": None}


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    """Folders with the end and the sums of each window, by form."""
    beam = pytest.importorskip("apache_beam")
    from apache_beam.testing.test_pipeline import TestPipeline

    folders = {form: tmp_path_factory.mktemp(form) for form in FORMS}

    def keep(pair, folder):
        with open(f"{folder}/{pair[0]}.pickle", "xb") as file:
            pickle.dump(pair, file)

    # One pipeline, as to start one takes longer than to run it.
    with TestPipeline(runner="FnApiRunner") as pipeline:
        for form, tolerance in FORMS.items():
            sums = (
                pipeline
                | f"{form} rows" >> beam.Create(list(elements(form)))
                | f"{form} anywhere" >> beam.Reshuffle()
                | f"{form} in time"
                >> beam.MapTuple(
                    lambda second, row: beam.window.TimestampedValue(
                        row, second
                    )
                )
                | f"{form} windows"
                >> beam.WindowInto(beam.window.FixedWindows(WIDTH))
                | f"{form} sums" >> window_sums(made(tolerance))
            )
            folder = str(folders[form])
            _ = sums | f"{form} kept" >> beam.Map(keep, folder)
    return folders


@pytest.mark.skipif(BACKEND != "tensorflow", reason="one backend shows it")
@pytest.mark.parametrize("form", FORMS)
def test_windows_of_a_pipeline_are_those_of_a_loop(windows, form):
    tolerance = FORMS[form]
    pairs = [pickle.loads(x.read_bytes()) for x in windows[form].iterdir()]
    ends = sorted(end for end, _ in pairs)
    assert ends == [*np.arange(WIDTH, NUM + 1, WIDTH)]
    found, wanted = add_windows(made(tolerance), pairs), in_a_loop(tolerance)
    assert found.counts == pytest.approx(wanted.counts)
    assert found.evidence == pytest.approx(wanted.evidence)
    assert [x.name for x in found.alarms] == [x.name for x in wanted.alarms]
    assert "risk" in [x.name for x in found.alarms]


def test_faulty_windows_are_refused_whole():
    monitor = made()
    sums = monitor.sums([0.9], True, [1.0])
    with pytest.raises(ValueError, match="each window once"):
        add_windows(monitor, [(1.0, sums), (2.0, sums), (1.0, sums)])
    with pytest.raises(ValueError, match="with the same arguments"):
        add_windows(monitor, [(1.0, sums), (2.0, sums[:-1])])
    day = np.datetime64("2026-01-01")
    odd = ["900", True, None, (1.0,), np.ma.masked, day, np.nan, -np.inf]
    for end in odd:
        kind = ValueError if isinstance(end, float) else TypeError
        with pytest.raises(kind, match=r"`windows\[1\]\[0\]` must be"):
            add_windows(monitor, [(1.0, sums), (end, sums)])
    for windows in ([sums], 5, "ab", {1.0: sums}, [(1.0, sums, 2)]):
        with pytest.raises(TypeError, match="`windows` must be pairs"):
            add_windows(monitor, windows)
    assert monitor.counts["answers"] == 0
    add_windows(monitor, iter([[np.array(2.0), sums], (np.int64(1), sums)]))
    assert monitor.counts["answers"] == 2
    for call in (window_sums, lambda x: add_windows(x, [])):
        with pytest.raises(TypeError, match="must be a `Monitor`"):
            call("monitor")


def test_masked_and_complex_elements_are_refused():
    element = {"confidence": 0.9, "accepted": True}
    for odd in (np.ma.masked_array([0.9], mask=[True]), np.array([0.9 + 1j])):
        for name in ("confidence", "accepted", "correct"):
            with pytest.raises(TypeError, match=f"`{name}` must"):
                _sums_of([{**element, name: odd}], made())
    batch = ([0.9, 0.8], [1, 1], [1, None])
    sums = _sums_of([batch, (0.9, True)], made())
    counts = add_windows(made(), [(1.0, sums)]).counts
    assert (counts["answers"], counts["labelled"]) == (3.0, 1.0)
