"""The base of the selector of several labels: thresholds, stored and loaded."""

from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.backend.traced import is_in_live_graph
from keras_calib.calibrators.fitted_layer import DependentLayer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.selection.label_thresholds import LabelThresholds
from keras_calib.selection.thresholds import ChosenThreshold

__all__ = ["LabelThresholdLayer"]


class LabelThresholdLayer(DependentLayer):
    """Abstract: a layer with a threshold by label or example, and its facts."""

    by: str
    example: str
    calibrator: Any
    label_names: tuple[str, ...] | None
    reads_labels = True
    _chosen: Any = None

    @property
    def threshold(self) -> Any:
        """The least score that is accepted: an array by label, or a float."""
        self.check_fitted()
        value = to_numpy(self._threshold)
        return value if self.by == "label" else float(value)

    @property
    def chosen(self) -> Any:
        """Coverage, risk and guarantee found by `fit`; None without a fit.

        `LabelThresholds` by label, and `ChosenThreshold` by example.
        """
        return self._chosen

    def parts(self) -> list[Any]:
        """The calibrator."""
        return [self.calibrator]

    def build(self, input_shape):
        self.check_fitted()

    def get_config(self):
        config = super().get_config()
        del config["dtype"]
        names, facts = self.label_names, None
        if self._chosen is not None:
            facts = {
                k: list(v) if isinstance(v, tuple) else v
                for k, v in self._chosen._asdict().items()
            }
        return {
            **config,
            "calibrator": keras.saving.serialize_keras_object(self.calibrator),
            "by": self.by,
            "example": self.example,
            "label_names": None if names is None else list(names),
            "threshold": (
                np.asarray(self.threshold).tolist() if self.fitted else None
            ),
            "chosen": facts,
        }

    @classmethod
    def from_config(cls, config):
        part = keras.saving.deserialize_keras_object(config["calibrator"])
        facts = config["chosen"]
        if facts:
            fields: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v
                for k, v in facts.items()
            }
            by_label = "label" in fields
            kind = LabelThresholds if by_label else ChosenThreshold
            facts = kind(**fields)
        return cls(**{**config, "calibrator": part, "chosen": facts})

    def fitted_summary(self) -> dict[str, Any]:
        """What it is by, threshold and calibrator."""
        return {
            "by": self.by,
            "threshold": self._threshold,
            "calibrator": self.calibrator,
        }

    def keep(self, chosen: LabelThresholds | ChosenThreshold) -> None:
        """Takes the threshold of facts, and notes the calibrator's fit."""
        self.set_threshold(np.asarray(chosen.threshold, "float32"))
        self._chosen = chosen
        self.note_fits()

    def set_threshold(self, threshold: np.ndarray) -> None:
        """Makes the variable if need be, and sets it."""
        if np.isnan(threshold).any() or threshold.ndim != (self.by == "label"):
            raise value_error(
                "`threshold` must be a number by example, and one for each "
                "label by label",
                by=self.by,
                shape=threshold.shape,
            )
        known = self._threshold is not None
        if known and tuple(self._threshold.shape) != threshold.shape:
            if is_in_live_graph(self):
                raise value_error(
                    "`MultiLabelSelector` must keep its number of labels while "
                    "a compiled function holds it: fit a new one and build a "
                    "new model with it",
                    before=tuple(self._threshold.shape),
                    now=threshold.shape,
                )
            unlock_variables(self)
            self.built = known = False
            del self._threshold
        if not known:
            self._threshold = self.add_weight(
                shape=threshold.shape,
                initializer="zeros",
                trainable=False,
                name="threshold",
            )
        self._threshold.assign(threshold)
        self.mark_fitted()
