"""Models that train on focal loss with a gamma per epoch or per bin."""

from collections.abc import Sequence
from functools import partial
from operator import index
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bins import BinSums, interpolated_bins
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_integer,
    check_number,
)
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.top_label import top_label
from keras_calib.losses import PerSampleLoss, adaptive_focal
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.batches import (
    batches_of,
    check_reread,
    predict_batches,
)
from keras_calib.predictions.collect import rows_that_count
from keras_calib.training.epoch_model import (
    EpochModel,
    KerasOptions,
    refuse_several_outputs,
    without_index,
)

_FLSC_531 = ((0, 5.0), (100, 3.0), (250, 1.0))


class FocalOptions(KerasOptions, total=False):
    """The same, and how labels and outputs are read."""

    from_logits: bool
    axis: int
    ignore_class: int | None


class _FocalBinsModel(EpochModel):
    """Abstract: trains on focal loss with a gamma per bin of probability.

    The model, not a loss, owns edges and gammas: variables of a loss would
    be constants in compiled code on JAX.
    """

    def __init__(
        self,
        *args: Any,
        edges: np.ndarray,
        gammas: np.ndarray,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        **kwargs: Unpack[KerasOptions],
    ):
        super().__init__(*args, **kwargs)
        self._keep(
            from_logits=from_logits, axis=axis, ignore_class=ignore_class
        )
        self.edges = self._state("edges", edges.shape, edges)
        self.gammas = self._state("gammas", gammas.shape, gammas)

    @property
    def returns_logits(self) -> bool:
        """Whether outputs are logits, as no compiled loss says it."""
        return self.from_logits

    def begin_training(self, arguments: dict) -> None:
        super().begin_training(arguments)
        self._check_no_loss()

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        self._check_no_loss()
        refuse_several_outputs(y_pred)
        labels, sample_weight = without_index(y, sample_weight)
        loss = _FocalOfBins(
            adaptive_focal,
            from_logits=self.from_logits,
            axis=self.axis,
            ignore_class=self.ignore_class,
            edges=ops.convert_to_tensor(self.edges),
            gammas=ops.convert_to_tensor(self.gammas),
            name="focal_of_bins",
        )(labels, y_pred, sample_weight)
        return loss + self.added_losses()

    def _check_no_loss(self):
        if self.loss is not None:
            raise value_error(
                f"{type(self).__name__} brings its own loss: compile it "
                "without `loss`",
                loss=self.loss,
            )


class _FocalOfBins(PerSampleLoss):
    needs_hard_labels = True


@keras.saving.register_keras_serializable(package="keras_calib")
class ScheduledFocalModel(_FocalBinsModel):
    """Focal loss with a gamma that follows a schedule of epochs.

    Use it when one gamma throughout is too weak at first or too strong later.
    Compile the model without a loss. Labels must be hard: class ids or
    one-hot.

    Args:
        *args: Inputs and outputs, as `keras.Model` takes them.
        schedule: Rows (first epoch, gamma) in ascending order, where epochs
            count from 0 and the first row is for epoch 0. Defaults to
            FLSc-531: 5, then 3 from epoch 100 and 1 from epoch 250.
        from_logits: Whether outputs are logits.
        axis: The axis of the classes.
        ignore_class: Class id of labels to leave out.
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If `schedule` is not such a table, or the model is
            compiled with a loss.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(3)(inputs)
    >>> model = ScheduledFocalModel(
    ...     inputs, outputs, schedule=((0, 5.0), (10, 1.0)), from_logits=True
    ... )
    >>> model.gamma_of(9), model.gamma_of(10)
    (5.0, 1.0)

    Reference:
        Mukhoti et al., Calibrating Deep Neural Networks using Focal Loss,
        NeurIPS 2020, https://arxiv.org/abs/2002.09437 (released code,
        FLSc-531)
    """

    def __init__(
        self,
        *args: Any,
        schedule: Sequence[Sequence[float]] = _FLSC_531,
        **kwargs: Unpack[FocalOptions],
    ):
        rows = _read_schedule(schedule)
        super().__init__(
            *args,
            # One bin: all samples have the gamma of the epoch.
            edges=np.array([0.0, 1.0]),
            gammas=np.array([rows[0][1]]),
            **kwargs,
        )
        self._keep(schedule=rows)

    def gamma_of(self, epoch: int) -> float:
        """The gamma of an epoch, counted from 0."""
        return [gamma for first, gamma in self.schedule if first <= epoch][-1]

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.gammas.assign([self.gamma_of(epoch)])


