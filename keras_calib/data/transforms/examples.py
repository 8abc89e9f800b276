"""Examples: their parts, their names, and their checks."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.optional import tensorflow as tf

__all__ = [
    "as_text",
    "check_parts",
    "name_of",
    "named_like",
    "read_spec",
    "require",
    "required",
    "shard",
    "without",
]


def require(condition: Any, rule: str, **received: Any) -> Any:
    """Raises unless `condition` holds: at once, or when the graph runs.

    The error is a ValueError, in graphs a tf.errors.InvalidArgumentError. In a
    graph this returns the operation of the check, which runs beside later ones.
    Use `required` for a value that must wait for the check.
    """
    is_tensor = not isinstance(condition, bool | np.bool_)
    if is_tensor and not tf.executing_eagerly():
        facts: list[Any] = [f"{rule}. Received:"]
        for name, value in received.items():
            facts += [f"{name}=", value]
        return tf.debugging.Assert(condition, facts, summarize=32)
    if not condition:
        if is_tensor:
            received = {k: _as_python(v) for k, v in received.items()}
        raise value_error(rule, **received)
    return None


def required(x: Any, condition: Any, rule: str, **received: Any) -> Any:
    """Returns `x`, which waits in a graph for the check of `condition`."""
    check = require(condition, rule, **received)
    if check is None:
        return x
    with tf.control_dependencies([check]):
        return tf.identity(x)


def read_spec(dataset: Any) -> dict:
    """The `element_spec` of a data set of dicts, whose label is one id."""
    spec: Any = getattr(dataset, "element_spec", type(dataset).__name__)
    require(
        isinstance(spec, dict),
        "Examples must be dicts, in a tf.data.Dataset",
        element_spec=spec,
    )
    if (label := spec.get("label")) is not None:
        require(
            label.dtype.is_integer and label.shape.rank in (0, None),
            "`label` of an example must be one class id, an integer",
            label=label,
        )
    return spec


def check_parts(spec: dict, *names: str, hint: str = "") -> None:
    """Raises ValueError unless examples have all these parts."""
    for name in names:
        require(
            name in spec,
            f"Examples must have {name!r}{hint}",
            parts=sorted(spec),
        )


def name_of(example: dict) -> Any:
    """The name of the example, else its index; empty if it has none."""
    if "name" not in example and "index" in example:
        number = tf.strings.as_string(example["index"])
        return tf.strings.join(["index ", number])
    return example.get("name", tf.constant(""))


def without(example: dict, *parts: str) -> dict:
    """The example without these parts."""
    return {k: v for k, v in example.items() if k not in parts}


def named_like(result: Any, dataset: Any) -> Any:
    """`result` with the `class_names` of `dataset`, if it has any."""
    names = getattr(dataset, "class_names", None)
    if names is not None:
        result.class_names = names
    return result


def shard(dataset: Any, input_context: Any) -> Any:
    """The share of one worker; all of it without `input_context`."""
    if input_context is None:
        return dataset
    return dataset.shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )


def as_text(value: Any) -> str:
    """Text of a string scalar: bytes, or an array or tensor of them."""
    return np.asarray(value).item().decode(errors="replace")


def _as_python(value: Any) -> Any:
    """Python numbers, and names as text."""
    array = np.asarray(tf.convert_to_tensor(value).numpy())
    if array.dtype.kind in "OS":
        array = np.char.decode(array.astype(bytes), errors="replace")
    return array.tolist()
