"""The callback that logs calibration after each epoch."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict, Unpack

import keras
import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.keras_internals import mode_of_metric, neighbours
from keras_calib.backend.replicas import is_chief
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.given_metrics import key_of, made
from keras_calib.inputs.options import ReadOptions, check_reading, filled
from keras_calib.losses import PerSampleLoss
from keras_calib.metrics import ECE, CalibrationMetrics
from keras_calib.metrics.calibration_errors import BinnedMetric
from keras_calib.metrics.registry import QUANTITIES
from keras_calib.monitoring.evaluation import (
    PARTS,
    DatasetEvaluator,
    LoggedEpoch,
    Predicted,
    flips,
)
from keras_calib.monitoring.files import EpochFiles, check_tracker
from keras_calib.predictions.batches import check_reread, count_batches
from keras_calib.predictions.collect import ModelRun
from keras_calib.predictions.outputs import loss_of, setting_of

_NAMES = (
    "accuracy",
    "mean_confidence",
    "nll",
    "brier_score",
    "ece",
    "aece",
    "aurc",
)
# One of them needs labels of its own.
_KNOWN = (*(x for x in QUANTITIES if x != "objectness_deviation"), *PARTS)
_INACTIVE, _FLIPS = "inactive_share", "prediction_flips"


class LoggerOptions(TypedDict, total=False):
    """What `CalibrationLogger` computes besides, and where it writes."""

    prefix: Annotated[str, "cal_"]
    num_bins: Annotated[int, 15]
    histogram_bins: Annotated[int, 20]
    histogram_limits: Annotated[tuple[float, float], (0.0, 0.1)]
    count_flips: Annotated[bool, True]
    csv_path: str | os.PathLike | None
    log_dir: str | os.PathLike | None
    picture_dir: str | os.PathLike | None
    tracker: Any


class CalibrationLogger(keras.callbacks.Callback):
    """Logs calibration on a data set after each epoch, in `logs`.

    Use it to watch calibration while a model trains, or to stop by it, as with
    `EarlyStopping("cal_nll", patience=5)`. Later callbacks see its values like
    `val_loss`, and it sets their `mode` if that is `"auto"`.
    `"cal_refinement_nll"` does not choose an early epoch because it is
    underconfident. The logger does not affect training.

    Two more values, whatever `metrics` are, leave out samples of weight 0 and
    count others alike. `inactive_share` is the share of labels on which the
    loss equals cross entropy. `prediction_flips` is the share of samples of
    `data` whose predicted class has changed since the last logged epoch; the
    ACLS paper counts training samples that one step changes. Samples are
    matched by their index, or without one by their place; if these change,
    the share is NaN, with a warning.

    A `ResumableBackup` with the logger among its `callbacks` lets the first
    epoch after a crash count flips too. The first batch is measured before
    training begins, to find errors early. If the model predicts NaN, the
    values are NaN, with a warning. Later failures to draw or write are
    warnings.

    Args:
        data: Arrays `(x, y)` or `(x, y, sample_weight)`, or a data set of
            such batches that can be read again each epoch. `y` may be labels
            or `{"label", "index"}`. Rows that layers mask, such as padded
            steps, weigh 0.
        metrics: Names of values of `CalibrationMetrics`, and metrics as
            `keras_calib.metrics.get` takes them, those of Keras too; None for
            `accuracy`, `mean_confidence`, `nll`, `brier_score`, `ece`, `aece`
            and `aurc`. A class of this package reads outputs as the logger
            does, an object as it says. Two more names are `refinement_nll`, the
            NLL after the best temperature, and `calibration_nll`, what the NLL
            exceeds it by. They keep the logits of the data in memory.
        prefix: Put before each name. Defaults to `"cal_"`.
        from_logits: Whether the model's outputs are logits; None takes it
            from the compiled loss.
        ignore_class: Class id to leave out; None takes it from the compiled
            loss.
        output: Name or position of the output to follow, for a model that has
            several.
        batch_size: Batch size for arrays.
        every: Log every this many epochs, and the last one. Other epochs have
            no values in `logs`, as with `validation_freq` of `fit`.
        num_bins: Number of bins of the calibration errors and the diagram.
            Defaults to `15`.
        loss: The loss whose regulariser is followed. None takes the compiled
            one if it is of this package and needs only labels.
        histogram_bins: Number of bins of the regulariser's histogram. Defaults
            to `20`.
        histogram_limits: Lowest and highest edge of this histogram, in nats,
            to which values are clipped. Defaults to `(0.0, 0.1)`.
        count_flips: Whether to count prediction flips, which takes one byte
            per sample for up to 127 classes. Defaults to `True`.
        csv_path: File for a table with a row per epoch. An existing table is
            continued: epochs that are trained anew replace their rows and
            later ones. A lock file beside it keeps it for one process. Only
            the first of several processes writes files.
        log_dir: Folder for TensorBoard: the values, the diagram as an image
            and the regulariser's histogram. Needs TensorFlow and matplotlib.
        picture_dir: Folder for the diagrams as PNG files
            `cal_reliability_0000.png`, ... Needs matplotlib.
        tracker: The module `mlflow`, a run of wandb, or any object with
            `log_metrics(values, step=)` or `log(values, step=)`. It gets the
            values, and with matplotlib the diagram by `log_figure` or as an
            `Image` of the run's package.

    Attributes:
        logged: A `LoggedEpoch` for each epoch logged by the last `fit`.

    Raises:
        ImportError: As training begins, if a package is not installed.
        OSError: As training begins, if nothing can be written to a path.
        RuntimeError: As training begins, if another process writes the table
            at `csv_path`.
        TypeError: If an argument is of the wrong kind, or the model has
            several outputs and `output` is None.
        ValueError: If `data` have no end or can be read only once. As
            training begins, if it is unknown whether outputs are logits,
            labels do not fit, or a callback that monitors a value comes
            before the logger.

    Example:

    >>> import keras_calib
    >>> import numpy as np
    >>> x, y = np.eye(4, dtype="float32"), np.array([0, 1, 0, 1])
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> model.compile("sgd", loss=keras_calib.MbLS(from_logits=True))
    >>> logger = keras_calib.CalibrationLogger((x, y), metrics=["ece"])
    >>> stop = keras.callbacks.EarlyStopping("cal_ece")
    >>> _ = model.fit(x, y, callbacks=[logger, stop], verbose=0)
    >>> sorted(logger.logged[0].values)
    ['cal_ece', 'cal_inactive_share']

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, figure 3 and Limitation,
        https://arxiv.org/abs/2308.11911

    Differs:
        The paper counts the predictions that each training step alters over
        the last epoch. Here a sample counts once, if its class differs
        between the ends of two logged epochs.
    """

    # Its table is a file of its own; flips need the classes of the last epoch.
    state_attributes = ("last_predicted",)

    def __init__(
        self,
        data: Any,
        *,
        metrics: Sequence[Any] | None = None,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        batch_size: int = 32,
        every: int = 1,
        loss: keras.losses.Loss | Callable | None = None,
        **options: Unpack[LoggerOptions],
    ):
        given = filled("CalibrationLogger", options, LoggerOptions)
        super().__init__()
        count_batches(data, batch_size)
        check_reread("data", data)
        check_integer("every", every, 1)
        check_reading(-1, ignore_class)
        self.data = data
        if isinstance(metrics, str):
            raise type_error(
                "`metrics` must be a list of names or metrics", metrics=metrics
            )
        self.metrics = list(_NAMES if metrics is None else metrics)
        self.prefix = given.prefix
        self.from_logits = from_logits
        self.ignore_class = ignore_class
        self.output = output
        self.batch_size = batch_size
        self.every = every
        self.num_bins = given.num_bins
        self.loss = loss
        self.histogram = {
            "num_bins": given.histogram_bins,
            "limits": given.histogram_limits,
        }
        self.count_flips = given.count_flips
        self.csv_path = given.csv_path
        self.log_dir = given.log_dir
        self.picture_dir = given.picture_dir
        if given.tracker is not None:
            check_tracker(given.tracker)
        self.tracker = given.tracker
        self.logged: list[LoggedEpoch] = []
        # Made as training begins, as they depend on the model.
        self._run: Any = None
        self._evaluator: Any = None
        self._files: Any = None
        self._before: Any = None
        # Raises now for unknown names and numbers out of range.
        self._evaluator_of(ReadOptions())

    def on_train_begin(self, logs=None):
        """Measures the first batch and opens the files."""
        self.logged, self._before = [], None
        options = {
            "multi_label": False,
            "from_logits": self.from_logits,
            "ignore_class": self.ignore_class,
            "output": self.output,
            "batch_size": self.batch_size,
            "verbose": 0,
        }
        self._run = ModelRun(self.model, self.data, options)
        self._evaluator = self._evaluator_of(*self._read(self._run.reading))
        first, _ = self._evaluator.measure(self._run, num_batches=1)
        more = [_INACTIVE] * (self._evaluator.loss is not None)
        more += [_FLIPS] * self.count_flips
        names = [self.prefix + name for name in (*first.values, *more)]
        # Modes of callbacks by the names that they monitor.
        known: dict[str, str | None] = dict.fromkeys(PARTS, "min")
        for metric in self._evaluator.metrics:
            own = {metric.name: mode_of_metric(metric)}
            known |= getattr(metric, "modes", own)
        modes: dict[Any, Any] = {self.prefix + k: x for k, x in known.items()}
        before, after = neighbours(self)
        for callback in after:
            mode = modes.get(getattr(callback, "monitor", None))
            if mode and getattr(callback, "mode", None) == "auto":
                # Keras knows metrics of the model alone.
                callback.mode = mode
        for callback in before:
            if getattr(callback, "monitor", None) in names:
                raise value_error(
                    "`CalibrationLogger` must come before the callbacks "
                    "that monitor its values",
                    first=type(callback).__name__,
                    monitor=callback.monitor,
                )
        asked = "csv_path", "log_dir", "picture_dir", "tracker"
        places = {x: getattr(self, x) if is_chief() else None for x in asked}
        self._files = EpochFiles(names, prefix=self.prefix, **places)

    def on_epoch_end(self, epoch, logs=None):
        """Measures the data set and writes the values."""
        last = (self.params or {}).get("epochs") == epoch + 1
        last = last or getattr(self.model, "stop_training", False)
        if (epoch + 1) % self.every and not last:
            return
        entry, predicted = self._evaluator.measure(self._run, epoch=epoch)
        values = dict(entry.values)
        if entry.regularizer is not None:
            values[_INACTIVE] = entry.regularizer.inactive_share
        if predicted is not None:
            if self._before is not None:
                values[_FLIPS] = flips(self._before, predicted)
            self._before = predicted
        values = {self.prefix + name: value for name, value in values.items()}
        logs = {} if logs is None else logs
        taken = sorted(set(values) & set(logs))
        if taken:
            raise value_error(
                "`prefix` must make names that training and other callbacks "
                "do not use: choose another",
                prefix=self.prefix,
                names=taken,
            )
        logs.update(values)
        self.logged.append(dataclasses.replace(entry, values=values))
        self._files.put(self.logged[-1])

    def on_train_end(self, logs=None):
        """Closes the files."""
        self._files.close()

    @property
    def last_predicted(self) -> list[np.ndarray] | None:
        """Classes of the last logged epoch, and what tells their samples."""
        before = self._before
        return before and [x for x in before if x is not None]

    @last_predicted.setter
    def last_predicted(self, arrays: list[np.ndarray] | None) -> None:
        self._before = None
        if arrays and self.count_flips:
            samples = arrays[1] if len(arrays) > 1 else None
            self._before = Predicted(arrays[0], samples)

    def _read(self, options: ReadOptions) -> tuple[ReadOptions, Any]:
        """Options for reading batches of labels, and the loss to follow."""
        compiled = loss_of(self.model, options.output)
        loss = self.loss
        if loss is None and isinstance(compiled, PerSampleLoss):
            # Such a loss needs a record of training samples, not of `data`.
            loss = None if compiled.needs_penalty_mask else compiled
        told = compiled if isinstance(compiled, keras.losses.Loss) else loss
        axis, ignore_class = setting_of(told, "axis"), options.ignore_class
        if ignore_class is None:
            ignore_class = setting_of(told, "ignore_class")
        options = options._replace(
            axis=-1 if axis is None else axis,
            ignore_class=ignore_class,
            objectness=getattr(told, "takes_objectness", False),
        )
        return options, loss

    def _evaluator_of(
        self, options: ReadOptions, loss: Any = None
    ) -> DatasetEvaluator:
        reading = options.of_metric()
        parts = [x for x in self.metrics if x in PARTS]
        names = [x for x in self.metrics if isinstance(x, str)]
        others = [x for x in self.metrics if not isinstance(x, str)]
        names = [key_of("metrics", x, _KNOWN) for x in names if x not in parts]
        metrics = [made("metrics", x, reading) for x in others]
        if names:
            table = CalibrationMetrics(names, num_bins=self.num_bins, **reading)
            metrics.insert(0, table)
        binned = (BinnedMetric, CalibrationMetrics)
        diagram = next((x for x in metrics if isinstance(x, binned)), None)
        draws = self.log_dir is not None or self.picture_dir is not None
        if diagram is None and draws:
            diagram = ECE(num_bins=self.num_bins, **reading)
        return DatasetEvaluator(
            metrics,
            diagram,
            loss,
            options,
            self.histogram,
            self.count_flips,
            parts,
        )
