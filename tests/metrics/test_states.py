"""What metrics have summed: records, stored, sent, added and merged."""

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from cases import BACKEND, METRICS, TABLE, array
from streams import (
    STATES,
    case_of,
    predictions,
    state,
    stream,
    updated_compiled,
)

import keras_calib as kc

OTHER_SCORE = ("AURC-gini", "AURC-max_logit")


def top_one(labels, probs):
    return probs.max(axis=-1), (probs.argmax(axis=-1) == labels).astype("int32")


def test_records_say_what_predictions_say():
    labels, probs = predictions(n=200)
    weights = np.linspace(0.0, 2.0, 200, dtype="float32")
    for weight in (None, weights):
        for case in (TABLE["ece"], case_of("CalibrationMetrics")):
            whole, records = case.make(), case.make()
            whole.update_state(labels, probs, weight)
            records.update_scores(*top_one(labels, probs), weight)
            kept = ~np.isnan(case.value(records))
            lost = ["nll", "brier_score"] if len(kept) > 1 else []
            assert [list(TABLE)[i] for i in np.flatnonzero(~kept)] == lost
            np.testing.assert_allclose(
                case.value(records)[kept], case.value(whole)[kept], rtol=1e-5
            )


def test_records_may_hold_another_score():
    labels, probs = predictions(n=200)
    for case in map(case_of, OTHER_SCORE):
        score = getattr(kc.functional, case.kwargs["score"])(np.log(probs))
        whole, records = case.make(), case.make()
        whole.update_state(labels, probs)
        records.update_scores(score, probs.argmax(-1) == labels)
        np.testing.assert_allclose(
            case.value(records), case.value(whole), rtol=1e-5
        )
        low, high = case.bounds(records)
        assert low <= case.exact(labels, probs) <= high, case


def test_records_are_refused_where_all_classes_are_needed():
    for metric in (
        kc.NLL(),
        kc.BrierScore(),
        kc.ClasswiseECE(3),
        kc.ClasswiseECE(3, edges="mass"),
        kc.ObjectnessDeviation(),
        kc.PerImage(kc.ECE()),
    ):
        with pytest.raises(TypeError, match="needs .* Received: method="):
            metric.update_scores([0.5], [1])
        assert not state(metric).any(), metric.name


def test_bad_records_are_refused():
    metric = kc.ECE()
    for confidence, correct, weight in (
        ([0.5, np.nan], [1, 0], None),
        ([0.5, 1.5], [1, 0], None),
        ([0.5, -0.5], [1, 0], None),
        ([0.5, 0.5], [1, 2], None),
        ([0.5, 0.5], [1.0, 0.5], None),
        ([0.5, 0.5], [1, 0], [1.0, -1.0]),
        ([0.5, 0.5], [1], None),
    ):
        with pytest.raises(ValueError, match="must .* Received: "):
            metric.update_scores(
                np.array(confidence), np.array(correct), weight
            )
        assert not state(metric).any(), (confidence, correct, weight)


def test_no_records_add_nothing():
    metric = kc.ECE()
    metric.update_scores(np.array([]), np.array([]))
    metric.update_scores([0.5, 0.5], [1, 0], [0.0, 0.0])
    assert not array(metric.sums).any() and not metric.num_invalid


def test_records_of_a_confidence_of_one_are_counted():
    metric = kc.AURC()
    metric.update_scores([1.0, 0.0, 0.5], [1, 0, 1])
    assert float(metric.result()) == pytest.approx(1 / 9, abs=1e-6)


