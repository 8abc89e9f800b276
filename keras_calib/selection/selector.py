"""The selector: a layer with thresholds, and the facts of their choice."""

from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.backend.keras_internals import unlock_variables
from keras_calib.backend.traced import is_in_live_graph, note_graph
from keras_calib.calibrators.fitted_layer import DependentLayer
from keras_calib.inputs.checks import check_number
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.selection.choice import Choice, ThresholdTable
from keras_calib.selection.served_groups import (
    ids_of,
    served_ids,
    thresholds_of,
)

__all__ = ["Selector"]

_TINY = float(np.finfo("float32").tiny)


class Selector(DependentLayer):
    """Abstract: a layer with a calibrator and thresholds, and their facts."""

    calibrator: Any
    # What the configuration holds as objects of Keras.
    stored_parts: tuple[str, ...] = ("calibrator",)
    _chosen: Choice | None = None
    # Ids of the groups that have a threshold each.
    _ids: Any = None

    def __call__(self, logits, *args, **kwargs):
        if kwargs.get("groups") is not None:
            kwargs["groups"] = served_ids(kwargs["groups"], self.groups)
        return super().__call__(logits, *args, **kwargs)

    @property
    def threshold(self) -> Any:
        """The least score that is accepted: a float, or an array of several."""
        self.check_fitted()
        value = to_numpy(self._threshold)
        return value if value.ndim else float(value)

    @property
    def chosen(self) -> Choice | None:
        """Coverage, risk and guarantee found by `fit`; None without a fit."""
        return self._chosen

    @property
    def groups(self) -> tuple:
        """Ids or names of the groups with a threshold each, ascending."""
        return _served(self._chosen)

    def parts(self) -> list[Any]:
        """The calibrator."""
        return [self.calibrator]

    def set_threshold(self, threshold: Any, chosen: Choice | None) -> None:
        """Makes the variable; the constructor calls it last.

        `threshold` is None to wait for a fit, or one for each group of the
        facts `chosen`.
        """
        self.check_facts(threshold, chosen)
        self._chosen = chosen
        if threshold is None:
            self._make_variables((), ())
            return
        if np.ndim(threshold) == 0 and threshold not in (np.inf, -np.inf):
            check_number("threshold", threshold)
        value = as_array(threshold, "threshold", "float32")
        self.check_threshold(value)
        self._make_variables(value.shape, self.groups)
        self._threshold.assign(value)
        self._fitted = True
        if chosen is not None:
            self.note_fits()

    def keep(self, chosen: Choice) -> None:
        """Takes what was chosen, in place of all of an earlier fit."""
        value = np.asarray(chosen.threshold, "float32")
        # It refuses other shapes while compiled functions hold the layer.
        self._make_variables(value.shape, _served(chosen))
        self._chosen = chosen
        self.note_fits()
        self._threshold.assign(value)
        self.mark_fitted()

    def check_threshold(self, threshold: np.ndarray) -> None:
        """Raises ValueError unless given thresholds are those of the layer."""
        shape = (len(self.groups),) if self.groups else ()
        if np.isnan(threshold).any() or threshold.shape != shape:
            raise value_error(
                "`threshold` must be a number, or with the facts of groups "
                "one for each",
                shape=threshold.shape,
                groups=len(self.groups),
            )

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
        has_cost = chosen.cost is not None
        if has_cost != (getattr(self, "costs", None) is not None):
            raise value_error(
                "`costs` must be those that `chosen` is for, or None if its "
                "facts have no cost",
                chosen=chosen,
            )

    def _make_variables(self, shape: tuple[int, ...], group: tuple) -> None:
        """Variables for the thresholds, and for the ids of groups.

        Functions that JAX compiled read variables, and keep other arrays.
        """
        self._make_threshold(shape)
        if self._ids is not None and tuple(self._ids.shape) != (len(group),):
            del self._ids
        if group and self._ids is None:
            self._ids = self.add_weight(
                shape=(len(group),),
                initializer="zeros",
                trainable=False,
                dtype="int32",
                name="group_ids",
            )
        if group:
            self._ids.assign(ids_of(group))

    def _make_threshold(self, shape: tuple[int, ...]) -> None:
        """The variable of the thresholds, unless there is one of this shape."""
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

    def threshold_for(self, groups: Any, shape: tuple) -> Any:
        """The threshold, or that of each sample's group, for scores' shape."""
        if (groups is None) != (self._ids is None):
            raise value_error(
                "`groups` must be given to a selector with thresholds by "
                "group, and to no other",
                groups=None if groups is None else type(groups).__name__,
                fitted_groups=len(self.groups),
            )
        note_graph(self)
        if self._ids is None:
            return self._threshold
        return thresholds_of(self._ids, self._threshold, groups, shape)

    def table(self, group: Any = None) -> ThresholdTable:
        """Coverage and risk of each threshold, on the data of the last fit.

        Args:
            group: Id or name of a group or label, after a fit with several.
        """
        chosen = self._chosen
        several = chosen is not None and isinstance(chosen.threshold, tuple)
        if (group is None) == several:
            raise value_error(
                "`group` must name a group after a fit with `groups`, and "
                "else be None",
                group=group,
                groups=len(self.groups),
            )
        if chosen is None or not chosen.tables:
            raise RuntimeError(
                invalid(
                    "`table` needs the data of a `fit`, which loaded layers "
                    "do not keep",
                    fitted=self.fitted,
                )
            )
        return chosen.table(group)

    def get_config(self):
        threshold = None
        if self.fitted:
            threshold = np.asarray(self.threshold).tolist()
        chosen = self._chosen
        return {
            **super().get_config(),
            "calibrator": keras.saving.serialize_keras_object(self.calibrator),
            "threshold": threshold,
            "chosen": None if chosen is None else chosen.to_dict(),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for part in cls.stored_parts:
            found = keras.saving.deserialize_keras_object(config[part])
            config[part] = found
        if config["chosen"]:
            config["chosen"] = Choice.from_dict(config["chosen"])
        return cls(**config)


def _served(chosen: Choice | None) -> tuple:
    """Groups with a threshold each, which a served layer is told."""
    if chosen is None or chosen.kind != "groups":
        return ()
    return chosen.group
