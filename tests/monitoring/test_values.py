"""What is logged: values of metrics, and the regulariser of the loss."""

import importlib.util

import keras
import matplotlib as mpl
import numpy as np
import pytest
from cases import BACKEND, LOSSES
from logged_training import (
    KERNELS,
    LOSS,
    QUICK,
    RNG,
    Step,
    X,
    Y,
    close,
    fit,
    logger,
    network,
    predicted,
)

import keras_calib as kc
from keras_calib.monitoring import evaluation

mpl.use("Agg")
portable = pytest.mark.portable
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="reads with TensorFlow"
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


def kinds_of_data():
    class Batches(keras.utils.PyDataset):
        num_batches = 3

        def __getitem__(self, i):
            return X[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]

    kinds = {"list": [(X[:8], Y[:8]), (X[8:16], Y[8:16]), (X[16:], Y[16:])]}
    kinds["sequence"] = Batches()
    kinds["index"] = (X, {"label": Y, "index": np.arange(24)})
    if HAS_TENSORFLOW:
        import tensorflow as tf

        kinds["tf.data"] = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    return kinds


@portable
def test_values_are_those_of_the_exact_functions():
    model = network(kc.MbLS(**LOSS), graph=True)
    log = logger(metrics=None, batch_size=8)
    history = fit(model, log).history
    logits = predicted(model)
    exact = {
        "ece": kc.ece,
        "nll": kc.nll,
        "brier_score": kc.brier_score,
        "aurc": kc.aurc,
        "mean_confidence": kc.functional.mean_confidence,
    }
    for name, function in exact.items():
        got = log.logged[-1].values[f"cal_{name}"]
        assert type(got) is float
        close(got, function(Y, logits, from_logits=True), 1e-4)
        assert history[f"cal_{name}"] == [
            entry.values[f"cal_{name}"] for entry in log.logged
        ]
    close(history["cal_accuracy"][-1], np.mean(logits.argmax(-1) == Y))
    assert len({*history["cal_nll"]}) == 2
    assert log.logged[-1].bins.weight.sum() == 24


def test_every_kind_of_data_gives_the_same():
    logs = [logger(data, batch_size=8) for data in kinds_of_data().values()]
    own = logger(batch_size=8)
    for i, log in enumerate(logs):
        log.prefix = f"{i}_"
    fit(network(kc.MbLS(**LOSS)), own, *logs)
    for log in logs:
        for entry, wanted in zip(log.logged, own.logged, strict=True):
            values = {k[2:]: v for k, v in entry.values.items()}
            assert values == {k[4:]: v for k, v in wanted.values.items()}
            counts = entry.regularizer.counts, wanted.regularizer.counts
            np.testing.assert_array_equal(*counts)


def test_blocks_of_any_size_give_the_same(monkeypatch):
    small, whole = logger(prefix="a_", batch_size=8), logger(prefix="b_")
    monkeypatch.setattr(evaluation, "_BLOCK", 1)
    evaluator = evaluation.DatasetEvaluator
    sizes, add = [], evaluator._add

    def counted(run, block):
        sizes.append(len(block.labels))
        add(run, block)

    monkeypatch.setattr(evaluator, "_add", counted)
    fit(network(kc.MbLS(**LOSS)), small, whole, epochs=1)
    assert sizes == [8, 24, 8, 8, 8, 24]
    (one,), (other,) = small.logged, whole.logged
    assert [*one.values.values()] == [*other.values.values()]
    np.testing.assert_array_equal(
        one.regularizer.counts, other.regularizer.counts
    )


