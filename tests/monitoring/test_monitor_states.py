"""States and sums of monitors that no monitor made, threads, and its words."""

import copy
import itertools
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from monitored import answers, monitor, same

import keras_calib as kc
from keras_calib import Monitor
from keras_calib.monitoring.outcomes import Record

GOING = monitor().update(*answers(333))
GOING.update([0.5, 0.9], [False, True], ids=["a", "b"])


def changed(name, change):
    """A state of which one array is another."""
    state = GOING.state_dict()
    assert name in state
    return {**state, name: change(state[name])}


def with_first(value):
    def change(array):
        array = np.array(array, "float64" if value != value else array.dtype)
        array.reshape(-1)[0] = value
        return array

    return change


def at(place, value):
    def change(array):
        array = array.copy()
        array[..., place] = value
        return array

    return change


FORGED = [
    *((f"{x}.wealth", with_first(np.nan)) for x in ("risk", "calibration")),
    ("coverage.wealth", with_first(np.inf)),
    ("risk.wealth", lambda x: x[:-1]),
    ("risk.wealth", lambda x: x[:, None]),
    ("risk.wealth", lambda x: x.astype("int64")),
    ("risk.open", with_first(-np.inf)),
    ("risk.best", with_first(np.nan)),
    ("risk.spent", lambda x: np.array(2.0)),
    ("risk.mass", lambda x: np.array(-0.5)),
    ("risk.highest", lambda x: np.array(np.nan)),
    ("risk.alarm_at", lambda x: np.array(-2)),
    ("risk.alarm_at", lambda x: np.array(0.5)),
    ("risk.alarm", with_first(-1.0)),
    ("risk.settled", lambda x: np.array(-50)),
    ("risk.open_count", lambda x: np.array([1])),
    ("risk.facts", with_first(-1.0)),
    ("record.totals", with_first(np.nan)),
    ("record.totals", with_first(-1.0)),
    ("record.totals", lambda x: np.append(x, 0.0)),
    ("record.rows", with_first(np.nan)),
    ("record.rows", lambda x: np.zeros((600, x.shape[1]))),
    *(("record.totals", at(i, 1e3)) for i in range(1, 7)),
    *(("record.totals", at(i, 90.5)) for i in range(6)),
    ("record.totals", at(0, 2.0**54)),
    *(("record.rows", at(i, x)) for i in range(6) for x in (400.0, 90.5)),
    ("record.rows", lambda x: np.vstack([x, 0.0 * x])),
    ("record.piece", lambda x: np.array(0)),
    ("waiting.answers", with_first(1.5)),
    ("waiting.answers", lambda x: x[:-1]),
    ("waiting.hashes", lambda x: np.zeros_like(x)),
    ("waiting.hashes", lambda x: x.astype("float64")),
    ("waiting.num_expired", lambda x: np.array(-1)),
]


@pytest.mark.parametrize(("name", "change"), FORGED)
def test_a_state_that_no_monitor_has_is_refused_whole(name, change, tmp_path):
    state, new = changed(name, change), monitor()
    with pytest.raises(ValueError, match="must"):
        new.load_state_dict(state)
    same(new, monitor())
    np.savez_compressed(tmp_path / "forged.npz", **state)
    with pytest.raises(ValueError, match="`Monitor.save` wrote"):
        Monitor.load(tmp_path / "forged.npz")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"delta": 0.05', '"delta": NaN'),
        ('"delta": 0.05', '"delta": "0.05"'),
        ('"risk": 0.025', '"risk": 2'),
        ('"max_waiting": 20000', '"max_waiting": -1'),
        ('{"risk": 0.025', '{"risk": 1e-300'),
        ('"coverage": [0.6, 0.8]', '"coverage": [0.8, 0.6]'),
        ('"coverage": [0.6, 0.8]', '"coverage": 0.6'),
    ],
)
def test_arguments_of_a_file_are_checked(before, after, tmp_path):
    state = GOING.state_dict()
    text = str(state["config"])
    assert before in text
    state["config"] = np.array(text.replace(before, after))
    np.savez(tmp_path / "forged.npz", **state)
    with pytest.raises(ValueError, match="`Monitor.save` wrote"):
        Monitor.load(tmp_path / "forged.npz")


def test_a_monitor_of_a_selector_is_loaded_with_its_limits(tmp_path):
    chosen = kc.selection.Choice(0.5, 0.7, 0.01, 2_000, 0.02, 0.05, "ltt")
    going = Monitor(chosen).update(*answers(333))
    going.save(tmp_path / "monitor.npz")
    loaded = Monitor.load(tmp_path / "monitor.npz")
    same(going, loaded)
    assert going.limits == loaded.limits


def test_what_is_no_array_of_a_state_is_refused():
    for change, kind in (
        ({"risk.open": [[1.0], [1.0, 2.0]]}, TypeError),
        ({"risk.open": np.array([{}] * 5, object)}, TypeError),
        ({"risk.opened": np.zeros(5)}, ValueError),
    ):
        with pytest.raises(kind, match="must h"):
            monitor().load_state_dict(GOING.state_dict() | change)


def test_sums_of_other_arguments_are_refused():
    rows = answers(300)
    # Only the arguments differ, not the shape.
    for options in (
        {"risk": 0.2},
        {"coverage": (0.5, 0.8)},
        {"delta": 0.1},
        {"tolerance": 0.02},
        {"max_waiting": 7},
    ):
        other, own = monitor(**options).sums(*rows), monitor()
        for sums in (other, other + own.sums(*rows), 3.0 * other):
            with pytest.raises(ValueError, match="same arguments as this"):
                own.add_sums(sums)
        same(own, monitor())


