"""Streaming metrics against exact functions, and the laws of their state."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import HAS_FLOAT64
from cases import KINDS
from cases import METRIC_DATA
from cases import METRICS
from cases import array
from cases import one_hot
from cases import sample
from cases import softmax
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from keras import ops

import keras_calib as kc
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.formulas.risk_coverage import aurc_bounds_of_groups
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.metrics.states.bins import BinSummary
from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.moments import MomentSummary
from keras_calib.numerics import exact_sums

pytestmark = pytest.mark.portable
# JAX compiles each operation anew for each size of a batch.
EXAMPLES = 1 if BACKEND == "jax" else 4
every_metric = pytest.mark.parametrize("case", METRICS, ids=str)
# Where a law is about what all metrics share.
every_kind = pytest.mark.parametrize(
    "case", METRICS if BACKEND == "tensorflow" else KINDS, ids=str
)


def stream(metric, labels, outputs, weight=None, batch=64):
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        metric.update_state(
            labels[part],
            outputs[part],
            None if weight is None else weight[part],
        )
    return metric


def state(metric):
    return array(metric.sums.value)


def holds(case, metric, weight):
    """Whether the state holds exactly this weight in all."""
    if not case.holds_all:
        return weight_of(metric.summary, state(metric)) <= weight
    return weight_of(metric.summary, state(metric)) == weight


def weight_of(summary, limbs):
    if isinstance(summary, CompositeSummary):
        parts = summary.split(limbs)
        weights = {weight_of(summary.parts[k], v) for k, v in parts.items()}
        assert len(weights) == 1
        return weights.pop()
    if isinstance(summary, MomentSummary):
        return summary.moments(limbs).weight[0]
    if isinstance(summary, HistogramSummary):
        return summary.cells(limbs).mass.sum()
    if isinstance(summary, BinSummary):
        return summary.bins(limbs).weight.sum()
    return exact_sums.to_float(limbs[:, -1])


def same_state(metric, other):
    """Equal sums, but for the rounding of a logarithm of few predictions.

    Vector code rounds the end of an array in another way than its inside.
    """
    a, b = state(metric), state(other)
    differs = (a != b).any(axis=0)
    assert differs.sum() <= 2
    np.testing.assert_allclose(
        exact_sums.to_float(a), exact_sums.to_float(b), atol=1e-4
    )


def predictions(seed=0, n=1000, num_classes=4):
    """Labels and float32 probabilities of an overconfident classifier."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 3
    labels = np.array(
        [rng.choice(num_classes, p=p) for p in softmax(logits / 2)]
    )
    return labels, softmax(logits).astype("float32")


def loop_ece(labels, probs, num_bins=15, weight=None):
    """ECE by a float64 loop over samples."""
    sums = np.zeros((num_bins, 2))
    weight = np.ones(len(labels)) if weight is None else weight
    for label, p, w in zip(labels, probs, weight, strict=True):
        confidence, predicted = float(p.max()), int(p.argmax())
        index = max(int(np.ceil(np.float32(confidence) * num_bins)) - 1, 0)
        sums[index] += w * confidence, w * (predicted == label)
    return np.abs(sums[:, 0] - sums[:, 1]).sum() / weight.sum()


def loop_aurc(labels, probs):
    """AURC by a float64 loop over sorted samples, without ties."""
    order = np.argsort(-probs.max(-1), kind="stable")
    wrong = (probs.argmax(-1) != labels)[order]
    return np.mean([wrong[: k + 1].mean() for k in range(len(wrong))])


# With ties and without for all; the rest where it costs little.
FOLLOWED = [
    (case, data)
    for data in METRIC_DATA
    for case in METRICS
    if BACKEND == "tensorflow" or case in KINDS or data in ("over", "edges")
]


