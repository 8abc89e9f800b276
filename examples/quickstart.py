r"""Losses on one small network: train, measure, repair, draw, serve.

    python examples/quickstart.py
    python examples/quickstart.py --losses=all
    python examples/quickstart.py --data=fashion_mnist --data_dir=DIR

The first line trains seven losses on the handwritten digits that scikit-learn
ships, in about a minute on 2 cores; the second trains seventeen, in little
more. The third reads a TensorFlow data set of images, from DIR if it was
prepared there, and trains the network of the label relaxation experiments
(Lienen and Hüllermeier, AAAI 2021): 2 x 1024 ReLU units, batch 64, SGD with
Nesterov momentum 0.9; 1/6 of the training data is held out to fit the
temperature. README.md shows what they print.
"""

import sys
from pathlib import Path

import keras
import matplotlib as mpl
from absl import app
from absl import flags
from absl import logging
from datasets import load_digits
from datasets import load_tfds
from family import all_losses
from family import seven_losses
from results import draw
from results import measure
from results import serve
from results import table

import keras_calib

_DATA = flags.DEFINE_string("data", "digits", "'digits', or a TFDS name.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "TFDS folder to read.")
_DOWNLOAD = flags.DEFINE_bool("download", False, "Download into --data_dir.")
_LOSSES = flags.DEFINE_enum("losses", "seven", ["seven", "all"], "Which.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "25 for digits, else 5.")
_WIDTH = flags.DEFINE_integer("width", None, "128 for digits, else 1024.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed of weights and batches.")
_WORKDIR = flags.DEFINE_string("workdir", "work/quickstart", "For results.")


def train(loss, train_set, val_set, *, width, num_classes, epochs, seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(train_set[0].shape[1:]),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(num_classes),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        loss=loss,
        metrics=["accuracy", keras_calib.ECE(from_logits=True)],
    )
    model.fit(
        *train_set,
        batch_size=64,
        epochs=epochs,
        validation_data=val_set,
        verbose=1 if sys.stdout.isatty() else 2,
    )
    return model


def run(losses, *, sets, num_classes, epochs, width, seed, workdir):
    train_set, val_set, (images, labels) = sets
    workdir.mkdir(parents=True, exist_ok=True)
    rows, logits, scaled, models, scalings = {}, {}, {}, {}, {}
    for i, (name, loss) in enumerate(losses.items()):
        print(f"\n[{i + 1}/{len(losses)}] {name}", flush=True)
        models[name] = model = train(
            loss,
            train_set,
            val_set,
            width=width,
            num_classes=num_classes,
            epochs=epochs,
            seed=seed,
        )
        held_out = model.predict(val_set[0], batch_size=1024, verbose=0)
        logits[name] = model.predict(images, batch_size=1024, verbose=0)
        scalings[name] = keras_calib.TemperatureScaling().fit(
            val_set[1], held_out
        )
        scaled[name] = keras.ops.convert_to_numpy(scalings[name](logits[name]))
        rows[name] = (
            measure(labels, logits[name]),
            scalings[name].temperature,
            measure(labels, scaled[name]),
        )
    text = table(rows)
    (workdir / "table.txt").write_text(text + "\n")
    print(f"\n{text}\n")
    pictures = draw(labels, logits, "ACLS", scaled["ACLS"], workdir)
    path, difference = serve(
        models["ACLS"], scalings["ACLS"], images[:256], workdir
    )
    print("ACLS with its temperature, as a SavedModel, reloaded without keras")
    print(f"and keras_calib: probabilities differ by {difference:.1e} at most.")
    print("Written:")
    for written in (workdir / "table.txt", *pictures, path):
        print(f"  {written}")


def main(_):
    logging.set_verbosity(logging.WARNING)
    mpl.use("Agg")
    small = _DATA.value == "digits"
    if small:
        sets, num_classes = load_digits(), 10
    else:
        sets, num_classes = load_tfds(
            _DATA.value, _DATA_DIR.value, download=_DOWNLOAD.value
        )
    run(
        seven_losses() if _LOSSES.value == "seven" else all_losses(),
        sets=sets,
        num_classes=num_classes,
        epochs=_EPOCHS.value or (25 if small else 5),
        width=_WIDTH.value or (128 if small else 1024),
        seed=_SEED.value,
        workdir=Path(_WORKDIR.value),
    )


if __name__ == "__main__":
    app.run(main)
