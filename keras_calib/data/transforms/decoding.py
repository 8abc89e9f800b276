"""Parts of images, cut out while decoding where the format allows it."""

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.require import require
from keras_calib.numerics.arrays import shape_of

__all__ = ["cut", "decode", "decoded", "is_encoded", "read_window"]

# First two and last two bytes of whole files.
_JPEG = b"\xff\xd8\xff\xd9"
_PNG = b"\x89P\x60\x82"
_RULE = "Every image must be readable"
# Shown by errors of decoders in graphs, which know no name.
_SCOPE = "unreadable_image__see_valid_examples"


def is_encoded(image: Any) -> bool:
    """Whether an image is the bytes of a file."""
    return image.dtype == tf.string


def read_window(
    image: Any, name: Any, choose: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    """The part of an image that lies in a window.

    Of a JPEG only that part is decoded.

    Args:
        image: Bytes of a file, a string scalar, or pixels `(height, width,
            channels)`.
        name: Name of the example, a string scalar, for errors.
        choose: From height and width, int32 `(2,)`, to the window `[top,
            left, height, width]` in pixels, int32 `(4,)`.

    Returns:
        `(pixels, window, size)`: uint8 of three channels if decoded, else in
        the type of `image`; the window; height and width of the image.
    """
    if not is_encoded(image):
        return _slice(image, name, choose)

    def by_decoder():
        with _decoding(name):
            size = tf.image.extract_jpeg_shape(image)[:2]
        window = choose(size)
        with _decoding(name):
            part = tf.image.decode_and_crop_jpeg(image, window, channels=3)
        return part, window, size

    def otherwise():
        return _slice(decode(image, name), name, choose)

    part, window, size = tf.cond(
        tf.equal(_ends(image), _JPEG), by_decoder, otherwise
    )
    part.set_shape([None, None, 3])
    window.set_shape([4])
    size.set_shape([2])
    return part, window, size


def cut(pixels: Any, window: Any) -> Any:
    """The part of an image or mask in `[top, left, height, width]`."""
    begin = tf.concat([window[:2], [0]], axis=0)
    part = tf.slice(pixels, begin, tf.concat([window[2:], [-1]], axis=0))
    return tf.ensure_shape(part, [None, None, pixels.shape[-1]])


def decode(image: Any, name: Any) -> Any:
    """Pixels `(height, width, 3)`, uint8, of the bytes of a file.

    Raises:
        ValueError: With the name of the example, if the bytes are no image;
            in a graph, tf.errors.InvalidArgumentError.
    """

    def read(data: Any, name: Any):
        pixels = _try_decoding(data)
        if pixels is None:
            raise ValueError(
                invalid(
                    _RULE,
                    example=_as_bytes(name).decode(errors="replace"),
                    bytes=len(_as_bytes(data)),
                )
            )
        return pixels

    def by_decoder():
        with _decoding(name):
            return tf.io.decode_png(image, channels=3)

    # Other formats and broken files: Python can say which file it is.
    pixels = tf.cond(
        tf.equal(_ends(image), _PNG),
        by_decoder,
        lambda: tf.numpy_function(read, [image, name], tf.uint8),
    )
    pixels.set_shape([None, None, 3])
    return pixels


def decoded(image: Any) -> Any:
    """Pixels of the bytes of a file, by a decoder of the graph.

    Its errors do not say which example it was.
    """
    return tf.io.decode_image(image, channels=3, expand_animations=False)


def _ends(image: Any) -> Any:
    """The first and the last two bytes; of fewer than two, the bytes."""
    size = tf.strings.length(image)
    last = tf.strings.substr(image, tf.maximum(size - 2, 0), 2)
    return tf.strings.join([tf.strings.substr(image, 0, 2), last])


@contextmanager
def _decoding(name: Any) -> Iterator[None]:
    """Names the example in errors of decoders; in graphs, what to do."""
    with tf.name_scope(_SCOPE):
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            name = _as_bytes(name.numpy()).decode(errors="replace")
            raise ValueError(invalid(_RULE, example=name)) from error


def _as_bytes(value: Any) -> bytes:
    """What a string tensor holds, as Python gets it in graphs and eagerly."""
    return value.item() if isinstance(value, np.ndarray) else value


def _try_decoding(data: Any) -> Any:
    """Pixels, or None of bytes that are no image."""
    try:
        pixels = tf.io.decode_image(data, channels=3, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        return None
    return pixels.numpy()


def _slice(
    image: Any, name: Any, choose: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    if image.shape.rank not in (3, None):
        raise ValueError(
            invalid(
                "`image` must have shape (height, width, channels)",
                **{"image.shape": shape_of(image)},
            )
        )
    size = tf.shape(image)[:2]
    if not image.shape[:2].is_fully_defined() or 0 in image.shape[:2]:
        some = require(
            tf.reduce_all(size > 0),
            "Every image must have pixels",
            example=name,
            size=size,
        )
        with tf.control_dependencies([some]):
            size = tf.identity(size)
    window = choose(size)
    return cut(image, window), window, size
