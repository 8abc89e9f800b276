r"""What calibrators of pixels change.

    python benchmarks/scenes_calibrators.py \
        --csv=benchmarks/results/runs/scenes_calibrators.csv

The network of `examples/segmentation.py` trains on cross entropy on 8 noisy
scenes. Calibrators are fitted on 16 further ones and measured on 40, for each
of five seeds. It takes five minutes of processor time.
"""

import csv
import sys
from pathlib import Path

import keras
from absl import app, flags

import keras_calib as kc

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

# With its flags: epochs.
from segmentation import READ, scenes, trained  # noqa: E402

_SEEDS = flags.DEFINE_integer("seeds", 5, "Number of seeds.")
_CSV = flags.DEFINE_string("csv", "", "Where to write the measures.")

HELD_OUT = 16
# Endings of the columns of what they calibrate.
CALIBRATORS = {
    "_ts": kc.TemperatureScaling,
    "_local": kc.LocalTemperatureScaling,
}


def measures(masks, logits, ending=""):
    valid = masks != 255
    labels, logits = masks[valid], logits[valid]
    values = {"accuracy": (logits.argmax(-1) == labels).mean()}
    values |= {
        name: getattr(kc.functional, name)(labels, logits, from_logits=True)
        for name in ("ece", "nll", "aurc")
    }
    return {f"{name}{ending}": value for name, value in values.items()}


def row_of(seed, epochs):
    """Measures of a network as trained, and after each calibrator."""
    train_set, held_out, (images, masks) = (
        scenes(count, 1.0, 3 * seed + part)
        for part, count in enumerate((8, HELD_OUT, 40))
    )
    loss = keras.losses.SparseCategoricalCrossentropy(**READ)
    network = trained(loss, train_set, epochs)
    logits = network.predict(images, verbose=0)
    row = {"setup": "noisy_scenes", "method": "cross_entropy", "seed": seed}
    row |= {"options": f"held_out={HELD_OUT}", "epochs": epochs}
    row |= measures(masks, logits)
    for ending, kind in CALIBRATORS.items():
        calibrator = kind().fit_on(network, held_out, verbose=0)
        repaired = keras.ops.convert_to_numpy(calibrator(logits))
        row |= measures(masks, repaired, ending)
    print(row, flush=True)
    return row


def main(_):
    epochs = flags.FLAGS.epochs
    rows = [row_of(seed, epochs) for seed in range(_SEEDS.value)]
    if _CSV.value:
        with open(_CSV.value, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    app.run(main)
