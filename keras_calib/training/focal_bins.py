"""What models share whose focal gammas change during training."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.losses import PerSampleLoss
from keras_calib.losses import adaptive_focal
from keras_calib.training.epoch_model import EpochModel
from keras_calib.training.epoch_model import without_index
from keras_calib.training.unsupported import refuse_several_outputs

__all__ = ["FocalBinsModel"]


class FocalBinsModel(EpochModel):
    """Abstract: trains on focal loss with a gamma per bin of probability.

    Edges and gammas are variables of the model, not of a loss, whose
    variables would be constants in compiled code on JAX.
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
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self.edges = self._state("edges", edges)
        self.gammas = self._state("gammas", gammas)

    def _state(self, name, value):
        return self.add_weight(
            shape=value.shape,
            initializer=lambda shape, dtype: ops.convert_to_tensor(
                value, dtype=dtype
            ),
            trainable=False,
            dtype="float32",
            name=name,
        )

    @property
    def returns_logits(self) -> bool:
        """What outputs are, where no compiled loss says it."""
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

    def get_config(self):
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "axis": self.axis,
            "ignore_class": self.ignore_class,
        }

    def _check_no_loss(self):
        if self.loss is not None:
            raise ValueError(
                invalid(
                    f"{type(self).__name__} brings its own loss: compile it "
                    "without `loss`",
                    loss=self.loss,
                )
            )


class _FocalOfBins(PerSampleLoss):
    needs_hard_labels = True
