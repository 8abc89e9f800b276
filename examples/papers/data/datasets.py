"""Digits and TFDS data sets as arrays for training, tuning and testing."""

import re
from pathlib import Path

import numpy as np
from absl import app

from keras_calib.backend.late import tensorflow_datasets as tfds


def load_digits(seed=0, sizes=(898, 300)):
    """The 1,797 handwritten digits of scikit-learn, split at random.

    Args:
        seed: Seed of the split.
        sizes: How many are for training and for tuning; the others are for
            testing.

    Returns:
        Three pairs of images `(n, 64)` in [0, 1] and class ids `(n,)`.
    """
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    images = (images / 16).astype("float32")
    order = np.random.default_rng(seed).permutation(len(labels))
    parts = np.split(order, np.cumsum(sizes))
    return [(images[part], labels[part].astype("int32")) for part in parts]


def load_tfds(name, data_dir=None, *, download=False):
    """A TFDS image data set; 1/6 of its training data is held out.

    Returns:
        `(sets, num_classes)`: three pairs of images `(n, pixels)` in [0, 1]
        and class ids `(n,)`, for training, tuning and testing.
    """
    builder = tfds_builder(name, data_dir, download=download)
    train, test = (_flat(tfds_arrays(builder, s)) for s in ("train", "test"))
    count = len(train[1]) * 5 // 6
    sets = [
        tuple(values[:count] for values in train),
        tuple(values[count:] for values in train),
        test,
    ]
    return sets, builder.info.features["label"].num_classes


def tfds_builder(name, data_dir=None, *, download=False):
    """The builder of a TFDS data set that is prepared, if need be here.

    Raises:
        app.UsageError: If there is no such data set, or it is not in
            `data_dir` and `download` is False.
    """
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise app.UsageError(
            "`--data` must be 'digits' or the name of a TFDS image data set "
            f"with class labels. Received: --data={name}, "
            f"--data_dir={data_dir}"
        ) from error
    ready = Path(builder.data_path).exists()
    if not ready and data_dir is not None and not download:
        raise app.UsageError(
            "`--data_dir` must hold the prepared data set; add --download to "
            "fetch it into that folder, or leave --data_dir out. "
            f"Received: --data={name}, --data_dir={data_dir}"
        )
    if not ready:
        builder.download_and_prepare()
    return builder


def tfds_arrays(builder, split):
    """Images `(n, height, width, channels)` and class ids `(n,)`.

    Rows with an `id` that ends in a number, as those of CIFAR have, are in
    the order of these numbers: that of the files before TFDS shuffled them.
    """
    data = builder.as_dataset(split=split, batch_size=1000, shuffle_files=False)
    parts = list(tfds.as_numpy(data))
    images, labels = (
        np.concatenate([part[name] for part in parts])
        for name in ("image", "label")
    )
    labels = labels.astype("int32")
    if "id" not in parts[0]:
        return images, labels
    names = np.concatenate([part["id"] for part in parts])
    numbers = [re.search(rb"\d+$", name) for name in names]
    if None in numbers:
        return images, labels
    order = np.argsort([int(n[0]) for n in numbers], kind="stable")
    return images[order], labels[order]


def _flat(part):
    images, labels = part
    return images.reshape(len(images), -1).astype("float32") / 255, labels
