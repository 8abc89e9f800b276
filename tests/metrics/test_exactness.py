"""Sums that stay exact at any size, on any number of devices."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from cases import BACKEND, KINDS, METRICS, softmax
from paths import TESTS
from streams import compiled_update, predictions, state, stream

import keras_calib as kc


def test_a_confidence_of_one_falls_in_the_last_bin():
    metric = kc.ECE(num_bins=10)
    metric.update_state([0, 1], [[1.0, 0.0], [1.0, 0.0]])
    bins = metric.bins()
    assert bins.weight[9] == 2.0
    assert bins.confidence_gap[9] == 0.5


@pytest.mark.portable
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
        assert abs(kc.functional.augrc(labels[order], probs) - 0.25) < 1e-12
        metric = stream(kc.AURC(), labels[order], probs)
        assert abs(float(metric.result()) - 0.5) < 1e-6


def loop_free_ece(confidence, correct, num_bins=15):
    top = np.maximum(confidence, 1 - confidence)
    right = np.where(confidence >= 1 - confidence, correct, ~correct)
    index = np.maximum(np.ceil(top * np.float32(num_bins)).astype(int) - 1, 0)
    residual = np.bincount(index, top.astype("float64") - right, num_bins)
    return np.abs(residual).sum() / len(top)


@pytest.mark.parametrize(
    ("count", "batch"),
    [
        (100_000, 2**15),
        pytest.param(10_000_000, 1_000_000, marks=pytest.mark.slow),
        pytest.param(10_000_000, 1024, marks=pytest.mark.slow),
    ],
)
def test_ece_of_millions_of_predictions_equals_float64(count, batch):
    if batch == 1024 and BACKEND != "tensorflow":
        # Ten thousand eager updates are slow elsewhere.
        count = 1_000_000
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


@pytest.mark.slow
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


@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs a graph")
@pytest.mark.parametrize(
    "count", [1000, pytest.param(9_000_000, marks=pytest.mark.slow)]
)
def test_a_compiled_batch_of_unknown_size_may_be_large(count):
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
        autograph=False,
    )
    probs = tf.tile(tf.constant([[0.999, 0.001]]), (count, 1))
    update(tf.zeros(count, tf.int32), probs, tf.fill((count,), 3.0))
    assert metric.bins().weight.sum() == 3.0 * count
    assert abs(float(metric.result()) - 0.001) < 1e-6


@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
def test_a_strategy_of_one_replica_adds_as_no_strategy_does():
    import tensorflow as tf

    batch = predictions(n=100)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        inside = kc.ECE()
    update = tf.function(inside.update_state, autograph=False)
    strategy.run(update, args=batch)
    outside = kc.ECE()
    outside.update_state(*batch)
    np.testing.assert_array_equal(state(inside), state(outside))


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="tf.distribute")
@pytest.mark.parametrize("num_replicas", [2, 4])
def test_replicas_hold_the_same_sums_as_one_device(num_replicas):
    # One MirroredStrategy per process.
    script = TESTS / "replicas.py"
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


@pytest.mark.portable
@pytest.mark.skipif(BACKEND != "jax", reason="devices of JAX")
def test_devices_hold_the_same_sums_as_one():
    # Their number is fixed when JAX starts.
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=4"
    done = subprocess.run(
        [sys.executable, TESTS / "data_parallel.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "XLA_FLAGS": flags, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["devices"] == 4
    assert {case.name for case in KINDS} | {"Accuracy"} < set(answer["differ"])
    for name, (num_sums, difference) in answer["differ"].items():
        # A softmax over fewer rows may round differently.
        assert difference <= 1e-6, name
        assert name != "Accuracy" or num_sums == 0
