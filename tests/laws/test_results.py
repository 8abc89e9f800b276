"""Results print in a line or a table, and become HTML, JSON and frames."""

import dataclasses
import functools
import importlib
import json
import sys
import types
import typing
from pathlib import Path
from xml.etree import ElementTree

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.numerics.results import Result

MANY = 200
LABELS = [0, 1] * 40
LOGITS = np.eye(2)[LABELS] * np.linspace(0.1, 3.0, 80)[:, None]
# A value of each type of a field.
VALUES = {
    bool: True,
    dict: {"name": 1.0},
    float: 1 / 3,
    int: 7,
    np.ndarray: np.arange(1, MANY + 1) / 3,
    str: "a name of some length" * 3,
    tuple: ("first", "second"),
    typing.Any: np.arange(1, MANY + 1) / 3,
}


def value_of(hint):
    """A value of the type of a field, of a union the first."""
    if isinstance(hint, type) and issubclass(hint, Result):
        return made(hint)
    if isinstance(hint, types.UnionType):
        return value_of(typing.get_args(hint)[0])
    kind = typing.get_origin(hint) or hint
    return VALUES.get(kind, ("first", "second"))


@functools.cache
def made(kind):
    """A result of a class, large where it can be."""
    if kind.__name__ in SPECIAL:
        return SPECIAL[kind.__name__]()
    hints = typing.get_type_hints(kind)
    fields = [x.name for x in dataclasses.fields(kind)]
    return kind(**{name: value_of(hints[name]) for name in fields})


def groups():
    names = np.arange(300).astype(str)
    return kc.by_group(
        [0, 1] * 300, [[0.6, 0.4]] * 600, groups=[*names, *names]
    )


def estimates():
    ends = {"low": 0.1, "high": 0.3}
    return {f"metric {k}": {"value": k / 3, **ends} for k in range(MANY)}


def choice():
    score, correct = np.arange(100.0), np.ones(100)
    return kc.choose_threshold(score, correct, risk=0.1, delta=0.1)


def calibrators():
    one = made(kc.calibrators.CandidateScore)
    return kc.calibrators.CalibratorChoice(
        kc.TemperatureScaling(), "b", "why", (one,), 0.9
    )


def runs():
    models = [f"model {k // 2}" for k in range(60)]
    value = np.linspace(0.1, 0.3, 60)
    columns = dict.fromkeys(("accuracy", "ece", "nll", "aurc"), value)
    return kc.Runs.of_table({"model": models, "seed": [0, 1] * 30, **columns})


SPECIAL = {
    "CalibratorChoice": calibrators,
    "Choice": choice,
    "GroupMetrics": groups,
    "MetricTable": lambda: kc.reporting.MetricTable(
        {f"model {k}": estimates() for k in range(2)}
    ),
    "RegularizerCounts": lambda: kc.losses.RegularizerCounts(
        np.arange(20), np.linspace(0.0, 1.0, 21), 3
    ),
    "Runs": runs,
}
ROOT = Path(kc.__file__).parent


@functools.cache
def public_classes():
    found = set()
    for path in ROOT.iterdir():
        if (path / "__init__.py").exists():
            room = importlib.import_module(f"keras_calib.{path.name}")
            for name in getattr(room, "__all__", ()):
                thing = getattr(room, name)
                if isinstance(thing, type):
                    found.add(thing)
    return sorted(found, key=lambda x: x.__name__)


RESULTS = [x for x in public_classes() if issubclass(x, Result)]


def test_no_public_class_is_a_tuple():
    assert len(RESULTS) > 25
    assert not [x for x in public_classes() if issubclass(x, tuple)]


@pytest.mark.parametrize(
    "kind", [*RESULTS, GapEstimate], ids=lambda x: x.__name__
)
def test_a_result_is_printed_shown_and_stored(kind, monkeypatch):
    result = made(kind)
    assert kind.__dataclass_params__.frozen
    assert len(repr(result)) <= 300 or repr(result).count("\n") < 25
    assert str(result).count("\n") < 40
    assert max(map(len, str(result).split("\n"))) <= 300
    ElementTree.fromstring(result._repr_html_())
    stored = json.loads(json.dumps(result.to_dict()))
    assert stored and all(isinstance(name, str) for name in stored)
    fake = types.SimpleNamespace(DataFrame=dict)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    frame = result.to_frame()
    assert len({len(x) for x in frame.values()}) == 1
    assert all(not np.shape(y) for x in frame.values() for y in x if len(x) > 1)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        result.to_frame()


def test_losses_metrics_and_displays_say_what_they_are():
    assert repr(kc.FocalLoss(gamma=2.5)) == "FocalLoss(gamma=2.5)"
    assert repr(kc.ECE(num_bins=4)) == "ECE(num_bins=4)"
    for thing in public_classes():
        bases = keras.losses.Loss, keras.metrics.Metric
        if issubclass(thing, bases):
            assert thing.__repr__ is not bases[0].__repr__
            assert thing.__repr__ is not bases[1].__repr__
    bins = kc.functional.BinSums(*np.ones((5, 9)))
    display = kc.ReliabilityDisplay(bins, name="net")
    assert repr(display) == (
        "ReliabilityDisplay(name='net', mode='top_label', "
        "sums=BinSums(9 rows), ece=1)"
    )
    ElementTree.fromstring(display._repr_html_())
    ElementTree.fromstring(kc.Monitor(risk=0.1)._repr_html_())
    selector = kc.SelectiveClassifier().fit(LABELS, LOGITS, coverage=0.5)
    ElementTree.fromstring(selector._repr_html_())
