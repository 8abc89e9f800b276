"""Data sets of images of all sizes, read from disk as training needs them.

Adaptive label smoothing reads its boxes and masks here too.
"""

from functools import partial
from typing import Any, NamedTuple

from absl import app
from config.losses import label_kind, remembers

import keras_calib
from data.class_maps import read_class_map
from data.datasets import tfds_builder
from keras_calib.backend.late import tensorflow as tf

_TARGETS = {
    "ids": "ids",
    "soft": "one_hot",
    "pairs": "pairs",
    "smoothed": "soft",
}


class _Sets(NamedTuple):
    """The examples of a set-up.

    Attributes:
        train: Examples to train on.
        whole: Training images before their objects are separated.
        tests: All images of `validation`, which may be None, and of `test`.
        marked: Test images whose objects are known. None without `--objects`.
        names: Names of the classes.
    """

    train: Any
    whole: Any
    tests: dict[str, Any]
    marked: Any
    names: list[str]


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
    if setup.random_split or setup.test_share:
        raise app.UsageError(
            "`--random_split` and `--test_share` must be left out for images "
            "that are read from disk, whose validation data are the first. "
            f"Received: --data={setup.data}, "
            f"--random_split={setup.random_split}, "
            f"--test_share={setup.test_share}"
        )
    train, _, tests, marked, names = _sets(setup, options)
    if remembers(method):
        train = keras_calib.data.with_index(train)
    size = setup.image_size or [224]
    fraction = _fraction(setup)
    if setup.augment != "resized_crop" and setup.resize:
        train = train.map(partial(_resized, setup.resize, _resizing(setup)))
    # A crop of a fixed share is what cutting it from a resized image gives.
    least = setup.scale if setup.augment == "resized_crop" else fraction**2
    crops = {"scale": (least, max(least, 1.0))}
    if setup.augment != "resized_crop":
        crops = {"scale": (least, least), "ratio": (1.0, 1.0)}
    mix = None if method.mix is None else getattr(keras_calib.data, method.mix)
    if method.mix_share < 1:
        mix = partial(mix, probability=method.mix_share)
    batch = setup.batch_size
    count = _count(train)
    kind = label_kind(method)
    pipeline = partial(
        keras_calib.data.training_pipeline,
        train,
        size if len(size) == 2 else size[0],
        batch,
        len(names),
        labels=_TARGETS[kind],
        **(method.loss_option if kind == "smoothed" else {}),
        context_share=method.context_share,
        flip=setup.augment.endswith("flip") or setup.augment == "resized_crop",
        jitter=setup.jitter,
        mix=mix,
        seed=options.seed,
        preprocess=_clipper(setup),
        **_resizing(setup),
        **crops,
    )
    evaluated = {
        part: data and evaluation_batches(data, setup, len(names))
        for part, data in tests.items()
    }
    parts = {
        "train": lambda done: pipeline(first_epoch=done),
        "calibration": None,
        "steps": options.steps_per_epoch or count // batch,
        "num_samples": count,
        "objects": marked
        and evaluation_batches(
            marked, setup, len(names), labels="pairs", objects=setup.objects
        ),
        **evaluated,
    }
    return parts, (*(size * 2)[:2], 3), len(names)


def _sets(setup, options):
    builder = _builder(setup, options)
    read = partial(
        keras_calib.data.from_tfds,
        builder,
        annotations=options.annotations,
        objects=setup.objects,
        without_boxes="keep" if setup.objects is None else "drop",
    )
    splits = split_names(setup, builder)
    train = read(splits["train"])
    names = train.class_names
    labelled = "label" in train.element_spec
    # Of the test data all images count, also those without a box.
    every = {"objects": None, "annotations": None, "without_boxes": "keep"}
    sets = {
        part: splits[part] and read(splits[part], **(every if labelled else {}))
        for part in ("validation", "test")
    }
    sets |= {"train": train, "marked": setup.objects and read(splits["test"])}
    change = mapped(setup, names)
    sets = {part: data and change(data) for part, data in sets.items()}
    train = whole = sets.pop("train")
    names = train.class_names
    if setup.alone:
        fill = keras_calib.data.painting.pixel_mean(train, max_examples=2000)
        alone = partial(keras_calib.data.object_examples, fill=fill)
        train = alone(train)
        if not labelled:
            # Only objects have classes, in test data too.
            sets = {part: data and alone(data) for part, data in sets.items()}
    if setup.cap_classes:
        train = keras_calib.data.cap_classes(
            train, setup.cap_classes, len(names)
        )
    return _Sets(train, whole, sets, sets.pop("marked"), names)


