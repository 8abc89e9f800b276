"""Parts of images, cut out while decoding where the format allows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.examples import as_text
from keras_calib.data.transforms.examples import require
from keras_calib.data.transforms.examples import required

__all__ = ["cut", "decode", "decoded", "read_window"]

# First two and last two bytes of whole files.
_JPEG = b"\xff\xd8\xff\xd9"
_PNG = b"\x89P\x60\x82"
# Shown by errors of decoders in graphs, which know no name.
_SCOPE = "unreadable_image__see_valid_examples"


def read_window(image, name, choose):
    """Pixels of a window, the window, and the size of the image.

    Of a JPEG only the window is decoded. `choose` maps height and width to
    the window `[top, left, height, width]` in pixels, int32.
    """
    if image.dtype != tf.string:
        return _slice(image, name, choose)

    def by_decoder():
        with _decoding(name):
            size = tf.image.extract_jpeg_shape(image)[:2]
        window = choose(size)
        with _decoding(name):
            part = tf.image.decode_and_crop_jpeg(image, window, channels=3)
        return part, window, size

    part, window, size = tf.cond(
        tf.equal(_ends(image), _JPEG),
        by_decoder,
        lambda: _slice(decode(image, name), name, choose),
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
    """Pixels `(height, width, 3)`, uint8, of the bytes of a file."""

    def read(data: Any, name: Any):
        try:
            return decoded(data).numpy()
        except tf.errors.InvalidArgumentError as error:
            raise _unreadable(name) from error

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
    """As `decode`, with errors that do not name the example."""
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
            raise _unreadable(name) from error


def _unreadable(name: Any) -> ValueError:
    return value_error("Every image must be readable", example=as_text(name))


def _slice(image, name, choose):
    require(
        image.shape.rank in (3, None),
        "`image` must have shape (height, width, channels)",
        **{"image.shape": image.shape},
    )
    size = tf.shape(image)[:2]
    size = required(
        size,
        tf.reduce_all(size > 0),
        "Every image must have pixels",
        example=name,
        size=size,
    )
    window = choose(size)
    return cut(image, window), window, size
