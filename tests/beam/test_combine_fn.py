"""The CombineFn of metrics, against the Keras metric in one process."""

import importlib
import pickle
import sys

import numpy as np
import pytest
from beam_logs import (
    accumulate,
    assert_same,
    assert_same_sums,
    keras_metric,
    predictions,
)
from cases import BACKEND
from report_pages import few_replicates

import keras_calib
from keras_calib.numerics import exact_sums

beam = pytest.importorskip("apache_beam")
from keras_calib import beam as calib_beam  # noqa: E402

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="one backend shows it"
)
CalibrationCombineFn = calib_beam.CalibrationCombineFn
NAMES = keras_calib.metrics.table._NAMES


LIMIT = 1_000_000


@pytest.mark.parametrize(
    "weighted", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_any_split_and_order_of_merges_gives_one_state(weighted):
    labels, logits, weight = predictions(3000)
    if weighted:
        weight = np.ceil(weight)
    rows = [
        (y, z, w) if weighted else (y, z)
        for y, z, w in zip(labels, logits, weight, strict=True)
    ]
    fn = CalibrationCombineFn(from_logits=True, output="state")
    whole = fn.extract_output(accumulate(fn, rows))
    cells = fn._summary.parts["histogram"].shape[-1]
    rng = np.random.default_rng(0)
    for num_cuts in (1, 40):
        order = rng.permutation(len(rows))
        cuts = np.sort(rng.integers(len(rows), size=num_cuts))
        parts = [
            accumulate(fn, [rows[i] for i in part])
            for part in np.split(order, cuts)
        ]
        while len(parts) > 1:
            rng.shuffle(parts)
            parts = [pickle.loads(pickle.dumps(part)) for part in parts]
            size = min(len(parts), int(rng.integers(2, 5)))
            if rng.random() < 0.5:
                parts[0] = fn.compact(parts[0])
            merged = fn.merge_accumulators(iter(parts[:size]))
            parts = [merged, *parts[size:]]
        state = fn.extract_output(parts[0])
        if not weighted:
            np.testing.assert_array_equal(
                state["sums"][:, :cells], whole["sums"][:, :cells]
            )
        sums = (exact_sums.to_float(x["sums"]) for x in (state, whole))
        np.testing.assert_allclose(*sums, rtol=1e-7, atol=1e-7)
    metric = keras_metric(
        labels, logits, weight if weighted else None, from_logits=True
    )
    assert_same_sums(whole, metric, moved=5)


def test_merging_changes_no_accumulator_but_its_own():
    labels, logits, _ = predictions(300)
    fn = CalibrationCombineFn(from_logits=True, include=["ece"])
    parts = [accumulate(fn, [(labels, logits)]) for _ in range(2)]
    before = [pickle.dumps(part) for part in parts]
    fn.merge_accumulators(parts)
    fn.extract_output(parts[0])
    assert [pickle.dumps(part) for part in parts] == before


@pytest.mark.parametrize(
    "num_classes", [1, pytest.param(10, marks=pytest.mark.slow), 1000]
)
def test_an_accumulator_stays_below_a_megabyte(num_classes):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(max(2, num_classes)), size=400)
    probs = probs.astype("float32")[:, :num_classes]
    fn = CalibrationCombineFn()
    # Sums are there from the start.
    full = accumulate(fn, [(np.zeros(4000), np.tile(probs, (10, 1)))] * 6)
    assert full.sums is not None
    sizes = []
    for i in range(300 if num_classes == 1000 else 2000):
        full = fn.add_input(full, (i % 2, probs[i % 400], 0.5))
        if i % 7 == 0:
            sizes.append(len(pickle.dumps(full)))
    assert max(sizes) < LIMIT
    assert max(sizes) > full.sums.nbytes + 30_000
    few = accumulate(fn, [(1, probs[0])] * 3)
    assert len(pickle.dumps(few)) < 20_000
    merged = fn.merge_accumulators([full] * 5)
    assert len(pickle.dumps(merged)) < LIMIT


def test_rows_batches_lists_and_dicts_are_the_same():
    labels, logits, weight = predictions(300)
    fn = CalibrationCombineFn(from_logits=True, output="state")
    forms = {
        "batch": [(labels, logits, weight)],
        "batches": [(labels[::2], logits[::2], weight[::2])]
        + [(labels[1::2], logits[1::2], weight[1::2])],
        "dense": [
            (
                labels.reshape(3, 100),
                logits.reshape(3, 100, 6),
                weight.reshape(3, 100),
            )
        ],
        "rows": list(zip(labels, logits, weight, strict=True)),
        "lists": list(
            zip(labels.tolist(), logits.tolist(), weight.tolist(), strict=True)
        ),
        "dicts": [
            {"label": [y], "outputs": z, "weight": w}
            for y, z, w in zip(labels, logits, weight, strict=True)
        ],
    }
    states = {
        name: fn.extract_output(accumulate(fn, elements))
        for name, elements in forms.items()
    }
    for state in states.values():
        np.testing.assert_array_equal(state["sums"], states["rows"]["sums"])


