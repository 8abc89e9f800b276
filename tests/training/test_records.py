"""What is remembered of each training sample, and what it does."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from small_trainings import (
    COUNT,
    EAGER,
    data_of,
    dense,
    eager,
    identity,
    loss_and_gradient,
    network,
)

import keras_calib as kc

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.portable
def test_correctness_lies_in_0_and_1():
    for epochs, counts, correctness in (
        # All were always right: that ranks nothing.
        (7.0, [7.0, 7.0, 7.0], [0, 0, 0]),
        # The last came twice in an epoch.
        (2.0, [0.0, 2.0, 4.0], [0, 1, 1]),
    ):
        model = identity(kc.CorrectnessRankingModel, 3, num_samples=3)
        model.right_counts.assign(counts)
        model.finished_epochs.assign(epochs)
        np.testing.assert_array_equal(model.correctness(), correctness)


@pytest.mark.portable
def test_a_sample_twice_in_a_batch_counts_twice():
    model = identity(kc.CorrectnessRankingModel, 2, num_samples=5)
    logits = ops.convert_to_tensor([[1.0, 0.0]] * 4)
    y = {"label": np.array([0, 0, 1, 0]), "index": np.array([3, 3, 3, 1])}
    model.compute_loss(None, y, logits, None, training=True)
    np.testing.assert_array_equal(array(model.right_counts), [0, 1, 0, 2, 0])
    np.testing.assert_array_equal(array(model.view_counts), [0, 1, 0, 3, 0])


@pytest.mark.portable
def test_samples_that_come_twice_get_the_mean():
    model = identity(kc.ConfidencePruningModel, 2, num_samples=3, smoothing=1.0)
    logits = ops.convert_to_tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    y = {"label": np.zeros(3, int), "index": np.array([2, 2, 0])}
    model.compute_loss(None, y, logits, None, training=True)
    sure = 1 / (1 + np.exp([-2.0, -1.0]))
    expected = [sure[1], -1.0, (0.5 + sure[0]) / 2]
    np.testing.assert_allclose(array(model.confidence), expected, rtol=1e-6)


@pytest.mark.portable
def test_samples_of_weight_0_are_not_recorded_and_rank_nobody():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 3)).astype("float32")
    labels, index = rng.integers(3, size=6), np.arange(6)
    weight = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], "float32")
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=6, strength=9)
    # Each pair contradicts its confidences.
    model.right_counts.assign([0.0, 4.0] * 3)
    model.finished_epochs.assign(4.0)
    y = {"label": labels, "index": index}
    _, gradient = loss_and_gradient(model, logits, y, weight)
    assert np.abs(gradient[weight == 0]).max() == 0
    assert np.abs(gradient[weight > 0]).max() > 0.1
    tensor = ops.convert_to_tensor(logits)
    model.compute_loss(None, y, tensor, weight, training=True)
    np.testing.assert_array_equal(array(model.view_counts), weight)


@pytest.mark.portable
def test_weights_of_a_half_are_half_the_loss():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 3)), rng.integers(3, size=6)
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=6)
    model.right_counts.assign(rng.integers(4, size=6))
    model.finished_epochs.assign(4.0)
    y = {"label": labels, "index": np.arange(6)}
    whole, _ = loss_and_gradient(model, logits, y)
    half = np.full(6, 0.5, "float32")
    value, _ = loss_and_gradient(model, logits, y, half)
    np.testing.assert_allclose(value, whole / 2, rtol=1e-6)


@pytest.mark.portable
def test_an_unknown_sample_is_refused_or_makes_the_loss_nan():
    compiled = network("crl", jit_compile=BACKEND == "jax")
    x, y, _, _ = data_of("crl", 32)
    for index in (-1, 96, 2**31 - 1):
        y["index"][3] = index
        with pytest.raises(ValueError, match=r"`index` must hold numbers in"):
            eager("crl").train_on_batch(x, y)
        if BACKEND != "torch":
            loss = compiled.train_on_batch(x, y)[0]
            assert np.isnan(loss)


def test_the_record_of_a_million_samples_takes_8_bytes_for_each():
    million = 1_000_000
    model = identity(kc.CorrectnessRankingModel, 3, num_samples=million)
    size = sum(
        array(v).nbytes
        for v in model.non_trainable_variables
        if tuple(v.shape) == (million,)
    )
    assert size == 8 * million


def test_a_sample_of_weight_0_is_no_condition_for_its_neighbour():
    _, y, _, _ = data_of("crl acls", 3)
    weight = np.array([1.0, 0.0, 1.0])
    values = []
    for logit in (0.0, 5.0):
        model = eager("crl acls")
        model.right_counts.assign(np.arange(COUNT) % 5)
        model.finished_epochs.assign(4.0)
        logits = np.eye(3, dtype="float32") * [[2.0], [logit], [1.0]]
        logits = ops.convert_to_tensor(logits)
        loss = model.compute_loss(None, y, logits, weight)
        values.append(float(array(loss)))
    assert values[0] == values[1]


@pytest.mark.portable
def test_the_average_of_confidence_moves_by_its_share():
    inputs = keras.Input((2,))
    model = kc.ConfidencePruningModel(
        inputs, keras.layers.Rescaling(1.0)(inputs), num_samples=2
    )
    model.compile(loss=CROSS_ENTROPY)
    confidence = []
    for size in (0.0, 2.0, -1.0):
        logits = np.array([[size, 0.0], [0.0, 0.0]], "float32")
        y = {"label": np.zeros(2, int), "index": np.arange(2)}
        model.compute_loss(None, y, ops.convert_to_tensor(logits), None)
        confidence.append(1 / (1 + np.exp(-abs(size))))
    expected = 0.7 * (0.7 * confidence[0] + 0.3 * confidence[1])
    expected += 0.3 * confidence[2]
    np.testing.assert_allclose(array(model.confidence), [expected, 0.5], 1e-6)


@pytest.mark.portable
def test_a_pruned_sum_is_that_of_the_others():
    x, y, labels, _ = data_of("pruning", COUNT)
    model = dense(kc.ConfidencePruningModel, num_samples=COUNT)
    model.compile("sgd", kc.ACLS(from_logits=True, reduction="sum"), **EAGER)
    kept = np.arange(COUNT) % 2 == 0
    model.keeps.assign(kept.astype("float32"))
    logits = ops.convert_to_tensor(model.predict(x, verbose=0))
    value = float(model.compute_loss(None, y, logits, None))
    expected = float(model.loss(labels[kept], array(logits)[kept]))
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_counts_go_on_beyond_256_under_half_precision():
    keras.config.set_dtype_policy("bfloat16")
    try:
        models = [eager(name) for name in ("crl", "pruning", "adafocal")]
    finally:
        keras.config.set_dtype_policy("float32")
    for model in models:
        own = [v for v in model.non_trainable_variables if v.shape != ()]
        assert own
        assert {str(v.dtype) for v in own} == {"float32"}


def test_weights_of_float64_train():
    x, y, labels, weight = data_of("crl", COUNT)
    for name in ("crl", "pruning", "sam crl"):
        batches = kc.data.EpochBatches(
            x,
            labels,
            batch_size=COUNT,
            sample_weight=weight.astype("float64"),
        )
        fitted = eager(name).fit(batches, verbose=0)
        assert np.isfinite(fitted.history["loss"]).all()


def test_epochs_count_on_from_fit_to_fit():
    x, y, _, _ = data_of("crl", COUNT)
    models = [eager("crl"), eager("crl")]
    options = {"batch_size": COUNT, "shuffle": False, "verbose": 0}
    for _ in range(4):
        models[0].fit(x, y, **options)
    models[1].fit(x, y, epochs=4, **options)
    assert float(models[0].finished_epochs) == 4
    shares = [model.correctness() for model in models]
    np.testing.assert_allclose(shares[0], shares[1])
    assert len(np.unique(shares[0])) > 2


def test_too_few_samples_for_a_record_are_refused_before_training():
    x, y, labels, _ = data_of("crl", COUNT)
    model = dense(kc.CorrectnessRankingModel, num_samples=COUNT - 1)
    model.compile("sgd", loss=CROSS_ENTROPY, **EAGER)
    for data in ((x, y), (kc.data.EpochBatches(x, labels),)):
        with pytest.raises(ValueError, match="maximum=95, num_samples=95"):
            model.fit(*data, verbose=0)
