"""States of metrics that are stored, sent, added and merged."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.locks import STATES, unbroken
from keras_calib.backend.replicas import assign_sum
from keras_calib.inputs.checks import check_keys
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.results import config_text

_KEYS = ("class", "schema", "config", "sums", "flags")
# Upper limit of an entry, even in the sum of a million states.
_LARGEST_ENTRY = 2**52
_name_of = keras.saving.get_registered_name


class MergeableMetric(keras.metrics.Metric):
    """Abstract base of metrics with the variables `sums` and `flags`."""

    __repr__ = config_text

    def _add_sums(self, shape: tuple[int, ...]) -> None:
        """Makes the variables; the first has this shape."""
        self.sums, self.flags = (
            self.add_variable(
                shape, "zeros", dtype="int32", aggregation="sum", name=name
            )
            for name, shape in (("sums", shape), ("flags", (4,)))
        )

    def merge_state(self, metrics: Iterable[Any]) -> None:
        """Add the states of other metrics of the same configuration.

        Use it to combine the results of several workers.

        Args:
            metrics: One or several metrics of this class with an equal
                `get_config()`, but for `name`, `dtype`, `refresh_every`,
                `jit_compile` and the `average` of labels, or their
                `state_dict()`.

        Raises:
            TypeError: If one is of another class. Nothing is added then.
            ValueError: If a configuration differs. Nothing is added then.
        """
        if isinstance(metrics, dict) or not isinstance(metrics, Iterable):
            metrics = [metrics]
        given = [_state_of(x, type(self)) for x in metrics]
        self._check_together(given)
        states = [self._checked(state) for state in given]
        with STATES:
            own = self.state_dict()
            for state in states:
                own["sums"] += state["sums"]
                own["flags"] += state["flags"]
            self._assign(own)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict, to store, send, add and merge.

        Returns:
            A dict with the int64 arrays `"sums"` and `"flags"`, which add for
            equal `"class"` and `"config"`, and `"schema"`, their version.
        """
        return {
            "schema": self._schema,
            "class": _name_of(type(self)),
            "config": self._comparable_config(),
            "sums": ops.convert_to_numpy(self.sums).astype("int64"),
            "flags": ops.convert_to_numpy(self.flags).astype("int64"),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the state by a `state_dict()`, or by a sum of several."""
        state = self._checked(_state_of(state, type(self)))
        with STATES:
            self._assign(state)

    @property
    def _schema(self) -> int:
        """Version of the sums, of this metric or of the one in it."""
        summary = getattr(getattr(self, "metric", self), "summary", None)
        # 2: the histogram keeps correct and wrong predictions apart.
        return getattr(summary, "schema", 2)

    def __reduce__(self) -> tuple:
        # Copies and pickles of Keras have no state.
        return _restored, (type(self), self.get_config(), self.state_dict())

    def _comparable_config(self) -> dict[str, Any]:
        # How values are shown or compiled does not change the sums.
        apart = {"name", "dtype", "refresh_every", "jit_compile"}
        return {k: v for k, v in self.get_config().items() if k not in apart}

    def _check_together(self, states: list[dict[str, Any]]) -> None:
        """Raise unless states that are merged at once fit each other."""

    def _checked(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state that belongs to this metric, in int64."""
        if state["schema"] != self._schema:
            raise value_error(
                f"the state must be of schema {self._schema}: make it anew "
                "with this version",
                schema=state["schema"],
            )
        config = self._comparable_config()
        if state["config"] != config:
            raise value_error(
                "`metrics` must be of one configuration: make all with the "
                "same arguments",
                own=config,
                other=state["config"],
            )
        own = {"sums": self.sums, "flags": self.flags}
        return {
            key: _entries(key, state[key], tuple(variable.shape))
            for key, variable in own.items()
        }

    def _assign(self, state: dict[str, Any]) -> None:
        flags = np.minimum(state["flags"], 2**31 - 1)
        sums = exact_sums.normalize_limbs(state["sums"])
        with unbroken():
            assign_sum(self.sums, sums)
            assign_sum(self.flags, flags.astype("int32"))


def _restored(
    cls: type[MergeableMetric], config: dict[str, Any], state: dict[str, Any]
) -> MergeableMetric:
    made = cls.from_config(config)
    made.load_state_dict(state)
    return made


def _entries(key: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Entries of a state in int64; ValueError for what no state has."""
    entries = np.asarray(given)
    if entries.shape != shape:
        raise value_error(
            f'the state\'s "{key}" must have shape {shape}: make it anew '
            "with this version",
            shape=entries.shape,
        )
    wrong = entries
    if entries.dtype.kind in "iu":
        wrong = entries[(entries < 0) | (entries > _LARGEST_ENTRY)]
    if wrong.size:
        raise value_error(
            f'the state\'s "{key}" must be whole numbers from 0 to 2^52, as '
            "`state_dict()` returns them",
            dtype=entries.dtype.name,
            wrong=wrong.reshape(-1)[:3].tolist(),
        )
    return entries.astype("int64")


def _state_of(metric: Any, cls: type[Any]) -> dict[str, Any]:
    """Return the state of a metric of class `cls`; states are returned too."""
    if isinstance(metric, MergeableMetric):
        metric = metric.state_dict()
    is_state = isinstance(metric, dict)
    if is_state:
        check_keys("state", metric, _KEYS, _KEYS)
    kind = metric["class"] if is_state else _name_of(type(metric))
    if kind != _name_of(cls):
        raise type_error(
            f"`metrics` must be {cls.__name__} metrics or their `state_dict()`",
            type=kind,
        )
    return metric


def nan_if_lost(value: Any, num_invalid: Any, counted: Any) -> Any:
    """Replace a value, or a dict of them, by NaN if all samples were invalid.

    A callback would take the 0 of an empty state for the best value. `counted`
    are the sums behind the value, all 0 without valid samples.
    """
    xp = array_namespace(counted)
    lost = xp.logical_and(num_invalid > 0, xp.logical_not(xp.any(counted)))
    return keras.tree.map_structure(
        lambda x: xp.where(lost, xp.full_like(x, float("nan")), x), value
    )


def what_is_wrong(
    name: str, num_invalid: int, sums: np.ndarray
) -> Iterator[str]:
    """Yield warnings of samples and sums that a state (limbs) leaves out."""
    if exact_sums.is_saturated(sums).any():
        yield (
            f"A sum of `{name}` left its range, so its values are lower "
            "bounds. Look for predictions that diverge, or divide large "
            "weights"
        )
    if num_invalid:
        yield (
            f"`{name}` leaves out {num_invalid} predictions: each is NaN, "
            "infinite or no probability, or has an impossible label or "
            "weight. Update it in eager mode to see which"
        )
