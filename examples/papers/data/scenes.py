"""Images with a class id for each pixel, cropped and batched."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app

import keras_calib
from data.datasets import tfds_builder
from data.large_images import split_names
from keras_calib.backend.late import tensorflow as tf

_CAMVID = (
    "sky building pole road pavement tree sign fence car pedestrian bicyclist"
)
_VOC = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow "
    "diningtable dog horse motorbike person pottedplant sheep sofa train "
    "tvmonitor"
)
_CITYSCAPES = (
    "road sidewalk building wall fence pole light sign vegetation terrain sky "
    "person rider car truck bus train motorcycle bicycle"
)
# Of its 34 label ids, those that are evaluated, in the order of the names.
_CITYSCAPES_IDS = (
    *(7, 8, 11, 12, 13, 17, 19, 20, 21, 22),
    *(23, 24, 25, 26, 27, 28, 31, 32, 33),
)


class Scenes(NamedTuple):
    """Data sets of dicts of `image` and `mask`, `(height, width, channels)`.

    Attributes:
        train: Images to train on.
        validation: Images held out, or None.
        test: Images to test on.
        names: Names of the classes.
        void: Class id of pixels without a class.
        count: Number of images of `train`.
    """

    train: Any
    validation: Any
    test: Any
    names: list[str]
    void: int
    count: int


def load_scenes(setup, options):
    """The images and masks of a set-up: CamVid, VOC or Cityscapes.

    Raises:
        app.UsageError: If the data are not where the flags say, or cannot be
            split as they say.
    """
    if setup.test_share:
        raise app.UsageError(
            "`--test_share` must be left out for scenes; --random_split draws "
            f"their validation data. Received: --test_share={setup.test_share}"
        )
    if setup.data == "voc2012":
        return _voc(setup, options)
    builder = tfds_builder(
        setup.data, options.data_dir, download=options.download
    )
    names, void, ids = _CAMVID.split(), 11, None
    if setup.data.startswith("cityscapes"):
        names, void, ids = _CITYSCAPES.split(), 255, _CITYSCAPES_IDS
    held = setup.validation if setup.random_split else 0
    if setup.random_split and not held:
        raise app.UsageError(
            "`--validation` must hold images out with --random_split. "
            f"Received: --validation={setup.validation}"
        )
    whole = setup._replace(validation=0.0) if held else setup
    sets = {
        part: where and builder.as_dataset(split=where, shuffle_files=False)
        for part, where in split_names(whole, builder).items()
    }
    if held:
        name = setup.validation_of
        drawn = _drawn(sets[name], held, options.seed)
        sets[name], sets["validation"] = drawn
    sets = {
        part: data and data.map(lambda e: _example(e, ids, void))
        for part, data in sets.items()
    }
    count = int(sets["train"].cardinality())
    return Scenes(**sets, names=names, void=void, count=count)


def training_batches(scenes, setup, *, seed, first_epoch=0, steps=None):
    """Random crops `(batch, height, width, 3)` and their class ids, no end.

    `steps` are those of an epoch, by default as many as there are batches.

    `--augment=resized_crop` takes windows of the share `--scale` to 1 of the
    image and resizes them. `crop` and `crop_flip` cut windows without resizing,
    beyond the border if the image is too small. Without augmentation, images
    must have the size of the set-up.
    """
    size = (setup.image_size * 2)[:2]
    flip = setup.augment in ("crop_flip", "shift_flip", "resized_crop")

    def crop(place, example):
        key = tf.stack([tf.cast(seed, "int64"), place])
        if setup.augment == "resized_crop":
            ratio = size[1] / size[0]
            cut = keras_calib.data.random_resized_crop(
                example,
                size,
                (setup.scale, 1.0),
                (ratio * 0.8, ratio * 1.25),
                key,
                flip=flip,
            )
            return {name: cut[name] for name in ("image", "mask")}
        example = _window(example, size, key, scenes.void)
        if flip:
            chosen = tf.random.stateless_uniform([], key + 1) < 0.5
            example = {
                name: tf.where(chosen, part[:, ::-1], part)
                for name, part in example.items()
            }
        return example

    def finish(place, batch):
        images = tf.cast(batch["image"], "float32")
        if setup.jitter:
            strengths = dict.fromkeys(
                ("brightness", "contrast", "saturation"), setup.jitter
            )
            key = tf.stack([tf.cast(seed, "int64") + 2, place])
            images = keras_calib.data.color_jitter(images, key, **strengths)
        return images, batch["mask"][..., 0]

    # Batches go over the ends of epochs: how many images are shown of which.
    shown = first_epoch * (steps or scenes.count // setup.batch_size)
    epoch, within = divmod(shown * setup.batch_size, scenes.count)
    shuffled = keras_calib.data.epochs.shuffled_epochs(
        scenes.train,
        seed=seed,
        buffer_size=_buffer_size(scenes.train),
        first_epoch=epoch,
    )
    batches = (
        shuffled.map(lambda epoch, example: example)
        .skip(within)
        .enumerate(start=shown * setup.batch_size)
        .map(crop, tf.data.AUTOTUNE)
        .batch(setup.batch_size, drop_remainder=True)
    )
    return (
        batches.enumerate(start=shown)
        .map(finish, tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )


def evaluation_batches(data, batch_size):
    """Whole images, float32, and their class ids, in order."""
    return (
        data.map(
            lambda e: (tf.cast(e["image"], "float32"), e["mask"][..., 0]),
            tf.data.AUTOTUNE,
        )
        .batch(batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )


def _drawn(data, share, seed):
    """What is left of a data set, and a share or number drawn from it."""
    total = int(data.cardinality())
    count = round(share * total) if share < 1 else int(share)
    held = np.zeros(total, bool)
    held[np.random.default_rng((seed, 1)).permutation(total)[:count]] = True

    def part(chosen):
        own = data.enumerate().filter(lambda i, _: tf.gather(chosen, i))
        size = tf.data.experimental.assert_cardinality(int(chosen.sum()))
        return own.map(lambda _, example: example).apply(size)

    return part(~held), part(held)


def _buffer_size(data):
    """Images to shuffle among: half a gigabyte of them."""
    height, width = data.element_spec["image"].shape[:2]
    return max(64, 2**29 // (4 * (height or 500) * (width or 500)))


def _example(example, ids, void):
    # What TFDS calls them differs.
    masks = [name for name in example if name.startswith("segmentation")]
    images = [name for name in example if name in ("image", "image_left")]
    mask = tf.cast(example[masks[0]], "int32")
    if ids is not None:
        table = np.full(256, void, "int32")
        table[list(ids)] = np.arange(len(ids))
        mask = tf.gather(table, mask)
    return {"image": example[images[0]], "mask": mask}


def _window(example, size, key, void):
    """A part of the image as it is, filled up where it is too small."""
    image, mask = tf.cast(example["image"], "float32"), example["mask"]
    height, width = tf.shape(image)[0], tf.shape(image)[1]
    both = tf.concat([image, tf.cast(mask - void, "float32")], axis=-1)
    # Beyond the border: grey images, and pixels that do not count.
    both = tf.image.pad_to_bounding_box(
        both - (127.5, 127.5, 127.5, 0.0),
        0,
        0,
        tf.maximum(height, size[0]),
        tf.maximum(width, size[1]),
    )
    both = tf.image.stateless_random_crop(both, (*size, 4), key)
    return {
        "image": both[..., :3] + 127.5,
        "mask": tf.cast(both[..., 3:], "int32") + void,
    }


def _voc(setup, options):
    """VOC's folder: lists, JPEGImages, SegmentationClass and, for SBD, -Aug."""
    from PIL import Image

    if setup.validation or setup.stratified or setup.random_split:
        raise app.UsageError(
            "`--validation` must be 0, `--stratified` and `--random_split` "
            "off for VOC, whose lists say what is for training and what for "
            f"tests. Received: --validation={setup.validation}, "
            f"--stratified={setup.stratified}, "
            f"--random_split={setup.random_split}"
        )
    folder = Path(options.data_dir or "VOCdevkit/VOC2012")
    lists = folder / "ImageSets" / "Segmentation"
    # 10,582 with the annotations of SBD, as `trainaug.txt`; else 1,464.
    files = {"train": "trainaug", "validation": None, "test": "val"}
    if not setup.extra_annotations:
        files["train"] = "train"
    # SBD's masks are often laid beside VOC's own, which some of them replace.
    extra = folder / "SegmentationClassAug"
    masks = dict.fromkeys(files, folder / "SegmentationClass")
    if setup.extra_annotations and extra.is_dir():
        masks["train"] = extra

    def read(masks, name):
        name = name.decode()
        image = Image.open(folder / "JPEGImages" / f"{name}.jpg")
        mask = Image.open(masks / f"{name}.png")
        return np.array(image, "uint8"), np.array(mask, "int32")[..., None]

    def decoded(masks, name):
        image, mask = tf.numpy_function(
            partial(read, masks), [name], ("uint8", "int32")
        )
        image.set_shape((None, None, 3))
        mask.set_shape((None, None, 1))
        return {"image": image, "mask": mask}

    sets = {}
    for part, name in files.items():
        path = lists / f"{name}.txt"
        if name is not None and not path.is_file():
            raise app.UsageError(
                "`--data_dir` must be the folder VOC2012, with "
                f"ImageSets/Segmentation/{name}.txt. "
                f"Received: --data_dir={folder}"
            )
        names = path.read_text().split() if name else None
        data = names and tf.data.Dataset.from_tensor_slices(names)
        sets[part] = data and data.map(
            partial(decoded, masks[part]), tf.data.AUTOTUNE
        )
    count = int(sets["train"].cardinality())
    return Scenes(**sets, names=_VOC.split(), void=255, count=count)
