"""Pruning of training samples with low confidence."""

from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.replicas import all_rows, sum_over_replicas
from keras_calib.formulas.scores import msp
from keras_calib.inputs.checks import check_at_least, check_integer, check_share
from keras_calib.numerics.arrays import safe_divide, to_numpy
from keras_calib.training.epoch_model import KerasOptions
from keras_calib.training.recording_model import (
    RecordingModel,
    classified,
    read_at,
    set_at,
    weight_of_samples,
)

# Reductions that divide by the batch size, whatever the weights.
_MEANS = ("mean", "sum_over_batch_size")


@keras.saving.register_keras_serializable(package="keras_calib")
class ConfidencePruningModel(RecordingModel):
    """Prunes training samples whose confidence stays low.

    Use it with `DCA(huber_delta=..., fidelity=FocalLoss(...))` for calibrated
    training on less data. The model records a moving average of the
    probability of the predicted class for each training sample. After every
    `every`-th epoch it prunes the share `fraction` of the remaining samples
    with the least average.

    Pruned samples have weight 0, and losses are means over the others of the
    batch.

    Args:
        *args: As for `keras.Model`, with outputs `(batch, num_classes)` or
            `(batch, 1)`.
        num_samples: Number of training samples; the record takes 8 bytes for
            each.
        smoothing: Share of the newest confidence in the average, in (0, 1].
        fraction: Share of the remaining samples to prune at a time, in
            [0, 1).
        every: Number of epochs between two prunings.
        min_kept: Least share of all samples to keep, in [0, 1].
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If an argument is out of range; in training, if `y` has
            no index.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(3)(inputs)
    >>> model = ConfidencePruningModel(inputs, outputs, num_samples=100)
    >>> int(model.kept().sum())
    100

    Reference:
        Patra et al., Calibrating Deep Neural Networks using Explicit
        Regularisation and Dynamic Data Pruning, WACV 2023,
        https://arxiv.org/abs/2212.10005

    Differs:
        `every` and `min_kept` are this library's choice, as no code of the
        authors is public; `smoothing` and `fraction` are as reported.
    """

    def __init__(
        self,
        *args: Any,
        num_samples: int,
        smoothing: float = 0.3,
        fraction: float = 0.1,
        every: int = 5,
        min_kept: float = 0.5,
        **kwargs: Unpack[KerasOptions],
    ):
        check_share("smoothing", smoothing, positive=True)
        check_at_least("fraction", fraction, 0.0)
        if fraction >= 1.0:
            raise value_error("`fraction` must be < 1", fraction=fraction)
        check_integer("every", every, 1)
        check_share("min_kept", min_kept)
        super().__init__(*args, num_samples=num_samples, **kwargs)
        self._keep(
            smoothing=smoothing,
            fraction=fraction,
            every=every,
            min_kept=min_kept,
        )
        # -1 where a sample was never seen.
        self.confidence = self._state("confidence", (num_samples,), -1.0)
        self.keeps = self._state("keeps", (num_samples,), 1.0)

    def records(self) -> list:
        return [*super().records(), self.confidence, self.keeps]

    def kept(self) -> np.ndarray:
        """Mask of the samples that are not pruned, bool `(num_samples,)`."""
        return to_numpy(self.keeps) > 0

    def prune(self) -> int:
        """Prunes once; returns the number of samples that are left.

        Samples that were never seen stay. Among samples of equal confidence
        the first ones go.
        """
        kept = self.kept()
        confidence = to_numpy(self.confidence, "float64")
        candidates = np.flatnonzero(kept & (confidence >= 0))
        count = int(self.fraction * kept.sum())
        most = int(kept.sum()) - int(np.ceil(self.min_kept * self.num_samples))
        count = max(0, min(count, most, len(candidates)))
        order = np.argsort(confidence[candidates], kind="stable")
        kept[candidates[order[:count]]] = False
        self.keeps.assign(kept.astype("float32"))
        return int(kept.sum())

    def end_epoch(self, epoch: int) -> None:
        super().end_epoch(epoch)
        if (epoch + 1) % self.every == 0:
            self.prune()

    def recorded_loss(self, x, labels, index, y_pred, sample_weight):
        weight = weight_of_samples(sample_weight, classified(self, y_pred))
        kept = read_at(self.keeps, index)
        # A mean over the whole batch would include pruned samples.
        count, total = sum_over_replicas(
            [ops.sum(kept), ops.sum(ops.ones_like(kept))]
        )
        if getattr(self.loss, "reduction", "mean") in _MEANS:
            kept = kept * safe_divide(total, count)
        return self.plain_loss(x, labels, y_pred, weight * kept)

    def remember(self, labels, index, y_pred, sample_weight):
        logits = classified(self, y_pred)
        index, seen = self._seen(index, logits, sample_weight)
        index, seen, confidence = map(all_rows, (index, seen, msp(logits)))
        before = read_at(self.confidence, index)
        moved = before + self.smoothing * (confidence - before)
        moved = ops.where(before < 0, confidence, moved)
        set_at(self.confidence, index, moved, seen)
