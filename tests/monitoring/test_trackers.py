"""Experiment trackers get what a logger logs."""

import sys
import types

import pytest
from logged_training import fit, logger, network


class ByMetrics:
    def __init__(self):
        self.values, self.figures = [], []

    def log_metrics(self, values, step):
        self.values.append((step, values))

    def log_figure(self, figure, path):
        self.figures.append((path, len(figure.axes)))


class ByLog:
    def __init__(self):
        self.values = []

    def log(self, values, step):
        self.values.append((step, values))


def test_a_tracker_by_metrics_gets_values_and_figures():
    tracker = ByMetrics()
    log = logger(tracker=tracker)
    fit(network(), log)
    wanted = [(x.epoch, x.values) for x in log.logged]
    assert repr(tracker.values) == repr(wanted)
    paths = [f"cal_reliability_{x.epoch:04d}.png" for x in log.logged]
    assert [path for path, _ in tracker.figures] == paths
    assert {count > 0 for _, count in tracker.figures} == {True}


def test_a_run_gets_images_of_its_own_package(monkeypatch):
    package = types.ModuleType("made_up_tracker")
    package.Image = lambda figure: ("image", len(figure.axes))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setattr(ByLog, "__module__", "made_up_tracker.runs")
    tracker = ByLog()
    log = logger(tracker=tracker)
    fit(network(), log)
    steps = [x.epoch for x in log.logged]
    assert [step for step, _ in tracker.values] == steps
    for (_, values), entry in zip(tracker.values, log.logged, strict=True):
        assert values.pop("cal_reliability")[0] == "image"
        assert repr(values) == repr(entry.values)


def test_what_is_no_tracker_is_refused():
    with pytest.raises(TypeError, match="`tracker` must have `log_metrics"):
        logger(tracker=object())
