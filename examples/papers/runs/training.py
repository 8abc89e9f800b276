"""One training, from its flags to its row of results."""

import contextlib
import datetime
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from config.losses import (
    build_loss,
    build_model,
    has_margin,
    label_kind,
    option_text,
)
from config.optimizers import build_optimizer
from config.strategies import check_batch_size, make_alike, scope
from nets.convolutions import synchronize
from results.runs import (
    check_flags,
    measures,
    predict,
    repaired,
    run_folder,
    save_predictions,
    write_row,
)

import keras_calib
from keras_calib.backend.locks import PathLock
from runs.regularizers import training_inactive_share

# Models that look at validation data after each epoch.
_FOLLOWING = ("AdaptiveFocalModel",)
# What a meter of all pixels does not measure.
_KEPT = ("ece10", "aece10", "ece100", "mce100", "overconfidence")
_KEPT += ("underconfidence", "ece_pycalib", "ece100_pycalib")


class Task(NamedTuple):
    """Data and network of a set-up.

    Attributes:
        train: A function of the number of epochs that are done, which
            returns the batches to train on.
        calibration: The training data as they are, for CaPE and for what a
            regulariser did to them; or None.
        validation: Batches, or None.
        test: Batches.
        steps: Steps of an epoch.
        num_samples: Samples of an epoch.
        network: A function without arguments: inputs and logits.
        meter: A function without arguments: what is shown all predictions
            on test data; None keeps them all instead.
        objects: Batches of test images whose objects are known, with pairs of
            class id and objectness; or None.
        predictor: A function of the trained model, the model that predicts;
            None to predict with the trained one.
    """

    train: Callable[[int], Any]
    calibration: Any
    validation: Any
    test: Any
    steps: int
    num_samples: int
    network: Callable[[], tuple]
    meter: Callable[[], Any] | None = None
    objects: Any = None
    predictor: Callable[[Any], Any] | None = None


def run(task, setup, method, options, folder=None, **extra):
    """Trains, predicts, measures and writes it all.

    Args:
        task: A `Task`.
        setup: A `Setup`.
        method: A `Method`.
        options: `Options`.
        folder: Folder to write to. By default one in `options.workdir`.
        **extra: More columns of the row; but for `tuned` they make it
            another run.

    Returns:
        The row: names of the run, measures on test data, and those after
        repair with the validation data, where there are any.

    Raises:
        RuntimeError: If another process trains in the folder.
        ValueError: If the folder holds a run of other flags, or validation
            data are needed and there are none.
        app.UsageError: If the devices cannot share a batch evenly.
    """
    # Before anything is written; a grid may have sizes of its own.
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    folder = folder or run_folder(options.workdir, setup, method, options.seed)
    if needs_validation(setup, method) and task.validation is None:
        raise ValueError(
            "`--validation` must be above 0 for --keep=best and AdaFocal, "
            f"which need validation data. Received: --keep={setup.keep}, "
            f"--method={method.method}, --validation={setup.validation}"
        )
    flags = {name: x for name, x in extra.items() if name != "tuned"}
    with own_folder(folder, setup, method, options, **flags):
        return _run(task, setup, method, options, folder, extra)


@contextlib.contextmanager
def own_folder(folder, setup, method, options, **flags):
    """The folder of a run, which no other process writes meanwhile.

    It holds the flags of the run, and with `--resume` what was there.

    Args:
        folder: Folder of the run.
        setup: A `Setup`.
        method: A `Method`.
        options: `Options`.
        **flags: What else makes it another run.

    Raises:
        RuntimeError: If another process trains in the folder.
        ValueError: If the folder holds a run of other flags.
    """
    # Before the flags: who is refused changes nothing.
    with PathLock("folder", folder):
        check_flags(folder, setup, method, options, **flags)
        if not options.resume:
            shutil.rmtree(folder)
            check_flags(folder, setup, method, options, **flags)
        yield


def _run(task, setup, method, options, folder, extra):
    model = build(task, setup, method, options)
    epochs, seconds = fit(model, task, setup, options, folder)
    make_alike(model)
    row = {
        "setup": setup.setup,
        "method": method.method,
        "options": option_text(method, setup),
        "seed": options.seed,
        "epochs": epochs,
        "seconds": round(seconds, 1),
        **extra,
    }
    row |= _measured(model, task, setup, folder)
    if has_margin(method) and task.calibration and not row["diverged"]:
        row["inactive_share"] = training_inactive_share(
            model, task.calibration, options.seed
        )
    if options.export:
        plain = keras.Model(model.inputs, model.outputs)
        plain.save(folder / "model.keras")
        if keras.backend.backend() == "tensorflow":
            shutil.rmtree(folder / "serving", ignore_errors=True)
            keras_calib.export(plain, folder / "serving", from_logits=True)
    write_row(folder, row)
    return row


def needs_validation(setup, method):
    """Whether training looks at validation data after each epoch."""
    return setup.keep == "best" or follows(method.train_model)


def follows(train_model):
    """Whether a way to train looks at validation data after each epoch."""
    return train_model in _FOLLOWING


