"""Colours changed at random: the image only, never boxes or masks."""

from typing import Any

from keras_calib.backend.optional import tensorflow as tf
from keras_calib.data.transforms.crops import check_seed
from keras_calib.inputs.checks import check_at_least

__all__ = ["color_jitter"]

# Luma of red, green and blue, ITU-R BT.601.
_LUMA = (0.299, 0.587, 0.114)


def color_jitter(
    images: Any,
    seed: Any,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
) -> Any:
    """Changes brightness, contrast and saturation of each image at random.

    Each is a blend f x + (1 - f) y with f from [max(0, 1 - s), 1 + s]: y is
    black, the mean grey of the image, or the grey of the pixel. In this
    order; values are clipped to [0, 255] after each.

    Args:
        images: One image `(height, width, 3)` or a batch of them, in
            [0, 255].
        seed: Two integers, or an integer tensor `(2,)`.
        brightness: Its strength s, >= 0.
        contrast: Its strength s, >= 0.
        saturation: Its strength s, >= 0.

    Returns:
        Images of the same shape, float32, in [0, 255].

    Raises:
        ValueError: If a strength is negative.

    Example:

    >>> import numpy as np
    >>> black = np.zeros((2, 4, 4, 3), "float32")
    >>> print(color_jitter(black, (0, 1)).numpy().max())
    0.0

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, section A.3,
        https://arxiv.org/abs/2009.06432 (color jitter, without its strength;
        0.4 each is that of the ImageNet recipe of Yun et al., CutMix, ICCV
        2019, https://arxiv.org/abs/1905.04899)
    """
    check_at_least("brightness", brightness, 0.0)
    check_at_least("contrast", contrast, 0.0)
    check_at_least("saturation", saturation, 0.0)
    images = tf.cast(images, "float32")
    batch = tf.shape(images)[:-3]
    draws = tf.random.stateless_uniform(
        tf.concat([[3], batch, [1, 1, 1]], axis=0), check_seed(seed)
    )

    def blend(images: Any, other: Any, strength: float, draw: Any) -> Any:
        low, high = max(0.0, 1.0 - strength), 1.0 + strength
        factor = low + (high - low) * draw
        images = factor * images + (1.0 - factor) * other
        return tf.clip_by_value(images, 0.0, 255.0)

    def grey(images: Any) -> Any:
        return tf.reduce_sum(images * _LUMA, axis=-1, keepdims=True)

    images = blend(images, 0.0, brightness, draws[0])
    mean = tf.reduce_mean(grey(images), axis=(-3, -2), keepdims=True)
    images = blend(images, mean, contrast, draws[1])
    return blend(images, grey(images), saturation, draws[2])