@pytest.mark.parametrize(
    ("case", "data"), FOLLOWED, ids=[f"{d}-{c}" for c, d in FOLLOWED]
)
def test_streaming_follows_the_exact_function(goldens, case, data):
    labels = goldens[f"in/m_{data}/labels"]
    probs = goldens[f"in/m_{data}/probs"]
    batch = 64 if BACKEND == "tensorflow" else 500
    metric = stream(case.make(probs.shape[-1]), labels, probs, batch=batch)
    exact = case.exact(labels, probs)
    low, high = case.bounds(metric)
    assert (low <= exact).all() and (exact <= high).all()
    if case.has_ties:
        # Whatever order tied samples come in.
        in_order = case.exact(labels, probs, ties="order")
        assert low[0] <= in_order <= high[0]
    # A histogram cannot see which of the samples of a cell are tied.
    is_sure = np.isinf(low) | (data not in ("edges", "onehot"))
    for value in case.values(metric):
        assert (low <= value).all() and (value <= high).all()
        assert (case.is_close(value, exact) | ~is_sure).all()


@pytest.mark.parametrize("is_stacked", [False, True])
def test_running_sums_keep_small_cells_beside_large_ones(is_stacked):
    rng = np.random.default_rng(0)
    # Of cells of 2^-30 to 2^41, each the sum of two.
    sizes = [[int(2**x) for x in rng.uniform(0, 71, 500)] for _ in range(4)]
    cells = np.array(sizes, dtype=object).reshape(2, 2, 500)
    limbs = np.stack([cells >> 24 * i & 2**24 - 1 for i in range(3)])
    limbs = limbs.astype("int32").sum(axis=1)
    cells = cells.sum(axis=0)
    if not is_stacked:
        limbs, cells = limbs[:, 0], cells[0]
    before = array(exact_sums.sum_before(ops.convert_to_tensor(limbs)))
    exact = (np.cumsum(cells, axis=-1) - cells).astype("float64") / 2**30
    np.testing.assert_allclose(before, exact, rtol=1e-6)


def test_a_float64_loop_agrees():
    labels, probs = predictions()
    assert abs(kc.ece(labels, probs) - loop_ece(labels, probs)) < 1e-12
    assert abs(kc.aurc(labels, probs) - loop_aurc(labels, probs)) < 1e-12
    metric = stream(kc.ECE(), labels, probs)
    assert abs(float(metric.result()) - loop_ece(labels, probs)) < 1e-6


@every_kind
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 299), max_size=4)
)
def test_any_split_order_and_merge_gives_the_same_sums(case, seed, cuts):
    labels, probs = predictions(seed, n=300)
    whole = stream(case.make(), labels, probs, batch=300)
    order = np.random.default_rng(seed).permutation(300)
    parts = [
        stream(case.make(), labels[index], probs[index], batch=300)
        for index in np.split(order, sorted(set(cuts)))
    ]
    parts[0].merge_state(parts[1:])
    assert holds(case, parts[0], 300.0) and holds(case, whole, 300.0)
    if case.has_exact_sums:
        np.testing.assert_array_equal(state(parts[0]), state(whole))
    # Logarithms at the end of an array may round differently from those
    # inside it, and each batch of losses rounds to its own scale.
    np.testing.assert_allclose(
        case.value(parts[0]), case.value(whole), rtol=1e-5, atol=1e-7
    )


@every_kind
def test_whole_weights_are_repeats(case):
    labels, probs = predictions(n=200)
    weight = np.random.default_rng(1).integers(0, 4, size=200)
    weighted = stream(case.make(), labels, probs, weight, batch=100)
    index = np.repeat(np.arange(200), weight)
    repeated = stream(case.make(), labels[index], probs[index], batch=100)
    np.testing.assert_allclose(
        case.value(weighted), case.value(repeated), rtol=1e-5
    )
    np.testing.assert_allclose(
        case.exact(labels, probs, sample_weight=weight),
        case.exact(labels[index], probs[index]),
        rtol=1e-9,
    )