def test_images_of_several_sizes_are_measured_together():
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(3)])
    model.compile("sgd", loss=kc.MbLS(**LOSS), **QUICK)
    x = X[:20].reshape(4, 5, 4)
    y = Y[:20].reshape(4, 5)
    weight = np.ones((4, 5))
    # A batch in which nothing counts is no error.
    data = [
        (x[:2], y[:2], weight[:2]),
        (x[2:, :3], y[2:, :3], weight[2:, :3]),
        (x[:2, :2], y[:2, :2], 0 * weight[:2, :2]),
    ]
    steps, log = Step(KERNELS), logger(data)
    fit(model, steps, log, data=(x, y))
    rows = np.concatenate([x[:2].reshape(-1, 4), x[2:, :3].reshape(-1, 4)])
    labels = np.concatenate([y[:2].reshape(-1), y[2:, :3].reshape(-1)])
    values = log.logged[-1].values
    exact = kc.ece(labels, rows @ KERNELS[1], from_logits=True)
    close(values["cal_ece"], exact, 1e-4)
    one, other = ((rows @ k).argmax(-1) for k in KERNELS[:2])
    assert values["cal_prediction_flips"] == np.mean(one != other)


def test_a_batch_without_weights_beside_others_has_weights_of_1():
    first = X[:9], Y[:9], np.full(9, 2.0)
    found = []
    for weight in ((), (np.ones(len(X) - 9),)):
        batches = [first, (X[9:], Y[9:], *weight)]
        log = logger(batches, metrics=["ece", "refinement_nll"])
        fit(network(kc.MbLS(from_logits=True)), log, epochs=1)
        found.append(log.logged[0].values)
    assert found[0] == found[1]


def test_weights_and_ignored_labels_of_dense_outputs_count_as_in_ece():
    x = np.stack([X] * 5, axis=1)
    x = x + np.arange(5, dtype="float32")[:, None]
    y = RNG.integers(3, size=(24, 5))
    y[:, 3] = 255
    weight = np.arange(1.0, 25)
    model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3)])
    loss = kc.ACLS(margin=2.0, from_logits=True, ignore_class=255)
    model.compile("sgd", loss=loss, **QUICK)
    log = logger((x, y, weight), batch_size=8, metrics=["ece", "nll"])
    fit(model, log, data=(x, y))
    logits, values = predicted(model, x), log.logged[-1].values
    options = {"sample_weight": weight, "ignore_class": 255}
    for name, function in (("ece", kc.ece), ("nll", kc.nll)):
        exact = function(y, logits, from_logits=True, **options)
        close(values[f"cal_{name}"], exact, 1e-4)
    assert log.logged[-1].regularizer.counts.sum() == 24 * 4
    inactive = kc.losses.regularizer_histogram(loss, y, logits).inactive_share
    assert values["cal_inactive_share"] == inactive


@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_a_model_of_one_channel_is_one_of_two_classes(activation):
    labels, loss = Y % 2, kc.MbLS(2.0, from_logits=activation is None)
    model = network(loss, channels=1)
    model.layers[-1].activation = keras.activations.get(activation)
    log = logger((X, labels), metrics=["accuracy", "ece"])
    kernels = [np.ones((4, 1)), np.array([[1.0], [1], [1], [-1]])]
    steps = Step([k.astype("float32") for k in kernels])
    fit(model, steps, log, data=(X, labels))
    z = [X @ k for k in kernels]
    flat = np.concatenate([0 * z[1], z[1]], axis=-1)
    values = log.logged[-1].values
    close(values["cal_accuracy"], np.mean((z[1][:, 0] > 0) == labels))
    close(values["cal_ece"], kc.ece(labels, flat, from_logits=True), 1e-4)
    flipped = np.mean((z[0] > 0) != (z[1] > 0))
    assert 0 < flipped == values["cal_prediction_flips"]
    share = np.mean(abs(z[1]) <= 2)
    close(values["cal_inactive_share"], share)


@pytest.mark.slow
def test_half_precision_is_measured():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    log = logger()
    fit(model, log)
    logits = predicted(model)
    assert logits.dtype == np.float16
    exact = kc.ece(Y, logits, from_logits=True)
    close(log.logged[-1].values["cal_ece"], exact, 1e-4)


