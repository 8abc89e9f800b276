"""The monitor of a model in use."""

import numpy as np
import pytest
from cases import array
from monitored import answers, monitor, names, same
from selection_data import noisy, temperature

import keras_calib as kc
from keras_calib import Monitor
from keras_calib.monitoring.outcomes import Record


def test_what_holds_raises_no_alarm():
    watching = monitor().update(*answers(20_000))
    assert watching.alarms == []
    assert max(watching.evidence.values()) < 5.0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("risk", {"drift": 3.0}),
        ("calibration", {"drift": 1.5}),
        ("coverage", {"accept": 0.5}),
        ("coverage", {"accept": 0.9}),
    ],
)
def test_a_change_raises_its_alarm(name, change):
    watching = monitor().update(*answers(5_000))
    watching.update(*answers(15_000, seed=1, **change))
    assert name in names(watching)
    alarm = next(a for a in watching.alarms if a.name == name)
    assert alarm.evidence >= alarm.limit == watching.limits[name]
    assert "most likely began after" in alarm.message
    watching.update(*answers(15_000, seed=2, **change))
    assert alarm.message in [later.message for later in watching.alarms]


def test_limits_spend_alpha_and_no_more():
    for options in ({}, {"risk": None}, {"tolerance": None}):
        limits = monitor(**options).limits.values()
        assert sum(1 / x for x in limits) == pytest.approx(0.05)


def test_how_answers_are_cut_into_updates_changes_nothing():
    """So no schedule of looks raises more alarms than one after each."""
    rows = answers(230, drift=9.0)
    batch = monitor().update(*rows)
    assert batch.alarms
    random = np.random.default_rng(0).integers(0, 231, size=12)
    for cuts in (np.arange(231), np.sort([0, *random, 230])):
        cut = monitor()
        for i in range(len(cuts) - 1):
            cut.update(*(x[cuts[i] : cuts[i + 1]] for x in rows))
        same(batch, cut)
        at = [[a.num_outcomes for a in m.alarms] for m in (batch, cut)]
        assert at[0] == at[1]


def test_late_labels_count_as_those_at_once():
    confidence, accepted, correct = answers(500, drift=3.0)
    at_once = monitor().update(confidence, accepted, correct)
    later = monitor().update(confidence, accepted, ids=range(500))
    assert later.counts["waiting"] == 500
    assert later.update_labels(range(500), correct) == 0
    assert later.evidence["risk"] == pytest.approx(at_once.evidence["risk"])
    assert later.counts == at_once.counts


def test_predictions_are_watched_as_their_columns_are():
    confidence, accepted, correct = answers(500, drift=3.0)
    known = np.arange(500) % 3 > 0
    log = kc.Predictions(
        correct=correct,
        confidence=confidence,
        ids=np.arange(500),
        sample_weight=known * 1.0,
    )
    at_once = monitor().update(confidence, accepted, correct)
    later = monitor().update(log, accepted)
    assert later.counts["waiting"] == (~known).sum()
    late = kc.Predictions(
        correct=correct, confidence=confidence, ids=np.arange(500)
    )
    assert later.update_labels(late[~known]) == 0
    assert later.counts == pytest.approx(at_once.counts)
    np.testing.assert_array_equal(
        monitor().sums(late, accepted),
        monitor().sums(confidence, accepted, correct),
    )
    with pytest.raises(TypeError, match="`ids` must not be given beside"):
        monitor().update(log, accepted, ids=range(500))
    with pytest.raises(ValueError, match="must have the ids"):
        monitor().update_labels(
            kc.Predictions(correct=correct, confidence=confidence)
        )


def test_answers_may_all_wait_for_their_labels():
    labels, logits = noisy()
    p = kc.Predictions(
        labels,
        logits,
        from_logits=True,
        ids=np.arange(len(labels)),
        sample_weight=np.zeros(len(labels)),
    )
    watched = monitor().update(p, True)
    assert watched.counts["waiting"] == len(labels)


def test_a_selector_answers_for_predictions():
    labels, logits = noisy()
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, risk=0.1, delta=0.05)
    found = {k: array(x) for k, x in selector(logits).items()}
    p = kc.Predictions(labels, logits, from_logits=True)
    log = kc.Predictions(correct=labels > 0, confidence=labels / 4.0)
    with pytest.raises(ValueError, match="which a log of correctness"):
        Monitor(selector).update(log, selector)
    by_group = kc.SelectiveClassifier()
    by_group.fit(labels, logits, coverage=0.5, groups=labels % 2)
    with pytest.raises(ValueError, match="^`groups` must be given to a sel"):
        Monitor(selector).update(p, by_group)
    same(
        Monitor(selector).update(p, selector),
        Monitor(selector).update(
            found["confidence"], found["accept"], found["label"] == labels
        ),
    )