def test_one_weight_for_a_batch_is_that_of_each_row():
    labels, logits, _ = predictions(50)
    fn = CalibrationCombineFn(from_logits=True, include=["ece"])
    values = fn.extract_output(accumulate(fn, [(labels, logits, 2.0)]))
    assert values["weight"] == 100.0


@pytest.mark.parametrize("from_logits", [False, True])
def test_one_output_is_the_second_of_two_classes(from_logits):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=200)
    outputs = rng.normal(size=(200, 1)).astype("float32")
    if not from_logits:
        outputs = 1 / (1 + np.exp(-outputs))
        outputs[1] = 1e-9
    fn = CalibrationCombineFn(from_logits=from_logits, include=NAMES)
    values = fn.extract_output(accumulate(fn, [(labels, outputs)]))
    metric = keras_metric(
        labels, outputs, from_logits=from_logits, include=NAMES
    )
    assert_same(values, metric)


def test_one_logit_may_rule_out_the_second_class():
    fn = CalibrationCombineFn(from_logits=True, include=["nll", "accuracy"])
    values = fn.extract_output(accumulate(fn, [(0, [-np.inf])]))
    assert values.pop("num_invalid") == 0.0
    assert values == {"nll": 0.0, "accuracy": 1.0, "weight": 1.0}


# Of three rows one is sure and right, one sure and wrong.
@pytest.mark.filterwarnings("ignore:.*treats .* as tied:RuntimeWarning")
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_sure_and_impossible_classes(clip):
    logits = np.array(
        [[0.0, -np.inf, 1.0], [3e4, 0.0, 0.0], [1.0, -np.inf, -np.inf]],
        "float32",
    )
    labels = np.array([2, 1, 0])
    kwargs = {"from_logits": True, "clip": clip}
    fn = CalibrationCombineFn(**kwargs)
    values = fn.extract_output(accumulate(fn, [(labels, logits)]))
    assert_same(values, keras_metric(labels, logits, **kwargs))
    # A label whose class is ruled out counts as invalid.
    rows = [(labels, logits), (np.array([1]), logits[:1])]
    others = fn.extract_output(accumulate(fn, rows))
    assert others == {**values, "num_invalid": 1.0}


def test_top_one_records_have_the_sums_of_update_scores():
    rng = np.random.default_rng(0)
    confidence = rng.beta(5, 1, size=3000).astype("float32")
    confidence[:5] = [0, 1, 1, 0.5, 1 / 3]
    correct = rng.random(3000) < confidence**2
    metric = keras_calib.CalibrationMetrics()
    metric.update_scores(confidence, correct)
    for output in ("state", "values"):
        fn = CalibrationCombineFn(top1=True, output=output)
        rows = [
            (c, ok) for c, ok in zip(confidence[:1000], correct, strict=False)
        ]
        rows += [(confidence[1000:2999], correct[1000:2999])]
        rows += [{"confidence": confidence[-1], "correct": correct[-1]}]
        found = fn.extract_output(accumulate(fn, rows))
        if output == "state":
            expected = metric.state_dict()
            np.testing.assert_array_equal(found["sums"], expected["sums"])
            metric.load_state_dict(found)
        else:
            assert np.isnan(found.pop("nll")) and np.isnan(
                found.pop("brier_score")
            )
            for name, value in found.items():
                if name in metric.include:
                    assert value == float(metric.result()[name])


def test_what_cannot_count_is_left_out_and_counted():
    labels, logits, weight = predictions(100)
    bad = [
        (0, [np.nan, 0.0]),
        (0, [np.inf, 0.0]),
        (0, [-np.inf, -np.inf]),
        (2, [0.0, 1.0]),
        (-1, [0.0, 1.0]),
        (0.5, [0.0, 1.0]),
        (None, [0.0, 1.0]),
        (0, None),
        (0, []),
        (0, [0.0, 1.0], None),
        (0, [0.0, 1.0], np.nan),
        (0, [0.0, 1.0], -1.0),
        (0, [0.0, 1.0], 1e5),
        (0, [0.0, 1.0], np.inf),
    ]
    ignored = [(9, [0.0, 1.0]), (9, [np.nan, 1.0]), (5, [np.nan, 0.0], 0.0)]
    fn = CalibrationCombineFn(from_logits=True, ignore_class=9)
    rows = [*bad, (labels, logits, weight), *ignored]
    values = fn.extract_output(accumulate(fn, rows))
    assert values["num_invalid"] == len(bad)
    metric = keras_metric(
        labels, logits, weight, from_logits=True, ignore_class=9
    )
    assert_same(values, metric)
    fn = CalibrationCombineFn(from_logits=True, ignore_class=9, output="state")
    state = fn.extract_output(accumulate(fn, rows))
    metric.load_state_dict(state)
    assert metric.num_invalid == len(bad)