@every_kind
def test_importance_weights_follow_the_exact_function(case):
    labels, probs = predictions(n=1000)
    weight = np.random.default_rng(1).gamma(2.0, 1.0, size=1000)
    metric = stream(case.make(), labels, probs, weight, batch=250)
    exact = case.exact(labels, probs, sample_weight=weight)
    for value in case.values(metric):
        assert case.is_close(value, exact).all()
    low, high = case.bounds(metric)
    assert (low <= exact).all() and (exact <= high).all()
    # Only ratios of weights matter.
    scaled = case.exact(labels, probs, sample_weight=weight * 7.3)
    np.testing.assert_allclose(scaled, exact, rtol=1e-9)


@every_kind
def test_weight_zero_equals_a_dropped_row(case):
    labels, probs = predictions(n=100)
    weight = np.arange(100) % 3 > 0
    weighted = stream(case.make(), labels, probs, weight.astype("float32"))
    dropped = stream(case.make(), labels[weight], probs[weight])
    np.testing.assert_allclose(
        case.value(weighted), case.value(dropped), rtol=1e-6
    )


@every_kind
def test_ids_column_one_hot_and_soft_labels_agree(case):
    labels, probs = predictions(n=100)
    value = case.value(stream(case.make(), labels, probs))
    for form in (labels[:, None], one_hot(labels, 4), labels.astype("uint8")):
        same = case.value(stream(case.make(), form, probs))
        np.testing.assert_array_equal(same, value)


@every_kind
def test_logits_and_probabilities_agree(case):
    labels, logits = sample(n=200, scale=2.0)
    from_logits = case.make(5, from_logits=True)
    from_logits.update_state(labels, logits)
    probs = softmax(logits.astype("float64"))
    from_probs = case.make(5)
    from_probs.update_state(labels, probs)
    exact = [
        case.exact(labels, logits, from_logits=True),
        case.exact(labels, probs),
    ]
    if case.name == "AURC-max_logit":
        # The largest logarithm of a probability is another score.
        assert case.value(from_logits) != case.value(from_probs)
        assert abs(exact[0] - exact[1]) > 1e-3
        return
    np.testing.assert_allclose(
        case.value(from_logits), case.value(from_probs), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(*exact, rtol=1e-4)


@every_kind
def test_an_ignored_pixel_equals_a_deleted_pixel(case):
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=(2, 6, 7))
    probs = softmax(rng.normal(size=(2, 6, 7, 5))).astype("float32")
    labels[0, 1, 2] = labels[1, 5, 6] = 255
    probs[0, 1, 2] = np.nan
    kept = labels != 255
    metric = case.make(5, ignore_class=255)
    metric.update_state(labels, probs)
    deleted = case.make(5)
    deleted.update_state(labels[kept], probs[kept])
    same_state(metric, deleted)
    channels_first = case.make(5, ignore_class=255, axis=1)
    channels_first.update_state(labels, np.moveaxis(probs, -1, 1))
    same_state(channels_first, deleted)
    assert metric.num_invalid == channels_first.num_invalid == 0


@every_kind
def test_one_weight_per_image_spreads_over_its_pixels(case):
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=(2, 6, 7))
    probs = softmax(rng.normal(size=(2, 6, 7, 5))).astype("float32")
    weight = np.array([1.0, 3.0], "float32")
    metric, spread = case.make(5), case.make(5)
    metric.update_state(labels, probs, weight)
    spread.update_state(
        labels, probs, np.broadcast_to(weight[:, None, None], labels.shape)
    )
    np.testing.assert_array_equal(state(metric), state(spread))


@every_kind
def test_binary_outputs_are_two_classes(case):
    rng = np.random.default_rng(0)
    second = rng.uniform(size=(100, 1)).astype("float32")
    labels = rng.integers(2, size=100)
    two = np.concatenate([1 - second, second], axis=-1)
    metric = stream(case.make(2), labels, second)
    same = stream(case.make(2), labels, two)
    np.testing.assert_array_equal(state(metric), state(same))
    np.testing.assert_allclose(
        case.exact(labels, second), case.exact(labels, two), rtol=1e-6
    )


