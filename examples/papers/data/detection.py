"""Images with the boxes of all their objects, to train and test detectors."""

from typing import Any, NamedTuple

import numpy as np
from absl import app

import keras_calib
from data.canvases import make_canvases
from data.datasets import tfds_builder
from data.large_images import split_names
from keras_calib.backend.late import tensorflow as tf
from keras_calib.backend.late import tensorflow_datasets as tfds

_CANVASES = "canvases/"


class Detections(NamedTuple):
    """Data sets of dicts of an image and its objects.

    A dict has:

    - `image`, encoded or uint8 `(height, width, 3)`
    - `boxes` `(n, 4)`, the shares ymin, xmin, ymax, xmax
    - `labels` `(n,)`
    - `crowd` `(n,)`, whether a box has many objects
    - `area` `(n,)` in pixels, 0 for that of the box

    Attributes:
        train: Images to train on. Each has a box of a single object.
        test: Images to test on, also without boxes.
        names: Names of the classes.
        count: Number of images of `train`.
    """

    train: Any
    test: Any
    names: list[str]
    count: int


def load_boxes(setup, options):
    """The images and boxes of a set-up.

    `--data` is a TFDS data set with a feature `objects`, of `bbox` and
    `label`, such as `coco/2017`. With `canvases/NAME` it is canvases made of
    such a data set, which are the same for each seed.

    Raises:
        app.UsageError: If the data set has no such feature, or no boxes.
    """
    name = setup.data.removeprefix(_CANVASES)
    builder = tfds_builder(name, options.data_dir, download=options.download)
    objects = _objects(builder, setup.data)
    parts = split_names(setup, builder)
    sets = {part: _read(builder, parts[part]) for part in ("train", "test")}
    if name != setup.data:
        sets = {
            part: _canvases(data, setup.image_size[0], seed)
            for seed, (part, data) in enumerate(sets.items())
        }
    train = (
        sets["train"]
        .map(_trainable)
        .filter(lambda example: tf.size(example["labels"]) > 0)
    )
    # Images are not decoded for that.
    count = int(train.reduce(np.int64(0), lambda number, _: number + 1))
    if not count:
        raise app.UsageError(
            "`--data` must have boxes of objects on its training images. "
            f"Received: --data={setup.data}, none on {parts['train']}"
        )
    return Detections(train, sets["test"], objects["label"].names, count)


