"""The base class of losses with a term over the whole batch."""

from collections.abc import Callable
from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.replicas import all_rows
from keras_calib.inputs.checks import check_at_least
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.smoothing import cross_entropy

# What loss and fidelity must agree on: the labels are read once for both.
_SHARED = ("from_logits", "axis", "ignore_class", "reduction", "dtype")


class BatchCoupledLoss(PerSampleLoss):
    """Abstract base of losses that add a statistic of the whole batch.

    Subclass it to add a calibration error of the batch to a per-sample loss.

    fidelity + strength statistic

    Sample weights, ignored labels and masks enter the statistic too: a sample
    of weight 2 counts as two samples. Under a distribution strategy the
    statistic is that of the batch of all replicas.

    Args:
        statistic: Function of soft labels and logits `(..., num_classes)`
            that returns a scalar. It takes the keyword argument
            `sample_weight`, weights `(...)` or None, and `hyperparameters`.
        strength: Coefficient of the statistic, >= 0.
        fidelity: The `PerSampleLoss` that the statistic is added to. It needs
            the same `from_logits`, `axis`, `ignore_class`, `reduction` and
            `dtype`. None for cross entropy.
        hyperparameters: Keyword arguments of `statistic`.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Raises:
        TypeError: If `fidelity` is not a `PerSampleLoss` for plain labels.
        ValueError: If `fidelity` differs in one of the shared arguments.

    Reference:
        Kumar et al., Trainable Calibration Measures for Neural Networks from
        Kernel Mean Embeddings, ICML 2018,
        https://proceedings.mlr.press/v80/kumar18a.html
    """

    def __init__(
        self,
        statistic: Callable,
        *,
        strength: float = 1.0,
        fidelity: PerSampleLoss | None = None,
        hyperparameters: dict | None = None,
        name: str | None = None,
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("strength", strength, 0.0)
        given: Any = {**(hyperparameters or {}), **kwargs}
        super().__init__(statistic, name=name, **given)
        if fidelity is not None:
            self._check_fidelity(fidelity)
        self.strength = strength
        self.fidelity = fidelity
        if fidelity is not None and fidelity.needs_hard_labels:
            self.needs_hard_labels = True

    def _values(self, batch, mask, beside):
        labels, logits, weight = batch.labels, batch.outputs, batch.weight
        fidelity, options = cross_entropy, {}
        if self.fidelity is not None:
            fidelity = self.fidelity.fn
            options = self.fidelity.beside_of(batch)
            options = {**options, **self.fidelity.hyperparameters}
        losses = self._run(fidelity, labels, logits, mask, options)
        if mask is not None:
            shares = ops.cast(mask, logits.dtype)
            weight = shares if weight is None else shares * weight
        statistic = self._statistic(labels, logits, mask, weight)
        return losses + self.strength * statistic

    def _statistic(self, labels, logits, mask, weight):
        """The statistic of the batch of all replicas."""
        if mask is not None:
            mask = ops.cast(all_rows(ops.cast(mask, logits.dtype)), "bool")
        if weight is not None:
            weight = all_rows(weight)
        labels, logits = all_rows(labels), all_rows(logits)
        options = {"sample_weight": weight, **self.hyperparameters}
        return self._run(self.fn, labels, logits, mask, options)

    def get_config(self):
        fidelity = self.fidelity
        if fidelity is not None:
            fidelity = keras.saving.serialize_keras_object(fidelity)
        return {
            **super().get_config(),
            "strength": self.strength,
            "fidelity": fidelity,
        }

    @classmethod
    def from_config(cls, config):
        fidelity = config.get("fidelity")
        if isinstance(fidelity, dict):
            fidelity = keras.saving.deserialize_keras_object(fidelity)
        return cls(**{**config, "fidelity": fidelity})

    def _check_fidelity(self, fidelity):
        if (
            not isinstance(fidelity, PerSampleLoss)
            or isinstance(fidelity, BatchCoupledLoss)
            or fidelity.takes_objectness
            or fidelity.needs_penalty_mask
        ):
            raise type_error(
                "`fidelity` must be a per-sample loss of keras_calib for "
                "plain labels, or None for cross entropy",
                fidelity=fidelity,
            )
        for name in _SHARED:
            own, other = getattr(self, name), getattr(fidelity, name)
            if own != other:
                raise value_error(
                    f"`fidelity` must have the `{name}` of the loss around it",
                    **{name: own, f"fidelity.{name}": other},
                )
