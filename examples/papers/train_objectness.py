r"""Confidence that follows the size of the object, not its surroundings.

    python examples/papers/train_objectness.py
    python examples/papers/train_objectness.py --seeds=3 \
        --data=tiny_imagenet_boxes --data_dir=DIR

The script trains one small residual network with each kind of label. It
compares them on the validation set, and on the same images with the objects
painted out. There the mean confidence falls from 0.455 with hard labels to
0.163 with adaptive labels, and to 0.123 with context images in training. The
first line takes three minutes, the second half an hour on 2 cores for one seed
and 6,400 images.

Each training leaves a run in --workdir, in objectness_DATA/METHOD/seedN. It has
the predictions and, as evaluation_context.csv, the measures on images without
objects. After each, the script writes table.txt with means over the seeds, and
runs.csv with a row for each method and seed, for compare.py and
check_claims.py:

    python examples/papers/compare.py work/objectness --on=test,context \
        --baseline="hard labels" --measures=accuracy,confidence,ece100

At the end it writes reliability.png, diagrams of the first seed. After a kill,
add --resume: finished runs are not trained again.

This is the full recipe of the paper, for an accelerator:

    python examples/papers/train_objectness.py \
        --data=imagenet2012 --data_dir=DIR --annotations=BOXES --alone \
        --net=resnet50 --size=224 --batch_size=256 --epochs=300 \
        --scale=0.08 --jitter=0.4 --strategy=mirrored
"""

from functools import partial
from pathlib import Path

import matplotlib as mpl
from absl import flags, logging
from config.script import start
from config.strategies import check_batch_size
from results.comparisons import grouped, write_rows
from results.objectness import draw_crops, draw_reliability, table
from runs.objectness import METHODS, Data, Settings, folder_of, load, run

import keras_calib

_DATA = flags.DEFINE_string(
    "data", "digits", "'digits', or the name of a TFDS data set."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder of the prepared TFDS data."
)
_ANNOTATIONS = flags.DEFINE_string(
    "annotations", None, "Folder of Pascal VOC files with boxes."
)
_METHODS = flags.DEFINE_multi_enum(
    "method", list(METHODS), METHODS, "Kinds of labels to train with."
)
_ALONE = flags.DEFINE_bool("alone", False, "Train on each object by itself.")
_NET = flags.DEFINE_enum(
    "net", "small", ["small", "resnet50"], "Name of the network."
)
_WIDTH = flags.DEFINE_integer(
    "width", 24, "Channels of the first layer of the small network."
)
_SIZE = flags.DEFINE_integer(
    "size", None, "Side of the crops. Defaults to 48, for digits to 32."
)
_SCALE = flags.DEFINE_float(
    "scale", 0.1, "Smallest share of the image that a crop takes."
)
_JITTER = flags.DEFINE_float("jitter", 0.0, "Strength of colour jitter.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Images per step.")
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "Number of epochs. Defaults to 30 for digits, otherwise 25."
)
_RATE = flags.DEFINE_float(
    "learning_rate", 0.1, "Learning rate of SGD at the start."
)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of weights, order and crops.")
_SEEDS = flags.DEFINE_integer(
    "seeds", 1, "Number of seeds, from --seed on.", lower_bound=1
)
_RESUME = flags.DEFINE_bool(
    "resume", False, "Continue the runs in --workdir after a kill."
)
_STRATEGY = flags.DEFINE_enum(
    "strategy",
    "none",
    ["none", "mirrored"],
    "Devices to train on. mirrored: all GPUs of the machine.",
)
_LOGICAL_DEVICES = flags.DEFINE_integer(
    "logical_devices",
    None,
    "Number of devices into which the CPU is split, to try mirrored "
    "without GPUs.",
)
_SYNCHRONIZED = flags.DEFINE_bool(
    "synchronized", False, "Normalise by the statistics of the whole batch."
)
_WORKDIR = flags.DEFINE_string(
    "workdir", "work/objectness", "Folder for results."
)


def main(_):
    logging.set_verbosity(logging.ERROR)
    mpl.use("Agg")
    devices = _STRATEGY.value, _LOGICAL_DEVICES.value
    check_batch_size(_BATCH_SIZE.value, *devices)
    small = _DATA.value == "digits"
    settings = Settings(
        setup=f"objectness_{_DATA.value.replace('/', '_')}",
        data=_DATA.value,
        alone=_ALONE.value,
        net=_NET.value,
        width=_WIDTH.value,
        size=_SIZE.value or (32 if small else 48),
        scale=_SCALE.value,
        jitter=_JITTER.value,
        batch_size=_BATCH_SIZE.value,
        epochs=_EPOCHS.value or (30 if small else 25),
        learning_rate=_RATE.value,
        synchronized=_SYNCHRONIZED.value,
    )
    workdir = Path(_WORKDIR.value)
    workdir.mkdir(parents=True, exist_ok=True)
    data = read(settings, workdir / "crops.png", flip=not small)
    seeds = range(_SEED.value, _SEED.value + _SEEDS.value)
    for seed in seeds:
        for method in _METHODS.value:
            run(
                settings,
                method,
                seed,
                data,
                workdir=workdir,
                devices=devices,
                resume=_RESUME.value,
            )
            found = grouped([workdir / settings.setup])[settings.setup]
            rows = {name: found[name] for name in METHODS if name in found}
            write_rows({settings.setup: rows}, workdir / "runs.csv")
            (workdir / "table.txt").write_text(table(rows) + "\n")
    folders = {
        method: folder_of(workdir, settings, method, seeds[0])
        for method in _METHODS.value
        if not rows[method][seeds[0]]["diverged"]
    }
    draw_reliability(folders, workdir / "reliability.png")
    print(f"\n{table(rows)}")
    for name in ("table.txt", "runs.csv", "crops.png", "reliability.png"):
        print(workdir / name)


def read(settings, picture, *, flip):
    """The `Data` of the settings; draws some crops of them."""
    train, validation, names = load(
        settings.data, _DATA_DIR.value, _ANNOTATIONS.value
    )
    fill = keras_calib.data.painting.pixel_mean(train, max_examples=2000)
    if settings.alone:
        train = keras_calib.data.object_examples(train, fill=fill)
    count = keras_calib.data.describe(train, names).num_examples
    crops = {"size": settings.size, "scale": (settings.scale, 1.0)}
    draw_crops(validation.take(6), picture, names=names, fill=fill, **crops)
    scaled = {"preprocess": lambda x: x / 255.0, "num_classes": len(names)}
    context = keras_calib.data.context_examples(validation, fill=fill)
    whole = {"size": settings.size, "batch_size": 256, "fraction": 1.0}
    return Data(
        partial(
            keras_calib.data.training_pipeline,
            train,
            batch_size=settings.batch_size,
            flip=flip,
            jitter=settings.jitter,
            fill=fill,
            **crops,
            **scaled,
        ),
        {
            view: keras_calib.data.validation_pipeline(
                part, labels="pairs", **whole, **scaled
            )
            for view, part in (("test", validation), ("context", context))
        },
        len(names),
        count // settings.batch_size,
    )


if __name__ == "__main__":
    start(main)