def mapped(setup, class_names):
    """A function of examples, which gives them the classes of the set-up."""
    if not setup.class_map:
        return lambda examples: examples
    classes = read_class_map(setup.class_map, class_names)
    return partial(keras_calib.data.map_classes, classes=classes)


def context_batches(setup, options):
    """The test data without their objects, in batches with class ids.

    Painted over by the pixel mean of the training data. Images without a
    known object are left out.

    Args:
        setup: A `Setup`.
        options: `Options`.

    Raises:
        app.UsageError: If nothing marks objects.
    """
    if setup.objects is None or not is_large(setup, options):
        raise app.UsageError(
            "`--context` needs a set-up whose objects are marked, with "
            f"--objects. Received: --setup={setup.setup}, "
            f"--objects={setup.objects}"
        )
    sets = _sets(setup, options)
    fill = keras_calib.data.painting.pixel_mean(sets.whole, max_examples=2000)
    context = keras_calib.data.context_examples(sets.marked, fill=fill)
    return evaluation_batches(context, setup, len(sets.names))


def split_names(setup, builder):
    """Which parts of a TFDS data set are for what, by TFDS' names.

    Args:
        setup: A `Setup`.
        builder: Builder of the data set.

    Returns:
        Names for `train`, `validation`, which may be None, and `test`. With
        `--validation=0` a part that the data set itself holds out for
        validation is taken, if there is one beside the test data. Names are
        of rows in the order of the data set, the same for each seed.

    Raises:
        app.UsageError: With `--stratified`, which would need all labels.
    """
    if setup.stratified:
        raise app.UsageError(
            "`--stratified` must be off for data that are read from disk, "
            "of which validation data are the first. "
            f"Received: --data={setup.data}, --stratified"
        )
    have = builder.info.splits
    test = setup.test_split or ("test" if "test" in have else "validation")
    held = setup.validation
    if not held:
        own = [name for name in ("val", "validation") if name in have]
        own = [name for name in own if name != test]
        return {
            "train": "train",
            "validation": (own or [None])[0],
            "test": test,
        }
    cut = f"{round(100 * held)}%" if held < 1 else f"{int(held)}"
    if setup.validation_of == "test":
        parts = {"validation": f"{test}[:{cut}]", "test": f"{test}[{cut}:]"}
        return {"train": "train", **parts}
    parts = {"train": f"train[{cut}:]", "validation": f"train[:{cut}]"}
    return {**parts, "test": test}


def evaluation_batches(data, setup, num_classes, **options):
    """The middle of each image of some examples, in batches with class ids.

    Args:
        data: Examples.
        setup: A `Setup`.
        num_classes: Number of classes.
        **options: Arguments of `validation_pipeline`.
    """
    size = setup.image_size or [224]
    return keras_calib.data.validation_pipeline(
        data,
        size if len(size) == 2 else size[0],
        setup.batch_size,
        num_classes,
        fraction=_fraction(setup),
        preprocess=_clipper(setup),
        **_resizing(setup),
        **options,
    )


def _fraction(setup):
    """Share of the side of an image that a crop of it has."""
    side = (setup.image_size or [224])[0]
    if setup.resize:
        return side / setup.resize
    # Of images that are as small as their crops, all is shown.
    return 0.875 if side > 64 else 1.0


def _resizing(setup):
    return {
        name: getattr(setup, name) for name in ("interpolation", "antialias")
    }


def _clipper(setup):
    """Bicubic interpolation overshoots, and Pillow cuts that off."""
    if setup.interpolation == "bilinear":
        return None
    return partial(tf.clip_by_value, clip_value_min=0.0, clip_value_max=255.0)


def _resized(side, resizing, example):
    """The image as a square; boxes are shares of it."""
    image = example["image"]
    if image.dtype == tf.string:
        image = tf.io.decode_image(image, channels=3, expand_animations=False)
    method, antialias = resizing.values()
    image = tf.image.resize(image, (side, side), method, antialias=antialias)
    return {**example, "image": image}


def _builder(setup, options):
    return tfds_builder(setup.data, options.data_dir, download=options.download)


def _count(examples):
    """How many there are; read through where nothing else says it."""
    known = int(examples.cardinality())
    if known >= 0:
        return known
    return sum(1 for _ in examples)