@every_kind
def test_nothing_seen_or_all_ignored_gives_the_empty_value(case):
    metric = case.make(2, ignore_class=9)
    assert (case.value(metric) == case.empty).all()
    metric.update_state([9, 9], [[0.2, 0.8], [0.5, 0.5]])
    assert (case.value(metric) == case.empty).all()
    low, high = case.bounds(metric)
    assert (low <= case.empty).all() and (case.empty <= high).all()
    # 0 would be the best of all to a callback, of predictions that are NaN.
    metric.flags.assign([1, 0, 0, 0])
    with pytest.warns(RuntimeWarning, match="leaves out 1 pred"):
        assert np.isnan(case.value(metric)).all()


@every_kind
def test_reset_forgets_everything(case):
    labels, probs = predictions(n=100)
    metric = stream(case.make(), labels, probs, np.full(100, 0.3))
    assert array(metric.flags).any()
    metric.reset_state()
    assert not state(metric).any() and not array(metric.flags).any()
    fresh = stream(case.make(), labels, probs)
    stream(metric, labels, probs)
    np.testing.assert_array_equal(state(metric), state(fresh))


# Bad values of one row of three, and what makes them bad.
CANNOT_COUNT = {
    "NaN": {"output": np.nan},
    "infinity": {"output": np.inf},
    "minus infinity": {"output": -np.inf},
    "too large a probability": {"output": 1.5},
    "too small a probability": {"output": -0.5},
    "negative id": {"label": -1},
    "id too large": {"label": 4},
    "negative weight": {"weight": -1.0},
    "weight NaN": {"weight": np.nan},
    "infinite weight": {"weight": np.inf},
}


def with_bad_row(output=None, label=None, weight=None):
    """Three predictions, the second of which cannot count."""
    labels, probs = predictions(n=3)
    labels, weights = labels.astype("int32"), np.ones(3, "float32")
    if output is not None:
        probs[1, 2] = output
    if label is not None:
        labels[1] = label
    if weight is not None:
        weights[1] = weight
    return labels, probs, weights


@every_kind
@pytest.mark.parametrize("bad", CANNOT_COUNT.values(), ids=CANNOT_COUNT)
def test_what_cannot_count_is_refused_in_eager_use(case, bad):
    metric = case.make()
    with pytest.raises(ValueError, match="must"):
        metric.update_state(*with_bad_row(**bad))
    assert not state(metric).any() and metric.num_invalid == 0


@every_kind
def test_a_class_that_a_logit_rules_out_counts(case):
    logits = np.array([[2.0, -np.inf, 0.0, 1.0]], "float32")
    metric = case.make(from_logits=True)
    metric.update_state([0], logits)
    assert np.isfinite(case.value(metric)).all()
    assert holds(case, metric, 1.0)
    with pytest.raises(ValueError, match="must not contain NaN or infinity"):
        metric.update_state([0], np.full((1, 4), -np.inf, "float32"))
    assert holds(case, metric, 1.0)


@every_kind
def test_confidences_of_zero_and_one_are_counted(case):
    probs = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "float32")
    metric = case.make(2)
    metric.update_state([0, 0, 1], probs)
    exact = case.exact([0, 0, 1], probs)
    assert holds(case, metric, 3.0)
    assert case.is_close(case.value(metric), exact).all()


def test_a_confidence_of_one_falls_in_the_last_bin():
    metric = kc.ECE(num_bins=10)
    metric.update_state([0, 1], [[1.0, 0.0], [1.0, 0.0]])
    bins = metric.bins()
    assert bins.weight[9] == 2.0
    assert bins.gap[9] == 0.5


