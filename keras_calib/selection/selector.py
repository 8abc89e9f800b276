"""The selector: a layer with thresholds, and the facts of their choice."""

import weakref
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import invalid, value_error, warn
from keras_calib.backend.locks import unbroken
from keras_calib.backend.traced import is_in_live_graph, note_graph
from keras_calib.calibrators.fitted_layer import DEPENDENTS, FittedLayer
from keras_calib.inputs.checks import check_number
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.selection.choice import Choice
from keras_calib.selection.served_groups import (
    ids_of,
    served_ids,
    thresholds_of,
)

_TINY = float(np.finfo("float32").tiny)


class Selector(FittedLayer):
    """Abstract: a layer with a calibrator and thresholds, and their facts.

    Thresholds are for one fit of its parts: after another fit it raises, and
    compiled functions with it accept nothing.
    """

    calibrator: Any
    _threshold: Any = None
    # Fits of the parts when the threshold was chosen.
    _fits: list[int] | None = None
    # What the configuration holds as objects of Keras.
    stored_parts: tuple[str, ...] = ("calibrator",)
    _chosen: Choice | None = None
    # Those that have a threshold each, as they are served.
    _group_ids: Any = None
    # What to do after another fit of a part.
    how_to_fit_again = (
        "call `fit` of the selector, with data that they were not fitted on"
    )

    def __call__(self, logits, *args, **kwargs):
        groups = kwargs.get("groups")
        if groups is not None:
            kwargs["groups"] = served_ids(groups, self.groups)
        elif self._fitted:
            # Keras would wrap what `call` raises.
            self._check_groups(groups)
        return super().__call__(logits, *args, **kwargs)

    @property
    def from_logits(self) -> bool | None:
        """Whether it was fitted on logits; without a fit, its calibrator."""
        if self._from_logits is None:
            return getattr(self.calibrator, "from_logits", None)
        return self._from_logits

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
        """Layers and functions for whose scores the threshold is."""
        return [self.calibrator]

    def check_fitted(self) -> None:
        """Raises RuntimeError before `fit`, and if a part was fitted later."""
        super().check_fitted()
        parts = self.parts()
        pairs = zip(parts, _fits_of(parts), self._fits or (), strict=False)
        again = [type(x).__name__ for x, now, then in pairs if now != then]
        if again:
            raise RuntimeError(
                invalid(
                    "The parts of a selector must be those for which its "
                    "threshold was chosen, and some were fitted again: "
                    f"{self.how_to_fit_again}",
                    fitted_again=again,
                )
            )

    def part_was_fitted(self) -> None:
        """Rejects everything: compiled functions do not check the fits."""
        shape = tuple(self._threshold.shape)
        # Not even an infinite score reaches it.
        self._threshold.assign(np.full(shape, np.nan, "float32"))
        if is_in_live_graph(self):
            warn(
                f"Compiled functions with `{type(self).__name__}` accept "
                "nothing from now on, as a part of it was fitted again: "
                f"{self.how_to_fit_again}"
            )

    def set_threshold(self, threshold: Any, chosen: Choice | None) -> None:
        """Takes what the constructor is given; it calls this last.

        `threshold` is None to wait for a fit, or one for each group of the
        facts `chosen`.
        """
        self.check_facts(threshold, chosen)
        self._chosen = chosen
        if threshold is None:
            return
        if np.ndim(threshold) == 0 and threshold not in (np.inf, -np.inf):
            check_number("threshold", threshold)
        value = as_array(threshold, "threshold", "float32")
        self.check_threshold(value)
        self._set(value, chosen)
        self._fitted = True

    def keep(self, chosen: Choice) -> None:
        """Takes what was chosen, in place of all of an earlier fit."""
        # It refuses other shapes while compiled functions hold the layer.
        with unbroken():
            self._set(np.asarray(chosen.threshold, "float32"), chosen)
            self._chosen = chosen
            self.mark_fitted()

    def _set(self, threshold: np.ndarray, chosen: Choice | None) -> None:
        group = _served(chosen)
        # Functions that JAX compiled read variables, and keep other arrays.
        ids = ids_of(group) if group else None
        self.set_arrays(threshold=threshold, group_ids=ids)
        if chosen is None:
            return
        parts = self.parts()
        self._fits = _fits_of(parts)
        for part in parts:
            if isinstance(part, FittedLayer):
                DEPENDENTS.setdefault(part, weakref.WeakSet()).add(self)

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

    def threshold_for(self, groups: Any, shape: tuple) -> Any:
        """The threshold, or that of each sample's group, for scores' shape."""
        self._check_groups(groups)
        note_graph(self)
        if self._group_ids is None:
            return self._threshold
        return thresholds_of(self._group_ids, self._threshold, groups, shape)

    def _check_groups(self, groups: Any) -> None:
        if (groups is None) != (self._group_ids is None):
            raise value_error(
                "`groups` must be given to a selector with thresholds by "
                "group, and to no other",
                groups=None if groups is None else type(groups).__name__,
                fitted_groups=len(self.groups),
            )

    def _repr_html_(self) -> str:
        own = super()._repr_html_()
        if self._chosen is None:
            return own
        return f"<div>{own}{self._chosen._repr_html_()}</div>"

    def build(self, input_shape):
        self.check_fitted()

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
        if config.get("chosen"):
            config["chosen"] = Choice.from_dict(config["chosen"])
        return cls(**config)


def _fits_of(parts: list[Any]) -> list[int]:
    """How often each part was fitted; 0 for what is not ours."""
    return [getattr(part, "num_fits", 0) for part in parts]


def _served(chosen: Choice | None) -> tuple:
    """Groups with a threshold each, which a served layer is told."""
    if chosen is None or chosen.kind != "groups":
        return ()
    return chosen.group
