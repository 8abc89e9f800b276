"""Streaming metrics against exact functions, and the laws of their state."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import HAS_FLOAT64
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
from keras_calib import exact_sums
from keras_calib.ranked_groups import RankedGroups
from keras_calib.ranked_groups import aurc_bounds_of_groups
from keras_calib.ranked_groups import aurc_of_groups

pytestmark = pytest.mark.portable
# JAX compiles each operation anew for each size of a batch.
EXAMPLES = 1 if BACKEND == "jax" else 8
every_metric = pytest.mark.parametrize("case", METRICS, ids=str)


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


@every_metric
@pytest.mark.parametrize("data", METRIC_DATA)
def test_streaming_follows_the_exact_function(goldens, case, data):
    labels = goldens[f"in/m_{data}/labels"]
    probs = goldens[f"in/m_{data}/probs"]
    metric = stream(case.make(), labels, probs)
    value, exact = float(metric.result()), case.exact(labels, probs)
    if case.is_exact:
        assert abs(value - exact) <= 1e-6 * max(exact, 0.1)
        return
    low, high = metric.bounds()
    assert low <= exact <= high
    assert low <= value <= high
    # Whatever order tied samples come in.
    assert low <= case.exact(labels, probs, ties="order") <= high
    if data not in ("edges", "onehot"):
        assert abs(value - exact) <= 1e-4


def test_a_float64_loop_agrees():
    labels, probs = predictions()
    assert abs(kc.ece(labels, probs) - loop_ece(labels, probs)) < 1e-12
    assert abs(kc.aurc(labels, probs) - loop_aurc(labels, probs)) < 1e-12
    metric = stream(kc.ECE(), labels, probs)
    assert abs(float(metric.result()) - loop_ece(labels, probs)) < 1e-6


@every_metric
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 299), max_size=4)
)
def test_any_split_order_and_merge_gives_the_same_sums(case, seed, cuts):
    labels, probs = predictions(seed, n=300)
    whole = stream(case.make(), labels, probs, batch=300)
    order = np.random.default_rng(seed).permutation(300)
    parts = [
        stream(case.make(), labels[index], probs[index], batch=97)
        for index in np.split(order, sorted(set(cuts)))
    ]
    parts[0].merge_state(parts[1:])
    if case.name == "ECE":
        np.testing.assert_array_equal(state(parts[0]), state(whole))
        assert float(parts[0].result()) == float(whole.result())
        return
    # Logarithms at the end of an array may round differently from those
    # inside it, and each batch of losses rounds to its own scale.
    np.testing.assert_allclose(
        float(parts[0].result()), float(whole.result()), rtol=1e-5
    )
    masses = [exact_sums.to_float(state(m))[0].sum() for m in (parts[0], whole)]
    if case.name != "NLL":
        assert masses == [300.0, 300.0]


@every_metric
def test_whole_weights_are_repeats(case):
    labels, probs = predictions(n=200)
    weight = np.random.default_rng(1).integers(0, 4, size=200)
    weighted = stream(case.make(), labels, probs, weight)
    index = np.repeat(np.arange(200), weight)
    repeated = stream(case.make(), labels[index], probs[index])
    np.testing.assert_allclose(
        float(weighted.result()), float(repeated.result()), rtol=1e-5
    )
    exact = case.exact(labels, probs, sample_weight=weight)
    np.testing.assert_allclose(
        exact, case.exact(labels[index], probs[index]), rtol=1e-9
    )


@every_metric
def test_importance_weights_follow_the_exact_function(case):
    labels, probs = predictions(n=1000)
    weight = np.random.default_rng(1).gamma(2.0, 1.0, size=1000)
    metric = stream(case.make(), labels, probs, weight)
    exact = case.exact(labels, probs, sample_weight=weight)
    assert abs(float(metric.result()) - exact) < 3e-5
    if not case.is_exact:
        low, high = metric.bounds()
        assert low <= exact <= high
    # Only ratios of weights matter.
    scaled = case.exact(labels, probs, sample_weight=weight * 7.3)
    np.testing.assert_allclose(scaled, exact, rtol=1e-9)


@every_metric
def test_weight_zero_equals_a_dropped_row(case):
    labels, probs = predictions(n=100)
    weight = np.arange(100) % 3 > 0
    weighted = stream(case.make(), labels, probs, weight.astype("float32"))
    dropped = stream(case.make(), labels[weight], probs[weight])
    np.testing.assert_allclose(
        float(weighted.result()), float(dropped.result()), rtol=1e-6
    )


@every_metric
def test_ids_column_one_hot_and_soft_labels_agree(case):
    labels, probs = predictions(n=100)
    value = float(stream(case.make(), labels, probs).result())
    for form in (labels[:, None], one_hot(labels, 4), labels.astype("uint8")):
        assert float(stream(case.make(), form, probs).result()) == value


@every_metric
def test_logits_and_probabilities_agree(case):
    labels, logits = sample(n=200, scale=2.0)
    from_logits = stream(case.make(from_logits=True), labels, logits)
    probs = softmax(logits.astype("float64"))
    from_probs = stream(case.make(), labels, probs)
    np.testing.assert_allclose(
        float(from_logits.result()),
        float(from_probs.result()),
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        case.exact(labels, logits, from_logits=True),
        case.exact(labels, probs),
        rtol=1e-4,
    )


@every_metric
def test_an_ignored_pixel_equals_a_deleted_pixel(case):
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=(2, 6, 7))
    probs = softmax(rng.normal(size=(2, 6, 7, 5))).astype("float32")
    labels[0, 1, 2] = labels[1, 5, 6] = 255
    probs[0, 1, 2] = np.nan
    kept = labels != 255
    metric = case.make(ignore_class=255)
    metric.update_state(labels, probs)
    deleted = case.make()
    deleted.update_state(labels[kept], probs[kept])
    np.testing.assert_array_equal(state(metric), state(deleted))
    channels_first = case.make(ignore_class=255, axis=1)
    channels_first.update_state(labels, np.moveaxis(probs, -1, 1))
    np.testing.assert_array_equal(state(channels_first), state(deleted))


@every_metric
def test_one_weight_per_image_spreads_over_its_pixels(case):
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=(2, 6, 7))
    probs = softmax(rng.normal(size=(2, 6, 7, 5))).astype("float32")
    weight = np.array([1.0, 3.0], "float32")
    metric, spread = case.make(), case.make()
    metric.update_state(labels, probs, weight)
    spread.update_state(
        labels, probs, np.broadcast_to(weight[:, None, None], labels.shape)
    )
    np.testing.assert_array_equal(state(metric), state(spread))


@every_metric
def test_binary_outputs_are_two_classes(case):
    rng = np.random.default_rng(0)
    second = rng.uniform(size=(100, 1)).astype("float32")
    labels = rng.integers(2, size=100)
    two = np.concatenate([1 - second, second], axis=-1)
    value = float(stream(case.make(), labels, second).result())
    assert value == float(stream(case.make(), labels, two).result())
    assert abs(case.exact(labels, second) - case.exact(labels, two)) < 1e-6


@every_metric
def test_nothing_seen_or_all_ignored_gives_zero(case):
    metric = case.make(ignore_class=9)
    assert float(metric.result()) == 0.0
    metric.update_state([9, 9], [[0.2, 0.8], [0.5, 0.5]])
    assert float(metric.result()) == 0.0
    if not case.is_exact:
        assert max(metric.bounds()) <= 1e-6


@every_metric
def test_reset_forgets_everything(case):
    labels, probs = predictions(n=100)
    metric = stream(case.make(), labels, probs)
    metric.update_state([0], [[np.nan, 0.5, 0.2, 0.2]])
    metric.reset_state()
    assert not state(metric).any()
    fresh = stream(case.make(), labels, probs)
    assert float(stream(metric, labels, probs).result()) == float(
        fresh.result()
    )


@every_metric
def test_a_nan_prediction_makes_the_value_nan(case):
    labels, probs = predictions(n=100)
    probs[17] = np.nan
    metric = stream(case.make(), labels, probs)
    assert np.isnan(float(metric.result()))
    if not case.is_exact:
        assert np.isnan(metric.bounds()).all()


@every_metric
def test_confidences_of_zero_and_one_are_counted(case):
    probs = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "float32")
    metric = case.make()
    metric.update_state([0, 0, 1], probs)
    value, exact = float(metric.result()), case.exact([0, 0, 1], probs)
    assert abs(value - exact) <= 1e-6 * max(1.0, exact)


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
                    group = RankedGroups(
                        *(np.array([v]) for v in (m, q, n, 0.0, slope))
                    )
                    for whole in (True, False):
                        value = aurc_of_groups(group, whole)
                        low, high = aurc_bounds_of_groups(group, whole)
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

        return tf.function(metric.update_state, reduce_retracing=True)
    return metric.update_state


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@every_metric
def test_compiled_metrics_agree_with_eager_ones(case):
    labels, probs = predictions(n=256)
    eager = stream(case.make(), labels, probs, batch=256)
    metric = case.make()
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.function(metric.update_state, jit_compile=True)(labels, probs)
        result = tf.function(metric.result, jit_compile=True)()
    else:
        import jax

        variables = jax.jit(metric.stateless_update_state)(
            metric.stateless_reset_state(), labels, probs
        )
        result = jax.jit(metric.stateless_result)(variables)
    np.testing.assert_allclose(float(result), float(eager.result()), rtol=3e-6)


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@every_metric
@pytest.mark.parametrize("form", ["id", "row", "fraction"])
def test_an_impossible_label_makes_compiled_metrics_nan(case, form):
    labels = {
        "id": np.array([0, 7]),
        "row": np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]], "float32"),
        "fraction": np.array([0.0, 0.5], "float32"),
    }[form]
    probs = np.array([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]], "float32")
    metric = case.make()
    if BACKEND == "tensorflow":
        import tensorflow as tf

        tf.function(metric.update_state)(
            tf.constant(labels), tf.constant(probs)
        )
        assert np.isnan(float(metric.result()))
    else:
        import jax

        variables = jax.jit(metric.stateless_update_state)(
            metric.stateless_reset_state(), labels, probs
        )
        assert np.isnan(float(metric.stateless_result(variables)))


@every_metric
def test_empty_data_and_weights_of_zero_are_refused(case):
    with pytest.raises(ValueError, match="`y_pred` must not be empty"):
        case.make().update_state(np.zeros(0, int), np.zeros((0, 3), "float32"))
    labels, probs = predictions(n=5)
    with pytest.raises(ValueError, match="`sample_weight` must not be 0"):
        case.exact(labels, probs, sample_weight=np.zeros(5))
    zero = stream(case.make(), labels, probs, np.zeros(5, "float32"))
    assert float(zero.result()) == 0.0


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


@every_metric
def test_weights_that_exact_sums_cannot_hold_are_refused(case):
    labels, probs = predictions(n=5)
    for scale in (1e-4, 1e5):
        metric = case.make()
        with pytest.raises(ValueError, match="only ratios matter"):
            metric.update_state(labels, probs, np.full(5, scale))
        assert not state(metric).any()
        # The exact functions take any scale.
        exact = case.exact(labels, probs, sample_weight=np.full(5, scale))
        assert abs(exact - case.exact(labels, probs)) < 0.2


@every_metric
def test_weights_at_the_ends_of_their_range_keep_the_bounds(case):
    labels, probs = predictions(n=300)
    for scale in (1e-3, 1e4):
        weight = np.random.default_rng(0).uniform(0.3, 1.0, 300) * scale
        weight[0] = scale
        metric = stream(case.make(), labels, probs, weight, batch=300)
        exact = case.exact(labels, probs, sample_weight=weight)
        assert abs(float(metric.result()) - exact) < 1e-4
        if not case.is_exact:
            low, high = metric.bounds()
            assert low <= exact <= high


@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
@every_metric
def test_a_float64_policy_works(case):
    labels, logits = sample(n=50)
    expected = stream(case.make(from_logits=True), labels, logits)
    keras.config.set_floatx("float64")
    try:
        metric = stream(
            case.make(from_logits=True), labels, logits.astype("float64")
        )
        value = float(metric.result())
    finally:
        keras.config.set_floatx("float32")
    assert abs(value - float(expected.result())) < 1e-6


@every_metric
def test_configuration_round_trips(case):
    metric = case.make(from_logits=True, ignore_class=255, name="mine")
    config = keras.metrics.serialize(metric)
    again = keras.metrics.deserialize(config)
    assert type(again) is type(metric)
    assert again.get_config() == metric.get_config()
    assert again.summary.shape == metric.summary.shape


@every_metric
def test_state_is_small_and_of_fixed_size(case):
    metric = case.make()
    assert state(metric).nbytes < 500_000
    before = state(metric).shape
    stream(metric, *predictions(n=1000))
    assert state(metric).shape == before


@every_metric
def test_half_precision_predictions_are_read_in_float32(case):
    labels, logits = sample(n=200, scale=2.0)
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
    assert set(answer["equal"]) == {case.name for case in METRICS}
    assert all(answer["equal"].values()), answer
    for one, many in answer["losses"].values():
        assert abs(one - many) <= 1e-6 * abs(one), answer
