"""Examples: their parts, their names, and what must hold of them."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.optional import tensorflow as tf

__all__ = [
    "as_bytes",
    "check_box_labels",
    "check_label",
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
    graph this returns the operation that checks, which runs beside what comes
    after it. A value that must wait for the check goes through `required`.
    """
    if isinstance(condition, bool | np.bool_):
        if not condition:
            raise value_error(rule, **_readable(received))
        return None
    if tf.executing_eagerly():
        if not bool(condition):
            shown = {k: _value(v) for k, v in received.items()}
            raise value_error(rule, **shown)
        return None
    facts: list[Any] = [f"{rule}. Received:"]
    for name, value in received.items():
        facts += [f"{name}=", value]
    return tf.debugging.Assert(condition, facts, summarize=32)


def required(x: Any, condition: Any, rule: str, **received: Any) -> Any:
    """`x`, which waits in a graph until `condition` is known to hold."""
    check = require(condition, rule, **received)
    if check is None:
        return x
    with tf.control_dependencies([check]):
        return tf.identity(x)


def read_spec(dataset: Any) -> dict:
    """The `element_spec` of a data set of dicts."""
    spec = getattr(dataset, "element_spec", type(dataset).__name__)
    require(
        isinstance(spec, dict),
        "Examples must be dicts, in a tf.data.Dataset",
        element_spec=str(spec),
    )
    return dict(spec)


def check_parts(spec: dict, *names: str, hint: str = "") -> None:
    """Raises ValueError unless examples have all these parts."""
    for name in names:
        require(
            name in spec,
            f"Examples must have {name!r}{hint}",
            parts=sorted(spec),
        )


def check_label(spec: dict) -> None:
    """Raises ValueError unless a label is one class id."""
    label = spec["label"]
    require(
        label.dtype.is_integer and label.shape.rank in (0, None),
        "`label` of an example must be one class id, an integer",
        dtype=label.dtype.name,
        shape=label.shape,
    )


def check_box_labels(example: dict) -> dict:
    """The example, if each of its boxes has one label."""
    if not {"boxes", "box_labels"} <= set(example):
        return example
    boxes, labels = (
        tf.convert_to_tensor(example[k]) for k in ("boxes", "box_labels")
    )
    if boxes.shape[0] is None or boxes.shape[0] != labels.shape[0]:
        counts = tf.shape(boxes)[0], tf.shape(labels)[0]
        labels = required(
            labels,
            tf.equal(*counts),
            "Each box must have one label",
            example=name_of(example),
            boxes=counts[0],
            box_labels=counts[1],
        )
    return {**example, "box_labels": labels}


def name_of(example: dict) -> Any:
    """The name of the example, a string scalar; empty if it has none."""
    return example.get("name", tf.constant(""))


def without(example: dict, *parts: str) -> dict:
    """The example without these parts."""
    return {k: v for k, v in example.items() if k not in parts}


def named_like(result: Any, dataset: Any) -> Any:
    """`result` with the `class_names` of `dataset`, if it has some."""
    names = getattr(dataset, "class_names", None)
    if names is not None:
        result.class_names = names
    return result


def shard(dataset: Any, input_context: Any) -> Any:
    """The share of one worker; without `input_context` all of it."""
    if input_context is None:
        return dataset
    return dataset.shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )


def as_bytes(value: Any) -> bytes:
    """What a string tensor holds, as Python gets it in graphs and eagerly."""
    return value.item() if isinstance(value, np.ndarray) else value


def _readable(received: dict) -> dict:
    """What was received, with the shapes of TensorFlow as tuples."""
    # Arrays are checked on backends without TensorFlow too.
    return {
        k: tuple(v) if hasattr(v, "as_list") else v for k, v in received.items()
    }


def _value(value: Any) -> Any:
    """Numbers as Python has them, names as text."""
    array = np.asarray(tf.convert_to_tensor(value).numpy())
    if array.dtype.kind in "OS":
        array = np.char.decode(array.astype(bytes), errors="replace")
    return array.tolist()