def test_rows_that_depend_on_each_other_are_refused():
    labels, logits = noisy(n=100)
    visits = kc.Predictions(
        labels, logits, from_logits=True, units=np.arange(100) // 2
    )
    pixels = kc.Predictions(
        labels.reshape(4, 5, 5), logits.reshape(4, 5, 5, -1), from_logits=True
    )
    for p in (visits, pixels):
        with pytest.raises(
            ValueError, match="A `Monitor` needs independent rows"
        ):
            monitor().update(p, True)
    assert monitor().update(visits[::2], True).counts["answers"] == 50


def test_sums_of_parts_add_and_leave_the_monitor_alone():
    rows = answers(3_000, drift=2.0)
    watching = monitor()
    parts = [[x[i::3] for x in rows] for i in range(3)]
    total = sum(watching.sums(*part) for part in parts)
    assert watching.counts["answers"] == 0
    np.testing.assert_allclose(total, watching.sums(*rows), atol=1e-8)
    watching.add_sums(total)
    assert watching.counts == pytest.approx(
        monitor().update(*rows).counts, rel=1e-9
    )
    assert "calibration" in names(watching)


def test_merging_takes_the_mean_and_changes_nobody():
    parts = [monitor().update(*answers(430, seed=i)) for i in range(3)]
    before = [part.state_dict() for part in parts]
    merged = Monitor.merge(parts)
    for part, state in zip(parts, before, strict=True):
        for name, value in part.state_dict().items():
            np.testing.assert_array_equal(value, state[name])
    for name, value in merged.evidence.items():
        mean = np.mean([part.evidence[name] for part in parts])
        assert value == pytest.approx(mean)
    assert merged.counts["answers"] == 3 * 430
    merged.update(*answers(20_000, drift=3.0))
    assert "risk" in names(merged)


def test_merged_servers_each_lose_their_oldest_answers():
    parts = [monitor(max_waiting=8) for _ in range(2)]
    for name, part in zip("ab", parts, strict=True):
        part.update([0.9] * 8, True, ids=[f"{name}{i}" for i in range(8)])
    parts[0].update_labels(["a7"], [1])
    merged = Monitor.merge(parts)
    assert merged.counts["waiting"] == 7 and merged.counts["expired"] == 8
    newest = [f"{name}{i}" for name in "ab" for i in range(4, 8)]
    with pytest.raises(ValueError, match=r"repeated=\['a7'\]"):
        merged.update_labels(newest, np.ones(8))
    newest.remove("a7")
    assert merged.update_labels(newest, np.ones(7)) == 0


@pytest.mark.parametrize("labelled", [(), "a", "b", "ab"])
def test_servers_whose_ids_are_not_unique_lose_no_answer(labelled):
    parts = {x: monitor().update([0.9], True, ids=[7]) for x in "ab"}
    for name in labelled:
        parts[name].update_labels([7], [1])
    if labelled == "ab":
        assert Monitor.merge(parts.values()).counts["labelled"] == 2
        return
    with pytest.raises(ValueError, match="unique over all monitors.*shared=1"):
        Monitor.merge(parts.values())
    unique = monitor().update([0.9], True, ids=["b7"])
    for waiting in (parts["a"], parts["b"]):
        merged = Monitor.merge([unique, waiting])
        assert merged.counts["waiting"] == 1 + waiting.counts["waiting"]


@pytest.mark.parametrize("given", [monitor(), [monitor(), "a"], "ab", None, 5])
def test_only_monitors_are_merged(given):
    with pytest.raises(TypeError, match="`monitors` must be a list of"):
        Monitor.merge(given)


def test_a_saved_monitor_goes_on_as_if_it_had_not_stopped(tmp_path):
    going = monitor().update(*answers(333))
    going.update([0.5, 0.9], [False, True], ids=["a", "b"])
    going.save(tmp_path / "monitor.npz")
    loaded = Monitor.load(tmp_path / "monitor.npz")
    for one in (going, loaded):
        one.update_labels(["b", "a"], [1, 0])
        one.update(*answers(3_000, seed=1, drift=3.0))
    same(going, loaded)
    assert going.alarms == loaded.alarms
    for name, value in going.history.items():
        np.testing.assert_array_equal(value, loaded.history[name])


