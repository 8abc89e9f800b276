"""What a metric's `state_dict()` must be to be loaded or merged."""

from typing import Any

import numpy as np

from keras_calib.checks import invalid

__all__ = ["SCHEMA", "check_state"]

# 2: the histogram keeps right and wrong apart.
SCHEMA = 2
# No entry of a state, or of a sum of a million of them, is larger.
_LARGEST_ENTRY = 2**52


def check_state(
    state: dict[str, Any],
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
) -> None:
    """Raises unless a state belongs to a metric.

    Args:
        state: As `state_dict()` returns it, or a sum of some.
        config: What the metric sums, its `state_dict()["config"]`.
        shapes: Of its arrays, by their keys.

    Raises:
        ValueError: If schema, configuration, shape or entries do not fit.
    """
    if state["schema"] != SCHEMA:
        raise ValueError(
            invalid(
                f"the state must be of schema {SCHEMA}",
                schema=state["schema"],
            )
        )
    if state["config"] != config:
        raise ValueError(
            invalid(
                "`metrics` must be of one configuration",
                own=config,
                other=state["config"],
            )
        )
    for key, shape in shapes.items():
        entries = np.asarray(state[key])
        if entries.shape != shape:
            raise ValueError(
                invalid(
                    f'the state\'s "{key}" must have shape {shape}',
                    shape=entries.shape,
                )
            )
        if entries.dtype.kind not in "iu" or not np.all(
            (entries >= 0) & (entries <= _LARGEST_ENTRY)
        ):
            raise ValueError(
                invalid(
                    f'the state\'s "{key}" must be whole numbers from 0 to '
                    "2^52, as `state_dict()` returns them",
                    dtype=entries.dtype.name,
                    smallest=entries.min(),
                    largest=entries.max(),
                )
            )