def test_logits_tell_apart_what_probabilities_tie():
    # Confidence is 1.0 in float32 for all; the wrong ones are least sure.
    gap = np.linspace(20, 60, 200).astype("float32")
    logits = np.stack([gap, np.zeros(200, "float32")], axis=-1)
    labels = (np.arange(200) < 20).astype("int32")
    from_logits = kc.AURC(from_logits=True)
    from_logits.update_state(labels, logits)
    exact = kc.aurc(labels, logits, from_logits=True)
    assert abs(float(from_logits.result()) - exact) < 1e-4
    assert exact < 0.01
    from_probs = kc.AURC()
    from_probs.update_state(labels, softmax(logits))
    assert abs(float(from_probs.result()) - 0.1) < 1e-3


def test_tied_confidences_do_not_depend_on_the_order():
    probs = np.tile(np.array([[0.9, 0.1]]), (1000, 1))
    labels = (np.arange(1000) < 500).astype(int)
    for order in (slice(None), slice(None, None, -1)):
        assert abs(kc.aurc(labels[order], probs) - 0.5) < 1e-12
        assert abs(kc.augrc(labels[order], probs) - 0.25) < 1e-12
        metric = stream(kc.AURC(), labels[order], probs)
        assert abs(float(metric.result()) - 0.5) < 1e-6


def test_exact_functions_match_the_goldens(goldens):
    functions = {
        **{
            f"{name}_{bins}": (function, {"num_bins": bins, **options})
            for bins in (8, 10, 15)
            for name, function, options in (
                ("ece", kc.ece, {}),
                ("aece", kc.adaptive_ece, {"edges": "interp"}),
                ("aece_tu", kc.adaptive_ece, {"ties": "order"}),
            )
        },
        **{
            f"cov_at_{risk}risk{suffix}": (
                kc.coverage_at_risk,
                {"risk": risk / 100, "ties": ties},
            )
            for risk in (5, 10, 20)
            for suffix, ties in (("", "order"), ("_tie", "average"))
        },
        "aurc_tieavg": (kc.aurc, {}),
        "aurc_crl": (kc.aurc, {"ties": "order"}),
        "eaurc_exact": (kc.eaurc, {"ties": "order"}),
        "augrc_fdshifts": (kc.augrc, {}),
        "risk_at_80cov_tu": (
            kc.risk_at_coverage,
            {"coverage": 0.8, "ties": "order"},
        ),
        "nll_clip1e-12": (kc.nll, {"clip": 1e-12}),
    }
    checked = 0
    for name, (function, options) in functions.items():
        for data in METRIC_DATA:
            key = f"metric/{name}/{data}"
            if key not in goldens:
                continue
            value = function(
                goldens[f"in/m_{data}/labels"],
                goldens[f"in/m_{data}/probs"],
                **options,
            )
            expected = goldens[key]
            assert abs(value - expected) <= 1e-9 * max(expected, 1.0), key
            checked += 1
    assert checked > 150


def test_default_adaptive_ece_differs_from_the_goldens_only_on_ties(goldens):
    for data in METRIC_DATA:
        labels = goldens[f"in/m_{data}/labels"]
        probs = goldens[f"in/m_{data}/probs"]
        difference = abs(
            kc.adaptive_ece(labels, probs)
            - goldens[f"metric/aece_tu_15/{data}"]
        )
        assert (difference > 1e-9) == (data == "edges")


def test_the_slope_correction_stays_within_the_orders_of_a_group():
    # In closed form for one group of mass m after n, up to slope 1/3.
    for n in (0, 1, 2, 5, 30, 1000):
        for m in (2, 3, 10, 200, 10_000):
            wrong = np.unique(np.linspace(1, m - 1, 20).astype(int))
            for q in wrong.astype("float64"):
                for slope in (-1 / 3, 1 / 3):
                    arrays = [np.array([v]) for v in (m, q, n, 0.0, slope)]
                    for whole in (True, False):
                        group = RankedGroups(*arrays, whole)
                        value = aurc_of_groups(group)
                        low, high = aurc_bounds_of_groups(group)
                        assert low - 1e-9 <= value <= high + 1e-9