def test_a_full_state_is_below_2_mb():
    watching = monitor()
    watching.update(*answers(25_000)[:2], ids=range(25_000))
    assert watching.counts["waiting"] == 20_000
    assert watching.counts["expired"] == 5_000
    size = sum(np.asarray(x).nbytes for x in watching.state_dict().values())
    # With the rest of a full history.
    assert size + 513 * 10 * 8 < 2e6


def test_a_long_history_stays_small():
    record = Record(["risk"])
    for i in range(3_000):
        record.note(np.full(7, 200.0), [float(i)])
    history = record.history([0.0])
    assert 200 < len(history["answers"]) <= 513
    assert history["answers"][-1] == 600_000


def test_a_restart_forgets_alarms_and_keeps_counts():
    watching = monitor().update(*answers(10_000, drift=3.0))
    watching.restart("risk")
    assert names(watching) == ["calibration"]
    assert watching.evidence["risk"] == 1.0
    watching.restart()
    assert watching.alarms == []
    assert watching.counts["answers"] == 10_000


def test_a_selector_gives_its_risk_and_the_shares_its_data_allow():
    chosen = kc.selection.Choice(0.5, 0.7, 0.01, 2_000, 0.02, 0.05, "ltt")
    watching = Monitor(chosen)
    assert watching.risk == 0.02
    low, high = watching.coverage
    width = np.sqrt(np.log(2 / 0.00625) / 4_000)
    assert (low, high) == pytest.approx((0.7 - width, 0.7 + width))
    limits = {"risk": 40.0, "calibration": 80.0, "coverage": 160.0}
    assert watching.limits == pytest.approx(limits)


def test_a_selector_with_costs_has_no_risk_to_watch():
    logits = 4.0 * np.random.default_rng(0).normal(size=(500, 2))
    selector = kc.SelectiveClassifier(costs=[[0.0, 1.0], [0.5, 0.0]])
    selector.fit(logits.argmax(-1), logits, max_cost=0.2, delta=0.05)
    assert selector.chosen.limit == 0.2
    with pytest.warns(RuntimeWarning, match="does not watch the risk"):
        watching = Monitor(selector)
    assert watching.risk is None
    assert [*watching.evidence] == ["calibration", "coverage"]
    assert "risk" not in repr(watching)


@pytest.mark.parametrize("part", ["selector", "chosen"])
def test_thresholds_of_groups_need_a_monitor_each(part):
    logits = 4.0 * np.random.default_rng(0).normal(size=(500, 2))
    given = logits.argmax(-1), logits
    group = np.arange(500) % 2
    selector = kc.SelectiveClassifier()
    selector.fit(*given, groups=group, risk=0.1, delta=0.05)
    with pytest.raises(ValueError, match="one monitor per group: give `risk`"):
        Monitor(selector if part == "selector" else selector.chosen)


def test_arguments_of_numpy_are_kept_in_a_file(tmp_path):
    given = {"risk": np.float32(0.25), "delta": np.float32(0.125)}
    given |= {"tolerance": np.float32(0.5), "max_waiting": np.int64(9)}
    Monitor(**given).save(tmp_path / "monitor.npz")
    loaded = Monitor.load(tmp_path / "monitor.npz")
    assert {name: getattr(loaded, name) for name in given} == given


def test_scores_without_confidence_are_watched_without_calibration():
    _, accepted, correct = answers(20_000, drift=3.0)
    watching = monitor(tolerance=None).update(None, accepted, correct)
    assert names(watching) == ["risk"]
    all_accepted = monitor(tolerance=None, coverage=None)
    all_accepted.update(None, True, correct)
    assert all_accepted.counts["accepted_wrong"] == np.sum(correct == 0)


