"""Promises of the monitor, counted where every hypothesis is at its limit."""

import numpy as np
import pytest

from keras_calib import Monitor
from keras_calib.formulas.evidence import log_factors
from keras_calib.monitoring import watch as watches

STREAMS = 100


def test_all_hypotheses_together_alarm_at_most_at_alpha(monkeypatch):
    """Each has a part of alpha: all of it for each would be 0.7 here."""
    # The mass of all starts is spent within the streams.
    monkeypatch.setattr(watches, "BLOCK", 10)
    monkeypatch.setattr(watches, "SCALE", 2.0)
    monkeypatch.setattr(watches, "HORIZON", 200.0)
    alpha, alarms = 0.5, 0
    for seed in range(STREAMS):
        rng = np.random.default_rng(seed)
        watching = Monitor(
            risk=0.2, coverage=(0.5, 0.5), tolerance=0.0, delta=alpha
        )
        right, accepted = rng.random((2, 400)) < [[0.8], [0.5]]
        watching.update(np.full(400, 0.8), accepted, right)
        alarms += bool(watching.alarms)
    # Three standard errors of a share of alpha.
    error = np.sqrt(alpha * (1 - alpha) / STREAMS)
    assert 0.1 < alarms / STREAMS <= alpha + 3 * error


@pytest.mark.parametrize("low, high", [(0.0, 0.02), (0.4, 0.6), (0.9, 1.0)])
def test_evidence_at_the_limit_is_1_in_the_mean(low, high):
    """Less would be evidence against a wider hypothesis, given away."""
    outcomes = np.array([0.0, 1.0])
    ends = np.array([[low, low], [high, high]])
    for limit, alternatives in (
        (low, np.array([low / 2, 0.9 * low])),
        (high, np.array([(1 + high) / 2, 0.1 + 0.9 * high])),
    ):
        if limit in (0.0, 1.0):
            continue
        factors = np.exp(
            log_factors(outcomes, *ends, np.tile(alternatives, (2, 1)))
        )
        mean = (1 - limit) * factors[0] + limit * factors[1]
        np.testing.assert_allclose(mean, 1.0, rtol=1e-9)