def training_batches(data, setup, *, seed, first_epoch=0, steps=None):
    """Images `(batch, side, side, 3)` and their boxes and labels, no end.

    Images are resized to fit into the square and filled up at the bottom or
    right; with `--augment=flip` half of them are flipped, left to right.

    Args:
        data: `Detections`.
        setup: A `Setup`.
        seed: Seed of order and flips.
        first_epoch: Number of epochs that are done.
        steps: Steps of an epoch. By default as many as there are batches.

    Returns:
        A `tf.data.Dataset` of pairs of images and dicts: `boxes` are pixels
        ymin, xmin, ymax, xmax, filled up with zeros, `labels` with -1.
    """
    shown = first_epoch * (steps or data.count // setup.batch_size)
    epoch, within = divmod(shown * setup.batch_size, data.count)
    side = setup.image_size[0]

    def prepare(place, example):
        image, boxes, _ = _fitted(example, side)
        if setup.augment == "flip":
            key = tf.stack([tf.cast(seed, "int64"), place])
            chosen = tf.random.stateless_uniform([], key) < 0.5
            image = tf.where(chosen, image[:, ::-1], image)
            top, left, bottom, right = tf.unstack(boxes, axis=-1)
            flipped = tf.stack([top, side - right, bottom, side - left], -1)
            boxes = tf.where(chosen, flipped, boxes)
        return image, {"boxes": boxes, "labels": example["labels"]}

    return (
        keras_calib.data.epochs.shuffled_epochs(
            data.train, seed=seed, buffer_size=10_000, first_epoch=epoch
        )
        .map(lambda epoch, example: example)
        .skip(within)
        .enumerate(start=shown * setup.batch_size)
        .map(prepare, tf.data.AUTOTUNE)
        .padded_batch(
            setup.batch_size,
            ((side, side, 3), {"boxes": (None, 4), "labels": (None,)}),
            (0.0, {"boxes": 0.0, "labels": -1}),
            drop_remainder=True,
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def evaluation_batches(data, side, batch_size):
    """Images in order, and what detections on them are compared with.

    Args:
        data: Examples, as in `Detections`.
        side: Side of the square that images are fitted into.
        batch_size: Images of a batch.

    Returns:
        A `tf.data.Dataset` of pairs of images `(batch, side, side, 3)` and
        a dict of ragged tensors. It has the fields of the examples, with
        `boxes` in pixels, and `factors` `(4,)`, which map boxes in the square
        to those in the image.
    """

    def prepare(example):
        image, boxes, factors = _fitted(example, side)
        truth = {"boxes": boxes * factors, "factors": factors}
        for name in ("labels", "crowd", "area"):
            truth[name] = example[name]
        return image, truth

    return (
        data.map(prepare, tf.data.AUTOTUNE)
        .ragged_batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def _objects(builder, name):
    """The features of an object."""
    features = dict(builder.info.features.items())
    parts = getattr(features.get("objects"), "feature", None)
    known = parts.keys() if hasattr(parts, "keys") else ()
    if not {"bbox", "label"} <= set(known):
        raise app.UsageError(
            "`--data` must be a TFDS data set with a feature `objects`, of "
            "`bbox` and `label`, as coco/2017 has, to train a detector. "
            f"Received: --data={name}, with features {sorted(features)}"
        )
    return parts


def _read(builder, split):
    data = builder.as_dataset(
        split=split,
        shuffle_files=False,
        decoders={"image": tfds.decode.SkipDecoding()},
    )

    def example(row):
        objects = row["objects"]
        none = tf.zeros_like(objects["label"])
        return {
            "image": row["image"],
            "boxes": objects["bbox"],
            "labels": tf.cast(objects["label"], "int32"),
            "crowd": tf.cast(objects.get("is_crowd", none), "bool"),
            "area": tf.cast(objects.get("area", none), "float32"),
        }

    return data.map(example)


def _canvases(data, side, seed):
    """Canvases of the images of a data set, in memory."""
    examples = data.map(lambda e: {**e, "image": _decoded(e["image"])})
    made = make_canvases(list(examples.as_numpy_iterator()), side, seed=seed)
    for canvas in made:
        canvas["crowd"] = np.zeros(len(canvas["labels"]), bool)
        canvas["area"] = np.zeros(len(canvas["labels"]), "float32")
    signature = {
        **data.element_spec,
        "image": tf.TensorSpec((side, side, 3), "uint8"),
    }
    found = tf.data.Dataset.from_generator(
        lambda: made, output_signature=signature
    )
    return found.apply(tf.data.experimental.assert_cardinality(len(made)))


def _trainable(example):
    """Without what is no box of one object."""
    top, left, bottom, right = tf.unstack(example["boxes"], axis=-1)
    kept = (bottom > top) & (right > left) & ~example["crowd"]
    return {
        name: part if name == "image" else tf.boolean_mask(part, kept)
        for name, part in example.items()
    }


def _decoded(image):
    if image.dtype == tf.string:
        image = tf.io.decode_image(image, channels=3, expand_animations=False)
    return image


def _fitted(example, side):
    """Image in the square, float32; boxes in its pixels; what undoes it."""
    image = tf.cast(_decoded(example["image"]), "float32")
    size = tf.cast(tf.shape(image)[:2], "float32")
    inner = tf.maximum(1.0, tf.round(size * side / tf.reduce_max(size)))
    image = tf.image.resize(image, tf.cast(inner, "int32"))
    # Grey where there is no image.
    image = tf.image.pad_to_bounding_box(image - 127.5, 0, 0, side, side)
    boxes = example["boxes"] * tf.tile(inner, [2])
    return image + 127.5, boxes, tf.tile(size / inner, [2])