REFUSED = {
    "NaN confidence": (([np.nan], True), {}, "confidence"),
    "confidence above 1": (([0.5, 1.5], True), {}, "lie in"),
    "two axes": (([[0.5]], True), {}, "shape"),
    "accepted of another shape": (([0.5, 0.5], [True]), {}, "accepted"),
    "accepted 2": (([0.5], [2]), {}, "accepted"),
    "correct 0.5": (([0.5], True, [0.5]), {}, "correct"),
    "no confidence": ((None, [True]), {}, "tolerance=None"),
    "ids twice in a batch": (([0.5, 0.6], True), {"ids": [7, 7]}, "new"),
    "an id that came before": (([0.5], True), {"ids": ["x"]}, "new"),
    "too few ids": (([0.5, 0.6], True), {"ids": ["y"]}, "one id"),
}
NO_NUMBERS = {
    "masked": np.ma.masked_array([0.9, 0.5], mask=[False, True]),
    "complex": np.array([0.9, 0.5 + 1j]),
    "texts": ["0.9", "0.5"],
    "None": [0.9, None],
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_answers_that_are_no_numbers_are_refused_whole(kind):
    watching, odd = (
        monitor().update([0.9] * 2, True, ids=["a", "b"]),
        NO_NUMBERS[kind],
    )
    fine = np.array([1.0, 0.0])
    rows = {"confidence": fine, "accepted": fine, "correct": fine}
    for name in rows:
        for call in (watching.update, watching.sums):
            with pytest.raises(TypeError, match=f"`{name}` must"):
                call(**{**rows, name: odd})
    with pytest.raises(TypeError, match="`correct` must"):
        watching.update_labels(["a", "b"], odd)
    assert watching.counts["answers"] == watching.counts["waiting"] == 2


@pytest.mark.parametrize("name", REFUSED)
def test_bad_answers_are_refused_whole(name):
    arguments, options, message = REFUSED[name]
    watching = monitor().update([0.9], True, ids=["x"])
    before = watching.counts
    with pytest.raises(ValueError, match=message):
        watching.update(*arguments, **options)
    assert watching.counts == before


@pytest.mark.parametrize(
    ("ids", "correct"),
    [
        (["a", "a"], [1, 1]),
        (["a", "done"], [1, 0]),
        (["a", "unknown"], [1, 0]),
        (["a", "b"], [1, np.nan]),
        (["a"], [1, 0]),
        (["a"], [[1]]),
    ],
)
def test_bad_labels_are_refused_whole(ids, correct):
    watching = monitor().update([0.9] * 3, True, ids=["a", "b", "done"])
    watching.update_labels(["done"], [1])
    before = watching.counts
    with pytest.raises(ValueError, match="`(ids|correct)` must"):
        watching.update_labels(ids, correct)
    assert watching.counts == before


def test_skipped_labels_are_counted():
    watching = monitor().update([0.9] * 2, True, ids=["a", "b"])
    found = watching.update_labels(
        ["b", "c", "a", "b"], [1, 1, 0, 0], unknown="skip"
    )
    assert found == 2
    assert watching.counts["correct"] == 1
    assert watching.update_labels("a", 1, unknown="skip") == 1
    for twice in ("aa", "cc"):
        assert watching.update_labels([*twice], [1, 1], unknown="skip") == 2


def test_states_of_others_are_refused(tmp_path):
    with pytest.raises(ValueError, match="delta=\\(0.1, 0.05\\)"):
        monitor().load_state_dict(monitor(delta=0.1).state_dict())
    with pytest.raises(ValueError, match="`monitors` must.*risk=.0.2, 0.025"):
        Monitor.merge([monitor(), monitor(risk=0.2)])
    (tmp_path / "other").write_text("other")
    with pytest.raises(ValueError, match="`Monitor.save`"):
        Monitor.load(tmp_path / "other")
    with pytest.raises(ValueError, match="shape"):
        monitor().add_sums([1.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x | {"config": '{"version": 0}'}, "known=1"),
        (lambda x: x | {"config": '{"version": 1}'}, "`Monitor.save`"),
        (lambda x: x | {"config": "[]"}, "`Monitor.save`"),
        (lambda x: x["record.totals"], "`Monitor.save`"),
        (
            lambda x: {k: v for k, v in x.items() if k != "risk.since"},
            "missing=\\['risk.since'\\]",
        ),
    ],
)
def test_a_broken_state_is_refused_whole(tmp_path, change, message):
    going = monitor().update(*answers(333), ids=range(333))
    broken = change(going.state_dict())
    with open(tmp_path / "state", "wb") as file:
        if isinstance(broken, dict):
            np.savez(file, **broken)
        else:
            np.save(file, broken)
    with pytest.raises(ValueError, match=message):
        Monitor.load(tmp_path / "state")
    if isinstance(broken, dict):
        new = monitor()
        with pytest.raises(ValueError, match="must"):
            new.load_state_dict(broken)
        assert new.counts["answers"] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"risk": 0.0},
        {"delta": 1.0},
        {"tolerance": -0.1},
        {"tolerance": 1},
        {"coverage": (0.8, 0.6)},
        {"coverage": (0, 1)},
        {"coverage": 0.8},
        {"max_waiting": -1},
        {"selector": "model"},
        {"risk": None, "coverage": None, "tolerance": None},
    ],
)
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises((ValueError, TypeError), match="must"):
        monitor(**options)