@pytest.mark.portable
@pytest.mark.parametrize("case", STATES, ids=str)
def test_stored_states_add_as_metrics_merge(case, tmp_path):
    labels, probs = predictions(n=600)
    parts = [slice(0, 300), slice(300, 600)]
    metrics = [case.make() for _ in parts]
    for metric, part in zip(metrics, parts, strict=True):
        metric.update_state(labels[part], probs[part])
    stored = []
    for i, metric in enumerate(metrics):
        found = metric.state_dict()
        np.savez(
            tmp_path / f"{i}.npz", sums=found["sums"], flags=found["flags"]
        )
        with np.load(tmp_path / f"{i}.npz") as arrays:
            stored.append({**found, **arrays})
    total = {
        **stored[0],
        "sums": sum(s["sums"] for s in stored),
        "flags": sum(s["flags"] for s in stored),
    }
    added, merged = case.make(), case.make()
    added.load_state_dict(total)
    # A metric and a state together.
    merged.merge_state([metrics[0], stored[1]])
    np.testing.assert_array_equal(state(added), state(merged))
    assert state(added)[:2].max() < 2**24
    one = case.make()
    one.load_state_dict(metrics[0].state_dict())
    one.merge_state(metrics[1])
    one.merge_state(case.make().state_dict())
    np.testing.assert_array_equal(state(one), state(merged))
    np.testing.assert_allclose(
        case.value(one),
        case.value(stream(case.make(), labels, probs, batch=300)),
        rtol=1e-5,
    )


def test_many_states_add_without_a_carry():
    metric = kc.ECE()
    metric.update_state(*predictions(n=300))
    found = metric.state_dict()
    many = {**found, "sums": 10**6 * found["sums"]}
    total = kc.ECE()
    total.load_state_dict(many)
    assert total.bins().weight.sum() == 3e8
    np.testing.assert_allclose(
        total.bins().confidence_gap, metric.bins().confidence_gap, rtol=1e-12
    )


def test_a_state_that_does_not_fit_is_refused_whole():
    metric, other = kc.ECE(), kc.ECE()
    for each in (metric, other):
        each.update_state(*predictions(n=100))
    before = metric.state_dict()
    for change, rule in (
        ({"schema": 99}, "schema"),
        ({"config": {}}, "configuration"),
        ({"sums": np.zeros((3, 4), "int64")}, "must have shape"),
        ({"flags": np.zeros(2, "int64")}, "must have shape"),
        ({"flags": np.array([0, -1, 0, 0])}, "whole numbers from 0"),
        ({"sums": np.full((3, 90), -5)}, "whole numbers from 0"),
        ({"sums": np.full((3, 90), 2**62)}, "whole numbers from 0"),
        ({"sums": np.full((3, 90), 0.5)}, "whole numbers from 0"),
        ({"sums": before["sums"].astype(str)}, "whole numbers from 0"),
        ({"sums": before["sums"].astype(object)}, "whole numbers from 0"),
        ({"flags": before["flags"] > 0}, "whole numbers from 0"),
        ({"flags": None}, "must have shape"),
    ):
        bad = {**before, **change}
        with pytest.raises(ValueError, match=rule):
            metric.merge_state([other, bad])
        with pytest.raises(ValueError, match=rule):
            metric.load_state_dict(bad)
        for name in ("sums", "flags"):
            np.testing.assert_array_equal(
                metric.state_dict()[name], before[name]
            )


def test_a_state_of_another_class_is_refused():
    """Sums of one shape may be of accuracies or of confidences."""
    made = {kc.detection.DetectionECE: kc.detection.DetectionECE()}
    made[kc.detection.LocalizationAwareECE] = kc.detection.LocalizationAwareECE(
        2
    )
    for case in METRICS:
        if case.cls not in made:
            made[case.cls] = case.make()
    states = {cls: metric.state_dict() for cls, metric in made.items()}
    for cls, metric in made.items():
        for other, found in states.items():
            if other is cls:
                continue
            for take in (metric.load_state_dict, metric.merge_state):
                with pytest.raises(TypeError, match=f"must be {cls.__name__}"):
                    take(found)
            with pytest.raises(TypeError, match=f"must be {cls.__name__}"):
                metric.merge_state([states[cls], found])


def test_a_state_that_names_no_class_is_refused():
    # It may be of another class, whose configuration is equal.
    found = kc.Accuracy().state_dict()
    del found["class"]
    for call in (
        kc.MeanConfidence().load_state_dict,
        kc.Accuracy().merge_state,
    ):
        with pytest.raises(ValueError, match="missing=.'class'"):
            call(found)


