"""What must hold of values: checked where they are, in graphs too."""

from typing import Any

from keras_calib.checks import invalid
from keras_calib.extras import tensorflow as tf

__all__ = ["require"]


def require(condition: Any, rule: str, **received: Any) -> None:
    """Raises unless `condition` holds: at once, or when the graph runs.

    Args:
        condition: A bool scalar tensor.
        rule: What must hold.
        **received: What to show by name, tensors.

    Raises:
        ValueError: In eager use.
        tf.errors.InvalidArgumentError: When a graph runs.
    """
    if tf.executing_eagerly():
        if not bool(condition):
            shown = {k: tf.convert_to_tensor(v) for k, v in received.items()}
            shown = {k: v.numpy().tolist() for k, v in shown.items()}
            raise ValueError(invalid(rule, **shown))
        return
    facts: list[Any] = [f"{rule}. Received:"]
    for name, value in received.items():
        facts += [f"{name}=", value]
    tf.debugging.Assert(condition, facts, summarize=32)