def _read_schedule(schedule: Any) -> tuple:
    try:
        rows = tuple((index(first), float(gamma)) for first, gamma in schedule)
    except (TypeError, ValueError):
        rows = ()
    firsts = [first for first, _ in rows]
    if not rows or firsts[0] != 0 or firsts != sorted(set(firsts)):
        raise value_error(
            "`schedule` must be rows of (first epoch, gamma), epochs "
            "ascending from 0",
            schedule=schedule,
        )
    for _, gamma in rows:
        check_at_least("schedule", gamma, 0.0)
    return rows


def next_gammas(
    gammas: np.ndarray,
    gaps: np.ndarray,
    *,
    rate: float = 1.0,
    switch: float = 0.2,
    limits: tuple[float, float] = (-2.0, 20.0),
) -> np.ndarray:
    """AdaFocal's next gammas `(num_bins,)`, from the gaps of the bins.

    gamma exp(rate gap) where gamma > 0, otherwise gamma exp(-rate gap), with
    gap = mean confidence - accuracy. A gamma that comes within `switch` of 0
    goes to -switch or +switch on the other side of 0. Then the limits apply.
    """
    positive = gammas > 0
    moved = gammas * np.exp(np.where(positive, rate, -rate) * gaps)
    # A gamma shrinks towards 0 and never passes it by itself: near it, the
    # focal loss turns into the inverse one, or back.
    near = np.abs(moved) < switch
    moved = np.where(near, np.where(moved > 0, -switch, switch), moved)
    return np.clip(moved, *limits)


