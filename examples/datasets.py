"""The data of the examples: flat arrays for training, tuning and testing."""

from pathlib import Path

import numpy as np
from absl import app

__all__ = ["load_digits", "load_tfds"]


def load_digits(seed=0):
    """The handwritten digits of scikit-learn, split 3 : 1 : 2 at random."""
    from sklearn.datasets import load_digits as load

    images, labels = load(return_X_y=True)
    images = (images / 16).astype("float32")
    order = np.random.default_rng(seed).permutation(len(labels))
    cuts = [len(labels) // 2, len(labels) * 2 // 3]
    parts = np.split(order, cuts)
    return [(images[part], labels[part].astype("int32")) for part in parts]


def load_tfds(name, data_dir=None, *, download=False):
    """A TFDS image data set; 1/6 of its training data is held out.

    Returns:
        `(sets, num_classes)`: three pairs of images `(n, pixels)` in [0, 1]
        and class ids `(n,)`, for training, tuning and testing.
    """
    import tensorflow_datasets as tfds

    builder = _builder(tfds, name, data_dir)
    ready = Path(builder.data_path).exists()
    if not ready and data_dir is not None and not download:
        raise app.UsageError(
            "`--data_dir` must hold the prepared data set; add --download to "
            "fetch it into that folder, or leave --data_dir out. "
            f"Received: --data={name}, --data_dir={data_dir}"
        )
    if not ready:
        builder.download_and_prepare()
    train = _arrays(tfds, builder, "train")
    test = _arrays(tfds, builder, "test")
    count = len(train[1]) * 5 // 6
    sets = [
        tuple(values[:count] for values in train),
        tuple(values[count:] for values in train),
        test,
    ]
    return sets, builder.info.features["label"].num_classes


def _builder(tfds, name, data_dir):
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise app.UsageError(
            "`--data` must be 'digits' or the name of a TFDS image data set "
            f"with class labels. Received: --data={name}, "
            f"--data_dir={data_dir}"
        ) from error


def _arrays(tfds, builder, split):
    data = builder.as_dataset(split=split, batch_size=-1, shuffle_files=False)
    data = tfds.as_numpy(data)
    images, labels = data["image"], data["label"]
    images = images.reshape(len(images), -1).astype("float32") / 255
    return images, labels.astype("int32")
