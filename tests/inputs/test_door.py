"""Labels and predictions are read once, and looked at in one transfer."""

import math

import numpy as np
import pytest
from keras import ops

import keras_calib as kc
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics import arrays

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(32, 10)).astype("float32")
IDS = RNG.integers(0, 10, 32).astype("int32")
WEIGHT = RNG.uniform(0.5, 1.0, 32).astype("float32")
# Their data never leave the memory of the host.
ON_HOST = ("a metric", "the table", "classwise")
ENTRIES = {
    "a loss": kc.ACLS(from_logits=True),
    "a loss of the batch": kc.MMCE(from_logits=True),
    "a loss with an ignored class": kc.MbLS(from_logits=True, ignore_class=3),
    "a metric": kc.ECE(from_logits=True).update_state,
    "the table": kc.CalibrationMetrics(from_logits=True).update_state,
    "classwise": kc.ClasswiseECE(10, from_logits=True).update_state,
}


@pytest.fixture
def transfers(monkeypatch):
    """How often values came from the device."""
    found = []
    transfer = ops.convert_to_numpy

    def counted(x):
        found.append(x)
        return transfer(x)

    monkeypatch.setattr(arrays.ops, "convert_to_numpy", counted)
    return found


@pytest.fixture
def unchecked():
    kc.config.validate(False)
    yield
    kc.config.validate(True)


def call(entry, labels=IDS, logits=LOGITS, weight=WEIGHT):
    given = (labels, logits, weight)
    return entry(*map(ops.convert_to_tensor, given))


@pytest.mark.parametrize("name", ENTRIES)
def test_values_are_looked_at_in_one_transfer(name, transfers):
    # The first batch tells a loss that these are logits.
    call(ENTRIES[name])
    transfers.clear()
    call(ENTRIES[name])
    assert len(transfers) == (0 if name in ON_HOST else 1)


def test_pairs_with_objectness_are_looked_at_in_one_transfer(transfers):
    loss = kc.AdaptiveLabelSmoothing(from_logits=True)
    for _ in range(2):
        transfers.clear()
        call(loss, np.stack([IDS, WEIGHT], axis=-1))
    assert len(transfers) == 1


@pytest.mark.parametrize("name", ENTRIES)
def test_nothing_waits_for_the_device_without_checks(
    name, transfers, unchecked
):
    call(ENTRIES[name])
    assert not transfers


def test_without_checks_what_is_wrong_is_told_as_in_compiled_code(unchecked):
    labels = np.where(np.arange(32) == 5, 10, IDS)
    assert math.isnan(call(kc.ACLS(from_logits=True), labels))
    metric = kc.Accuracy(from_logits=True)
    call(metric.update_state, labels)
    assert metric.num_invalid == 1
    with pytest.raises(ValueError, match="sample_weight"):
        call(metric.update_state, weight=WEIGHT[:5])
    # Whole data sets are checked nevertheless.
    with pytest.raises(ValueError, match=r"class ids in \[0, 10\)"):
        kc.ece(labels, LOGITS, from_logits=True)


def test_several_things_that_are_wrong_are_told_in_order():
    labels = np.where(np.arange(32) == 5, 10, IDS)
    for entry in ENTRIES.values():
        with pytest.raises(ValueError, match="`sample_weight` must be finite"):
            call(entry, labels, weight=-WEIGHT)
        with pytest.raises(ValueError, match=r"`y_true` must hold class ids"):
            call(entry, labels)


def test_rows_that_count_are_not_masked_and_have_weight():
    rows = Outcomes(
        np.arange(4.0),
        np.array([1, 0, 1, 0]),
        weight=np.array([1.0, 0.0, 1.0, 2.0]),
        mask=np.array([True, True, False, True]),
    )
    assert rows.counted().score.tolist() == [0.0, 3.0]
    unweighted = rows._replace(weight=None)
    assert unweighted.counted().score.tolist() == [0.0, 1.0, 3.0]
    assert rows._replace(mask=None).counted().loss.tolist() == [0, 0, 1]
    alone = Outcomes(rows.score, rows.correct)
    assert alone.counted() is alone
