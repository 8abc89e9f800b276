"""Examples: their parts, their names, and their checks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.late import tensorflow as tf


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


# First two and last two bytes of complete files.
_JPEG, _PNG = b"\xff\xd8\xff\xd9", b"\x89P\x60\x82"
# Scope in errors of decoders in graphs, which cannot name the example.
_SCOPE = "unreadable_image__see_valid_examples"


def read_window(
    image: Any, name: Any, choose: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    """Pixels of a window, the window, and the size of the image.

    Only the window of a JPEG is decoded. `choose` maps height and width to the
    window `[top, left, height, width]` in pixels, int32.
    """
    if image.dtype != tf.string:
        return _slice(image, name, choose)

    def of_jpeg():
        with _decoding(name):
            size = tf.image.extract_jpeg_shape(image)[:2]
            window = choose(size)
            part = tf.image.decode_and_crop_jpeg(image, window, channels=3)
        return part, window, size

    part, window, size = tf.cond(
        tf.equal(_ends(image), _JPEG),
        of_jpeg,
        lambda: _slice(decode(image, name), name, choose),
    )
    return (
        tf.ensure_shape(part, [None, None, 3]),
        tf.ensure_shape(window, [4]),
        tf.ensure_shape(size, [2]),
    )


def cut(pixels: Any, window: Any) -> Any:
    """The part of an image or mask in `[top, left, height, width]`."""
    begin = tf.concat([window[:2], [0]], axis=0)
    part = tf.slice(pixels, begin, tf.concat([window[2:], [-1]], axis=0))
    return tf.ensure_shape(part, [None, None, pixels.shape[-1]])


def decode(image: Any, name: Any) -> Any:
    """Pixels `(height, width, 3)`, uint8, of the bytes of a file."""

    def by_decoder():
        with _decoding(name):
            return decoded(image)

    def by_python(data: Any, name: Any) -> Any:
        with _decoding(name):
            return decoded(data).numpy()

    # For other formats and truncated files Python can name the file.
    pixels = tf.cond(
        tf.reduce_any(tf.equal(_ends(image), [_JPEG, _PNG])),
        by_decoder,
        lambda: tf.numpy_function(by_python, [image, name], tf.uint8),
    )
    return tf.ensure_shape(pixels, [None, None, 3])


def decoded(image: Any) -> Any:
    """Decodes as `decode`, but errors do not name the example."""
    pixels = tf.io.decode_image(image, channels=3, expand_animations=False)
    return tf.ensure_shape(pixels, [None, None, 3])


def _ends(image: Any) -> Any:
    """The first and last two bytes; all bytes if there are fewer than two."""
    end = tf.maximum(tf.strings.length(image) - 2, 0)
    parts = [tf.strings.substr(image, place, 2) for place in (0, end)]
    return tf.strings.join(parts)


@contextmanager
def _decoding(name: Any) -> Iterator[None]:
    """Makes errors of decoders name the example, or in graphs the next step."""
    with tf.name_scope(_SCOPE):
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            raise value_error(
                "Every image must be readable", example=as_text(name)
            ) from error


def _slice(image: Any, name: Any, choose: Callable[[Any], Any]) -> tuple:
    require(
        image.shape.rank in (3, None),
        "`image` must have shape (height, width, channels)",
        **{"image.shape": image.shape},
    )
    size = required(
        tf.shape(image)[:2],
        tf.reduce_all(tf.shape(image)[:2] > 0),
        "Every image must have pixels",
        example=name,
        size=tf.shape(image)[:2],
    )
    window = choose(size)
    return cut(image, window), window, size
