"""What holds of every metric, shown on one of each kind of state."""

import keras
import numpy as np
import pytest
from cases import (
    BACKEND,
    HAS_FLOAT64,
    METRIC_DATA,
    METRICS,
    TABLE,
    array,
    one_hot,
    sample,
    softmax,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops
from streams import (
    ALL_CLASSES,
    STATES,
    case_of,
    compiled_update,
    holds,
    predictions,
    result_compiled,
    same_state,
    state,
    stream,
    updated_compiled,
)

import keras_calib as kc

portable = pytest.mark.portable
EXAMPLES = 2 if BACKEND == "tensorflow" else 1
# JAX compiles each operation anew for each size of a batch.
CUTS = st.integers(1, 299) if BACKEND == "tensorflow" else st.just(100)
# With ties and without, with errors or one kind of predictions alone.
FEW = {
    "tensorflow": ("over", "edges", "onehot", "topwrong"),
    "torch": ("over", "edges"),
    "jax": ("over",),
}[BACKEND]
every_state = pytest.mark.parametrize("case", STATES, ids=str)
# What reads more than the predicted class, and what does not.
all_classes = pytest.mark.parametrize("case", ALL_CLASSES, ids=str)


@portable
@every_state
def test_streaming_follows_the_exact_function(goldens, case):
    for data in FEW:
        follows_the_exact_function(goldens, case, data)


@pytest.mark.slow
@pytest.mark.parametrize("data", sorted(set(METRIC_DATA) - set(FEW)))
def test_streaming_follows_the_exact_function_on_other_data(goldens, data):
    for case in STATES:
        follows_the_exact_function(goldens, case, data)


def follows_the_exact_function(goldens, case, data):
    labels = goldens[f"in/m_{data}/labels"]
    probs = goldens[f"in/m_{data}/probs"]
    metric = stream(case.make(probs.shape[-1]), labels, probs, batch=500)
    exact = np.atleast_1d(case.exact(labels, probs))
    low, high = case.bounds(metric)
    assert ((low <= exact) & (exact <= high)).all(), data
    # Whatever order tied samples come in.
    singles = TABLE.values() if case.cls is kc.CalibrationMetrics else []
    for i, single in enumerate(singles):
        if single.has_ties:
            in_order = single.exact(labels, probs, ties="order")
            assert low[i] <= in_order <= high[i], (data, single)
    # A histogram cannot see which of the samples of a cell are tied.
    is_sure = np.isinf(low) | (data not in ("edges", "onehot"))
    for value in case.values(metric):
        assert ((low <= value) & (value <= high)).all(), data
        assert (case.is_close(value, exact) | ~is_sure).all(), data


@portable
@every_state
@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(CUTS, max_size=4))
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


@every_state
def test_whole_weights_are_repeats(case):
    labels, probs = predictions(n=300)
    weight = np.random.default_rng(1).permutation(np.repeat([0, 1, 2], 100))
    weighted = stream(case.make(), labels, probs, weight, batch=100)
    index = np.repeat(np.arange(300), weight)
    repeated = stream(case.make(), labels[index], probs[index], batch=100)
    np.testing.assert_allclose(
        case.value(weighted), case.value(repeated), rtol=1e-5
    )
    np.testing.assert_allclose(
        case.exact(labels, probs, sample_weight=weight),
        case.exact(labels[index], probs[index]),
        rtol=1e-9,
    )


@portable
@every_state
def test_importance_weights_follow_the_exact_function(case):
    labels, probs = predictions(n=1000)
    weight = np.random.default_rng(1).gamma(2.0, 1.0, size=1000)
    metric = stream(case.make(), labels, probs, weight)
    exact = case.exact(labels, probs, sample_weight=weight)
    for value in case.values(metric):
        assert case.is_close(value, exact).all()
    low, high = case.bounds(metric)
    assert (low <= exact).all() and (exact <= high).all()
    # Only ratios of weights matter.
    scaled = case.exact(labels, probs, sample_weight=weight * 7.3)
    np.testing.assert_allclose(scaled, exact, rtol=1e-9)


@portable
@every_state
def test_weight_zero_equals_a_dropped_row(case):
    labels, probs = predictions(n=300)
    weight = np.arange(300) % 3 > 0
    weighted = stream(case.make(), labels, probs, weight.astype("float32"))
    dropped = stream(case.make(), labels[weight], probs[weight])
    np.testing.assert_allclose(
        case.value(weighted), case.value(dropped), rtol=1e-6
    )


@portable
@every_state
def test_logits_and_probabilities_agree(case):
    labels, logits = sample(n=100, scale=2.0)
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


@portable
@every_state
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


@all_classes
def test_ids_column_one_hot_and_soft_labels_agree(case):
    labels, probs = predictions(n=100)
    value = case.value(stream(case.make(), labels, probs))
    for form in (labels[:, None], one_hot(labels, 4), labels.astype("uint8")):
        same = case.value(stream(case.make(), form, probs))
        np.testing.assert_array_equal(same, value)


