"""CaPE: training on the observed frequency of similar predictions."""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.formulas.targets import cape_targets
from keras_calib.inputs.checks import check_above, check_in, check_integer
from keras_calib.losses import PerSampleLoss, cape_loss
from keras_calib.losses.closed_forms import cross_entropy
from keras_calib.numerics.arrays import shape_of, to_numpy
from keras_calib.predictions.batches import (
    check_reread,
    has_end,
    predict_batches,
)
from keras_calib.predictions.outputs import reads_logits
from keras_calib.training.epoch_model import KerasOptions, no_data
from keras_calib.training.recording_model import (
    RecordingModel,
    check_one_row_each,
    checked_index,
    read_at,
)


@keras.saving.register_keras_serializable(package="keras_calib")
class CaPEModel(RecordingModel):
    """Calibrated probability estimation (CaPE).

    Use it to estimate probabilities of uncertain outcomes with a network that
    overfits. Start from a network whose training on cross entropy was stopped
    early.

    In every `every`-th epoch, from `first_epoch` on, the model predicts the
    training data in inference mode. The target of each sample becomes the
    observed frequency of the event among similar predictions, by
    `cape_targets`. The epoch trains on `cape_loss` with these targets; other
    epochs train on the compiled loss.

    The event of the paper is the second of two classes. For more classes use
    `event="predicted"`: the event is then that the label is the class
    predicted when the targets were made. This lowers the ECE of the
    predicted class; the other classes share the rest as before.

    Give `fit` `calibration_data`, the same samples with their index, if the
    training data are augmented or can be read only once. An endless data set
    is predicted for as many batches as an epoch has. A sample that is not
    among them keeps its last target, or trains on its label if it has none.
    Sample weights do not affect the targets.

    Args:
        *args: As for `keras.Model`, with outputs `(batch, num_classes)`, or
            `(batch, 1)` for two classes.
        num_samples: Number of training samples. Targets take 4 bytes for
            each, and with `event="predicted"` their classes 4 more.
        event: `"second"` of two classes, or `"predicted"` of any number.
        every: Train on targets in one of so many epochs; 6 in the released
            code.
        first_epoch: Number of the first such epoch, counted from 0.
        method: Similar predictions are those in the same of `num_bins` bins
            of equal count (`"bins"`), or all with Gaussian weights
            (`"kernel"`).
        num_bins: Number of bins, at most the number of samples.
        sigma: Standard deviation of the kernel in units of probability, > 0.
        window: Neighbours on either side that the kernel takes, >= 1.
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If an argument is out of range, or there are not two
            classes for the event `"second"`. Also if data have no index or
            can be read only once.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(1)(inputs)
    >>> model = CaPEModel(inputs, outputs, num_samples=100)
    >>> tuple(model.targets.shape)
    (100,)

    Reference:
        Liu et al., Deep Probability Estimation, ICML 2022,
        https://arxiv.org/abs/2111.10734

    Differs:
        Tied predictions are sorted stably. `event="predicted"` is this
        library's extension.
    """

    def __init__(
        self,
        *args: Any,
        num_samples: int,
        event: str = "second",
        every: int = 6,
        first_epoch: int = 0,
        method: str = "bins",
        num_bins: int = 10,
        sigma: float = 0.1,
        window: int = 500,
        **kwargs: Unpack[KerasOptions],
    ):
        check_in("event", event, ("second", "predicted"))
        check_integer("every", every, 1)
        check_integer("first_epoch", first_epoch, 0)
        check_in("method", method, ("bins", "kernel"))
        check_integer("num_bins", num_bins, 1)
        check_above("sigma", sigma, 0.0)
        check_integer("window", window, 1)
        super().__init__(*args, num_samples=num_samples, **kwargs)
        self._keep(
            event=event,
            every=every,
            first_epoch=first_epoch,
            method=method,
            num_bins=num_bins,
            sigma=sigma,
            window=window,
        )
        # -1 where there is no target yet.
        self.targets = self._state("targets", (num_samples,), -1.0)
        self.classes = None
        if event == "predicted":
            self.classes = self._state("classes", (num_samples,))
        self.calibrates = self._state("calibrates", ())
        self._given: Callable = no_data

    def records(self) -> list:
        of_classes = [] if self.classes is None else [self.classes]
        return [*super().records(), self.targets, *of_classes]

    def update_targets(
        self,
        data: Any,
        batch_size: int = 32,
        steps: int | None = None,
        verbose: str | int = "auto",
    ) -> None:
        """Sets the targets of samples from predictions in inference mode.

        Args:
            data: Arrays `(x, {"label": labels, "index": numbers})`, or a data
                set of such batches.
            batch_size: Batch size for arrays.
            steps: Number of batches to use of a data set; None uses all.
            verbose: `"auto"` or 1 for a progress bar, 2 for a line at the end,
                0 for silence.

        Raises:
            ValueError: If there is no index, a number is out of range, or there
                are fewer samples than bins.
        """
        labels, outputs, index = [], [], []
        for batch in predict_batches(
            self, data, batch_size, steps, verbose=verbose
        ):
            if batch.index is None:
                raise value_error(
                    'the labels of the data must be {"label": labels, '
                    '"index": numbers of the samples}',
                    labels=type(batch.labels).__name__,
                )
            checked_index(batch.index, self.num_samples)
            labels.append(to_numpy(batch.labels))
            outputs.append(batch.outputs)
            index.append(batch.index)
        if not labels:
            raise value_error("`data` must have a sample", n=0)
        index, outputs = np.concatenate(index), np.concatenate(outputs)
        targets = to_numpy(self.targets).copy()
        targets[index] = cape_targets(
            np.concatenate(labels),
            outputs,
            event=self.event,
            method=self.method,
            num_bins=self.num_bins,
            sigma=self.sigma,
            window=self.window,
            from_logits=reads_logits(self),
        )
        self.targets.assign(targets)
        if self.classes is not None:
            classes = to_numpy(self.classes).copy()
            if outputs.shape[-1] > 1:
                classes[index] = outputs.argmax(axis=-1)
            else:
                least = 0.0 if reads_logits(self) else 0.5
                classes[index] = outputs[:, 0] > least
            self.classes.assign(classes)

    def fit(self, *args, calibration_data=None, **kwargs):
        """Trains as `keras.Model.fit` does, with data for the targets.

        Args:
            *args: Arguments of `keras.Model.fit`.
            calibration_data: Arrays or a data set with `y` as in training;
                None for the training data.
            **kwargs: Other arguments of `keras.Model.fit`.
        """
        # A function hides the data from Keras, which tracks attributes.
        self._given = lambda: calibration_data
        try:
            return super().fit(*args, **kwargs)
        finally:
            self._given = no_data

    def begin_training(self, arguments: dict) -> None:
        super().begin_training(arguments)
        data, steps = self._given(), None
        if isinstance(data, list) and data and hasattr(data[0], "shape"):
            # Keras reads a list of arrays as arrays, not as batches.
            data = tuple(data)
        if data is None and arguments.get("validation_split"):
            raise value_error(
                "`calibration_data` must be given with `validation_split`: "
                "targets are not for the samples that are split off",
                validation_split=arguments["validation_split"],
            )
        if data is None:
            data = arguments.get("x")
            if arguments.get("y") is not None:
                data = (data, arguments["y"])
            elif not has_end(data):
                steps = arguments.get("steps_per_epoch")
        check_reread("calibration_data", data)
        size = arguments.get("batch_size") or 32
        self._update = partial(self.update_targets, data, size, steps, 0)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        since = epoch - self.first_epoch
        calibrates = since >= 0 and since % self.every == 0
        if calibrates:
            self._update()
        self.calibrates.assign(float(calibrates))

    def recorded_loss(self, x, labels, index, y_pred, sample_weight):
        check_one_row_each(y_pred)
        if self.classes is None and y_pred.shape[-1] > 2:
            raise value_error(
                "outputs must have two classes, (batch, 2) or (batch, 1); "
                'for more, give the model `event="predicted"`',
                **{"y_pred.shape": shape_of(y_pred)},
            )
        plain = self.plain_loss(x, labels, y_pred, sample_weight)
        targets = read_at(self.targets, index)
        classes = None if self.classes is None else read_at(self.classes, index)

        def of_targets(labels, logits):
            q = ops.cast(ops.maximum(targets, 0.0), logits.dtype)
            return ops.where(
                targets < 0.0,
                cross_entropy(labels, logits),
                cape_loss(q, logits, classes=classes),
            )

        calibrated = PerSampleLoss(
            of_targets, from_logits=reads_logits(self), name="cape"
        )(labels, y_pred, sample_weight)
        calibrates = ops.convert_to_tensor(self.calibrates) > 0
        return ops.where(calibrates, calibrated + self.added_losses(), plain)
