"""The base of selectors: a threshold and its facts, stored and loaded."""

from typing import Any

import keras
import numpy as np

from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.calibrators.fitted_layer import DependentLayer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.selection.group_thresholds import GroupThresholds
from keras_calib.selection.label_thresholds import LabelThresholds
from keras_calib.selection.shifted_facts import MixtureThreshold
from keras_calib.selection.shifted_facts import PriorThreshold
from keras_calib.selection.thresholds import chosen_of

__all__ = ["SelectorLayer"]

# Facts by a field that they alone have, before those of one threshold.
_KINDS = {
    "target_prior": PriorThreshold,
    "worst_group": MixtureThreshold,
    "label": LabelThresholds,
    "group": GroupThresholds,
}


class SelectorLayer(DependentLayer):
    """Abstract: a layer with a calibrator, thresholds, and facts of these."""

    calibrator: Any
    # What the configuration holds as objects of Keras.
    stored_parts: tuple[str, ...] = ("calibrator",)
    _chosen: Any = None

    @property
    def threshold(self) -> Any:
        """The least score that is accepted: a float, or an array of several."""
        self.check_fitted()
        value = to_numpy(self._threshold)
        return value if value.ndim else float(value)

    def parts(self) -> list[Any]:
        """The calibrator."""
        return [self.calibrator]

    def make_threshold(self, shape: tuple[int, ...]) -> None:
        """Makes the variable, unless there is one of this shape."""
        if self._threshold is not None:
            if tuple(self._threshold.shape) == shape:
                return
            unlock_variables(self)
            self.built = False
            del self._threshold
        self._threshold = self.add_weight(
            shape=shape, initializer="zeros", trainable=False, name="threshold"
        )

    def get_config(self):
        facts, threshold = None, None
        if self._chosen is not None:
            facts = {
                k: list(v) if isinstance(v, tuple) else v
                for k, v in self._chosen._asdict().items()
            }
        if self.fitted:
            threshold = np.asarray(self.threshold).tolist()
        return {
            **super().get_config(),
            "calibrator": keras.saving.serialize_keras_object(self.calibrator),
            "threshold": threshold,
            "chosen": facts,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for part in cls.stored_parts:
            found = keras.saving.deserialize_keras_object(config[part])
            config[part] = found
        if config["chosen"]:
            config["chosen"] = _facts_of(config["chosen"])
        return cls(**config)


def _facts_of(config: dict) -> Any:
    """Facts of the fields that a layer stores, whose tuples are lists."""
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in config.items()
    }
    for name, kind in _KINDS.items():
        if name in fields:
            return kind(**fields)
    return chosen_of(config)
