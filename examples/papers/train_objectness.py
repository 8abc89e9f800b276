r"""Confidence that follows the size of the object, not its surroundings.

    python examples/papers/train_objectness.py
    python examples/papers/train_objectness.py \
        --data=tiny_imagenet_boxes --data_dir=DIR

trains one small residual network with each kind of label and compares them on
the validation set and on the same images with the objects painted out, where
its mean confidence falls from 0.455 with hard labels to 0.163 with adaptive
ones and to 0.123 with context images among them: README.md shows the table.
Three minutes for the digits of the first line, half an hour on 2 cores for
the 6,400 images of the second.

The full recipe of the paper, where there is an accelerator:

    python examples/papers/train_objectness.py \
        --data=imagenet2012 --data_dir=DIR --annotations=BOXES --alone \
        --net=resnet50 --size=224 --batch_size=256 --epochs=300 \
        --scale=0.08 --jitter=0.4 --strategy=mirrored
"""

from pathlib import Path

import keras
from absl import app
from absl import flags
from absl import logging
from config.strategies import check_batch_size
from config.strategies import make_alike
from config.strategies import scope
from nets.convolutions import synchronize
from results.objectness import draw_crops
from results.objectness import measure
from results.objectness import table
from runs.objectness import METHODS
from runs.objectness import build
from runs.objectness import compile_model
from runs.objectness import load

import keras_calib

_DATA = flags.DEFINE_string("data", "digits", "'digits', or a TFDS name.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "TFDS folder to read.")
_ANNOTATIONS = flags.DEFINE_string("annotations", None, "Folder of VOC files.")
_METHODS = flags.DEFINE_multi_enum("method", list(METHODS), METHODS, "Which.")
_ALONE = flags.DEFINE_bool("alone", False, "Train on each object by itself.")
_NET = flags.DEFINE_enum("net", "small", ["small", "resnet50"], "Network.")
_WIDTH = flags.DEFINE_integer("width", 24, "Channels of the small one.")
_SIZE = flags.DEFINE_integer("size", None, "Of crops; 48, digits 32.")
_SCALE = flags.DEFINE_float("scale", 0.1, "Smallest crop, share of the image.")
_JITTER = flags.DEFINE_float("jitter", 0.0, "Strength of colour jitter.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images per step.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "30 for digits, else 25.")
_RATE = flags.DEFINE_float("learning_rate", 0.1, "At the start; SGD.")
_SEED = flags.DEFINE_integer("seed", 0, "Of weights, order and crops.")
_STRATEGY = flags.DEFINE_enum(
    "strategy", "none", ["none", "mirrored"], "mirrored: on all GPUs."
)
_LOGICAL_DEVICES = flags.DEFINE_integer(
    "logical_devices", None, "Split the CPU, to try mirrored without GPUs."
)
_SYNCHRONIZED = flags.DEFINE_bool(
    "synchronized", False, "Batch normalization by all devices together."
)
_WORKDIR = flags.DEFINE_string("workdir", "work/objectness", "For results.")


def main(_):
    logging.set_verbosity(logging.WARNING)
    devices = _STRATEGY.value, _LOGICAL_DEVICES.value
    check_batch_size(_BATCH_SIZE.value, *devices)
    small = _DATA.value == "digits"
    size = _SIZE.value or (32 if small else 48)
    epochs = _EPOCHS.value or (30 if small else 25)
    train_set, val_set, names = load(
        _DATA.value, _DATA_DIR.value, _ANNOTATIONS.value
    )
    fill = keras_calib.pixel_mean(train_set, max_examples=2000)
    if _ALONE.value:
        train_set = keras_calib.object_examples(train_set, fill=fill)
    count = keras_calib.describe(train_set, names).num_examples
    workdir = Path(_WORKDIR.value)
    workdir.mkdir(parents=True, exist_ok=True)
    crops = {"size": size, "scale": (_SCALE.value, 1.0)}
    labels = {"num_classes": len(names)}
    picture = workdir / "crops.png"
    draw_crops(val_set.take(6), picture, names=names, fill=fill, **crops)
    scaled = {"preprocess": lambda x: x / 255.0, **labels}
    views = [
        keras_calib.validation_pipeline(
            part, size, 256, targets="pairs", fraction=1.0, **scaled
        )
        for part in (val_set, keras_calib.context_examples(val_set, fill=fill))
    ]
    rows = {}
    for method in _METHODS.value:
        print(f"\n{method}:")
        keras.utils.set_random_seed(_SEED.value)
        batches = keras_calib.training_pipeline(
            train_set,
            batch_size=_BATCH_SIZE.value,
            flip=not small,
            jitter=_JITTER.value,
            fill=fill,
            seed=_SEED.value,
            **crops,
            **scaled,
            **METHODS[method],
        )
        steps = count // _BATCH_SIZE.value
        with scope(*devices):
            model = build(_NET.value, size, width=_WIDTH.value, **labels)
            synchronize(model, _SYNCHRONIZED.value)
            compile_model(model, method, epochs * steps, _RATE.value)
        model.fit(batches, epochs=epochs, steps_per_epoch=steps, verbose=2)
        make_alike(model)
        rows[method] = measure(model, *views)
        (workdir / "table.txt").write_text(table(rows) + "\n")
    print(f"\n{table(rows)}\n{workdir / 'table.txt'}\n{picture}")


if __name__ == "__main__":
    app.run(main)
