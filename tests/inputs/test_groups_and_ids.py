"""One rule for groups and ids: what is one name, and what is none."""

from decimal import Decimal
from fractions import Fraction

import keras
import numpy as np
import pytest

import keras_calib as kc

Y, P = np.array([0, 1, 0, 1]), np.array([[0.8, 0.2], [0.4, 0.6]] * 2)
Z = np.log(P)
CORRECT = np.array([1, 1, 0, 1])


def _table(groups):
    rows = kc.by_group(Y, P, groups=groups).to_dict()["rows"]
    return sorted({row["group"] for row in rows} - {"all"})


def _thresholds(groups):
    found = kc.choose_threshold(P.max(-1), CORRECT, groups, risk=0.9)
    return [*map(str, found.group)]


def _selector(groups):
    selector = kc.SelectiveClassifier()
    selector.fit(Y, Z, coverage=1.0, groups=groups)
    accept = keras.ops.convert_to_numpy(selector(Z, groups=groups)["accept"])
    assert accept.all()
    return [*map(str, selector.groups)]


READERS = [_table, _thresholds, _selector]
ONE_NAME = [
    [1, 1.0, 2, 2],
    [1.0, 1.0, 2.0, 2.0],
    np.array([1.0, 1.0, 2.0, 2.0]),
    np.array([1, 1, 2, 2], "uint8"),
    np.array([1, 1.0, 2, np.int64(2)], object),
    np.array(["1", "1", "2", "2"]),
    np.array([b"1", b"1", b"2", b"2"]),
    ["1", np.str_("1"), "2", "2"],
    [keras.ops.convert_to_tensor(x) for x in (1, 1, 2, 2)],
]
ALIKE = [
    [1, "1", 2, 3],
    [1.0, "1", 2, 3],
    np.array([1, "1", 2, 3], object),
    ["True", True, "a", "b"],
    ["a", b"a", "c", "d"],
]
APART = [[1, True, 1, True], np.array([1, True, 1, True], object)]
NONE = [
    [None, "None", "a", "b"],
    ["a", float("nan"), "b", "c"],
    [1.0, float("nan"), 2.0, 3.0],
    np.array([1.0, np.nan, 2.0, 3.0]),
    ["", "a", "b", "c"],
]


MEASURED = [
    [1, 1.5, 2, 2.5],
    ["a", 1.5, 2, "b"],
    [1.0, float("inf"), 1.0, 2.0],
    ["a", -float("inf"), "b", "c"],
    np.array([1.0, np.inf, 2.0, 3.0], "float32"),
    np.array([1, 0.5, 2, 3], object),
]


def _ids(ids):
    kc.Monitor(risk=0.1).update([0.5] * 4, True, ids=ids)


@pytest.mark.parametrize("read", READERS)
def test_groups_of_one_name_are_one_and_others_are_refused(read):
    for groups in ONE_NAME:
        assert read(groups) == ["1", "2"], groups
    for groups in APART:
        assert read(groups) == ["1", "True"], groups
    for groups in ALIKE:
        with pytest.raises(ValueError, match="differ in type alone"):
            read(groups)
    for groups in NONE:
        with pytest.raises(ValueError, match="a value in every row"):
            read(groups)


@pytest.mark.parametrize("read", [*READERS, _ids])
def test_fractions_and_infinity_are_no_names(read):
    for values in MEASURED:
        with pytest.raises(ValueError, match="be names or whole numbers") as e:
            read(values)
        assert "row=1" in str(e.value), values


def test_names_of_attributes_differ():
    with pytest.raises(ValueError, match="attributes differently"):
        kc.by_group(Y, P, groups={1: Y, "1": Y})


def test_a_missing_group_is_rejected_and_a_whole_float_is_served():
    selector = kc.SelectiveClassifier()
    selector.fit(Y, Z, coverage=1.0, groups=["1", "a", "1", "a"])
    given = np.array([1.0, "a", None, float("nan")], object)
    accept = keras.ops.convert_to_numpy(selector(Z, groups=given)["accept"])
    np.testing.assert_array_equal(accept, [True, True, False, False])


def _monitor():
    return kc.Monitor(tolerance=0.5)


def test_ids_of_a_column_of_floats_meet_those_of_whole_numbers():
    for ids, of_labels in (
        ([1, 2], np.array([1.0, 2.0])),
        (np.array([1.0, 2.0]), ["1", "2"]),
        (["a", b"b"], np.array(["a", "b"], object)),
        ([10**17, 7], ["100000000000000000", 7.0]),
    ):
        monitor = _monitor()
        monitor.update([0.9, 0.8], [1, 1], ids=ids)
        monitor.update_labels(of_labels, [1, 0])
        assert monitor.counts["waiting"] == 0


def test_ids_that_are_missing_are_refused():
    for ids in ([None, "None"], [1.0, float("nan")], ["", "a"]):
        with pytest.raises(ValueError, match="`ids` must have a value in"):
            _monitor().update([0.9, 0.8], [1, 1], ids=ids)


def test_large_numbers_are_not_rounded_together():
    large = [2**63, -(2**63)], [2**53, 2**53 + 1], [float(2**53), 2**53 + 1]
    for one, other in (*large, (2**63, 0), (1e19, 0)):
        log = kc.Predictions(
            correct=np.arange(40) % 3 > 0,
            confidence=np.full(40, 0.7),
            groups={"s": [one, other] * 20},
        )
        table = kc.by_group(log).table
        assert set(table["group"]) == {str(int(one)), str(int(other))}
    monitor = kc.Monitor(risk=0.3, tolerance=None)
    monitor.update(None, [1, 1], ids=[2**53 + 1, 0.0])
    with pytest.raises(ValueError, match="ids"):
        monitor.update_labels([2**53], [0])


def test_ids_are_texts_or_whole_numbers():
    """The text of anything else may differ from that of an equal one."""
    monitor = _monitor().update([0.9], [1], ids=["a"])
    for odd in (("a", 1), 1j, ["a"], {"a": 1}, Fraction, Decimal(7), object()):
        for call in (
            lambda x: monitor.update([0.9, 0.8], [1, 1], ids=["b", x]),
            lambda x: monitor.update_labels(["a", x], [1, 1], unknown="skip"),
        ):
            with pytest.raises(TypeError, match="`ids` must be texts or whole"):
                call(odd)
    # What has no order cannot be matched.
    with pytest.raises(TypeError, match="`ids` must be texts or whole"):
        monitor.update([0.9, 0.8], [1, 1], ids={"b", "c"})
    assert monitor.counts["waiting"] == monitor.counts["answers"] == 1
