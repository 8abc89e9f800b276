"""CRL: a model that records how often each training sample was right."""

from collections.abc import Callable
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.replicas import all_rows, num_replicas, own_rows
from keras_calib.inputs.checks import check_at_least, check_in
from keras_calib.inputs.labels import standardize_labels
from keras_calib.inputs.top_label import hard_labels
from keras_calib.losses import correctness_ranking
from keras_calib.losses.margin import with_penalty_mask
from keras_calib.numerics.arrays import safe_divide, to_numpy
from keras_calib.numerics.softmax import is_wrong
from keras_calib.training.epoch_model import KerasOptions
from keras_calib.training.recording_model import (
    RecordingModel,
    add_at,
    classified,
    read_at,
    weight_of_samples,
)


@keras.saving.register_keras_serializable(package="keras_calib")
class CorrectnessRankingModel(RecordingModel):
    """Correctness ranking loss (CRL): confidence ranked by past correctness.

    Use it to improve the ranking of predictions, for rejection and failure
    detection. The model records how often it classified each training sample
    correctly, and trains on the compiled loss plus

    strength mean_i relu(-sign(c_i - c_j) (kappa_i - kappa_j) + margin_i)

    over pairs of neighbours i, j = i + 1 in the batch (the last with the
    first). Here c is the correctness so far, kappa the confidence and
    margin_i = |c_i - c_j|, or 0 for `condition="ranking"`.

    With `role="condition"` the ranking adds no term. Instead it selects the
    samples that `ACLS(condition="ranking")`, the compiled loss, penalises;
    the others train on cross entropy.

    The correctness is read before the batch changes it. Predictions of the
    training step update it, those of the first pass if there are several. A
    pair has the smaller weight of its samples, and is no condition if that is
    0. Samples of weight 0 are not recorded. Under a distribution strategy,
    pairs and record use the batch of all replicas.

    Args:
        *args: As for `keras.Model`, with outputs `(batch, num_classes)`, or
            `(batch, 1)` for two classes.
        num_samples: Number of training samples; the record takes 8 bytes for
            each.
        strength: Coefficient of the ranking term, >= 0.
        score: The confidence kappa: `"msp"`, the largest probability,
            `"prob_margin"`, its lead over the second, or `"neg_entropy"`.
        condition: `"margin"`, as in the released code, asks confidences to
            differ by the difference of correctness. `"ranking"` asks only
            that they do not contradict the record. None takes `"margin"` for
            a penalty and `"ranking"` for a condition.
        role: `"penalty"` or `"condition"`, see above.
        normalization: `"views"`, as in the paper, divides the count of
            correct predictions by the times seen. `"epochs"`, as in the
            released code, is for epochs that show each sample once. It takes
            (count - least count) / (finished epochs - least count), with the
            least of all samples, and 0 / 0 = 0.
        **kwargs: Other arguments of `keras.Model`.

    Raises:
        ValueError: If an argument is out of range. In training, if `y` is
            not `{"label", "index"}`, or a number in `index` is out of range.

    Example:

    >>> import keras
    >>> inputs = keras.Input((4,))
    >>> outputs = keras.layers.Dense(3)(inputs)
    >>> model = CorrectnessRankingModel(inputs, outputs, num_samples=100)
    >>> model.correctness().shape
    (100,)

    Reference:
        Moon et al., Confidence-Aware Learning for Deep Neural Networks, ICML
        2020, https://arxiv.org/abs/2007.01458; as a condition: Park et al.,
        ACLS, ICCV 2023, table 6, https://arxiv.org/abs/2308.11911

    Differs:
        The released code divides 0 by 0 where all samples were always right.
        Correctness is at most 1 here, also if an epoch shows a sample twice.
    """

    def __init__(
        self,
        *args: Any,
        num_samples: int,
        strength: float = 1.0,
        score: str = "msp",
        condition: str | None = None,
        role: str = "penalty",
        normalization: str = "epochs",
        **kwargs: Unpack[KerasOptions],
    ):
        check_at_least("strength", strength, 0.0)
        check_in("score", score, ("msp", "neg_entropy", "prob_margin"))
        check_in("role", role, ("penalty", "condition"))
        if condition is None:
            condition = "margin" if role == "penalty" else "ranking"
        check_in("condition", condition, ("margin", "ranking"))
        check_in("normalization", normalization, ("epochs", "views"))
        super().__init__(*args, num_samples=num_samples, **kwargs)
        self._keep(
            strength=strength,
            score=score,
            condition=condition,
            role=role,
            normalization=normalization,
        )

        self.right_counts = self._state("right_counts", (num_samples,))
        self.view_counts = self._state("view_counts", (num_samples,))
        self.finished_epochs = self._state("finished_epochs", ())

    def correctness(self) -> np.ndarray:
        """Correctness of each sample so far, `(num_samples,)`, in [0, 1].

        It is 0 for samples that were never seen. Call it between epochs:
        within one, Keras' variables hold nothing on JAX.
        """
        return to_numpy(self._correctness(ops.convert_to_tensor))

    def _correctness(self, read: Callable) -> Any:
        """The correctness from the counts that `read` returns."""
        count = read(self.right_counts)
        if self.normalization == "views":
            return safe_divide(count, read(self.view_counts))
        least = ops.min(ops.convert_to_tensor(self.right_counts))
        most = ops.maximum(ops.convert_to_tensor(self.finished_epochs), 1.0)
        # With as many epochs as the least count, all were always right.
        return ops.clip(safe_divide(count - least, most - least), 0.0, 1.0)

    def records(self) -> list:
        return [*super().records(), self.right_counts, self.view_counts]

    def end_epoch(self, epoch: int) -> None:
        super().end_epoch(epoch)
        # Not the epoch number, as another `fit` counts from 0 again.
        self.finished_epochs.assign_add(1.0)

    def recorded_loss(self, x, labels, index, y_pred, sample_weight):
        logits = classified(self, y_pred)
        record = self._correctness(lambda counts: read_at(counts, index))
        record = all_rows(record)
        weight = all_rows(weight_of_samples(sample_weight, logits))
        hinge = correctness_ranking(
            all_rows(logits), record, score=self.score, condition=self.condition
        )
        pair = ops.minimum(weight, ops.roll(weight, -1, axis=0))
        if self.role == "condition":
            active = ops.cast(ops.logical_and(hinge > 0, pair > 0), "float32")
            active = own_rows(active, ops.shape(y_pred)[0])
            # The compiled loss penalises the samples that are marked.
            labels = with_penalty_mask(labels, y_pred, active)
            return self.plain_loss(x, labels, y_pred, sample_weight)
        loss = self.plain_loss(x, labels, y_pred, sample_weight)
        ranking = ops.mean(pair * hinge)
        # Keras adds up the losses of the replicas.
        return loss + self.strength * ranking / num_replicas()

    def remember(self, labels, index, y_pred, sample_weight):
        labels, _ = standardize_labels(labels, y_pred)
        logits = classified(self, y_pred)
        wrong = is_wrong(logits, ops.cast(hard_labels(labels), "int32"))
        index, seen = self._seen(index, logits, sample_weight)
        index, seen, wrong = map(all_rows, (index, seen, wrong))
        right = ops.logical_and(seen, ops.logical_not(wrong))
        add_at(self.right_counts, index, right)
        add_at(self.view_counts, index, seen)

    def begin_training(self, arguments: dict) -> None:
        super().begin_training(arguments)
        self._check_loss()

    def _check_loss(self):
        takes = getattr(self.loss, "needs_penalty_mask", False)
        if self.role == "condition" and not takes:
            raise value_error(
                '`role` "condition" needs `ACLS(condition="ranking")` as '
                "the loss",
                loss=self.loss,
            )

    def evaluated_loss(self, x, labels, y_pred, sample_weight):
        self._check_loss()
        if self.role == "condition":
            # Evaluated samples have no record, so they get cross entropy.
            zeros = ops.zeros_like(y_pred[..., 0])
            labels = with_penalty_mask(labels, y_pred, zeros)
        return super().evaluated_loss(x, labels, y_pred, sample_weight)