def test_own_metrics_are_read_and_left_as_they_are():
    own = kc.AURC(from_logits=True, score="neg_entropy")
    top = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")
    log = logger(metrics=[own, "ece", kc.functional.mce, top])
    model = network()
    fit(model, log)
    assert not own.state_dict()["sums"].any()
    own.update_state(Y, predicted(model))
    values = log.logged[-1].values
    close(values["cal_aurc"], float(own.result()))
    top.update_state(Y, predicted(model))
    close(values["cal_top2"], float(top.result()))
    exact = kc.functional.mce(Y, predicted(model), from_logits=True)
    close(values["cal_mce"], exact)
    own.reset_state()
    with pytest.raises(ValueError, match="different names"):
        fit(model, logger(metrics=["aurc", own]))
    with pytest.raises(ValueError, match=r"`metrics` .*'refinement_nll'"):
        logger(metrics=["eec"])
    with pytest.raises(TypeError, match="`metrics` must be a list"):
        logger(metrics="ece")


@pytest.mark.parametrize(
    "case",
    [c for c in LOSSES if c.name in ("MbLS", "CPC", "AdaptiveLabelSmoothing")],
    ids=str,
)
def test_the_regularizer_of_the_compiled_loss_is_followed(case):
    loss, labels = case.make(), case.labels(Y)
    model, log = network(loss), logger((X, labels), batch_size=8)
    fit(model, log, data=(X, labels))
    logits = predicted(model)
    wanted = kc.losses.regularizer_histogram(loss, labels, logits)
    got = log.logged[-1].regularizer
    np.testing.assert_array_equal(got.counts, wanted.counts)
    assert got.num_inactive == wanted.num_inactive
    assert log.logged[-1].values["cal_inactive_share"] == got.inactive_share
    assert got.counts.sum() == 24


def test_a_loss_of_the_whole_batch_is_read_by_batches():
    loss = kc.MDCA(strength=0.2, from_logits=True)
    model, log = network(loss), logger(batch_size=8)
    fit(model, log)
    logits = predicted(model)
    parts = [
        kc.losses.regularizer_histogram(
            loss, Y[i : i + 8], logits[i : i + 8]
        ).counts
        for i in (0, 8, 16)
    ]
    got = log.logged[-1].regularizer.counts
    np.testing.assert_array_equal(got, np.sum(parts, axis=0))
    whole = kc.losses.regularizer_histogram(loss, Y, logits).counts
    assert (got != whole).any()


def test_only_a_loss_of_this_package_is_followed_unasked():
    log, model = logger(), network()
    fit(model, log)
    assert log.logged[-1].regularizer is None
    assert "cal_inactive_share" not in log.logged[-1].values
    asked = kc.MbLS(**LOSS)
    log = logger(loss=asked, histogram_bins=7, histogram_limits=(0, 0.5))
    fit(model, log)
    wanted = kc.losses.regularizer_histogram(
        asked, Y, predicted(model), num_bins=7, limits=(0, 0.5)
    )
    got = log.logged[-1].regularizer
    np.testing.assert_array_equal(got.counts, wanted.counts)
    assert len(got.counts) == 7


def test_a_loss_that_needs_a_record_is_not_followed():
    inputs = keras.Input((4,))
    model = kc.CorrectnessRankingModel(
        inputs,
        keras.layers.Dense(3)(inputs),
        num_samples=len(X),
        role="condition",
        condition="ranking",
    )
    loss = kc.ACLS(margin=1.0, condition="ranking", from_logits=True)
    model.compile("sgd", loss=loss, **QUICK)
    logger = kc.CalibrationLogger((X, Y), metrics=["ece"])
    batches = kc.data.EpochBatches(X, Y, batch_size=8)
    model.fit(batches, callbacks=logger, verbose=0)
    (entry,) = logger.logged
    assert set(entry.values) == {"cal_ece"}
