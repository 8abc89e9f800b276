"""Small images with objects, for the tests of the pipelines."""

import numpy as np
import tensorflow as tf

__all__ = ["jpeg", "make_examples", "smooth_image", "squares"]


def smooth_image(rng, height, width):
    coarse = rng.uniform(0, 256, (4, 5, 3)).astype("float32")
    image = tf.image.resize(coarse, (height, width), "bicubic")
    return tf.cast(tf.clip_by_value(image, 0, 255), "uint8").numpy()


def jpeg(image):
    return tf.io.encode_jpeg(image, quality=95).numpy()


def squares(count=40, num_classes=5, side=20, seed=0):
    """Grey images with one white square each, and where it is.

    Returns:
        A dict of arrays with as many rows as images.
    """
    rng = np.random.default_rng(seed)
    images = np.full((count, side, side, 3), 90, "uint8")
    boxes = np.zeros((count, 1, 4), "float32")
    for image, box in zip(images, boxes, strict=True):
        top, left = rng.integers(0, side // 2, 2)
        height, width = rng.integers(4, side // 2, 2)
        image[top : top + height, left : left + width] = 255
        box[0] = np.array([top, left, top + height, left + width]) / side
    return {
        "image": images,
        "label": rng.integers(num_classes, size=count),
        "boxes": boxes,
        "name": np.array([f"square {i}" for i in range(count)]),
    }


def make_examples(rows):
    """A data set of dicts, from dicts whose boxes differ in number."""
    spec = {
        "image": tf.TensorSpec((None, None, 3), "uint8"),
        "label": tf.TensorSpec((), "int64"),
        "boxes": tf.TensorSpec((None, 4), "float32"),
        "box_labels": tf.TensorSpec((None,), "int64"),
        "mask": tf.TensorSpec((None, None, 1), "uint8"),
        "name": tf.TensorSpec((), "string"),
    }
    if isinstance(rows[0]["image"], bytes):
        spec["image"] = tf.TensorSpec((), "string")
    spec = {k: v for k, v in spec.items() if k in rows[0]}

    def generate():
        for row in rows:
            row = {k: row[k] for k in spec}
            if "boxes" in row:
                row["boxes"] = np.reshape(row["boxes"], (-1, 4))
            yield row

    return tf.data.Dataset.from_generator(generate, output_signature=spec)