def test_the_curve_ends_at_the_error_rate(goldens):
    labels, probs = goldens["in/m_over/labels"], goldens["in/m_over/probs"]
    curve = kc.risk_coverage_curve(labels, probs)
    error = np.mean(probs.argmax(-1) != labels)
    assert curve.coverage[-1] == 1.0
    assert abs(curve.risk[-1] - error) < 1e-12
    assert (np.diff(curve.coverage) > 0).all()
    assert (np.diff(curve.threshold) < 0).all()
    k = 300
    accepted = probs.max(-1) >= curve.threshold[k]
    assert abs(curve.coverage[k] - accepted.mean()) < 1e-12
    wrong = (probs.argmax(-1) != labels)[accepted]
    assert abs(curve.risk[k] - wrong.mean()) < 1e-12


@pytest.mark.parametrize("batch", [1_000_000, 1024])
def test_ece_of_ten_million_predictions_equals_float64(batch):
    # Ten thousand eager updates are slow elsewhere.
    is_slow = batch == 1024 and BACKEND != "tensorflow"
    count = 1_000_000 if is_slow else 10_000_000
    rng = np.random.default_rng(0)
    confidence = rng.beta(30, 1.2, size=count).astype("float32")
    labels = (rng.uniform(size=count) > confidence - 0.02).astype("int32")
    exact = loop_free_ece(confidence, labels == 0)
    metric = kc.ECE()
    update = compiled_update(metric)
    for start in range(0, count, batch):
        part = slice(start, start + batch)
        top = confidence[part]
        update(labels[part], np.stack([top, 1 - top], axis=-1))
    assert abs(float(metric.result()) - exact) <= 1e-6
    assert metric.bins().weight.sum() == count


def loop_free_ece(confidence, correct, num_bins=15):
    top = np.maximum(confidence, 1 - confidence)
    right = np.where(confidence >= 1 - confidence, correct, ~correct)
    index = np.maximum(np.ceil(top * np.float32(num_bins)).astype(int) - 1, 0)
    residual = np.bincount(index, top.astype("float64") - right, num_bins)
    return np.abs(residual).sum() / len(top)


def compiled_update(metric):
    """Updates compiled where the backend compiles, as `fit` does."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(
            metric.update_state, autograph=False, reduce_retracing=True
        )
    return metric.update_state


def updated_compiled(metric, *batch):
    """Updates a metric in compiled code, in each way of the backend."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        for jit_compile in (False, True):
            metric.reset_state()
            update = tf.function(metric.update_state, jit_compile=jit_compile)
            update(*map(tf.constant, batch))
            yield
    else:
        import jax

        variables = jax.jit(metric.stateless_update_state)(
            metric.stateless_reset_state(), *batch
        )
        for own, value in zip(metric.variables, variables, strict=True):
            own.assign(value)
        yield


def result_compiled(metric):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(metric.result, autograph=False, jit_compile=True)()
    import jax

    variables = [variable.value for variable in metric.variables]
    return jax.jit(metric.stateless_result)(variables)


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@every_kind
def test_compiled_metrics_agree_with_eager_ones(case):
    labels, probs = predictions(n=256)
    labels = labels.astype("int32")
    eager = case.make()
    eager.update_state(labels, probs)
    metric = case.make()
    for _ in updated_compiled(metric, labels, probs):
        assert holds(case, metric, 256.0)
        same = [float(x) for x in keras.tree.flatten(eager.result())]
        result = [float(x) for x in keras.tree.flatten(metric.result())]
        np.testing.assert_allclose(result, same, rtol=3e-6, atol=1e-7)
    result = [float(x) for x in keras.tree.flatten(result_compiled(metric))]
    np.testing.assert_allclose(result, same, rtol=3e-6, atol=1e-7)


