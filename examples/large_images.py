"""Data sets of images of all sizes, read from disk as training needs them.

Adaptive label smoothing reads its boxes and masks here too.
"""

from functools import partial

from datasets import tfds_builder
from recipe_losses import label_kind
from recipe_losses import remembers

import keras_calib

__all__ = ["is_large", "large_parts"]

_TARGETS = {"ids": "ids", "soft": "one_hot", "pairs": "pairs"}


def is_large(setup, options):
    """Whether the images of a set-up are read from disk at each epoch."""
    if setup.data in ("digits", "tiny_imagenet") or setup.data.endswith(".npz"):
        return False
    if setup.objects is not None:
        return True
    builder = _builder(setup, options)
    return None in builder.info.features["image"].shape[:2]


def large_parts(setup, method, options):
    """Batches of a TFDS data set, cropped and labelled.

    Args:
        setup: A `Setup`.
        method: A `Method`.
        options: `Options`.

    Returns:
        `(parts, shape, num_classes)`: the fields of a `Task` but its network,
        shape of the images, number of classes.
    """
    builder = _builder(setup, options)
    held = setup.validation
    cut = f"{round(100 * held)}%" if held < 1 else f"{int(held)}"
    read = partial(
        keras_calib.from_tfds,
        builder,
        annotations=options.annotations,
        objects=setup.objects,
        without_boxes="keep" if setup.objects is None else "drop",
    )
    train = read(f"train[{cut}:]" if held else "train")
    names = train.class_names
    tests = {
        "validation": read(f"train[:{cut}]") if held else None,
        "test": read(setup.test_split or _test_split(builder)),
    }
    if setup.alone:
        fill = keras_calib.pixel_mean(train, max_examples=2000)
        train = keras_calib.object_examples(train, fill=fill)
    if remembers(method):
        train = keras_calib.with_index(train)
    size = setup.image_size or [224]
    fraction = size[0] / setup.resize if setup.resize else 0.875
    # A crop of a fixed share is what cutting it from a resized image gives.
    least = setup.scale if setup.augment == "resized_crop" else fraction**2
    crops = {"scale": (least, max(least, 1.0))}
    if setup.augment != "resized_crop":
        crops = {"scale": (least, least), "ratio": (1.0, 1.0)}
    mix = None if method.mix is None else getattr(keras_calib, method.mix)
    if method.mix_share < 1:
        mix = partial(mix, probability=method.mix_share)
    batch = setup.batch_size
    count = _count(train)
    pipeline = partial(
        keras_calib.training_pipeline,
        train,
        size if len(size) == 2 else size[0],
        batch,
        len(names),
        targets=_TARGETS[label_kind(method)],
        context_share=method.context_share,
        flip=setup.augment.endswith("flip") or setup.augment == "resized_crop",
        jitter=setup.jitter,
        mix=mix,
        seed=options.seed,
        **crops,
    )
    evaluated = {
        part: None
        if data is None
        else keras_calib.validation_pipeline(
            data,
            size if len(size) == 2 else size[0],
            batch,
            len(names),
            fraction=fraction,
        )
        for part, data in tests.items()
    }
    parts = {
        "train": lambda done: pipeline(first_epoch=done),
        "calibration": None,
        "steps": options.steps_per_epoch or count // batch,
        "num_samples": count,
        **evaluated,
    }
    return parts, (*(size * 2)[:2], 3), len(names)


def _builder(setup, options):
    return tfds_builder(setup.data, options.data_dir, download=options.download)


def _test_split(builder):
    return "test" if "test" in builder.info.splits else "validation"


def _count(examples):
    """How many there are; read through where nothing else says it."""
    known = int(examples.cardinality())
    if known >= 0:
        return known
    return sum(1 for _ in examples)
