"""Display of a monitor."""

import numpy as np
import pytest

from keras_calib import Monitor
from keras_calib.plots import MonitorDisplay


def test_it_draws_the_evidence_over_its_limit_and_names_alarms():
    correct = np.r_[np.ones(1000), np.zeros(1000)]
    monitor = Monitor(risk=0.1, coverage=(0.9, 1.0))
    monitor.update(np.full(2000, 0.95), True, correct)
    display = MonitorDisplay(monitor, name="served").plot()
    above, below = display.axes_
    assert "served\nalarm: risk, calibration" in above.get_title()
    line = above.lines[0].get_ydata()
    limit = monitor.limits["risk"]
    assert line[0] == pytest.approx(monitor.history["evidence_risk"][0] / limit)
    assert line[-1] > 1.0
    risk = below.lines[0].get_ydata()
    assert risk[0] == 0.0
    assert risk[-1] == 1.0


def test_labels_that_come_after_the_answers_are_one_point_that_is_seen():
    ids = [*range(1000)]
    monitor = Monitor(risk=0.1).update(np.full(1000, 0.95), True, ids=ids)
    monitor.update_labels(ids, np.arange(1000) % 10 > 0)
    _, below = MonitorDisplay(monitor).plot().axes_
    risk = below.lines[0]
    assert risk.get_xdata().tolist() == [1000.0]
    assert risk.get_ydata().tolist() == [0.1]
    assert risk.get_marker() == "."


def test_it_takes_a_monitor():
    with pytest.raises(TypeError, match="`monitor`"):
        MonitorDisplay({})