# Of each kind of state one, of each form of badness one.
COMPILED_BAD = [
    (case, name)
    for i, case in enumerate(KINDS)
    for name in list(CANNOT_COUNT)[i :: len(KINDS)]
]


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@pytest.mark.parametrize(("case", "name"), COMPILED_BAD, ids=str)
def test_what_cannot_count_is_counted_apart_in_compiled_code(case, name):
    batch = with_bad_row(**CANNOT_COUNT[name])
    rest = [x[[0, 2]] for x in batch]
    alone = case.make()
    alone.update_state(*rest)
    metric = case.make()
    for _ in updated_compiled(metric, *batch):
        assert metric.num_invalid == 1
        assert holds(case, metric, 2.0)
        with pytest.warns(RuntimeWarning, match="leaves out 1 pred"):
            value = case.value(metric)
        np.testing.assert_allclose(value, case.value(alone), rtol=1e-6)
    for _ in updated_compiled(metric, *(x[1:2] for x in batch)):
        result = keras.tree.flatten(result_compiled(metric))
        assert np.isnan([float(x) for x in result]).all()
    metric.reset_state()
    assert metric.num_invalid == 0


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@pytest.mark.parametrize("form", ["row", "fraction"])
def test_an_impossible_label_row_is_left_out_of_compiled_metrics(form):
    labels = {
        "row": np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], "float32"),
        "fraction": np.array([0.0, 0.5], "float32"),
    }[form]
    probs = np.array([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]], "float32")
    metric = kc.ECE()
    for _ in updated_compiled(metric, labels, probs):
        assert metric.num_invalid == 1
        assert metric.bins().weight.sum() == 1.0


@every_kind
def test_empty_data_and_weights_of_zero_add_nothing(case):
    labels, probs = predictions(n=5)
    with pytest.raises(ValueError, match="`sample_weight` must not be 0"):
        case.exact(labels, probs, sample_weight=np.zeros(5))
    metric = case.make()
    metric.update_state(labels[:0], probs[:0])
    metric.update_state(labels, probs, np.zeros(5, "float32"))
    assert not state(metric).any()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs a graph")
def test_a_compiled_batch_of_unknown_size_may_be_large():
    import tensorflow as tf

    # 9e6 base-256 digits of 0.999 do not fit in 32 bits.
    metric = kc.ECE()
    update = tf.function(
        metric.update_state,
        input_signature=[
            tf.TensorSpec((None,), tf.int32),
            tf.TensorSpec((None, 2), tf.float32),
            tf.TensorSpec((None,), tf.float32),
        ],
    )
    count = 9_000_000
    probs = tf.tile(tf.constant([[0.999, 0.001]]), (count, 1))
    update(tf.zeros(count, tf.int32), probs, tf.fill((count,), 3.0))
    assert metric.bins().weight.sum() == 3.0 * count
    assert abs(float(metric.result()) - 0.001) < 1e-6


@every_kind
def test_weights_that_exact_sums_cannot_hold_are_refused(case):
    labels, probs = predictions(n=5)
    for scale in (1e-4, 1e5):
        metric = case.make()
        with pytest.raises(ValueError, match="only ratios matter"):
            metric.update_state(labels, probs, np.full(5, scale))
        assert not state(metric).any()
        # The exact functions take any scale; 0.3 of it is no whole number.
        exact = [
            case.exact(labels, probs, sample_weight=np.full(5, 0.3 * unit))
            for unit in (1.0, scale + 1e-5)
        ]
        np.testing.assert_allclose(*exact, rtol=1e-9)


@every_kind
def test_weights_at_the_ends_of_their_range_keep_the_bounds(case):
    labels, probs = predictions(n=300)
    for scale in (1e-3, 1e4):
        weight = np.random.default_rng(0).uniform(0.3, 1.0, 300) * scale
        weight[0] = scale
        metric = stream(case.make(), labels, probs, weight, batch=300)
        exact = case.exact(labels, probs, sample_weight=weight)
        for value in case.values(metric):
            near = abs(value - exact) < 1e-5
            assert (case.is_close(value, exact) | near).all()
        low, high = case.bounds(metric)
        assert (low <= exact).all() and (exact <= high).all()


