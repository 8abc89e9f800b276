r"""Confidence that follows the size of the object, not its surroundings.

    python examples/train_objectness.py
    python examples/train_objectness.py --data_dir=DIR/tiny_imagenet_boxes/1.0.0

trains one small residual network with each kind of label and compares them on
the validation set and on the same images with the objects painted out.

The full recipe of the paper, where there is an accelerator:

    python examples/train_objectness.py --data=imagenet2012 --data_dir=DIR \
        --annotations=BOXES --net=resnet50 --size=224 --batch_size=256 \
        --epochs=300 --scale=0.08 --jitter=0.4 --strategy=mirrored
"""

from functools import partial
from pathlib import Path

import keras
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging
from boxed_digits import boxed_digits
from nets.small_resnet import small_resnet
from objectness_results import draw_crops
from objectness_results import measure
from objectness_results import table

import keras_calib

_DATA = flags.DEFINE_string("data", "digits", "'digits', or a TFDS name.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "TFDS folder to read.")
_ANNOTATIONS = flags.DEFINE_string("annotations", None, "Folder of VOC files.")
_METHODS = flags.DEFINE_multi_string("method", None, "Which; default all.")
_NET = flags.DEFINE_enum("net", "small", ["small", "resnet50"], "Network.")
_WIDTH = flags.DEFINE_integer("width", 24, "Channels of the small one.")
_SIZE = flags.DEFINE_integer("size", None, "Of crops; 48, digits 32.")
_SCALE = flags.DEFINE_float("scale", 0.1, "Smallest crop, share of the image.")
_JITTER = flags.DEFINE_float("jitter", 0.0, "Strength of colour jitter.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images per step.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "30 for digits, else 40.")
_RATE = flags.DEFINE_float("learning_rate", 0.1, "At the start; SGD.")
_SEED = flags.DEFINE_integer("seed", 0, "Of weights, order and crops.")
_STRATEGY = flags.DEFINE_enum("strategy", "none", ["none", "mirrored"], "")
_WORKDIR = flags.DEFINE_string("workdir", "work/objectness", "For results.")

# What differs between the methods: options of the pipeline.
METHODS = {
    "hard labels": {"targets": "one_hot"},
    "label smoothing": {"targets": "one_hot"},
    "CutMix": {"targets": "one_hot", "mix": keras_calib.cutmix},
    **{
        f"adaptive, beta {beta:g}{' + context' if share else ''}": {
            "beta": beta,
            "context_share": share,
        }
        for share in (0.0, 0.15)
        for beta in (1.0, 0.75, 0.25)
    },
}


def load(data, data_dir, annotations):
    """Training and validation set, and the names of the classes."""
    if data == "digits":
        return *boxed_digits(), [str(digit) for digit in range(10)]
    read = partial(
        keras_calib.from_tfds, data_dir=data_dir, annotations=annotations
    )
    train, validation = (read(data, s) for s in ("train", "validation"))
    return train, validation, train.class_names


def build(net, size, num_classes, width):
    if net == "resnet50":
        return keras.applications.ResNet50(
            weights=None,
            input_shape=(size, size, 3),
            classes=num_classes,
            classifier_activation=None,
        )
    return small_resnet((size, size, 3), num_classes, width=width)


def train(method, model, batches, *, epochs, steps, rate):
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    if method == "label smoothing":
        loss = keras_calib.LabelSmoothing(alpha=0.1, from_logits=True)
    schedule = keras.optimizers.schedules.CosineDecay(rate, epochs * steps)
    sgd = keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
    model.compile(optimizer=sgd, loss=loss)
    model.fit(batches, epochs=epochs, steps_per_epoch=steps, verbose=2)


def main(_):
    logging.set_verbosity(logging.WARNING)
    small = _DATA.value == "digits"
    size = _SIZE.value or (32 if small else 48)
    epochs = _EPOCHS.value or (30 if small else 40)
    train_set, val_set, names = load(
        _DATA.value, _DATA_DIR.value, _ANNOTATIONS.value
    )
    count = keras_calib.describe(train_set, names).num_examples
    fill = keras_calib.pixel_mean(train_set, max_examples=2000)
    workdir = Path(_WORKDIR.value)
    workdir.mkdir(parents=True, exist_ok=True)
    strategy = (
        tf.distribute.MirroredStrategy()
        if _STRATEGY.value == "mirrored"
        else tf.distribute.get_strategy()
    )
    common = {"num_classes": len(names), "preprocess": lambda x: x / 255.0}
    evaluation = partial(
        keras_calib.validation_pipeline,
        size=size,
        batch_size=256,
        targets="pairs",
        fraction=1.0,
        **common,
    )
    views = [
        evaluation(part).cache()
        for part in (val_set, keras_calib.context_examples(val_set, fill=fill))
    ]
    scale = (_SCALE.value, 1.0)
    draw_crops(
        val_set.take(6),
        workdir / "crops.png",
        size=size,
        scale=scale,
        num_classes=len(names),
        names=names,
        fill=fill,
    )
    rows = {}
    for method in _METHODS.value or METHODS:
        print(f"\n{method}:")
        keras.utils.set_random_seed(_SEED.value)
        with strategy.scope():
            model = build(_NET.value, size, len(names), _WIDTH.value)
        batches = keras_calib.training_pipeline(
            train_set,
            size,
            _BATCH_SIZE.value,
            scale=scale,
            flip=not small,
            jitter=_JITTER.value,
            fill=fill,
            seed=_SEED.value,
            **common,
            **METHODS[method],
        )
        train(
            method,
            model,
            batches,
            epochs=epochs,
            steps=count // _BATCH_SIZE.value,
            rate=_RATE.value,
        )
        rows[method] = measure(model, *views)
        (workdir / "table.txt").write_text(table(rows) + "\n")
    print("\n" + table(rows))
    for name in ("table.txt", "crops.png"):
        print(workdir / name)


if __name__ == "__main__":
    app.run(main)
