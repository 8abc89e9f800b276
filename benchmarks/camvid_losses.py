r"""What losses change that read where a pixel is: short trainings on CamVid.

    python benchmarks/camvid_losses.py --data_dir=DIR \
        --csv=benchmarks/results/runs/camvid_losses.csv

`DIR` holds the TFDS data set `camvid`. Images are shrunk to 80 x 60, and a
small convolutional network trains on 367 of them, with the same initial weights
and batches for each loss. Measures are of all labelled pixels of the 233 test
images; `_ts` is after a temperature fitted on the 101 validation images. It
takes 17 minutes of processor time for two seeds. A row is written when its
run has ended.
"""

import csv
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags
from keras import layers

import keras_calib as kc

_DATA = flags.DEFINE_string("data_dir", None, "Folder of the TFDS data sets.")
_SEEDS = flags.DEFINE_integer("seeds", 2, "Number of seeds.")
_EPOCHS = flags.DEFINE_integer("epochs", 15, "Passes over the images.")
_CSV = flags.DEFINE_string("csv", "", "Where to write the measures.")
_ONLY = flags.DEFINE_list("only", [], "Losses to train with; all if empty.")

SIDES, CLASSES, VOID = (60, 80), 11, 11
READ = {"from_logits": True, "ignore_class": VOID}
# Class and arguments: those of the papers' code, or the class's defaults.
LOSSES = {
    "cross_entropy": (kc.LabelSmoothing, {"alpha": 0.0}),
    "label_smoothing": (kc.LabelSmoothing, {"alpha": 0.05}),
    "mbls": (kc.MbLS, {"margin": 10.0, "strength": 0.1}),
    "svls": (kc.SVLS, {"sigma": 1.0}),
    "nacl": (kc.NACL, {"strength": 0.1}),
    "l1_ace": (kc.L1ACE, {"strength": 1.0}),
}


def scenes(part):
    """Images `(n, 60, 80, 3)` and class ids `(n, 60, 80)` of a part."""
    import tensorflow_datasets as tfds

    builder = tfds.builder("camvid", data_dir=_DATA.value)
    images, masks = [], []
    for example in builder.as_dataset(split=part):
        image = tf.image.resize(example["image"], SIDES, "area")
        images.append(image.numpy() / 127.5 - 1.0)
        masks.append(example["segmentation_mask"].numpy()[1::3, 1::3, 0])
    return np.stack(images), np.stack(masks).astype("int32")


def network():
    """Logits at half the resolution, interpolated."""

    def convolved(x, width, **options):
        options = {"padding": "same", "use_bias": False, **options}
        x = layers.Conv2D(width, 3, **options)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))

    inputs = keras.Input((*SIDES, 3))
    fine = convolved(convolved(inputs, 24, strides=2), 24)
    x = convolved(fine, 48, strides=2)
    for dilation in (1, 2, 4):
        x = layers.add([x, convolved(x, 48, dilation_rate=dilation)])
    whole = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.add([x, layers.Dense(48)(whole)])
    x = layers.UpSampling2D(interpolation="bilinear")(x)
    x = convolved(layers.concatenate([x, fine]), 48)
    x = layers.Conv2D(CLASSES, 1)(x)
    return keras.Model(inputs, layers.UpSampling2D(interpolation="bilinear")(x))


def trained(loss, images, masks, seed, epochs):
    keras.utils.set_random_seed(seed)
    model = network()
    steps = epochs * (len(images) // 8)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(images))[: len(images) // 8 * 8]
        flip = rng.random((len(order), 1, 1)) < 0.5
        x, y = images[order], masks[order]
        x = np.where(flip[..., None], x[:, :, ::-1], x)
        y = np.where(flip, y[:, :, ::-1], y)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return model


def overlaps(labels, predicted):
    """Means over the classes of IoU and of Dice's coefficient."""
    pairs = np.bincount(labels * CLASSES + predicted, minlength=CLASSES**2)
    pairs = pairs.reshape(CLASSES, CLASSES)
    both, total = np.diag(pairs), pairs.sum(0) + pairs.sum(1)
    return (both / (total - both)).mean(), (2 * both / total).mean()


def measures(masks, logits, ending=""):
    valid = masks != VOID
    labels, flat = masks[valid], logits[valid]
    given = {"from_logits": True}
    values = {
        "accuracy": (flat.argmax(-1) == labels).mean(),
        "ece": kc.ece(labels, flat, **given),
        "classwise_ece": kc.functional.classwise_ece(labels, flat, **given),
        "nll": kc.nll(labels, flat, **given),
        "aurc": kc.aurc(labels, flat, **given),
    }
    values["miou"], values["dice"] = overlaps(labels, flat.argmax(-1))
    image = kc.PerImage(kc.ECE(**READ))
    image.update_state(masks, logits)
    values["image_ece"] = float(image.result())
    return {f"{name}{ending}": float(x) for name, x in values.items()}


def row_of(method, sets, seed, epochs):
    kind, options = LOSSES[method]
    start = time.process_time()
    model = trained(kind(**options, **READ), *sets["train"], seed, epochs)
    text = " ".join(f"{name}={value}" for name, value in options.items())
    row = {"setup": "camvid_80x60", "method": method, "options": text}
    row |= {"seed": seed, "epochs": epochs}
    row["cpu_seconds"] = round(time.process_time() - start)
    images, masks = sets["test"]
    logits = model.predict(images, verbose=0)
    row |= measures(masks, logits)
    temperature = kc.TemperatureScaling().fit_on(model, sets["val"], verbose=0)
    repaired = keras.ops.convert_to_numpy(temperature(logits))
    row |= measures(masks, repaired, "_ts")
    row["temperature_ts"] = float(temperature.temperature)
    return row


def main(_):
    sets = {part: scenes(part) for part in ("train", "val", "test")}
    rows = []
    for seed in range(_SEEDS.value):
        for method in _ONLY.value or LOSSES:
            rows.append(row_of(method, sets, seed, _EPOCHS.value))
            print(rows[-1], flush=True)
            if not _CSV.value:
                continue
            path = Path(_CSV.value)
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    flags.mark_flag_as_required("data_dir")
    app.run(main)
