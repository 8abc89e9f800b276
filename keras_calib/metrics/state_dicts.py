"""Checks of a metric's `state_dict()` before it is loaded or merged."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace

__all__ = ["SCHEMA", "check_state", "nan_if_lost", "state_of", "what_is_wrong"]

# 2: the histogram keeps correct and wrong predictions apart.
SCHEMA = 2
# Upper limit of an entry, even in the sum of a million states.
_LARGEST_ENTRY = 2**52


def check_state(
    state: dict[str, Any],
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
) -> None:
    """Raise unless a state belongs to a metric of this configuration."""
    if state["schema"] != SCHEMA:
        raise value_error(
            f"the state must be of schema {SCHEMA}: make it anew with this "
            "version",
            schema=state["schema"],
        )
    if state["config"] != config:
        raise value_error(
            "`metrics` must be of one configuration: make all with the same "
            "arguments",
            own=config,
            other=state["config"],
        )
    for key, shape in shapes.items():
        entries = np.asarray(state[key])
        if entries.shape != shape:
            raise value_error(
                f'the state\'s "{key}" must have shape {shape}',
                shape=entries.shape,
            )
        if entries.dtype.kind not in "iu" or not np.all(
            (entries >= 0) & (entries <= _LARGEST_ENTRY)
        ):
            raise value_error(
                f'the state\'s "{key}" must be whole numbers from 0 to '
                "2^52, as `state_dict()` returns them",
                dtype=entries.dtype.name,
                smallest=entries.min(),
                largest=entries.max(),
            )


def state_of(metric: Any, cls: type[Any]) -> dict[str, Any]:
    """Return the state of a metric of class `cls`; states are returned too."""
    if isinstance(metric, dict):
        return metric
    if type(metric) is not cls:
        raise type_error(
            f"`metrics` must be {cls.__name__} metrics or their `state_dict()`",
            type=type(metric).__name__,
        )
    return metric.state_dict()


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
