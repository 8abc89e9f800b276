"""From the flags of a set-up of images to its data and network."""

from functools import partial

import keras
import numpy as np
from absl import app
from config.losses import label_kind
from data.images import batches, load_images, resampled, split, training_batches
from data.large_images import is_large, large_parts
from nets.catalogue import NETS

import keras_calib
from keras_calib.backend.late import tensorflow as tf
from runs.training import Task

_IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


def image_task(setup, method, options):
    """The task of a set-up, read from where its data are."""
    if is_large(setup, options):
        parts, shape, classes = large_parts(setup, method, options)
        statistics = normalizer(setup, None)
        build = partial(network, setup, shape, classes, statistics)
        return Task(network=build, **parts)
    sets = load_images(setup, options)
    if setup.test_share:
        sets = resampled(sets, options.seed, setup.test_share)
    sets = split(
        sets,
        setup.validation,
        stratified=setup.stratified,
        seed=options.seed,
    )
    return array_task(sets, setup, method, options)


def array_task(sets, setup, method, options):
    """The task of images in memory.

    Args:
        sets: `ImageSets`.
        setup: A `Setup`.
        method: A `Method`.
        options: `Options`.
    """
    kind = label_kind(method)
    if setup.class_map or setup.cap_classes:
        raise app.UsageError(
            "`--class_map` and `--cap_classes` must be for images that are "
            "read from disk at each epoch, as those with --objects. "
            f"Received: --setup={setup.setup}, --data={setup.data}"
        )
    if kind in ("pairs", "smoothed") or method.context_share:
        raise app.UsageError(
            "`--objects` must be boxes or mask for a method that measures "
            f"objects. Received: --setup={setup.setup}, "
            f"--method={method.method}"
        )
    images, labels = sets.train
    if setup.validation_of == "test":
        raise app.UsageError(
            "`--validation_of` must be train for images in memory. "
            f"Received: --validation_of=test, --data={setup.data}"
        )
    if setup.batch_size > len(labels):
        raise app.UsageError(
            "`--batch_size` must not be above the number of training images. "
            f"Received: --batch_size={setup.batch_size}, {len(labels)} images"
        )
    if options.steps_per_epoch:
        count = options.steps_per_epoch * setup.batch_size
        images, labels = images[:count], labels[:count]
    mix = None
    if kind == "soft":
        mix = partial(_mixed, method, sets.num_classes)
    tests = {
        part: None if data is None else batches(data, 256)
        for part, data in (("validation", sets.validation), ("test", sets.test))
    }
    return Task(
        train=lambda epochs_done: training_batches(
            (images, labels),
            setup.batch_size,
            augment=setup.augment,
            seed=options.seed,
            mix=mix,
            first_epoch=epochs_done,
        ),
        calibration=batches((images, labels), 256),
        steps=len(labels) // setup.batch_size,
        num_samples=len(labels),
        network=partial(
            network,
            setup,
            images.shape[1:],
            sets.num_classes,
            normalizer(setup, images),
        ),
        **tests,
    )


def network(setup, shape, num_classes, statistics):
    """Inputs in the unit of the data, and logits.

    Args:
        setup: A `Setup`.
        shape: Height, width and channels.
        num_classes: Number of logits.
        statistics: Mean and standard deviation, of each channel or of each
            value of an image.
    """
    mean, deviation = (np.asarray(part, "float32") for part in statistics)
    inputs = keras.Input(shape)
    axis = -1 if mean.ndim == 1 else tuple(range(1, 1 + mean.ndim))
    scaled = keras.layers.Normalization(
        axis, mean=mean, variance=deviation**2, dtype="float32"
    )(inputs)
    shape = (
        (*(setup.image_size * 2)[:2], shape[-1]) if setup.image_size else shape
    )
    if tuple(shape) != tuple(scaled.shape[1:]):
        scaled = keras.layers.Resizing(*shape[:2], dtype="float32")(scaled)
    options = {
        name: getattr(setup, name)
        for name in ("dropout", "weights")
        if getattr(setup, name) is not None
    }
    if setup.net not in NETS:
        raise app.UsageError(
            f"`--net` must be one of {sorted(NETS)}. Received: "
            f"--net={setup.net}"
        )
    return inputs, NETS[setup.net](shape, num_classes, **options)(scaled)


def normalizer(setup, images):
    """Mean and standard deviation that the flag `--normalize` names.

    Args:
        setup: A `Setup`.
        images: The training images, or None if they are not in memory.
    """
    channels = 3 if images is None else images.shape[-1]
    if setup.normalize == "unit":
        return [0.0] * channels, [255.0] * channels
    if setup.normalize == "imagenet" or images is None:
        return _IMAGENET
    if setup.normalize == "centered":
        mean = images.mean(axis=0, dtype="float64")
        return mean, np.full_like(mean, 255.0)
    # In float64, and in parts: a mean of 1e8 float32 values drifts.
    sums = np.zeros((2, channels))
    for start in range(0, len(images), 1000):
        part = images[start : start + 1000].astype("float64")
        sums += [(part**power).sum((0, 1, 2)) for power in (1, 2)]
    mean, square = sums / (images.size // channels)
    return mean, np.sqrt(square - mean**2)


def _mixed(method, num_classes, images, labels, key):
    images, targets = (
        tf.convert_to_tensor(images),
        tf.one_hot(labels, num_classes),
    )
    mixed = getattr(keras_calib.data, method.mix)(images, targets, key)
    if method.mix_share == 1:
        return mixed
    chosen = tf.random.stateless_uniform([], key + 1) < method.mix_share
    return tuple(
        tf.where(chosen, *pair)
        for pair in zip(mixed, (images, targets), strict=True)
    )
