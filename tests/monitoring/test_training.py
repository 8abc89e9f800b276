"""What training and other callbacks see of a logger."""

import importlib.util

import keras
import matplotlib as mpl
import numpy as np
import pytest
from cases import BACKEND
from logged_training import (
    LOSS,
    QUICK,
    Step,
    X,
    Y,
    fails_before_training,
    fit,
    logger,
    network,
)

import keras_calib as kc

mpl.use("Agg")
portable = pytest.mark.portable
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="reads with TensorFlow"
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


@portable
def test_training_is_as_without_the_logger():
    def weights(*callbacks):
        # A layer draws its seed when it is made.
        keras.utils.set_random_seed(1)
        layers = [
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
        ]
        model = network(kc.MbLS(**LOSS), layers=layers, graph=True)
        fit(model, *callbacks, validation_data=(X, Y))
        return model.get_weights()

    for one, other in zip(weights(), weights(logger()), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_model_that_is_not_built_is_trained_as_without_the_logger():
    def weights(*callbacks):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("adam", loss=kc.MbLS(**LOSS))
        fit(model, *callbacks)
        return model.get_weights()

    for one, other in zip(weights(), weights(logger()), strict=True):
        np.testing.assert_array_equal(one, other)


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


def test_a_callback_that_monitors_must_come_after():
    stop = keras.callbacks.EarlyStopping("cal_ece")
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


def test_names_of_training_are_not_overwritten():
    with pytest.raises(
        ValueError, match="`prefix` must make names that training"
    ):
        fit(network(), logger(prefix=""), logger(prefix=""))


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


def test_what_outputs_are_must_be_said_before_training():
    model = network("mse")
    model.compile("sgd", loss=lambda y, z: keras.ops.mean(z, axis=-1), **QUICK)
    match = "`from_logits` must be True or False"
    fails_before_training(ValueError, match, model, logger())
    fit(model, logger(from_logits=True))


def test_labels_that_do_not_fit_are_refused_before_training():
    for labels in (np.full(24, 3), Y[:, None] * np.ones(5), None):
        data = (X,) if labels is None else (X, labels)
        model = network()
        fails_before_training(ValueError, "label|y_true", model, logger(data))


def test_a_model_of_several_outputs_is_refused_before_training():
    x = keras.Input((4,))
    dense = keras.layers.Dense(3)(x)
    model = keras.Model(x, {"a": dense, "b": dense})
    model.compile("sgd", loss={"a": kc.MbLS(**LOSS), "b": None})
    log = logger(from_logits=True)
    log.set_model(model)
    with pytest.raises(TypeError, match="`output` must name"):
        log.on_train_begin()


def test_data_without_end_or_for_one_time_are_refused_at_once():
    class Endless(keras.utils.PyDataset):
        def __getitem__(self, i):
            return X, Y

    with pytest.raises(ValueError, match="`steps` must be given"):
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
    match = "an epoch in each row"
    fails_before_training(ValueError, match, network(), logger(csv_path=table))
    assert table.read_text() == broken


@portable
@pytest.mark.skipif(HAS_TENSORFLOW, reason="TensorFlow is installed")
def test_tensorboard_names_what_it_needs_before_training(tmp_path):
    match = r"pip install 'keras-calib\[tensorflow\]'"
    log = logger(log_dir=tmp_path)
    fails_before_training(ImportError, match, network(), log)
