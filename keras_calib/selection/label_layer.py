"""The base of the selector of several labels: thresholds, stored and loaded."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.traced import is_in_live_graph
from keras_calib.selection.label_thresholds import LabelThresholds
from keras_calib.selection.selector_layer import SelectorLayer
from keras_calib.selection.thresholds import ChosenThreshold

__all__ = ["LabelThresholdLayer"]


class LabelThresholdLayer(SelectorLayer):
    """Abstract: a layer with a threshold by label or example, and its facts."""

    by: str
    example: str
    label_names: tuple[str, ...] | None
    reads_labels = True

    @property
    def chosen(self) -> Any:
        """Coverage, risk and guarantee found by `fit`; None without a fit.

        `LabelThresholds` by label, and `ChosenThreshold` by example.
        """
        return self._chosen

    def build(self, input_shape):
        self.check_fitted()

    def get_config(self):
        names = self.label_names
        return {
            **super().get_config(),
            "by": self.by,
            "example": self.example,
            "label_names": None if names is None else list(names),
        }

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
        before = None
        if self._threshold is not None:
            before = tuple(self._threshold.shape)
        if before not in (None, threshold.shape) and is_in_live_graph(self):
            raise value_error(
                "`MultiLabelSelector` must keep its number of labels while "
                "a compiled function holds it: fit a new one and build a "
                "new model with it",
                before=before,
                now=threshold.shape,
            )
        self.make_threshold(threshold.shape)
        self._threshold.assign(threshold)
        self.mark_fitted()
