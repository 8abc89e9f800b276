"""Digits with boxes on backgrounds that give them away: data for a look."""

import numpy as np

from data.datasets import load_digits
from keras_calib.backend.late import tensorflow as tf

_SIDE = 32


def boxed_digits(seed=0):
    """The digits of scikit-learn at random places of striped images.

    A digit is enlarged two or three times. In four of five images the direction
    of the stripes belongs to the class of the digit. So a model can recognise
    the class without seeing the digit.

    Returns:
        `(train, validation)`: data sets of examples with `image` `(32, 32, 3)`
        in [0, 255], `label`, `boxes` `(1, 4)` and `name`.
    """
    parts = load_digits(seed)
    rng = np.random.default_rng(seed)
    return tuple(
        tf.data.Dataset.from_tensor_slices(_paste(*part, rng))
        for part in (parts[0], parts[2])
    )


def _paste(digits, labels, rng):
    rows, columns = np.mgrid[:_SIDE, :_SIDE]
    images, boxes = [], []
    for digit, label in zip(digits.reshape(-1, 8, 8), labels, strict=True):
        shown = label if rng.random() < 0.8 else rng.integers(10)
        angle = np.pi * shown / 10
        wave = rows * np.sin(angle) + columns * np.cos(angle)
        phase = rng.uniform(0, 2 * np.pi)
        image = 90 + 50 * np.sin(wave * 1.2 + phase)
        image = image + rng.normal(scale=15, size=image.shape)
        large = np.kron(digit, np.ones([rng.integers(2, 4)] * 2))
        side = len(large)
        top, left = rng.integers(0, _SIDE - side + 1, size=2)
        part = image[top : top + side, left : left + side]
        part[:] = (1 - large) * part + 255 * large
        images.append(np.clip(image, 0, 255))
        boxes.append([[top, left, top + side, left + side]])
    images = np.repeat(np.array(images)[..., None], 3, axis=-1)
    return {
        "image": images.astype("uint8"),
        "label": labels.astype("int64"),
        "boxes": (np.array(boxes) / _SIDE).astype("float32"),
        "name": [f"digit {i}" for i in range(len(labels))],
    }
