"""What is logged of calibration at the end of each epoch, and where."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import keras
import matplotlib as mpl
import numpy as np
import pytest
from cases import BACKEND
from cases import LOSSES
from file_writers import writer

import keras_calib as kc
from keras_calib.monitoring import evaluation
from keras_calib.monitoring.files import EpochTable

mpl.use("Agg")
portable = pytest.mark.portable
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="reads with TensorFlow"
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32") * 3
Y = RNG.integers(3, size=24)
LOSS = {"margin": 2.0, "strength": 0.05, "from_logits": True}
KERNELS = [RNG.normal(size=(4, 3)).astype("float32") for _ in range(4)]


class Step(keras.callbacks.Callback):
    """Sets the kernel of the model at the end of each epoch."""

    def __init__(self, kernels):
        super().__init__()
        self.kernels = kernels

    def on_epoch_end(self, epoch, logs=None):
        bias = np.zeros(self.kernels[epoch].shape[-1], "float32")
        self.model.layers[-1].set_weights([self.kernels[epoch], bias])


def network(loss=None, rate=0.05, channels=3, layers=()):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(channels)]
    )
    loss = kc.MbLS(**LOSS) if loss is None else loss
    # To compile takes longer than these runs; JAX is slower without.
    jit = "auto" if BACKEND == "jax" else False
    model.compile(keras.optimizers.SGD(rate), loss=loss, jit_compile=jit)
    return model


def fit(model, *callbacks, epochs=2, **kwargs):
    return model.fit(
        X,
        Y,
        batch_size=8,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=list(callbacks),
        **kwargs,
    )


def logger(data=(X, Y), **kwargs):
    kwargs.setdefault("metrics", ["ece"])
    return kc.CalibrationLogger(data, **kwargs)


def predicted(model, x=X):
    return model.predict(x, batch_size=8, verbose=0)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-6)


# Values.


@portable
def test_values_are_those_of_the_exact_functions():
    model, log = network(), logger(metrics=None, batch_size=8)
    history = fit(model, log).history
    logits = predicted(model)
    exact = {
        "ece": kc.ece,
        "nll": kc.nll,
        "brier": kc.brier_score,
        "aurc": kc.aurc,
        "mean_confidence": kc.mean_confidence,
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
def test_every_kind_of_data_gives_the_same():
    logs = [logger(data, batch_size=8) for data in kinds_of_data().values()]
    own = logger(batch_size=8)
    for i, log in enumerate(logs):
        log.prefix = f"{i}_"
    fit(network(), own, *logs)
    for log in logs:
        for entry, wanted in zip(log.logged, own.logged, strict=True):
            values = {k[2:]: v for k, v in entry.values.items()}
            assert values == {k[4:]: v for k, v in wanted.values.items()}
            counts = entry.regularizer.counts, wanted.regularizer.counts
            np.testing.assert_array_equal(*counts)


@portable
def test_blocks_of_any_size_give_the_same(monkeypatch):
    small, whole = logger(prefix="a_", batch_size=8), logger(prefix="b_")
    monkeypatch.setattr(evaluation, "_BLOCK", 1)
    sizes, add = [], evaluation._Run.add

    def counted(run, block):
        sizes.append(len(block.labels))
        add(run, block)

    monkeypatch.setattr(evaluation._Run, "add", counted)
    fit(network(), small, whole, epochs=1)
    assert sizes == [8, 24, 8, 8, 8, 24]
    (one,), (other,) = small.logged, whole.logged
    assert [*one.values.values()] == [*other.values.values()]
    np.testing.assert_array_equal(
        one.regularizer.counts, other.regularizer.counts
    )


@portable
def test_images_of_several_sizes_are_measured_together():
    model = keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(3)])
    model.compile("sgd", loss=kc.MbLS(**LOSS))
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
    model.fit(x, y, epochs=2, verbose=0, callbacks=[steps, log])
    rows = np.concatenate([x[:2].reshape(-1, 4), x[2:, :3].reshape(-1, 4)])
    labels = np.concatenate([y[:2].reshape(-1), y[2:, :3].reshape(-1)])
    values = log.logged[-1].values
    exact = kc.ece(labels, rows @ KERNELS[1], from_logits=True)
    close(values["cal_ece"], exact, 1e-4)
    rows = np.concatenate([rows, x[:2, :2].reshape(-1, 4)])
    one, other = ((rows @ k).argmax(-1) for k in KERNELS[:2])
    assert values["cal_prediction_flips"] == np.mean(one != other)


@portable
def test_training_is_as_without_the_logger():
    def weights(*callbacks):
        # A layer draws its seed when it is made.
        keras.utils.set_random_seed(1)
        layers = [
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
        ]
        model = network(layers=layers)
        fit(model, *callbacks, validation_data=(X, Y))
        return model.get_weights()

    for one, other in zip(weights(), weights(logger()), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_that_is_not_built_is_trained_as_without_the_logger():
    def weights(*callbacks):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("adam", loss=kc.MbLS(**LOSS))
        fit(model, *callbacks)
        return model.get_weights()

    for one, other in zip(weights(), weights(logger()), strict=True):
        np.testing.assert_array_equal(one, other)


@portable
def test_weights_and_ignored_labels_of_dense_outputs_count_as_in_ece():
    x = np.stack([X] * 5, axis=1)
    x = x + np.arange(5, dtype="float32")[:, None]
    y = RNG.integers(3, size=(24, 5))
    y[:, 3] = 255
    weight = np.arange(1.0, 25)
    model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(3)])
    loss = kc.ACLS(margin=2.0, from_logits=True, ignore_class=255)
    model.compile("sgd", loss=loss)
    log = logger((x, y, weight), batch_size=8, metrics=["ece", "nll"])
    model.fit(x, y, epochs=2, verbose=0, callbacks=[log])
    logits, values = predicted(model, x), log.logged[-1].values
    options = {"sample_weight": weight, "ignore_class": 255}
    for name, function in (("ece", kc.ece), ("nll", kc.nll)):
        exact = function(y, logits, from_logits=True, **options)
        close(values[f"cal_{name}"], exact, 1e-4)
    assert log.logged[-1].regularizer.counts.sum() == 24 * 4
    inactive = kc.inactive_share(loss, y, logits)
    assert values["cal_inactive_share"] == inactive


@portable
@pytest.mark.parametrize("activation", ["sigmoid", None])
def test_a_model_of_one_channel_is_one_of_two_classes(activation):
    labels, loss = Y % 2, kc.MbLS(2.0, from_logits=activation is None)
    model = network(loss, channels=1)
    model.layers[-1].activation = keras.activations.get(activation)
    log = logger((X, labels), metrics=["accuracy", "ece"])
    kernels = [np.ones((4, 1)), np.array([[1.0], [1], [1], [-1]])]
    steps = Step([k.astype("float32") for k in kernels])
    model.fit(X, labels, epochs=2, verbose=0, callbacks=[steps, log])
    z = [X @ k for k in kernels]
    flat = np.concatenate([0 * z[1], z[1]], axis=-1)
    values = log.logged[-1].values
    close(values["cal_accuracy"], np.mean((z[1][:, 0] > 0) == labels))
    close(values["cal_ece"], kc.ece(labels, flat, from_logits=True), 1e-4)
    flipped = np.mean((z[0] > 0) != (z[1] > 0))
    assert 0 < flipped == values["cal_prediction_flips"]
    share = np.mean(abs(z[1]) <= 2)
    close(values["cal_inactive_share"], share)


@portable
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


@portable
def test_own_metrics_are_read_and_left_as_they_are():
    own = kc.AURC(from_logits=True, score="neg_entropy")
    top = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")
    own.update_state(Y[:2], X[:2, :3])
    before = own.state_dict()["sums"]
    log = logger(metrics=[own, "ece", top])
    model = network()
    fit(model, log)
    np.testing.assert_array_equal(own.state_dict()["sums"], before)
    own.reset_state()
    own.update_state(Y, predicted(model))
    values = log.logged[-1].values
    close(values["cal_aurc"], float(own.result()))
    top.update_state(Y, predicted(model))
    close(values["cal_top2"], float(top.result()))
    with pytest.raises(ValueError, match="names of their own"):
        fit(model, logger(metrics=["aurc", own]))
    with pytest.raises(TypeError, match="names or Keras metrics"):
        logger(metrics=[kc.ece])
    with pytest.raises(ValueError, match="`include` must be one of"):
        logger(metrics=["eec"])


# What other callbacks see.


@portable
def test_early_stopping_stops_by_a_calibration_error():
    def stop(**kwargs):
        return keras.callbacks.EarlyStopping(
            monitor="cal_ece", mode="min", patience=2, **kwargs
        )

    # Without learning nothing becomes better.
    history = fit(network(rate=0.0), logger(), stop(), epochs=9)
    assert len(history.epoch) == 3
    sharper = [np.eye(4, 3, dtype="float32") * k for k in (4, 1, 0.3, 3, 9, 0)]
    steps, log = Step(sharper), logger()
    model = network(rate=0.0)
    stopped = stop(restore_best_weights=True)
    fit(model, steps, log, stopped, epochs=6)
    errors = [entry.values["cal_ece"] for entry in log.logged]
    best = int(np.argmin(errors))
    assert len(errors) == best + 3 < 6
    np.testing.assert_array_equal(model.get_weights()[0], sharper[best])


@portable
def test_a_callback_that_monitors_must_come_after():
    stop = keras.callbacks.EarlyStopping("cal_ece", mode="min")
    keep = keras.callbacks.ModelCheckpoint("m.keras", monitor="cal_ece")
    other = keras.callbacks.EarlyStopping("val_loss")
    seen = []
    epochs = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(epoch)
    )
    for early in (stop, keep):
        with pytest.raises(ValueError, match="must come before .* monitor"):
            fit(network(), epochs, early, logger())
    assert not seen
    fit(network(), epochs, other, logger(), stop, validation_data=(X, Y))
    assert seen == [0, 1]


@portable
def test_names_of_training_are_not_overwritten():
    with pytest.raises(ValueError, match="`prefix` must keep the names"):
        fit(network(), logger(prefix=""), logger(prefix=""))


@portable
def test_each_nth_epoch_and_the_last_are_logged(tmp_path):
    log = logger(every=2, csv_path=tmp_path / "log.csv")
    history = fit(network(), log, epochs=5).history
    assert [entry.epoch for entry in log.logged] == [1, 3, 4]
    assert len(history["cal_ece"]) == 3 and len(history["loss"]) == 5
    # The last is not known where another callback ends training.
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(
            log.model, "stop_training", epoch == 2
        )
    )
    fit(network(), stop, log, epochs=5)
    assert [entry.epoch for entry in log.logged] == [1, 2]


# The regulariser.


@portable
def test_regularizer_histogram_by_hand():
    # Distances of 5, 8, 7 and 30 beyond a margin of 6, two classes.
    logits = np.array([[5, 0], [0, 8], [7, 0], [0, 30]], "float32")
    loss = kc.MbLS(6.0, strength=0.05, from_logits=True)
    drawn = kc.regularizer_histogram(loss, [0, 0, 1, 1], logits)
    expected = np.zeros(20)
    # 0, 0.05, 0.025, and 0.6 clipped to 0.1.
    expected[[0, 5, 19]] = 1
    expected[10] = 1
    np.testing.assert_array_equal(drawn.counts, expected)
    close(drawn.edges, np.linspace(0, 0.1, 21))
    assert drawn.num_inactive == 1 and drawn.inactive_share == 0.25
    drawn = kc.regularizer_histogram(
        kc.MbLS(6.0, from_logits=True, ignore_class=9), [9] * 4, logits
    )
    assert drawn.counts.sum() == 0 and np.isnan(drawn.inactive_share)
    # A focal loss is below cross entropy, or equal to it where p is 0.
    focal = kc.FocalLoss(from_logits=True)
    limits = (-0.1, 0.1)
    drawn = kc.regularizer_histogram(
        focal, [1, 0, 1, 0], logits, num_bins=2, limits=limits
    )
    np.testing.assert_array_equal(drawn.counts, [3, 1])
    for limits in ((0.1, 0.1), (0.1, 0.0)):
        with pytest.raises(ValueError, match="limits"):
            kc.regularizer_histogram(loss, [0] * 4, logits, limits=limits)


@portable
@pytest.mark.parametrize(
    "case",
    [c for c in LOSSES if c.name in ("MbLS", "CPC", "AdaptiveLabelSmoothing")],
    ids=str,
)
def test_the_regularizer_of_the_compiled_loss_is_followed(case):
    loss, labels = case.make(), case.labels(Y)
    model, log = network(loss), logger((X, labels), batch_size=8)
    model.fit(X, labels, epochs=2, verbose=0, callbacks=[log])
    logits = predicted(model)
    wanted = kc.regularizer_histogram(loss, labels, logits)
    got = log.logged[-1].regularizer
    np.testing.assert_array_equal(got.counts, wanted.counts)
    assert got.num_inactive == wanted.num_inactive
    assert log.logged[-1].values["cal_inactive_share"] == got.inactive_share
    assert got.counts.sum() == 24


@portable
def test_a_loss_of_the_whole_batch_is_read_by_batches():
    loss = kc.MDCA(strength=0.2, from_logits=True)
    model, log = network(loss), logger(batch_size=8)
    fit(model, log)
    logits = predicted(model)
    parts = [
        kc.regularizer_histogram(loss, Y[i : i + 8], logits[i : i + 8]).counts
        for i in (0, 8, 16)
    ]
    got = log.logged[-1].regularizer.counts
    np.testing.assert_array_equal(got, np.sum(parts, axis=0))
    whole = kc.regularizer_histogram(loss, Y, logits).counts
    assert (got != whole).any()


@portable
def test_only_a_loss_of_this_package_is_followed_unasked():
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    log, model = logger(), network(plain)
    fit(model, log)
    assert log.logged[-1].regularizer is None
    assert "cal_inactive_share" not in log.logged[-1].values
    asked = kc.MbLS(**LOSS)
    log = logger(loss=asked, histogram_bins=7, histogram_limits=(0, 0.5))
    fit(model, log)
    wanted = kc.regularizer_histogram(
        asked, Y, predicted(model), num_bins=7, limits=(0, 0.5)
    )
    got = log.logged[-1].regularizer
    np.testing.assert_array_equal(got.counts, wanted.counts)
    assert len(got.counts) == 7


@portable
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
    jit = "auto" if BACKEND == "jax" else False
    model.compile("sgd", loss=loss, jit_compile=jit)
    logger = kc.CalibrationLogger((X, Y), metrics=["ece"])
    batches = kc.EpochBatches(X, Y, batch_size=8)
    model.fit(batches, callbacks=logger, verbose=0)
    (entry,) = logger.logged
    assert set(entry.values) == {"cal_ece"}


# Prediction flips.


def flips_by_hand():
    classes = [(X @ kernel).argmax(-1) for kernel in KERNELS]
    return [
        np.mean(one != other)
        for one, other in zip(classes, classes[1:], strict=False)
    ]


class Shuffled(keras.utils.PyDataset):
    """In another order each time it is read."""

    num_batches = 3

    def __init__(self, index, size=None):
        super().__init__()
        self.index = index
        self.size = size
        self.times = 0

    def __getitem__(self, i):
        if i == 0:
            self.times += 1
            rng = np.random.default_rng(self.times)
            self.order = rng.permutation(24)
        part = self.order[8 * i : 8 * i + 8]
        if self.size is not None and self.times > self.size:
            part = part[:4]
        y = {"label": Y[part], "index": part} if self.index else Y[part]
        return X[part], y


@portable
@pytest.mark.parametrize("data", [(X, Y), Shuffled(True)], ids=["xy", "index"])
def test_flips_are_counted_between_logged_epochs(data):
    log = logger(data, batch_size=8)
    history = fit(network(), Step(KERNELS), log, epochs=4).history
    # In the first there is nothing to compare with.
    assert "cal_prediction_flips" not in log.logged[0].values
    assert min(flips_by_hand()) > 0
    assert history["cal_prediction_flips"] == flips_by_hand()


@portable
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Shuffled(False), "order have changed"),
        (Shuffled(True, size=2), "size has changed"),
        ((X, {"label": Y, "index": Y}), "numbers of samples repeat"),
    ],
)
def test_flips_of_samples_that_cannot_be_matched_are_nan(data, problem):
    log = logger(data)
    with pytest.warns(RuntimeWarning, match=problem):
        fit(network(), Step(KERNELS), log, epochs=2)
    assert np.isnan(log.logged[-1].values["cal_prediction_flips"])
    assert np.isfinite(log.logged[-1].values["cal_ece"])


@portable
def test_flips_of_ignored_labels_do_not_count():
    y = np.where(np.arange(24) % 3 == 0, 255, Y)
    log = logger((X, y), ignore_class=255)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    fit(network(loss), Step(KERNELS), log)
    one, other = ((X[y < 255] @ k).argmax(-1) for k in KERNELS[:2])
    values = log.logged[-1].values
    assert values["cal_prediction_flips"] == np.mean(one != other)
    log = logger(count_flips=False)
    fit(network(), log)
    assert "cal_prediction_flips" not in log.logged[-1].values


# What goes wrong is said before training begins.


def fails_before_training(error, match, model, log, **kwargs):
    begun = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: pytest.fail("training began")
    )
    with pytest.raises(error, match=match):
        fit(model, log, begun, **kwargs)


@portable
def test_what_outputs_are_must_be_said_before_training():
    model = network("mse")
    model.compile("sgd", loss=lambda y, z: keras.ops.mean(z, axis=-1))
    match = "`from_logits` must be True or False"
    fails_before_training(ValueError, match, model, logger())
    fit(model, logger(from_logits=True))


@portable
def test_labels_that_do_not_fit_are_refused_before_training():
    for labels in (np.full(24, 3), Y[:, None] * np.ones(5), None):
        data = (X,) if labels is None else (X, labels)
        model = network()
        fails_before_training(ValueError, "label|y_true", model, logger(data))


@portable
def test_a_model_of_several_outputs_is_refused_before_training():
    x = keras.Input((4,))
    dense = keras.layers.Dense(3)(x)
    model = keras.Model(x, {"a": dense, "b": dense})
    model.compile("sgd", loss={"a": kc.MbLS(**LOSS), "b": None})
    log = logger(from_logits=True)
    log.set_model(model)
    with pytest.raises(TypeError, match="`output` must name"):
        log.on_train_begin()


@portable
def test_data_without_end_or_for_one_time_are_refused_at_once():
    class Endless(keras.utils.PyDataset):
        def __getitem__(self, i):
            return X, Y

    with pytest.raises(ValueError, match="must have an end"):
        logger(Endless())
    with pytest.raises(ValueError, match="read again and again"):
        logger(iter([(X, Y)]))
    log = logger([])
    log.set_model(network())
    with pytest.raises(ValueError, match="must not be empty"):
        log.on_train_begin()
    with pytest.raises(TypeError, match="must be a tuple of arrays"):
        logger(X)
    with pytest.raises(ValueError, match="same length"):
        logger((X, Y[1:]))
    with pytest.raises(ValueError, match="`every` must be >= 1"):
        logger(every=0)


@portable
def test_paths_that_cannot_be_written_are_refused_before_training(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    names = ["csv_path", "picture_dir"]
    if HAS_TENSORFLOW:
        names.append("log_dir")
    for name in names:
        log = logger(**{name: file / "below"})
        fails_before_training(OSError, "file", network(), log)
    match = "must be a new file"
    fails_before_training(ValueError, match, network(), logger(csv_path=file))
    assert file.read_text() == "mine"
    table = tmp_path / "log.csv"
    log = logger(csv_path=table)
    fit(network(), log, epochs=1)
    broken = table.read_text().replace("\n0,", "\nfirst,")
    table.write_text(broken)
    match = "number of an epoch.*epoch='first'"
    fails_before_training(ValueError, match, network(), logger(csv_path=table))
    assert table.read_text() == broken


@portable
@pytest.mark.skipif(HAS_TENSORFLOW, reason="TensorFlow is installed")
def test_tensorboard_names_what_it_needs_before_training(tmp_path):
    match = r"pip install 'keras-calib\[tensorflow\]'"
    log = logger(log_dir=tmp_path)
    fails_before_training(ImportError, match, network(), log)


# What goes wrong later.


@portable
def test_a_model_that_predicts_nan_is_logged_as_nan():
    nan = np.full((4, 3), np.nan, "float32")
    steps, log = Step([KERNELS[0], nan, KERNELS[1], KERNELS[2]]), logger()
    with pytest.warns(RuntimeWarning, match="predicts NaN"):
        fit(network(), steps, log, epochs=4)
    assert np.isnan(log.logged[1].values["cal_ece"])
    assert list(log.logged[1].values) == ["cal_ece"]
    assert np.isfinite(log.logged[2].values["cal_ece"])
    exact = keras.metrics.SparseCategoricalAccuracy()
    with pytest.warns(RuntimeWarning, match="predicts NaN"):
        fit(network(), Step([nan, nan]), own := logger(metrics=[exact]))
    assert all(np.isnan(list(x.values.values())) for x in own.logged)
    # Between the epochs that were measured.
    one, other = ((X @ k).argmax(-1) for k in KERNELS[:2])
    flips = log.logged[2].values["cal_prediction_flips"]
    assert flips == np.mean(one != other)


@portable
def test_nan_where_the_label_is_ignored_is_no_harm():
    x, y = X.copy(), Y.copy()
    x[::4], y[::4] = np.nan, 255
    log = logger((x, y), ignore_class=255, metrics=["ece", "nll"])
    model = network(kc.MbLS(ignore_class=255, **LOSS))
    fit(model, Step(KERNELS), log)
    logits = X @ KERNELS[1]
    exact = kc.ece(y, logits, from_logits=True, ignore_class=255)
    close(log.logged[-1].values["cal_ece"], exact, 1e-4)
    one, other = ((X[y < 255] @ k).argmax(-1) for k in KERNELS[:2])
    flips = log.logged[-1].values["cal_prediction_flips"]
    assert flips == np.mean(one != other)


@portable
def test_what_cannot_be_written_does_not_end_training(tmp_path, monkeypatch):
    path, folder = tmp_path / "log.csv", tmp_path / "pictures"
    log = logger(csv_path=path, picture_dir=folder)
    replace, calls = EpochTable.put, []

    def put(table, epoch, values):
        calls.append(epoch)
        if epoch == 0:
            raise OSError("disk full")
        replace(table, epoch, values)

    monkeypatch.setattr(EpochTable, "put", put)
    with pytest.warns(RuntimeWarning, match="epoch 0.*disk full"):
        history = fit(network(), log).history
    assert calls == [0, 1] and len(history["cal_ece"]) == 2
    assert [row["epoch"] for row in rows(path)] == ["1"]
    assert len(list(folder.iterdir())) == 2


# The table.


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@portable
def test_a_run_that_is_taken_up_replaces_the_rows_it_trains_anew(tmp_path):
    path = tmp_path / "runs" / "log.csv"
    first = logger(csv_path=path)
    fit(network(), first, epochs=4)
    written = rows(path)
    assert [row["epoch"] for row in written] == list("0123")
    assert written[0]["cal_prediction_flips"] == ""
    for row, entry in zip(written, first.logged, strict=True):
        assert float(row["cal_ece"]) == entry.values["cal_ece"]
    # A new object, as in a new process.
    again = logger(csv_path=path)
    fit(network(rate=0.3), again, epochs=5, initial_epoch=2)
    taken_up = rows(path)
    assert [row["epoch"] for row in taken_up] == list("01234")
    assert taken_up[:2] == written[:2]
    for row, entry in zip(taken_up[2:], again.logged, strict=True):
        assert float(row["cal_ece"]) == entry.values["cal_ece"]
    # What a shorter run that starts anew did not train is not its own.
    fit(network(), logger(csv_path=path), epochs=1)
    assert [row["epoch"] for row in rows(path)] == ["0"]


@portable
def test_a_kill_while_the_table_is_written_leaves_it_whole(tmp_path):
    path = tmp_path / "log.csv"
    table = EpochTable(path, ["a"])
    table.put(0, {"a": 0.1})
    table.close()
    code = (
        "import os, sys; from keras_calib.monitoring.files import EpochTable\n"
        "os.fsync = lambda number: os._exit(9)\n"
        "EpochTable(sys.argv[1], ['a'])"
    )
    run = subprocess.run(
        (sys.executable, "-c", code, path),
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
    )
    assert run.returncode == 9
    # Half a file, and the lock of that process.
    assert len(list(tmp_path.iterdir())) == 3
    assert rows(path) == [{"epoch": "0", "a": "0.1"}]
    EpochTable(path, ["a"]).put(1, {"a": 0.2})
    assert [row["a"] for row in rows(path)] == ["0.1", "0.2"]
    assert list(tmp_path.iterdir()) == [path]


@portable
def test_a_table_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "log.csv"
    match = "`csv_path` must have one writer at a time"
    with writer("keep", path) as process:
        log = logger(csv_path=path, picture_dir=tmp_path / "pictures")
        fails_before_training(RuntimeError, match, network(), log)
    assert os.listdir(tmp_path) == [".log.csv.lock"]

    # Killed, it has lost the table. Another takes it while this one trains.
    def stolen(epoch, logs):
        if epoch == 1:
            (tmp_path / ".log.csv.lock").unlink()
            stack.enter_context(writer("keep", path))

    steals = keras.callbacks.LambdaCallback(on_epoch_begin=stolen)
    log = logger(csv_path=path)
    with (
        ExitStack() as stack,
        pytest.warns(RuntimeWarning, match="epoch 1.*one writer"),
    ):
        fit(network(), steals, log)
    assert [row["epoch"] for row in rows(path)] == ["0"]
    assert len(log.logged) == 2 and process.returncode is not None


@portable
def test_of_several_workers_the_first_writes(tmp_path, monkeypatch):
    module = importlib.import_module("keras_calib.monitoring.logger")
    monkeypatch.setattr(module, "is_chief", lambda strategy: False)
    folders = {"log_dir": tmp_path / "logs", "picture_dir": tmp_path / "a"}
    log = logger(csv_path=tmp_path / "log.csv", **folders)
    fit(network(), log, epochs=1)
    assert len(log.logged) == 1 and os.listdir(tmp_path) == []


# Pictures and events.


@portable
def test_a_picture_per_epoch_leaves_pyplot_alone(tmp_path):
    import matplotlib.pyplot as plt

    plt.close("all")
    mine = plt.figure()
    backend = mpl.get_backend()
    fit(network(), logger(metrics=[kc.AURC(from_logits=True)]))
    log = logger(metrics=["aurc"], picture_dir=tmp_path / "a" / "b")
    fit(network(), log)
    files = sorted((tmp_path / "a" / "b").iterdir())
    assert [x.name for x in files] == [
        "cal_reliability_0000.png",
        "cal_reliability_0001.png",
    ]
    for file in files:
        assert plt.imread(file).std() > 0.05
    assert plt.get_fignums() == [mine.number] and plt.gcf() is mine
    assert mpl.get_backend() == backend
    # Drawn though no metric that is shown has bins.
    log = logger(
        metrics=[kc.AURC(from_logits=True)], picture_dir=tmp_path, num_bins=7
    )
    fit(network(), log, epochs=1)
    assert len(log.logged[0].bins.weight) == 7
    assert sorted(log.logged[0].values) == ["cal_aurc", "cal_inactive_share"]
    assert (tmp_path / "cal_reliability_0000.png").stat().st_size > 5000
    plt.close("all")


@needs_tensorflow
def test_tensorboard_reads_values_image_and_histogram(tmp_path):
    import tensorflow as tf

    log = logger(log_dir=tmp_path / "logs", prefix="cal/")
    fit(network(), log)
    (file,) = (tmp_path / "logs").iterdir()
    assert "tfevents" in file.name
    events = [
        tf.compat.v1.Event.FromString(x.numpy())
        for x in tf.data.TFRecordDataset(str(file))
    ]
    assert events[0].file_version == "brain.Event:2"
    found = {}
    for event in events[1:]:
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            array = tf.make_ndarray(value.tensor)
            found[value.tag, event.step] = plugin, array
    for entry in log.logged:
        for name, value in entry.values.items():
            plugin, array = found.pop((name, entry.epoch))
            assert plugin == "scalars" and array == np.float32(value)
        plugin, bars = found.pop(("cal/regularizer", entry.epoch))
        assert plugin == "histograms"
        np.testing.assert_array_equal(bars[:, 2], entry.regularizer.counts)
        np.testing.assert_array_equal(bars[1:, 0], bars[:-1, 1])
        plugin, (width, height, png) = found.pop(
            ("cal/reliability", entry.epoch)
        )
        assert plugin == "images"
        shape = tf.io.decode_png(png).shape
        assert shape[:2] == (int(height), int(width))
    assert not found


# Replicas.

REPLICAS = """
import json, os, sys, warnings
import keras, numpy as np, tensorflow as tf
import keras_calib as kc
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
x = rng.normal(size=(100, 4)).astype("float32") * 3
y = rng.integers(3, size=100)

def values():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", loss=kc.MbLS(margin=2.0, from_logits=True))
    own = kc.AUGRC(from_logits=True)
    log = kc.CalibrationLogger(
        (x, y), metrics=["ece", "nll", own], log_dir=sys.argv[1],
        csv_path=sys.argv[1] + "/log.csv")
    fit = lambda: model.fit(
        x, y, batch_size=50, epochs=2, shuffle=False, verbose=0,
        callbacks=[log])
    return model, log, fit

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
logs = []
with strategy.scope():
    model, log, fit = values()
    fit()
    logs.append(log.logged)
model, log, fit = values()
fit()
logs.append(log.logged)
print(json.dumps([[entry.values for entry in log] for log in logs]))
"""


@needs_tensorflow
def test_replicas_log_what_one_device_logs(tmp_path):
    run = subprocess.run(
        (sys.executable, "-c", REPLICAS, str(tmp_path)),
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    mirrored, one = json.loads(run.stdout.splitlines()[-1])
    assert len(one) == len(mirrored) == 2
    for a, b in zip(mirrored, one, strict=True):
        assert a.keys() == b.keys() and {"cal_augrc", "cal_ece"} <= set(a)
        for name in a:
            close(a[name], b[name], 1e-6)
