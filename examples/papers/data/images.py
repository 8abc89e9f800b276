"""Data sets of small images, held in memory as arrays.

On every backend; TensorFlow Datasets reads those that it knows.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from absl import app

import keras_calib
from data.datasets import load_digits, tfds_arrays, tfds_builder
from keras_calib.backend.late import tensorflow as tf

_PARTS = ("train_images", "train_labels", "test_images", "test_labels")


class ImageSets(NamedTuple):
    """Images `(n, height, width, channels)`, uint8, and class ids `(n,)`."""

    train: tuple
    validation: tuple | None
    test: tuple
    num_classes: int


def load_images(setup, options):
    """The images of a set-up, the training data whole.

    Returns:
        `ImageSets` without validation data, see `split`.

    Raises:
        app.UsageError: If the data are not where the flags say.
    """
    name = setup.data
    if name == "digits":
        return _digits()
    if name.endswith(".npz"):
        if not Path(name).is_file():
            raise app.UsageError(
                f"`--data` must be a file that exists. Received: --data={name}"
            )
        with np.load(name) as arrays:
            found = [arrays[part] for part in _PARTS]
        return _sets(*found)
    if name == "tiny_imagenet":
        return _tiny_imagenet(options.data_dir)
    builder = tfds_builder(name, options.data_dir, download=options.download)
    test = setup.test_split or "test"
    parts = [*tfds_arrays(builder, "train"), *tfds_arrays(builder, test)]
    classes = builder.info.features["label"].num_classes
    return _sets(*parts)._replace(num_classes=classes)


def split(sets, share, *, stratified=False, seed=0):
    """Hold a part of the training data out as validation data.

    Args:
        sets: `ImageSets`, or such sets of texts.
        share: Share of the training data if below 1, else their number.
        stratified: Whether to take as many of each class.
        seed: Seed of the choice.
    """
    if not share:
        return sets
    x, y = sets.train
    count = round(share * len(y)) if share < 1 else int(share)
    random = np.random.default_rng((seed, 1))
    order = random.permutation(len(y))
    if stratified:
        # The first of each class, then the second of each, and so on.
        places = np.empty(len(y), int)
        for label in range(sets.num_classes):
            own = np.flatnonzero(y[order] == label)
            places[own] = np.arange(len(own)) * sets.num_classes + label
        order = order[np.argsort(places)]
    held, kept = np.sort(order[:count]), np.sort(order[count:])
    return sets._replace(
        train=(x[kept], y[kept]), validation=(x[held], y[held])
    )


def resampled(sets, seed, share=None):
    """Merge training and test data, and draw them anew.

    Args:
        sets: `ImageSets`, or such sets of texts.
        seed: Seed of the choice.
        share: Share of all data to test on. None for as many as before.
    """
    x, y = (
        np.concatenate(parts)
        for parts in zip(sets.train, sets.test, strict=True)
    )
    order = np.random.default_rng((seed, 2)).permutation(len(y))
    count = len(y) - int(share * len(y)) if share else len(sets.train[1])
    train, test = order[:count], order[count:]
    return sets._replace(train=(x[train], y[train]), test=(x[test], y[test]))


def batches(part, batch_size):
    """All images of a part in their order, float32 in the unit of the data.

    Args:
        part: Images and class ids.
        batch_size: Number of images.

    Returns:
        A `keras.utils.PyDataset` with an index.
    """
    return keras_calib.data.EpochBatches(
        *part, batch_size=batch_size, seed=None, augment=_as_floats
    )


def training_batches(
    part, batch_size, *, augment="none", seed=0, mix=None, first_epoch=0
):
    """Shuffled batches of float32 images in the unit of the data.

    Args:
        part: Images and class ids.
        batch_size: Number of images.
        augment: Value of the flag `--augment`.
        seed: Seed of order and crops.
        mix: A function of float32 images, class ids and a key of two
            integers, that returns images and soft labels. None for class ids.
        first_epoch: Epoch at which training begins.

    Returns:
        With an index: on TensorFlow a `tf.data.Dataset` without end, which
        makes batches in parallel; elsewhere `EpochBatches`.
    """
    options = {"batch_size": batch_size, "seed": seed, "drop_remainder": True}
    if keras.backend.backend() == "tensorflow":
        return keras_calib.data.array_pipeline(
            *part,
            augment=partial(_augmented_in_graph, augment, mix),
            first_epoch=first_epoch,
            **options,
        )
    return keras_calib.data.EpochBatches(
        *part, augment=partial(_augmented, augment, mix), **options
    )


def _as_floats(images, labels, random):
    return images.astype("float32"), labels


def _augmented(augment, mix, images, labels, random):
    count, height, width, channels = images.shape
    padded, corners = images, (0, 0)
    if reach := _reach(augment, height, width):
        edges = [(0, 0), *((r, r) for r in reach), (0, 0)]
        mode = "constant" if augment.startswith("crop") else "edge"
        padded = np.pad(images, edges, mode)
        corners = [random.integers(0, 2 * r + 1, (count, 1)) for r in reach]
    shown = np.arange(width)
    if augment.endswith("flip"):
        flipped = random.random((count, 1)) < 0.5
        shown = np.where(flipped, shown[::-1], shown)
    if padded is not images or shown.ndim > 1:
        # Places in a row of all pixels, which NumPy reads faster than rows
        # and columns.
        rows = corners[0] + np.arange(height) + np.zeros((count, 1), int)
        rows += padded.shape[1] * np.arange(count)[:, None]
        places = rows[:, :, None] * padded.shape[2]
        places = places + np.atleast_2d(corners[1] + shown)[:, None]
        images = padded.reshape(-1, channels).take(places, axis=0)
    images = images.astype("float32")
    if mix is None:
        return images, labels
    mixed = mix(images, labels, random.integers(0, 2**31, 2))
    return tuple(np.asarray(array) for array in mixed)


def _augmented_in_graph(augment, mix, images, labels, key):
    """What `_augmented` does, by operations of TensorFlow."""
    keys = tf.random.stateless_uniform(
        [4, 2], key, minval=None, maxval=None, dtype="int32"
    )
    count, size = tf.shape(images)[0], np.array(images.shape[1:3])
    first, last = ([tf.zeros([count])] * 2 for _ in range(2))
    if reach := _reach(augment, *size):
        # One pixel more, which no crop shows: rounding stays inside.
        edges = [(r + 1, r + 1) for r in reach]
        if augment.startswith("crop"):
            images = tf.pad(images, [(0, 0), *edges, (0, 0)])
        else:
            images = _with_edges(images, edges)
        first = [
            tf.random.stateless_uniform(
                [count], keys[axis], 0, 2 * r + 1, "int32"
            )
            for axis, r in enumerate(reach)
        ]
        first = [tf.cast(place + 1, "float32") for place in first]
    last = [place + side - 1 for place, side in zip(first, size, strict=True)]
    if augment.endswith("flip"):
        flipped = tf.random.stateless_uniform([count], keys[2]) < 0.5
        left, right = first[1], last[1]
        first[1] = tf.where(flipped, right, left)
        last[1] = tf.where(flipped, left, right)
    if reach or augment.endswith("flip"):
        # Moves, flips and casts at once, several times as fast as gathering.
        span = np.array(images.shape[1:3], "float32") - 1.0
        images = tf.image.crop_and_resize(
            images,
            tf.stack([*first, *last], axis=1) / np.tile(span, 2),
            tf.range(count),
            size,
            "nearest",
        )
    images = tf.cast(images, "float32")
    return (images, labels) if mix is None else mix(images, labels, keys[3])


def _with_edges(images, edges):
    """Padded with the values at the border."""
    for axis, (before, after) in enumerate(edges, 1):
        size = images.shape[axis]
        low, high = (
            tf.gather(images, [place], axis=axis) for place in (0, size - 1)
        )
        images = tf.concat([low] * before + [images] + [high] * after, axis)
    return images


def _reach(augment, height, width):
    """How far images are moved at most, in each axis, or None."""
    if augment.startswith("crop"):
        return 4, 4
    if augment.startswith("shift"):
        return round(0.1 * height), round(0.1 * width)
    return None


def _sets(train_x, train_y, test_x, test_y):
    parts = [
        (x if x.ndim == 4 else x[..., None], np.ravel(y).astype("int32"))
        for x, y in ((train_x, train_y), (test_x, test_y))
    ]
    classes = 1 + max(int(y.max()) for _, y in parts)
    return ImageSets(parts[0], None, parts[1], classes)


def _digits():
    train, _, test = load_digits(sizes=(1198, 0))
    parts = (
        (np.uint8(255 * images).reshape(-1, 8, 8), labels)
        for images, labels in (train, test)
    )
    return _sets(*(array for part in parts for array in part))


def _tiny_imagenet(folder):
    """The folder as it is unpacked: `train/*/images`, `val/images`."""
    folder = Path(folder or "tiny-imagenet-200")
    listing = folder / "val" / "val_annotations.txt"
    if not listing.is_file():
        raise app.UsageError(
            "`--data_dir` must be the folder tiny-imagenet-200, with train "
            f"and val/val_annotations.txt. Received: --data_dir={folder}"
        )
    names = sorted(path.name for path in (folder / "train").iterdir())
    ids = {name: place for place, name in enumerate(names)}
    rows = [line.split("\t")[:2] for line in listing.read_text().splitlines()]
    files = [
        [
            (path, ids[name])
            for name in names
            for path in sorted((folder / "train" / name / "images").iterdir())
        ],
        [(folder / "val" / "images" / name, ids[c]) for name, c in rows],
    ]

    def read(path):
        image = keras.utils.load_img(path, color_mode="rgb")
        return keras.utils.img_to_array(image, dtype="uint8")

    arrays = [
        np.array(column)
        for part in files
        for column in ([read(path) for path, _ in part], [c for _, c in part])
    ]
    return _sets(*arrays)._replace(num_classes=len(names))