def test_an_empty_batch_adds_nothing():
    labels, logits, _ = predictions(5)
    fn = CalibrationCombineFn(from_logits=True, include=["accuracy"])
    empty = [(labels[:0], logits[:0]), ([], [])]
    values = fn.extract_output(accumulate(fn, empty))
    assert values == {"accuracy": 0.0, "num_invalid": 0.0, "weight": 0.0}


def test_records_of_several_numbers_of_classes():
    fn = CalibrationCombineFn(include=["mean_confidence"])
    rows = [(0, [0.5, 0.25, 0.25]), (0, [1.0, 0.0]), (1, [[0.75]])]
    values = fn.extract_output(accumulate(fn, rows))
    assert values["mean_confidence"] == pytest.approx(0.75, abs=1e-5)


def test_a_top_one_record_that_cannot_count():
    fn = CalibrationCombineFn(top1=True, include=["ece", "accuracy"])
    for row in ((1.1, 1), (-0.1, 1), (np.nan, 1), (0.5, 0.5), (0.5, None)):
        values = fn.extract_output(accumulate(fn, [row, (0.75, True)]))
        assert values.pop("ece") == pytest.approx(0.25, rel=1e-6)
        assert values == {"accuracy": 1.0, "num_invalid": 1.0, "weight": 1.0}
    values = fn.extract_output(accumulate(fn, [row]))
    assert np.isnan([values.pop("ece"), values.pop("accuracy")]).all()
    assert values == {"num_invalid": 1.0, "weight": 0.0}


def test_probabilities_out_of_range_cannot_count():
    fn = CalibrationCombineFn(include=["accuracy"], prefix="val/")
    rows = [(0, [1.5, -0.5]), (0, [0.75, 0.25])]
    assert fn.extract_output(accumulate(fn, rows)) == {
        "val/accuracy": 1.0,
        "val/num_invalid": 1.0,
        "val/weight": 1.0,
    }


def test_states_of_logs_and_of_fit_merge(monkeypatch):
    few_replicates(monkeypatch)
    labels, logits, _ = predictions(400)
    fn = CalibrationCombineFn(from_logits=True, output="state")
    state = fn.extract_output(accumulate(fn, [(labels[:150], logits[:150])]))
    metric = keras_metric(labels[150:], logits[150:], from_logits=True)
    metric.merge_state([state])
    whole = keras_metric(labels, logits, from_logits=True)
    for name, value in whole.result().items():
        assert float(metric.result()[name]) == pytest.approx(
            float(value), abs=1e-6
        )
    low, high = metric.interval()["accuracy"]
    assert low < float(whole.result()["accuracy"]) < high


def test_the_combine_fn_pickles_with_what_it_has_built():
    fn = CalibrationCombineFn(from_logits=True, include=["ece"], clip=1e-6)
    row = (0, [1.0, 0.0])
    values = fn.extract_output(accumulate(fn, [row]))
    other = pickle.loads(pickle.dumps(fn))
    assert other.extract_output(accumulate(other, [row])) == values


def test_shapes_that_do_not_fit_raise():
    fn = CalibrationCombineFn()
    for element in (
        (0, 0.5),
        ([0, 1], [0.5, 0.5]),
        ([0, 1], [[0.5, 0.5]]),
        (0, [0.5, 0.5], [1.0, 1.0]),
        ([1.0, 0.0], [0.5, 0.5]),
    ):
        match = r"`outputs` must hold .*label="
        with pytest.raises(ValueError, match=match):
            fn.add_input(fn.create_accumulator(), element)


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"output": "dict"}, ValueError, "`output` must be one of"),
        ({"include": ["acc"]}, ValueError, "`include` must be one of"),
        ({"risk": 2.0}, ValueError, "`risk` must be <= 1"),
        ({"axis": 1}, TypeError, "`axis` has no meaning"),
        ({"refresh_every": 1}, TypeError, "`refresh_every` has no meaning"),
        ({"objectness": True}, TypeError, "`objectness` has no meaning"),
    ],
)
def test_wrong_arguments_raise_where_the_pipeline_is_made(kwargs, error, match):
    with pytest.raises(error, match=match):
        CalibrationCombineFn(**kwargs)


def test_without_apache_beam_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "keras_calib.beam")
    with pytest.raises(ImportError, match=r"pip install 'keras-calib\[beam\]'"):
        importlib.import_module("keras_calib.beam")
