"""Focal loss with a gamma per epoch or per bin."""

from collections.abc import Sequence
from operator import index
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_at_least
from keras_calib.losses import PerSampleLoss, adaptive_focal
from keras_calib.training.epoch_model import ConfiguredModel, without_index
from keras_calib.training.unsupported import refuse_several_outputs

__all__ = ["FocalBinsModel", "ScheduledFocalModel"]

_FLSC_531 = ((0, 5.0), (100, 3.0), (250, 1.0))


class FocalBinsModel(ConfiguredModel):
    """Abstract: trains on focal loss with a gamma per bin of probability.

    The model, not a loss, owns edges and gammas: variables of a loss would
    be constants in compiled code on JAX.
    """

    def __init__(
        self,
        *args: Any,
        edges: np.ndarray,
        gammas: np.ndarray,
        from_logits: bool,
        axis: int,
        ignore_class: int | None,
        **kwargs: Any,
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
class ScheduledFocalModel(FocalBinsModel):
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
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        **kwargs: Any,
    ):
        rows = _read_schedule(schedule)
        super().__init__(
            *args,
            # One bin: all samples have the gamma of the epoch.
            edges=np.array([0.0, 1.0]),
            gammas=np.array([rows[0][1]]),
            from_logits=from_logits,
            axis=axis,
            ignore_class=ignore_class,
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
