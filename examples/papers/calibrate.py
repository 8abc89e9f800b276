r"""Repair trained networks, and compare calibrators.

    python examples/papers/calibrate.py \
        work/runs/cifar10_resnet50/cross_entropy/seed0
    python examples/papers/calibrate.py RUN --save=TemperatureScaling

The script fits each calibrator to the run's predictions on its validation data.
It measures them on the test data, or on --part=imagenet_v2 of evaluate.py. If a
calibrator refuses the data, because it has more parameters than samples for
example, its reason is printed.

The results are written to the run's folder as calibrators.csv, or as
calibrators_imagenet_v2.csv for that part. --save also writes a SavedModel with
calibrated answers to serving_calibrated. With --temperatures the temperature is
chosen among these by ECE, otherwise by likelihood.
"""

import csv
from pathlib import Path

import keras
from absl import flags
from config.data_flags import define_temperatures
from config.recipe_flags import read_temperatures
from config.script import start
from results.runs import (
    load_network,
    measures,
    read_predictions,
    repairable_runs,
)

import keras_calib

_NAMES = (
    "TemperatureScaling",
    "VectorScaling",
    "MatrixScaling",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "BetaCalibration",
)
_CALIBRATORS = flags.DEFINE_multi_enum(
    "calibrator", _NAMES[:2] + _NAMES[4:], _NAMES, "Calibrators to fit."
)
define_temperatures(flags.FLAGS)
_PART = flags.DEFINE_string("part", "test", "Predictions to measure on.")
_SAVE = flags.DEFINE_enum("save", None, _NAMES, "Calibrator to export.")
_SHOWN = ("accuracy", "nll", "brier", "ece", "aece", "aurc")


def fitted(name, folder, temperatures=()):
    """A calibrator, fitted on a run's validation data.

    With temperatures, the one of least ECE is chosen among them.
    """
    labels, logits = read_predictions(folder, "validation")
    options = {}
    if name == "TemperatureScaling" and temperatures:
        options = {"objective": "ece", "grid": temperatures}
    return getattr(keras_calib.calibrators, name)(**options).fit(labels, logits)


def repair(folder, names, part, temperatures=()):
    """Rows of measures on a part, before and after each calibrator.

    And by name, why a calibrator refused the data.
    """
    labels, logits = read_predictions(folder, part)
    rows = [{"calibrator": "none", **measures(labels, logits)}]
    refused = {}
    for name in names:
        try:
            calibrator = fitted(name, folder, temperatures)
        except ValueError as error:
            refused[name] = str(error)
            continue
        repaired = keras.ops.convert_to_numpy(calibrator(logits))
        rows.append({"calibrator": name, **measures(labels, repaired)})
    return rows, refused


def main(argv):
    folders = repairable_runs(argv[1:])
    temperatures = read_temperatures(flags.FLAGS)
    for folder in folders:
        rows, refused = repair(
            folder, _CALIBRATORS.value, _PART.value, temperatures
        )
        suffix = "" if _PART.value == "test" else f"_{_PART.value}"
        path = folder / f"calibrators{suffix}.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(f"\n{folder}\n{'':28}" + "".join(f"{n:>10}" for n in _SHOWN))
        for row in rows:
            numbers = "".join(f"{row[name]:10.4f}" for name in _SHOWN)
            print(f"{row['calibrator']:28}{numbers}")
        for name, reason in refused.items():
            print(f"{name:28}refused: {reason}")
        if _SAVE.value is not None:
            save(folder, _SAVE.value, temperatures)


def save(folder, name, temperatures):
    """Exports a run's model with a calibrator inside."""
    target = Path(folder) / "serving_calibrated"
    model = load_network(folder)
    calibrator = fitted(name, folder, temperatures)
    keras_calib.export(model, target, calibrator, from_logits=True)
    print(f"Served from {target}")


if __name__ == "__main__":
    start(main)
