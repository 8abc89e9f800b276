"""What objectness costs a training pipeline: images per second.

JPEGs of 375 x 500 pixels in TFRecord files, random resized crops of 224,
flips, batches of 64: with hard labels (neither boxes nor masks are read), and
with labels smoothed by objectness, from one box, from up to 20, from up to
100, from a mask. Smooth images, whose decoding is cheap, so that the share of
objectness is at its largest. Beside them the way of the paper, which took it
74 hours instead of 48: boxes drawn into a mask, the mask cropped and resized
with the image, its pixels counted, example by example.

Each is run in turn; ratios are those of neighbours in time, and their median
is given.

    python benchmarks/pipeline.py --out=benchmarks/results/pipeline.md

About five minutes on 2 CPU cores.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags
from reporting import machine, markdown_table, publish, quartiles

import keras_calib

_IMAGES = flags.DEFINE_integer("images", 256, "Number of different images.")
_BATCHES = flags.DEFINE_integer("batches", 20, "Batches of a run.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Runs of each pipeline.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH, _CLASSES, _SIZE = 64, 16, (375, 500)
_CORNERS = ("ymin", "xmin", "ymax", "xmax")
_NO_BOXES = dict.fromkeys(_CORNERS)


def floats(values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def data(values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def write_records(path, most, rng):
    """Smooth images with 1 to `most` boxes, and the boxes as a mask."""
    total = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in range(_IMAGES.value):
            coarse = rng.uniform(0, 256, (6, 8, 3)).astype("float32")
            image = tf.image.resize(coarse, _SIZE, "bicubic")
            image = tf.cast(tf.clip_by_value(image, 0, 255), "uint8")
            jpeg = tf.io.encode_jpeg(image, quality=95).numpy()
            total += len(jpeg)
            corners = np.sort(
                rng.uniform(size=(rng.integers(1, most + 1), 2, 2)), axis=1
            )
            boxes = corners.reshape(-1, 4).astype("float32")
            mask = keras_calib.data.boxes_to_mask(
                boxes * [*_SIZE, *_SIZE], _SIZE
            )
            feature = {
                "image/encoded": data([jpeg]),
                "image/filename": data([b"%d.jpg" % label]),
                "mask": data([tf.io.encode_png(mask).numpy()]),
                "image/class/label": tf.train.Feature(
                    int64_list=tf.train.Int64List(value=[label % _CLASSES])
                ),
            }
            for corner, values in zip(_CORNERS, boxes.T, strict=True):
                feature[f"image/object/bbox/{corner}"] = floats(values)
            example = tf.train.Example(
                features=tf.train.Features(feature=feature)
            )
            writer.write(example.SerializeToString())
    return total / _IMAGES.value


def pipeline(path, targets, keys=None, **options):
    return keras_calib.data.training_pipeline(
        keras_calib.data.from_tfrecords(path, keys=keys),
        224,
        _BATCH,
        _CLASSES,
        labels=targets,
        shuffle_buffer=64,
        **options,
    )


def by_masks(path):
    """Boxes to a mask, through the same crop, resize and flip, counted."""

    def draw(example):
        mask = keras_calib.data.boxes_to_mask(
            example["boxes"] * tf.constant([*_SIZE, *_SIZE], "float32"), _SIZE
        )
        return {**example, "mask": mask}

    def count(example):
        share = keras_calib.data.objectness_from_mask(example["mask"])
        return {**example, "objectness": share}

    return keras_calib.data.training_pipeline(
        keras_calib.data.from_tfrecords(path).map(draw, tf.data.AUTOTUNE),
        224,
        _BATCH,
        _CLASSES,
        objects="mask",
        augment=count,
        shuffle_buffer=64,
    )


def rate(iterator):
    start = time.perf_counter()
    for _ in range(_BATCHES.value):
        next(iterator)
    return _BATCHES.value * _BATCH / (time.perf_counter() - start)


def main(_):
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = {
            most: Path(folder, f"{most}.tfrecord") for most in (1, 20, 100)
        }
        size = [write_records(file, k, rng) for k, file in files.items()][0]
        only_mask = {**_NO_BOXES, "mask": "mask"}
        hard = {k: pipeline(files[k], "one_hot", _NO_BOXES) for k in files}
        soft = {
            "one box": (1, pipeline(files[1], "soft")),
            "1 to 20 boxes": (20, pipeline(files[20], "soft")),
            "1 to 100 boxes": (100, pipeline(files[100], "soft")),
            "mask (PNG)": (20, pipeline(files[20], "soft", only_mask)),
            "1 to 20 boxes, as in the paper": (20, by_masks(files[20])),
        }
        rows = []
        for name, (most, dataset) in soft.items():
            # One after the other, each working only while it is timed.
            rates = []
            for _ in range(_ROUNDS.value + 1):
                pair = []
                for one in (hard[most], dataset):
                    iterator = iter(one)
                    for _ in range(3):
                        next(iterator)
                    pair.append(rate(iterator))
                    del iterator
                rates.append(pair)
            rates = np.array(rates[1:])
            base, own = np.median(rates, axis=0)
            rows.append(
                [
                    name,
                    f"{base:.0f}",
                    f"{own:.0f}",
                    *quartiles(rates[:, 1] / rates[:, 0], digits=3),
                ]
            )
            print(rows[-1], flush=True)
    header = [
        "objects",
        "images/s, hard labels",
        "images/s, objectness",
        "ratio (median)",
        "quartiles",
    ]
    publish(
        f"{machine()}.\n\nJPEGs of {_SIZE[0]} x {_SIZE[1]} pixels, "
        f"{size / 1000:.0f} kB, to crops of 224 x 224, batches of {_BATCH}; "
        f"{_ROUNDS.value} runs of {_BATCHES.value} batches each:\n\n"
        + markdown_table(header, rows),
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