@all_classes
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


@portable
@all_classes
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


@portable
@all_classes
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


@portable
@all_classes
def test_reset_forgets_everything(case):
    labels, probs = predictions(n=100)
    metric = stream(case.make(), labels, probs, np.full(100, 0.3))
    assert array(metric.flags).any()
    metric.reset_state()
    assert not state(metric).any() and not array(metric.flags).any()
    fresh = stream(case.make(), labels, probs)
    stream(metric, labels, probs)
    np.testing.assert_array_equal(state(metric), state(fresh))


@portable
@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@every_state
def test_compiled_metrics_agree_with_eager_ones(case):
    labels, probs = predictions(n=100)
    labels = labels.astype("int32")
    eager = case.make()
    eager.update_state(labels, probs)
    same = case.value(eager)
    metric = case.make()
    # By XLA: test_an_update_may_be_compiled_by_itself.
    for _ in updated_compiled(metric, labels, probs, jit=[False]):
        assert holds(case, metric, 100.0)
        np.testing.assert_allclose(
            case.value(metric), same, rtol=3e-6, atol=1e-7
        )
    # By name: compiled code sorts the names of a dict. XLA would compile the
    # formulas of the table for seconds.
    found = result_compiled(
        metric, by_xla=case.cls is not kc.CalibrationMetrics
    )
    result, same = (
        [float(x) for x in keras.tree.flatten(values)]
        for values in (found, eager.result())
    )
    np.testing.assert_allclose(result, same, rtol=3e-6, atol=1e-7)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs a graph")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("CalibrationMetrics", [80]),
        ("ClasswiseECE", [80]),
        pytest.param("ClasswiseECE", [80, 40], marks=pytest.mark.slow),
    ],
)
def test_an_update_may_be_compiled_by_itself(name, sizes):
    import tensorflow as tf

    case = case_of(name)
    labels, probs = predictions(seed=5, n=120)
    weight = np.random.default_rng(0).choice([0.0, 0.5, 2.0], 120)
    metric, own = case.make(4), case.make(4, jit_compile=True)
    update = compiled_update(own)
    for size in sizes:
        # The first row of a batch is wrong, and counted as such.
        part = probs[:size].copy()
        part[0] = 0.4
        batch = labels[:size], part, weight[:size].astype("float32") + 1
        stream(metric, *(x[1:] for x in batch), batch=size)
        update(*map(tf.constant, batch))
    graph = update.get_concrete_function(*map(tf.constant, batch)).graph
    calls = [op for op in graph.get_operations() if "Call" in op.type]
    assert any(op.get_attr("_XlaMustCompile") for op in calls)
    # Logarithms round otherwise, into the cell beside it.
    total = sum((weight[1:size] + 1).sum() for size in sizes)
    assert holds(case, own, total)
    with pytest.warns(RuntimeWarning, match=f"leaves out {len(sizes)} pred"):
        found = case.value(own)
    np.testing.assert_allclose(found, case.value(metric), rtol=3e-6, atol=1e-7)
    assert own.state_dict()["config"] == metric.state_dict()["config"]


@portable
@every_state
def test_confidences_of_zero_and_one_are_counted(case):
    probs = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], "float32")
    metric = case.make(2)
    metric.update_state([0, 0, 1], probs)
    exact = case.exact([0, 0, 1], probs)
    assert holds(case, metric, 3.0)
    assert case.is_close(case.value(metric), exact).all()


@portable
@every_state
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


@portable
@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
@all_classes
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


@portable
@all_classes
def test_half_precision_predictions_are_read_in_float32(case):
    labels, logits = sample(n=100, scale=2.0, num_classes=4)
    for dtype in ("float16", "bfloat16"):
        half = ops.cast(logits, dtype)
        metric = case.make(from_logits=True)
        metric.update_state(labels, half)
        full = case.make(from_logits=True)
        full.update_state(labels, ops.cast(half, "float32"))
        np.testing.assert_array_equal(state(metric), state(full))


def test_configuration_round_trips():
    options = {"from_logits": True, "ignore_class": 255, "name": "mine"}
    for case in METRICS:
        metric = case.make(**options, pixels_per_image=7, seed=3)
        again = keras.metrics.deserialize(keras.metrics.serialize(metric))
        assert type(again) is type(metric)
        assert again.get_config() == metric.get_config()
        assert again.summary.shape == metric.summary.shape
        assert again.options == metric.options


def test_state_is_small_and_of_fixed_size():
    for case in METRICS:
        metric = case.make()
        assert state(metric).nbytes < 500_000, case
        assert state(metric).shape == tuple(metric.summary.shape), case
        assert len(metric.variables) == 2, case
