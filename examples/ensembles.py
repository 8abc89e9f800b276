r"""Monte Carlo dropout and a deep ensemble, compared with a single network.

    python examples/ensembles.py

The script trains five small networks with dropout on the handwritten digits of
scikit-learn, for each of five seeds, in a little over a minute on one core. It
measures one network, the same network with Monte Carlo dropout, and the
ensemble of all. Their accuracy is 0.973, 0.971 and 0.976. Their NLL is 0.091,
0.133 and 0.084 as trained, and 0.089, 0.103 and 0.083 after temperature scaling
on held-out data. It writes the table, a row for each seed (runs.csv) and the
last ensemble, as a SavedModel, to --workdir.
"""

import csv
import shutil
from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

import keras_calib

_EPOCHS = flags.DEFINE_integer("epochs", 40, "Passes over the training data.")
_MEMBERS = flags.DEFINE_integer("members", 5, "Networks of an ensemble.")
_PASSES = flags.DEFINE_integer("passes", 20, "Passes of Monte Carlo dropout.")
_RATE = flags.DEFINE_float("rate", 0.5, "Dropout rate.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Repetitions, each on a new split.")
_WORKDIR = flags.DEFINE_string("workdir", "work/ensembles", "Output folder.")

MEASURES = ("accuracy", "ece", "nll", "aurc")


def load(seed):
    """Images and class ids for training, for the temperature, for testing."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    x, y = (x[order] / 16).astype("float32"), y[order]
    return list(
        zip(np.split(x, [898, 1198]), np.split(y, [898, 1198]), strict=True)
    )


def train(x, y, *, rate, epochs, seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(rate),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(rate),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)
    return model


def measure(labels, logits):
    """Accuracy, ECE, NLL and AURC."""
    accuracy = np.mean(np.argmax(logits, axis=-1) == labels)
    functions = (keras_calib.ece, keras_calib.nll, keras_calib.aurc)
    return accuracy, *(f(labels, logits, from_logits=True) for f in functions)


def predictors(models, passes):
    return {
        "network": models[0],
        "Monte Carlo dropout": keras_calib.MonteCarloDropout(models[0], passes),
        "deep ensemble": keras_calib.DeepEnsemble(models),
    }


def table(values):
    """Means of `{name: (seeds, 2, measures)}`, as text."""
    names = "".join(f"{name:>9}" for name in MEASURES)
    title = f"{'':20}{'as trained':^38}{'after temperature scaling':^38}"
    lines = [title.rstrip(), f"{'':20}{names}  {names}"]
    for name, rows in values.items():
        parts = [
            "".join(f"{v:9.4f}" for v in part) for part in np.mean(rows, axis=0)
        ]
        lines.append(f"{name:20}{'  '.join(parts)}")
    return "\n".join(lines)


def write_runs(values, path, options):
    """A row for each predictor and seed."""
    columns = ["setup", "method", "options", "seed", *MEASURES]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, *(f"{name}_ts" for name in MEASURES)])
        for name, rows in values.items():
            for seed, (trained, scaled) in enumerate(rows):
                row = ["digits_dropout", name, options, seed]
                writer.writerow([*row, *trained, *scaled])


def run(*, seeds, members, passes, rate, epochs, workdir):
    values = {}
    for seed in range(seeds):
        train_set, val_set, (images, labels) = load(seed)
        models = []
        for i in range(members):
            print(f"seed {seed + 1}/{seeds}, network {i + 1}/{members}")
            each = members * seed + i
            models.append(
                train(*train_set, rate=rate, epochs=epochs, seed=each)
            )
        for name, model in predictors(models, passes).items():
            logits = model.predict(images, batch_size=1024, verbose=0)
            scaling = keras_calib.TemperatureScaling()
            scaling.fit_on(model, [val_set], verbose=0)
            scaled = keras.ops.convert_to_numpy(scaling(logits))
            row = measure(labels, logits), measure(labels, scaled)
            values.setdefault(name, []).append(row)
    workdir.mkdir(parents=True, exist_ok=True)
    text = table(values)
    (workdir / "table.txt").write_text(text + "\n")
    options = f"rate={rate} passes={passes} members={members} epochs={epochs}"
    write_runs(values, workdir / "runs.csv", options)
    shutil.rmtree(workdir / "serving", ignore_errors=True)
    keras_calib.export(model, workdir / "serving" / "1", scaling)
    print(f"\n{text}\n\nIn {workdir}: table.txt, runs.csv, serving/1")


def main(_):
    run(
        seeds=_SEEDS.value,
        members=_MEMBERS.value,
        passes=_PASSES.value,
        rate=_RATE.value,
        epochs=_EPOCHS.value,
        workdir=Path(_WORKDIR.value),
    )


if __name__ == "__main__":
    app.run(main)
