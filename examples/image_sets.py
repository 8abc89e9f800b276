"""Data sets of small images, held in memory as arrays.

On every backend; TensorFlow Datasets reads those that it knows.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app
from datasets import load_digits
from datasets import tfds_arrays
from datasets import tfds_builder

import keras_calib

__all__ = ["ImageSets", "batches", "load_images", "resampled", "split"]

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
    """Holds a part of the training data out as validation data.

    Args:
        sets: `ImageSets`; texts and their like as well.
        share: Of the training data, if below 1, or how many.
        stratified: Whether to take as many of each class.
        seed: Of the choice.
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


def resampled(sets, seed):
    """Training and test data merged and drawn anew, in the same sizes."""
    x, y = (
        np.concatenate(parts)
        for parts in zip(sets.train, sets.test, strict=True)
    )
    order = np.random.default_rng((seed, 2)).permutation(len(y))
    count = len(sets.train[1])
    train, test = order[:count], order[count:]
    return sets._replace(train=(x[train], y[train]), test=(x[test], y[test]))


def batches(part, batch_size, *, augment="none", seed=None, mix=None):
    """Batches of float32 images in the unit of the data.

    Args:
        part: Images and class ids.
        batch_size: Number of images.
        augment: As the flag says.
        seed: Of order and crops; None for all, in their order.
        mix: A function of float32 images, class ids and a generator, that
            returns images and soft labels; None for class ids.

    Returns:
        A `keras.utils.PyDataset` with an index.
    """
    return keras_calib.EpochBatches(
        *part,
        batch_size=batch_size,
        seed=seed,
        drop_remainder=seed is not None,
        augment=partial(_augmented, augment, mix),
    )


def _augmented(augment, mix, images, labels, random):
    height, width = images.shape[1:3]
    if augment.startswith("crop"):
        images = _moved(images, (4, 4), "constant", random)
    elif augment.startswith("shift"):
        reach = round(0.1 * height), round(0.1 * width)
        images = _moved(images, reach, "edge", random)
    if augment.endswith("flip"):
        flipped = random.random(len(images)) < 0.5
        images = np.where(
            flipped[:, None, None, None], images[:, :, ::-1], images
        )
    images = images.astype("float32")
    return (images, labels) if mix is None else mix(images, labels, random)


def _moved(images, reach, mode, random):
    """Each image moved at random, by up to `reach` pixels in each axis."""
    count, height, width = images.shape[:3]
    edges = [(0, 0), *((r, r) for r in reach), (0, 0)]
    padded = np.pad(images, edges, mode)
    rows, columns = (
        random.integers(0, 2 * r + 1, (count, 1)) + np.arange(size)
        for r, size in zip(reach, (height, width), strict=True)
    )
    places = np.arange(count)[:, None, None]
    return padded[places, rows[:, :, None], columns[:, None]]


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
    import keras

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
