"""A loss of several labels at once, each a two-class problem."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.values import Rules
from keras_calib.inputs.weights import standardize_weights
from keras_calib.labels.columns import as_entries, check_label_weights
from keras_calib.losses.base import BatchCoupledLoss, PerSampleLoss
from keras_calib.numerics.arrays import shape_of


@keras.saving.register_keras_serializable(package="keras_calib")
class MultiLabelLoss(PerSampleLoss):
    """A loss of two classes for outputs of several labels at once.

    Use it to train a model that answers yes or no for each of several labels,
    with any loss of this library. `MultiLabel(loss)` makes it.

    mean over examples n and labels k of w_k loss(y_nk, [0, z_nk])

    z_nk is the logit of label k, read as the second of two classes. The mean
    is over the labels that are present. A term over the batch, such as that
    of `MMCE`, is one for each label.

    Labels y are 0 or 1, or a probability, of shape `(batch, ..., labels)` as
    the outputs. Mark missing labels by `ignore_class` of the loss, such as -1.
    A weight of 0 in `sample_weight` `(batch, ..., labels)` leaves a label out
    too. It still counts in the mean, as in Keras, unless the reduction is
    `"mean_with_sample_weight"`.

    Args:
        loss: A `PerSampleLoss` for plain labels. Its `from_logits`,
            `ignore_class`, `reduction` and other options apply.
        label_weights: Weight w_k of each label, finite and >= 0, or None for
            1. They are divided by their mean.
        name: Name of the loss. Defaults to that of `loss`.

    Raises:
        TypeError: If `loss` is no loss of this library for plain labels.
        ValueError: If `label_weights` do not fit. On call, if labels do not
            have the shape of the outputs, or a value is out of range.

    Example:

    >>> from keras_calib import FocalLoss
    >>> loss = MultiLabelLoss(FocalLoss(gamma=2.0, from_logits=True))
    >>> round(float(loss([[1, 0, 1]], [[2.0, -1.0, 0.5]])), 4)
    0.0307

    Reference:
        Read et al., Classifier Chains for Multi-label Classification, Machine
        Learning 2011, https://doi.org/10.1007/s10994-011-5256-5, who
        call this the binary relevance method
    """

    # `has_several_labels` asks for it.
    several_labels = True

    def __init__(
        self,
        loss: PerSampleLoss,
        *,
        label_weights: Sequence[float] | None = None,
        name: str | None = None,
    ):
        plain = isinstance(loss, PerSampleLoss)
        if (
            not plain
            or isinstance(loss, MultiLabelLoss)
            or loss.takes_objectness
            or loss.needs_penalty_mask
        ):
            raise type_error(
                "`loss` must be a per-sample loss of keras_calib for plain "
                "labels, such as `FocalLoss`; Keras' `BinaryCrossentropy` "
                "takes several labels as it is",
                type=type(loss).__name__,
            )
        if loss.axis != -1:
            raise value_error(
                "`loss` must have `axis=-1`: labels are on the last axis",
                axis=loss.axis,
            )
        super().__init__(
            loss.fn,
            from_logits=loss.from_logits,
            ignore_class=loss.ignore_class,
            reduction=loss.reduction,
            name=name or loss.name,
            dtype=loss.dtype,
            jit_compile=loss.jit_compile,
        )
        if label_weights is not None:
            label_weights = check_label_weights(
                "label_weights", label_weights, None
            )
        self.loss = loss
        self.label_weights = label_weights

    def _standardize(self, y_true, y_pred, sample_weight=None, dtype=None):
        y_true, y_pred, sample_weight = as_entries(
            y_true, y_pred, sample_weight
        )
        if self.label_weights is not None and dtype is not None:
            sample_weight = self._weighted(sample_weight, y_pred)
        return self.loss._standardize(y_true, y_pred, sample_weight, dtype)

    def _per_sample(self, batch, beside):
        if not isinstance(self.loss, BatchCoupledLoss):
            return self.loss._per_sample(batch, beside)
        count = batch.outputs.shape[-2]
        if count is None:
            raise value_error(
                "`y_pred` must have a known number of labels for a loss with "
                "a term over the batch",
                **{"y_pred.shape": shape_of(batch.outputs)[:-1]},
            )
        lead = len(batch.outputs.shape) - 1

        def column(x, index):
            if not hasattr(x, "shape"):
                return x
            return x[..., index] if len(x.shape) == lead else x[..., index, :]

        columns = [
            batch._replace(
                **{k: column(x, i) for k, x in batch._asdict().items()}
            )
            for i in range(count)
        ]
        losses = [self.loss._per_sample(part, beside) for part in columns]
        return ops.stack(losses, axis=-1)

    def _weighted(self, sample_weight, y_pred):
        """Weights of the samples times those of their labels."""
        lead = shape_of(y_pred)[:-1]
        weights = np.asarray(self.label_weights)
        if lead[-1] not in (None, len(weights)):
            raise value_error(
                "`y_pred` must have a label for each of `label_weights`",
                labels=lead[-1],
                label_weights=self.label_weights,
            )
        weights = ops.convert_to_tensor(weights / weights.mean(), self.dtype)
        if sample_weight is None:
            return ops.broadcast_to(weights, ops.shape(y_pred)[:-1])
        # The inner loss checks their values.
        given = standardize_weights(sample_weight, lead, rules=Rules(False))
        return ops.cast(given, self.dtype) * weights

    def get_config(self):
        return {
            "loss": keras.saving.serialize_keras_object(self.loss),
            "label_weights": self.label_weights,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        loss = keras.saving.deserialize_keras_object(config["loss"])
        return cls(**{**config, "loss": loss})
