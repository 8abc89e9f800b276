"""No number and no text of the package differs from the frozen ones."""

import numpy as np
import pytest
from cases import BACKEND
from public_names import PUBLIC

from frozen import SUBJECTS, visits
from frozen.results import flat
from frozen.stored import (
    Tolerance,
    changes,
    computed,
    explained,
    read_stored,
    tolerance,
    write,
)

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="one backend has frozen results"
)


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request):
    """Its name; its results are computed once."""
    computed(request.param)
    return request.param


def test_results_are_as_they_were_frozen(subject):
    stored, found = read_stored(subject), computed(subject)
    told = changes(stored, found, tolerance(subject))
    assert not told, explained(subject, told)
    assert len(found) > 50


def test_every_public_result_is_frozen_or_stands_with_a_reason():
    for name in SUBJECTS:
        computed(name)
    public = {*PUBLIC}
    missing = public - visits.visited() - visits.NOT_FROZEN.keys()
    assert not missing, f"freeze them, or give a reason: {sorted(missing)}"
    needless = visits.NOT_FROZEN.keys() - (public - visits.visited())
    assert not needless, f"these are frozen, or gone: {sorted(needless)}"


def test_a_change_of_any_kind_is_told():
    stored = {
        "float": np.array([1.0, np.nan, np.inf]),
        "count": np.array(3),
        "flag": np.array([True, False]),
        "text": "as it was",
        "gone": np.array(1.0),
        "shape": np.zeros((2, 3)),
    }
    allowed = Tolerance(1e-6, 0.0)
    same = {**stored, "float": np.array([1.0 + 5e-7, np.nan, np.inf])}
    assert not changes(stored, same, allowed)
    # A whole number may come as a float, and no other.
    assert not changes(stored, {**stored, "count": np.array(3.0)}, allowed)
    for key, value in {
        "float": np.array([1.0 + 3e-6, np.nan, np.inf]),
        "count": np.array(4),
        "flag": np.array([True, True]),
        "text": "as it is",
        "shape": np.zeros((3, 2)),
    }.items():
        assert [*changes(stored, {**stored, key: value}, allowed)] == [key]
    found = {k: x for k, x in stored.items() if k != "gone"}
    told = changes(stored, {**found, "new": np.array(2.0)}, allowed)
    assert told["gone"].startswith("is missing")
    assert told["new"].startswith("is new")
    for text in ("2 frozen results", "gone: is missing", "make frozen"):
        assert text in explained("metrics", told)
    lost = {**stored, "float": np.array([1.0, 0.0, np.inf])}
    assert [*changes(stored, lost, allowed)] == ["float"]


def test_what_is_written_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("frozen.stored._FOLDER", tmp_path)
    found = flat(
        [
            ("a", {"b": [1.5, 2.5], "c": None, "d": True}),
            ("e", np.arange(6).reshape(2, 3)),
            ("f", "text é"),
            ("g", [{"h": np.float32(0.1)}, {"h": np.inf}]),
        ]
    )
    write("exact_functions", found)
    stored = read_stored("exact_functions")
    assert stored.keys() == found.keys()
    assert not changes(stored, found, Tolerance(0.0, 0.0))
    with pytest.raises(ValueError, match="two values of one key"):
        flat([("a", 1.0), ("a", 2.0)])