@keras.saving.register_keras_serializable(package="keras_calib")
class AdaptiveFocalModel(_FocalBinsModel):
    """AdaFocal: focal gammas that follow the calibration of validation data.

    Use it when no single gamma of focal loss fits, and you can give `fit`
    validation data. The loss is `adaptive_focal`: each sample has the gamma
    of the bin that holds the probability of its true class.

    After each epoch the confidences of the validation data are cut into bins
    of equal mass, whose edges become the new edges. The gap of a bin, mean
    confidence less accuracy, moves its gamma:

    gamma exp(rate gap) if gamma > 0, otherwise gamma exp(-rate gap)

    Compile the model without a loss.

    Args:
        *args: Inputs and outputs, as `keras.Model` takes them.
        num_bins: Number of bins.
        gamma: Initial value of all gammas.
        rate: How fast gammas follow the gaps, > 0 (lambda in the paper).
        switch: Size of gamma at which focal loss turns into inverse focal
            loss, or back, >= 0.
        limits: Least and largest gamma.
        from_logits, axis, ignore_class: As for `ScheduledFocalModel`.
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If an argument is out of range or the model is compiled
            with a loss. Also if `fit` has no `validation_data`, or they have
            weights or can be read only once.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(3)(inputs)
    >>> model = AdaptiveFocalModel(inputs, outputs, from_logits=True)
    >>> tuple(model.gammas.shape)
    (15,)

    Reference:
        Ghosh, Schaaf and Gormley, AdaFocal: Calibration-aware Adaptive Focal
        Loss, NeurIPS 2022, https://arxiv.org/abs/2211.11838

    Differs:
        The released code sums over the batch; this is the mean, so scale its
        learning rate. For its updates within an epoch call `update_gammas`.
    """

    def __init__(
        self,
        *args: Any,
        num_bins: int = 15,
        gamma: float = 1.0,
        rate: float = 1.0,
        switch: float = 0.2,
        limits: Sequence[float] = (-2.0, 20.0),
        **kwargs: Unpack[FocalOptions],
    ):
        check_integer("num_bins", num_bins, 1)
        check_number("gamma", gamma)
        check_above("rate", rate, 0.0)
        check_at_least("switch", switch, 0.0)
        if len(limits) != 2:
            raise value_error("`limits` must be two numbers", limits=limits)
        low, high = limits
        check_above("limits", high, low)
        super().__init__(
            *args,
            edges=np.linspace(0.0, 1.0, num_bins + 1),
            gammas=np.full(num_bins, gamma),
            **kwargs,
        )
        self._keep(
            num_bins=num_bins,
            gamma=gamma,
            rate=rate,
            switch=switch,
            limits=(float(low), float(high)),
        )

    def update_gammas(
        self,
        data: Any,
        batch_size: int = 32,
        steps: int | None = None,
        verbose: str | int = "auto",
    ) -> BinSums:
        """Sets edges and gammas from data, in inference mode.

        Args:
            data: Arrays `(x, y)` or a data set of batches.
            batch_size: Batch size for arrays.
            steps: Number of batches to use of a data set; None uses all.
            verbose: `"auto"` or 1 for a progress bar, 2 for a line at the end,
                0 for silence.

        Returns:
            Sums of the new bins, arrays `(num_bins,)`.

        Raises:
            ValueError: If there are weights, or no valid sample.
        """
        confidence, correct = [], []
        reading = ReadOptions(axis=self.axis, ignore_class=self.ignore_class)
        for batch in predict_batches(
            self, data, batch_size, steps, verbose=verbose
        ):
            weight = batch.sample_weight
            # The weights of a mask are 0 and 1.
            if weight is not None and not np.isin(weight, (0.0, 1.0)).all():
                _check_no_weight(weight)
            counts = rows_that_count(batch, reading)
            if counts is not None and not counts.any():
                continue
            top = top_label(
                to_numpy(batch.labels),
                np.moveaxis(batch.outputs, self.axis, -1),
                from_logits=self.from_logits,
                sample_weight=counts,
                ignore_class=self.ignore_class,
            ).counted()
            confidence.append(top.confidence)
            correct.append(top.correct)
        if not confidence:
            raise value_error(
                "`validation_data` must have a sample that is not ignored", n=0
            )
        edges, sums = interpolated_bins(
            np.concatenate(confidence), np.concatenate(correct), self.num_bins
        )
        gammas = next_gammas(
            to_numpy(self.gammas, "float64"),
            sums.confidence_gap,
            rate=self.rate,
            switch=self.switch,
            limits=self.limits,
        )
        self.edges.assign(edges)
        self.gammas.assign(gammas)
        return sums

    def begin_training(self, arguments: dict) -> None:
        super().begin_training(arguments)
        data = arguments.get("validation_data")
        if data is None:
            raise value_error(
                "`validation_data` must be given: its bins set the gammas",
                validation_data=None,
                validation_split=arguments.get("validation_split", 0.0),
            )
        if isinstance(data, list):
            # Keras reads a list as arrays, not as batches.
            data = tuple(data)
        check_reread("validation_data", data)
        for batch in batches_of(data, steps=1):
            _check_no_weight(batch.sample_weight)
        size = arguments.get("validation_batch_size")
        size = size or arguments.get("batch_size") or 32
        steps = arguments.get("validation_steps")
        self._update = partial(self.update_gammas, data, size, steps, 0)

    def end_epoch(self, epoch: int) -> None:
        super().end_epoch(epoch)
        self._update()


def _check_no_weight(sample_weight: Any) -> None:
    if sample_weight is not None:
        raise value_error(
            "`validation_data` must have no sample weights: bins of equal "
            "mass count samples",
            sample_weight=type(sample_weight).__name__,
        )
