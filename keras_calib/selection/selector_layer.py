"""The base of selectors: a threshold and its facts, stored and loaded."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.backend.traced import is_in_live_graph
from keras_calib.calibrators.fitted_layer import DependentLayer
from keras_calib.formulas.costs import MeanCost
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.selection.group_thresholds import GroupThresholds
from keras_calib.selection.shifted_facts import MixtureThreshold, PriorThreshold
from keras_calib.selection.thresholds import ChosenThreshold

__all__ = ["SelectorLayer"]

_TINY = float(np.finfo("float32").tiny)


class SelectorLayer(DependentLayer):
    """Abstract: a layer with a calibrator, thresholds, and facts of these."""

    calibrator: Any
    # What the configuration holds as objects of Keras.
    stored_parts: tuple[str, ...] = ("calibrator",)
    # Facts by a field that they alone have, before those of one threshold.
    kinds_of_facts: Mapping[str, type] = {
        "target_prior": PriorThreshold,
        "worst_group": MixtureThreshold,
        "group": GroupThresholds,
    }
    _chosen: Any = None

    @property
    def threshold(self) -> Any:
        """The least score that is accepted: a float, or an array of several."""
        self.check_fitted()
        value = to_numpy(self._threshold)
        return value if value.ndim else float(value)

    @property
    def chosen(self) -> Any:
        """Coverage, risk and guarantee found by `fit`; None without a fit.

        A `ChosenThreshold`, or `LabelThresholds` of several labels. After a fit
        with `groups` `GroupThresholds`, or `MixtureThreshold` with
        `one_threshold`; with `target_prior` `PriorThreshold`.
        """
        return self._chosen

    def parts(self) -> list[Any]:
        """The calibrator."""
        return [self.calibrator]

    def check_facts(self, threshold: Any, chosen: Any) -> None:
        """Raises ValueError unless given facts are those of the threshold."""
        if chosen is None:
            return
        told = np.asarray(chosen.threshold, "float64")
        given = np.nan if threshold is None else threshold
        own = as_array(given, "threshold", "float64")
        # A layer keeps it in float32.
        near = own.shape == told.shape and np.isclose(own, told, 1e-6, _TINY)
        if not np.all(near):
            raise value_error(
                "`threshold` must be that of `chosen`, whose facts are for no "
                "other: leave `chosen` out, or fit anew",
                threshold=own[:4].tolist() if own.ndim else threshold,
                **{"chosen.threshold": told.reshape(-1)[:4].tolist()},
            )
        has_cost = getattr(chosen, "cost", None) is not None
        if has_cost != (getattr(self, "costs", None) is not None):
            raise value_error(
                "`costs` must be those that `chosen` is for, or None if its "
                "facts have no cost",
                chosen=chosen,
            )

    def make_threshold(self, shape: tuple[int, ...]) -> None:
        """Makes the variable, unless there is one of this shape."""
        if self._threshold is not None:
            before = tuple(self._threshold.shape)
            if before == shape:
                return
            if is_in_live_graph(self):
                raise value_error(
                    f"`{type(self).__name__}` must keep its number of "
                    "thresholds while a compiled function holds it, such as "
                    "that of `model.predict`: fit a new selector and build a "
                    "new model with it",
                    before=before,
                    now=shape,
                )
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
            config["chosen"] = _facts_of(config["chosen"], cls.kinds_of_facts)
        return cls(**config)


def _facts_of(config: dict, kinds: Mapping[str, type]) -> Any:
    """Facts of the fields that a layer stores, whose tuples are lists."""
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in config.items()
    }
    for name, kind in kinds.items():
        if name in fields:
            return kind(**fields)
    if fields.get("cost") is not None:
        fields["cost"] = MeanCost(*fields["cost"])
    return ChosenThreshold(**fields)
