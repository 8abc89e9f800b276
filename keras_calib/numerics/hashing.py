"""A hash that draws the same random pixels of an image for every model."""

from typing import Any

from keras import ops

from keras_calib.numerics.arrays import array_namespace


def sample_pixels(labels: Any, valid: Any, count: int, seed: int) -> Any:
    """Draw the indices `(batch, count)` of pixels `(batch, num_pixels)`.

    Pixels are ranked by a hash of the seed, their position and the labels of
    their image. So the draw does not depend on the batch, the order or the
    replica. Invalid pixels come last.
    """
    num_pixels = labels.shape[-1]
    place = ops.arange(num_pixels, dtype="int32")
    place = mixed(place + wrapped(0x9E3779B1 * (seed + 1)))
    # Products and sums wrap round; every backend keeps the low 32 bits.
    image = ops.sum(place * (labels + 1), axis=-1, keepdims=True)
    rank = mixed(mixed(ops.cast(image, "int32")) + place)
    rank = ops.bitwise_and(rank, 2**31 - 1)
    if valid is not None:
        rank = ops.where(valid, rank, -ops.ones_like(rank))
    return ops.cast(ops.top_k(rank, min(count, num_pixels))[1], "int32")


def mixed(x: Any) -> Any:
    """Hash int32 values, so that each bit changes all (array-agnostic)."""
    xp = array_namespace(x)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        # The mask makes it a shift of unsigned numbers.
        high = xp.bitwise_and(xp.right_shift(x, shift), 2 ** (32 - shift) - 1)
        x = xp.bitwise_xor(x, high) * wrapped(factor)
    return x


def wrapped(value: int) -> int:
    """The low 32 bits as an int32."""
    return (value + 2**31) % 2**32 - 2**31
