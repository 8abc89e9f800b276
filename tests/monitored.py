"""Answers of a model, and the monitor that watches them."""

import numpy as np
import pytest

from keras_calib import Monitor

RISK, COVERAGE = 0.025, (0.6, 0.8)


def answers(n, *, seed=0, drift=1.0, accept=0.75):
    """Answers of a calibrated model, or of one whose errors multiply."""
    rng = np.random.default_rng(seed)
    confidence = 1.0 - 10.0 ** -rng.uniform(0.4, 3.0, n)
    order = np.argsort(np.argsort(confidence))
    accepted = order >= (1.0 - accept) * n
    correct = rng.random(n) >= drift * (1.0 - confidence)
    return confidence, accepted, correct.astype("float64")


def monitor(**options):
    return Monitor(**{"risk": RISK, "coverage": COVERAGE, **options})


def names(watching):
    return [alarm.name for alarm in watching.alarms]


def same(one, other):
    assert one.counts == pytest.approx(other.counts)
    for name, value in one.evidence.items():
        assert value == pytest.approx(other.evidence[name])
    assert names(one) == names(other)