def test_sums_of_classes_from_before_0_had_a_bin_are_refused():
    for metric in (
        kc.ClasswiseECE(2),
        kc.ClasswiseECE(2, edges="mass"),
        kc.PerImage(kc.ClasswiseECE(2)),
        kc.MultiLabel(kc.ClasswiseECE(2), num_labels=3),
    ):
        with pytest.raises(ValueError, match="must be of schema 3"):
            metric.merge_state({**metric.state_dict(), "schema": 2})
    for options in ({"closed": "left"}, {"threshold": 1e-37}):
        metric = kc.ClasswiseECE(2, **options)
        assert metric.state_dict()["schema"] == 2


def check_saturated(metric, make, labels, logits, least):
    with pytest.warns(RuntimeWarning, match="left its range"):
        value = metric.result()
    found = metric.interval()
    if isinstance(value, dict):
        value, found = value["nll"], found["nll"]
    # A diverging run looks worse than all others.
    assert float(value) >= least
    assert found == (0.0, np.inf)
    # What is merged or added later keeps it.
    other = make(from_logits=True)
    small = np.minimum(np.maximum(logits, -1.0), 1.0)
    other.update_state(labels, small)
    other.merge_state([metric, metric.state_dict(), metric])
    other.update_state(labels, small)
    with pytest.warns(RuntimeWarning, match="left its range"):
        value = other.result()
    value = value["nll"] if isinstance(value, dict) else value
    assert float(value) > 1e11


def test_losses_beyond_the_range_of_a_sum_are_told():
    labels = np.array([1, 0, 1, 1])
    for make in (kc.NLL, partial(kc.CalibrationMetrics, ["nll"])):
        for size in (1e12, 3e38):
            logits = np.array([[size, 0], [1, 0], [0, 1], [0, 1]])
            logits = logits.astype("float32")
            least = min(0.24 * size, 8e12)
            metric = make(from_logits=True)
            metric.update_state(labels, logits)
            check_saturated(metric, make, labels, logits, least)
    if BACKEND == "torch":
        return
    metric = kc.NLL(from_logits=True)
    for _ in updated_compiled(metric, labels, logits, jit=[False]):
        check_saturated(metric, kc.NLL, labels, logits, least)


def test_losses_do_not_see_a_constant_on_the_logits():
    rng = np.random.default_rng(0)
    # Whole numbers survive an offset in float32.
    logits = rng.integers(-3, 4, size=(50, 4)).astype("float32")
    labels = rng.integers(4, size=50)
    for make in (kc.NLL, kc.BrierScore):
        values = []
        for offset in (0.0, 1e7, -1e7):
            metric = make(from_logits=True)
            metric.update_state(labels, logits + np.float32(offset))
            values.append(float(metric.result()))
        np.testing.assert_allclose(values, values[0], rtol=1e-6)
    exact = [
        kc.nll(labels, logits + np.float32(x), from_logits=True)
        for x in (0.0, 1e7)
    ]
    np.testing.assert_allclose(exact, exact[0], rtol=1e-12)


def test_threads_that_share_a_metric_lose_no_sample():
    metric = kc.Accuracy()
    labels, probs = predictions(n=16)

    def work(_):
        for _ in range(4):
            metric.update_state(labels, probs)
            metric.update_scores(probs[:, 0], labels == 0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    moments = metric.summary.moments(array(metric.sums))
    assert moments.weight == 2 * 8 * 4 * 16
    # Metrics can still be copied.
    assert copy.deepcopy(metric).get_config() == metric.get_config()


def test_names_and_dtypes_do_not_hinder_a_merge():
    metric = kc.ECE(name="mine")
    metric.merge_state(kc.ECE(name="yours", dtype="float64").state_dict())


def test_what_was_left_out_and_weights_are_merged_too():
    if BACKEND == "torch":
        pytest.skip("torch runs eagerly, where nothing is left out")
    metric = kc.ECE()
    probs = np.array([[0.6, 0.4], [np.nan, 0.4]], "float32")
    labels = np.array([0, 1], "int32")
    for _ in updated_compiled(metric, labels, probs, jit=[False]):
        pass
    total = kc.ECE()
    total.merge_state([metric, metric.state_dict()])
    assert total.num_invalid == 2
    with pytest.warns(RuntimeWarning, match="leaves out 2"):
        total.result()
