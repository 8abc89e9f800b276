"""A copy of a metric has its state, and goes on by itself."""

import copy
import pickle

import numpy as np
import pytest
from cases import KINDS, METRICS, array
from streams import predictions

import keras_calib as kc

BOXES = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
FOUND = [
    {
        "boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
        "labels": [1, 1],
        "confidence": [0.9, 0.3],
    }
]
IMAGES = np.array([[[0.8, 0.2], [0.5, 0.5]], [[0.6, 0.4], [0.1, 0.9]]])
LABELS = [[1, 0], [1, 1]], [[0.8, 0.4], [0.9, 0.7]]
TABLE = kc.CalibrationMetrics(["ece", "aurc"])
# Made anew for each test, and a batch.
OTHERS = {
    "PerImage": (lambda: kc.PerImage(kc.ECE()), ([[0, 1], [1, 1]], IMAGES)),
    "of labels": (lambda: kc.MultiLabel(kc.ECE()), LABELS),
    "of many labels": (lambda: kc.MultiLabel(TABLE), LABELS),
    "of examples": (lambda: kc.MultiLabel(kc.ECE(), by="example"), LABELS),
    "DetectionECE": (kc.detection.DetectionECE, (BOXES, FOUND)),
    "LocalizationAwareECE": (
        lambda: kc.detection.LocalizationAwareECE(2),
        (BOXES, FOUND),
    ),
    "ObjectnessDeviation": (
        kc.ObjectnessDeviation,
        ([[0.0, 0.5], [1.0, 0.2]], [[0.6, 0.4], [0.3, 0.7]]),
    ),
}
ALL = {case.name: (case.make, predictions(n=30)) for case in METRICS} | OTHERS
WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda metric: pickle.loads(pickle.dumps(metric)),
}


def facts(metric):
    return {key: array(getattr(metric, key)) for key in ("sums", "flags")}


# One of each kind on every backend.
FEW = {case.name for case in KINDS} | set(OTHERS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.portable if x in FEW else ())
        for x in ALL
    ],
)
def test_copies_and_pickles_have_the_state(name):
    make, batch = ALL[name]
    metric = make()
    # All ways of one of each kind; of the others one way, another for each.
    place = list(ALL).index(name) % len(WAYS)
    ways = list(WAYS) if name in FEW else [list(WAYS)[place]]
    for way in ways:
        copied = WAYS[way]
        metric.reset_state()
        assert not facts(copied(metric))["sums"].any(), way
        metric.update_state(*batch)
        other, before = copied(metric), facts(metric)
        assert type(other) is type(metric)
        assert other.get_config() == metric.get_config()
        for key, value in facts(other).items():
            np.testing.assert_array_equal(value, before[key], way)
        other.update_state(*batch)
        np.testing.assert_array_equal(facts(metric)["sums"], before["sums"])
        assert (facts(other)["sums"] != before["sums"]).any(), way
        metric.update_state(*batch)
        for key, value in facts(other).items():
            np.testing.assert_array_equal(value, facts(metric)[key], way)
