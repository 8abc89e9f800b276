r"""What calibrators change where there are few held-out samples.

    python benchmarks/digits_calibrators.py \
        --csv=benchmarks/results/runs/digits_calibrators.csv

The network of `examples/training_methods.py` trains on cross entropy on 300
noisy digits. Calibrators are fitted on 300 further ones and measured on 1,197,
for each of five seeds. It takes a minute of processor time.
"""

import csv
import sys
from pathlib import Path

import keras
import numpy as np
from absl import app, flags

import keras_calib as kc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

# With its flags: seeds, epochs, csv.
from training_methods import LOGITS, MEASURES, load, methods, trained  # noqa: E402

# Endings of the columns of what they calibrate.
CALIBRATORS = {
    "_ts": kc.TemperatureScaling,
    "_ensemble": kc.EnsembleTemperatureScaling,
    "_parametrized": kc.ParametrizedTemperatureScaling,
    "_vector": kc.VectorScaling,
    "_structured_vector": kc.StructuredVectorScaling,
    "_matrix": kc.MatrixScaling,
    "_structured_matrix": kc.StructuredMatrixScaling,
    "_dirichlet": kc.DirichletCalibration,
    "_histogram": kc.HistogramBinning,
    "_isotonic": kc.IsotonicCalibration,
    "_beta": kc.BetaCalibration,
    "_affine": kc.AffineScaling,
    "_quadratic": kc.QuadraticScaling,
    "_venn": kc.VennAbers,
    "_gaussian_process": kc.GaussianProcessCalibration,
}
# Share of the test images of digits 5 to 9 that stay in shifted data.
KEPT = 0.2


def measures(labels, logits, ending=""):
    values = {"accuracy": np.mean(np.argmax(logits, axis=-1) == labels)}
    values |= {f.__name__: f(labels, logits, **LOGITS) for f in MEASURES}
    return {f"{name}{ending}": value for name, value in values.items()}


def row_of(seed, epochs):
    """Measures of a network as trained, and after each calibrator."""
    train_set, held_out, (images, labels) = load(seed)
    method = methods(10, len(train_set[0]), epochs)["cross entropy"]
    network = trained(method, train_set, held_out, 10, epochs, seed)
    known = network.predict(held_out[0], verbose=0)
    logits = network.predict(images, verbose=0)
    row = {"setup": "noisy_digits_10", "method": "cross_entropy", "seed": seed}
    row |= {"options": f"held_out={len(held_out[0])}", "epochs": epochs}
    row |= measures(labels, logits)
    for ending, kind in CALIBRATORS.items():
        repaired = kind().fit(held_out[1], known)(logits)
        repaired = keras.ops.convert_to_numpy(repaired)
        row |= measures(labels, repaired, ending)
    return row | shifted(held_out[1], known, labels, logits, seed)


def shifted(held_labels, known, labels, logits, seed):
    """Measures on test data with other shares, before and after correction.

    Both have a temperature. The correction estimates the shares from the
    predictions of these data alone.
    """
    chance = np.random.default_rng(seed).uniform(size=len(labels))
    stay = (labels < 5) | (chance < KEPT)
    labels, logits = labels[stay], logits[stay]
    source = np.bincount(held_labels, minlength=10) / len(held_labels)
    scaling = kc.TemperatureScaling().fit(held_labels, known)
    before = keras.ops.convert_to_numpy(scaling(logits))
    target = kc.functional.estimate_prior(
        before, source, from_logits=True
    ).prior
    layer = kc.PriorCorrection(source, target, calibrator=scaling)
    after = keras.ops.convert_to_numpy(layer(logits))
    return {
        **measures(labels, before, "_shifted"),
        **measures(labels, after, "_prior"),
    }


def main(_):
    options = flags.FLAGS
    rows = [row_of(seed, options.epochs) for seed in range(options.seeds)]
    for ending in ("", *CALIBRATORS, "_shifted", "_prior"):
        means = [
            np.mean([row[f"{name}{ending}"] for row in rows])
            for name in ("accuracy", "ece", "nll", "aurc")
        ]
        print(f"{ending:12}" + "".join(f"{mean:8.4f}" for mean in means))
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    app.run(main)
