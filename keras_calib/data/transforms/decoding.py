"""Decoding of images, of a window alone where the format allows it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.examples import as_text, require, required

__all__ = ["cut", "decode", "decoded", "read_window"]

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