@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
@every_kind
def test_a_float64_policy_works(case):
    labels, logits = sample(n=50, num_classes=4)
    expected = stream(case.make(from_logits=True), labels, logits)
    keras.config.set_floatx("float64")
    try:
        metric = stream(
            case.make(from_logits=True), labels, logits.astype("float64")
        )
        value = case.value(metric)
    finally:
        keras.config.set_floatx("float32")
    np.testing.assert_allclose(
        value, case.value(expected), rtol=1e-6, atol=1e-6
    )


@every_metric
def test_configuration_round_trips(case):
    options = {"from_logits": True, "ignore_class": 255, "name": "mine"}
    metric = case.make(**options, pixels_per_image=7, seed=3)
    config = keras.metrics.serialize(metric)
    again = keras.metrics.deserialize(config)
    assert type(again) is type(metric)
    assert again.get_config() == metric.get_config()
    assert again.summary.shape == metric.summary.shape
    assert again.options == metric.options


@every_metric
def test_state_is_small_and_of_fixed_size(case):
    metric = case.make()
    assert state(metric).nbytes < 500_000
    before = state(metric).shape
    metric.update_state(*predictions(n=100))
    assert state(metric).shape == before
    assert len(metric.variables) == 2


@every_kind
def test_half_precision_predictions_are_read_in_float32(case):
    labels, logits = sample(n=200, scale=2.0, num_classes=4)
    for dtype in ("float16", "bfloat16"):
        half = ops.cast(logits, dtype)
        metric = case.make(from_logits=True)
        metric.update_state(labels, half)
        full = case.make(from_logits=True)
        full.update_state(labels, ops.cast(half, "float32"))
        np.testing.assert_array_equal(state(metric), state(full))


def test_ece_counts_a_hundred_million_predictions_exactly():
    # 25 times the same 4e6: a float32 counter would stop at 1.7e7.
    rng = np.random.default_rng(0)
    count = 4_000_000 if BACKEND == "tensorflow" else 400_000
    confidence = rng.uniform(0.5, 1.0, size=count).astype("float32")
    probs = np.stack([confidence, 1 - confidence], axis=-1)
    labels = (rng.uniform(size=count) > 0.9).astype("int32")
    metric = kc.ECE()
    update = compiled_update(metric)
    for _ in range(25):
        update(labels, probs)
    bins = metric.bins()
    assert bins.weight.sum() == 25 * count
    expected = 25 * (labels == 0).sum()
    assert bins.correct.sum() == expected
    exact = loop_free_ece(confidence, labels == 0)
    assert abs(float(metric.result()) - exact) < 1e-6


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
@pytest.mark.parametrize("num_replicas", [2, 4])
def test_replicas_hold_the_same_sums_as_one_device(num_replicas):
    # One MirroredStrategy per process.
    script = Path(__file__).with_name("replicas.py")
    done = subprocess.run(
        [sys.executable, script, str(num_replicas)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    cases = METRICS if num_replicas == 2 else KINDS
    assert {case.name for case in cases} < set(answer["equal"])
    assert all(answer["equal"].values()), answer


@pytest.mark.skipif(BACKEND != "jax", reason="devices of JAX")
@pytest.mark.parametrize("num_devices", [2, 4])
def test_devices_hold_the_same_sums_as_one(num_devices):
    # Their number is fixed when JAX starts.
    flags = os.environ.get("XLA_FLAGS", "")
    flags += f" --xla_force_host_platform_device_count={num_devices}"
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("data_parallel.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["devices"] == num_devices
    names = {case.name for case in METRICS} if num_devices > 2 else set()
    assert names < set(answer["differ"])
    for name, (num_sums, difference) in answer["differ"].items():
        # A softmax over fewer rows may round differently.
        assert difference <= 1e-6, name
        assert name != "Accuracy" or num_sums == 0
