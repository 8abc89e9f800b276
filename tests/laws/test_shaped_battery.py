"""Odd arrays for what takes arrays of a shape of its own.

Several labels, boxes, tokens, pixels: each odd array in the place of each
argument is refused in the words of the house, or it is an answer that stands
in `shaped`.
"""

import numpy as np
import pytest
import shaped
from cases import BACKEND
from odd_inputs import (
    WIDE_IDS,
    is_error,
    of_house,
    outcome,
    shown,
    with_wide_id,
)
from shaped import SHAPED

import keras_calib as kc

NAMES = list(SHAPED)
# One of each kind: NumPy reads arrays, whatever the backend.
KINDS = (
    "CompactLogits",
    "DetectionECE",
    "MultiLabelCalibrator",
    "MultiLabelMetric",
    "nacl",
)


def some(case, name):
    """All calls, or those that are due for this name: other ones for each."""
    every = case.every * (1 if BACKEND == "tensorflow" else 3)
    return list(case.calls())[NAMES.index(name) % every :: every]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=pytest.mark.portable) if x in KINDS else x
        for x in NAMES
    ],
)
def test_what_is_odd_is_refused_in_the_words_of_the_house(name):
    case, wrong = SHAPED[name], []
    plain, told = outcome(lambda: case.call(**case.arrays))
    assert not is_error(plain) and np.isfinite(plain).any(), shown(plain)
    assert not told, told
    for kind, arrays in some(case, name):
        found, _ = outcome(lambda arrays=arrays: case.call(**arrays))
        if of_house(found) or (
            not is_error(found) and case.answers(kind, found)
        ):
            continue
        wrong.append(f"{kind}: {shown(found)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_ids_that_a_cast_would_wrap_are_refused(name):
    case, wrong = SHAPED[name], []
    for place, array in case.arrays.items():
        dtype = getattr(array, "dtype", np.dtype(float))
        if dtype.kind not in "iu" or place == "groups":
            continue
        for kind in list(WIDE_IDS)[:: case.every]:
            given = {**case.arrays, place: with_wide_id(array, kind)}
            found, _ = outcome(lambda given=given: case.call(**given))
            if not of_house(found):
                wrong.append(f"{place} {kind}: {shown(found)}")
    assert not wrong, "\n".join(wrong)


def _told(part, fitted=False):
    """Numbers of probabilities that are given as logits."""
    labels, logits = shaped.TRUTH, shaped.PROBS
    if fitted:
        part(logits)
    elif isinstance(part, kc.labels.MultiLabelSelector):
        part.fit(labels, logits, coverage=0.5)
    else:
        part.fit(labels, logits, num_folds=0)


def _shared():
    return kc.labels.MultiLabelCalibrator(kc.AffineScaling(), shared=True)


TELLS = {
    "fit": lambda: _told(_shared()),
    "selector": lambda: _told(kc.labels.MultiLabelSelector()),
    "fitted": lambda: _told(
        _shared().fit(shaped.TRUTH, shaped.LOGITS, num_folds=0),
        fitted=True,
    ),
    "fitted selector": lambda: _told(
        kc.labels.MultiLabelSelector().fit(
            shaped.TRUTH, shaped.LOGITS, coverage=0.5
        ),
        fitted=True,
    ),
}


@pytest.mark.parametrize("part", TELLS)
def test_sigmoids_as_logits_are_told(part):
    _, told = outcome(TELLS[part])
    assert any("looks like probabilities" in x for x in told), told
