"""What must hold of values: checked where they are, in graphs too."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf

__all__ = ["require"]


def require(condition: Any, rule: str, **received: Any) -> Any:
    """Raises unless `condition` holds: at once, or when the graph runs.

    In a graph this runs beside what comes after: what would fail itself, with
    an error of its own, must wait for the operation returned.

    Args:
        condition: A bool scalar tensor.
        rule: What must hold.
        **received: What to show by name, tensors.

    Returns:
        The operation that looks, for `tf.control_dependencies`.

    Raises:
        ValueError: In eager use.
        tf.errors.InvalidArgumentError: When a graph runs.
    """
    if tf.executing_eagerly():
        if not bool(condition):
            shown = {k: _shown(v) for k, v in received.items()}
            raise ValueError(invalid(rule, **shown))
        return tf.no_op()
    facts: list[Any] = [f"{rule}. Received:"]
    for name, value in received.items():
        facts += [f"{name}=", value]
    return tf.debugging.Assert(condition, facts, summarize=32)


def _shown(value: Any) -> Any:
    """Numbers as Python has them, names as text."""
    array = np.asarray(tf.convert_to_tensor(value).numpy())
    if array.dtype.kind in "OS":
        array = np.char.decode(array.astype(bytes), errors="replace")
    return array.tolist()