def test_what_is_no_sum_of_answers_is_refused():
    own = monitor()
    confidence, accepted, correct = answers(300, drift=2.0)
    correct[::3] = np.nan
    sums = own.sums(confidence, accepted, correct)
    size = len(sums)
    wrong = [-sums, sums / 2, (sums + own.sums([0.5], True)) / 2, sums * 0.1]
    # Any number that counts: a half more, far too few, far too many.
    first = sum(len(x.prior) for x in own._holds.values())
    for place, step in itertools.product(range(first, size), (0.5, -1e6, 1e6)):
        other = sums.copy()
        other[place] += step
        # The sum of confidences is no count.
        if place != first + 6 or step != 0.5:
            wrong.append(other)
    for other in wrong:
        with pytest.raises(ValueError, match="`sums` must be"):
            own.add_sums(other)
    same(own, monitor())
    with pytest.raises(ValueError, match="must be"):
        own.add_sums(np.where(np.arange(size) == 3, np.nan, sums))


def test_halves_of_even_sums_are_refused():
    own = monitor()
    confidence = np.linspace(0.5, 1.0, 100)
    correct = np.arange(100) % 10 > 1
    sums = own.sums(confidence, True, correct)
    with pytest.raises(ValueError, match="`sums` must be counts"):
        own.add_sums(0.5 * sums)
    other = own.sums(confidence[::-1] ** 2, True, correct)
    with pytest.raises(ValueError, match="`sums` must be counts"):
        own.add_sums(np.mean([sums, other], axis=0))
    assert own.add_sums(sums + other).counts["answers"] == 200


def test_threads_that_share_a_monitor_lose_no_answer(monkeypatch):
    own, other = monitor(), monitor()
    note = Record.note

    def slow(record, totals, logs):
        totals = record.totals + totals
        # Another thread takes its turn here, if it may.
        time.sleep(1e-4)
        note(record, totals - record.totals, logs)

    monkeypatch.setattr(Record, "note", slow)
    rows = [x[:60] for x in answers(300)]
    sums = own.sums(*rows)

    def work(i):
        for turn in range(5):
            ids = [f"{i}, {turn}, {x}" for x in range(60)]
            own.update(*rows[:2], ids=ids)
            own.update_labels(ids, rows[2])
            own.add_sums(sums)
            assert len(own.history["answers"])
            state = own.state_dict()
            other.load_state_dict(state)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    counts = own.counts
    assert counts["answers"] == counts["labelled"] == 2 * 8 * 5 * 60
    assert counts["waiting"] == 0


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))],
)
def test_copies_of_a_monitor_go_on_by_themselves(copied):
    own = monitor().update(*answers(333)).update([0.9], True, ids=["a"])
    before = {name: x.copy() for name, x in own.state_dict().items()}
    made = copied(own)
    same(made, own)
    made.update(*answers(333), ids=range(333)).update_labels(["a"], [0])
    made.add_sums(made.sums(*answers(50))).restart()
    for name, value in own.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    own.update([0.9], True, ids=[7]).update_labels(["a"], [1])


def test_sums_of_factors_that_no_answers_make_are_refused():
    own = monitor(tolerance=0.0)
    confidence = np.r_[0.0, 1.0, np.linspace(0.0, 1.0, 200)]
    rows = np.array(list(itertools.product(confidence, [1, 0], [1, 0, np.nan])))
    sums = own.sums(rows[:, 0], rows[:, 1], rows[:, 2])
    sizes = {name: len(x.prior) for name, x in own._holds.items()}
    for place in range(sum(sizes.values())):
        # Of outcomes alone, the counts say what the factors are.
        near = sums[place] + 0.1 if place < sizes["risk"] else -3e4
        for value in (1e300, near):
            with pytest.raises(ValueError, match="factors that so many"):
                own.add_sums(at(place, value)(sums))
    same(own, monitor(tolerance=0.0))
    # Answers of one kind have the largest factors.
    for row in rows[::41]:
        own.add_sums(50 * own.sums(*row) + sums - sums)


def test_a_selector_without_a_guarantee_is_not_watched_in_silence():
    rng = np.random.default_rng(0)
    logits = 4.0 * rng.normal(size=(500, 2))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    selector = kc.SelectiveClassifier().fit(labels, logits, risk=0.1)
    for given in (selector, selector.chosen):
        with pytest.warns(RuntimeWarning, match="does not watch the risk"):
            watching = Monitor(given)
        assert repr(watching).startswith("Monitor(calibration within 0.01, ")
        assert Monitor(given, risk=0.1).risk == 0.1
    selector.fit(labels, logits, risk=0.1, delta=0.1)
    assert repr(Monitor(selector)).startswith("Monitor(risk <= 0.1, calib")


def test_a_monitor_says_what_it_watches_and_what_came():
    watching = monitor()
    told = "risk <= 0.025, calibration within 0.01, coverage in [0.6, 0.8]"
    none = "answers=0, labelled=0, alarms=none"
    assert repr(watching) == f"Monitor({told}; {none})"
    watching.update(*answers(9_000, drift=3.0))
    told = "answers=9,000, labelled=9,000, alarms=risk, calibration)"
    assert told in repr(watching)
    # An answer without a grade is counted apart.
    assert "answers=2, labelled=1," in repr(
        Monitor(risk=0.1).update([0.9, 0.8], True, [1.0, np.nan])
    )
    with pytest.raises(ValueError, match="a `Monitor` counts them"):
        kc.Predictions(correct=[1.0, np.nan], confidence=[0.9, 0.8])