def build(task, setup, method, options):
    """The compiled model of a run."""
    keras.utils.set_random_seed(options.seed)
    keras.config.set_dtype_policy(options.precision)
    with scope(options.strategy, options.logical_devices):
        model = build_model(method, setup, task.num_samples, *task.network())
        synchronize(model, setup.synchronized)
        model.compile(
            build_optimizer(setup, task.steps),
            build_loss(method, setup),
            metrics=_metrics(label_kind(method), setup),
            jit_compile=options.jit or "auto",
        )
    return model


def _metrics(kind, setup):
    if kind == "pairs":
        return [keras_calib.Accuracy(from_logits=True, objectness=True)]
    if setup.ignore_class is not None:
        ignored = {"ignore_class": setup.ignore_class}
        return [keras_calib.Accuracy(from_logits=True, **ignored)]
    return ["accuracy"]


def fit(model, task, setup, options, folder):
    """Trains a compiled model, with a backup after each epoch.

    Args:
        model: A Keras model; its variables change.
        task: A `Task`.
        setup: A `Setup`.
        options: `Options`.
        folder: Folder of the run. It may hold the backup of a killed run.

    Returns:
        `(epochs, seconds)`: how many epochs were done, and how long they
        took.
    """
    backup = folder / "backup.npz"
    clock = Clock()
    best = _Best()
    remembered = [clock, *([best] if setup.keep == "best" else [])]
    callbacks = [keras.callbacks.TerminateOnNaN()]
    data = {}
    if task.validation is not None:
        callbacks.append(
            keras_calib.CalibrationLogger(
                task.validation,
                # A checkpoint must see each epoch.
                every=1 if setup.keep == "best" else max(1, setup.epochs // 25),
                from_logits=True,
                ignore_class=setup.ignore_class,
                csv_path=folder / "log.csv",
                log_dir=folder / "tensorboard" if options.tensorboard else None,
            )
        )
        if isinstance(model, keras_calib.AdaptiveFocalModel):
            data["validation_data"] = task.validation
    elif options.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(folder / "tensorboard"))
    last = keras_calib.training.ResumableBackup(backup, callbacks=remembered)
    if isinstance(model, keras_calib.CaPEModel) and task.calibration:
        data["calibration_data"] = task.calibration
    batches = task.train(keras_calib.training.finished_epochs(backup))
    if not hasattr(batches, "set_epoch"):
        data["steps_per_epoch"] = task.steps
    model.fit(
        batches,
        epochs=setup.epochs,
        callbacks=[*callbacks, *remembered, last],
        verbose=options.verbose,
        **data,
    )
    done = keras_calib.training.finished_epochs(backup)
    if best.weights is not None:
        model.set_weights(best.weights)
    return done, clock.seconds


class Clock(keras.callbacks.Callback):
    """Seconds of the epochs, also of those before a kill."""

    state_attributes = ("seconds",)

    def __init__(self):
        super().__init__()
        self.seconds = 0.0
        self._began = None

    def on_epoch_begin(self, epoch, logs=None):
        self._began = datetime.datetime.now()

    def on_epoch_end(self, epoch, logs=None):
        passed = datetime.datetime.now() - self._began
        self.seconds += passed.total_seconds()


class _Best(keras.callbacks.Callback):
    """The weights with the best accuracy on held-out data."""

    state_attributes = ("accuracy", "weights")

    def __init__(self):
        super().__init__()
        # The backup remembers both: no file of their own that a kill could
        # leave half written.
        self.accuracy = -1.0
        self.weights = None

    def on_epoch_end(self, epoch, logs=None):
        if logs["cal_accuracy"] > self.accuracy:
            self.accuracy = logs["cal_accuracy"]
            self.weights = self.model.get_weights()


def _measured(model, task, setup, folder):
    """Measures of the trained model; writes its predictions."""
    found = {}
    meter = task.meter and task.meter()
    if task.predictor is not None:
        model = task.predictor(model)
    for part in ("validation", "test"):
        data = getattr(task, part)
        if data is not None:
            found[part] = predict(
                model,
                data,
                pixels_per_image=setup.pixels_per_image,
                ignore_class=setup.ignore_class,
                meter=meter if part == "test" else None,
            )
            save_predictions(folder, part, *found[part])
    finite = np.isfinite(found["test"][1]).all()
    row = {"diverged": not (finite and (meter is None or meter.finite))}
    if row["diverged"]:
        return row
    row |= measures(*found["test"])
    if task.objects is not None:
        row |= _deviation(model, task.objects)
    if "validation" in found:
        row |= repaired(found["validation"], found["test"], setup.temperatures)
    if meter is None:
        return row
    whole = meter.row()
    if setup.before_interpolation:
        # The same pixels for all but what is of the classes of whole images.
        return row | {k: x for k, x in whole.items() if k not in row}
    # The others are of the pixels that were kept.
    return {k: x for k, x in row.items() if k not in _KEPT} | whole


def _deviation(model, objects):
    """How far confidences are from objectness; nothing of no images."""
    if next(iter(objects), None) is None:
        return {}
    pairs, logits = predict(model, objects)
    deviation = keras_calib.functional.objectness_deviation(
        pairs[:, 0].astype("int32"),
        logits,
        objectness=pairs[:, 1],
        from_logits=True,
    )
    return {"objectness_deviation": deviation}
