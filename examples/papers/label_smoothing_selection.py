r"""Show what label smoothing does to rejection, and what repairs it.

    python examples/papers/label_smoothing_selection.py \
        --data=fashion_mnist --data_dir=DIR

The script trains three networks of 2 x 1024 units with and without label
smoothing. It ranks their predictions by softmax confidence, and by normalised
logits with p chosen on a held-out sixth of the training data. These are means
and standard deviations on the test set, with AURC times 1000 and coverage at a
risk of 2 %:

    smoothing                     none                0.2
    accuracy               0.8947 ± 0.0015    0.8970 ± 0.0011
    AURC                    17.66 ± 0.51       20.50 ± 0.16
    AURC, normalised        17.66 ± 0.51       17.82 ± 0.26
    coverage               0.7250 ± 0.0078    0.7205 ± 0.0052
    coverage, normalised   0.7250 ± 0.0078    0.7339 ± 0.0025
    p                         softmax              2, 1, 2

Smoothing ranks errors worse, and normalisation repairs it. Without smoothing
the softmax score is kept. On the digits of scikit-learn, the default, the
effect does not show. There accuracy rises from 0.977 to 0.987 (ten networks),
and AURC falls with it. The 300 rows that choose p have too few errors.
"""

import keras
import numpy as np
from absl import flags, logging
from config.script import start
from data.datasets import load_digits, load_tfds

import keras_calib

_DATA = flags.DEFINE_string(
    "data", "digits", "'digits', or the name of a TFDS data set."
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Folder of the prepared TFDS data."
)
_DOWNLOAD = flags.DEFINE_bool(
    "download", False, "Download missing data into --data_dir."
)
_ALPHA = flags.DEFINE_multi_float(
    "alpha", [0.0, 0.2], "Strength of label smoothing."
)
_EPOCHS = flags.DEFINE_integer(
    "epochs", None, "Number of epochs. Defaults to 50 for digits, otherwise 10."
)
_WIDTH = flags.DEFINE_integer(
    "width",
    None,
    "Units of a layer. Defaults to 128 for digits, otherwise 1024.",
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of networks of each kind.")

COLUMNS = ("accuracy", "AURC*1e3", "normalised", "coverage", "normalised")


def train(train_set, *, alpha, width, num_classes, epochs, seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input(train_set[0].shape[1:]),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(width, activation="relu"),
            keras.layers.Dense(num_classes),
        ]
    )
    steps = epochs * (len(train_set[1]) // 128 + 1)
    rate = keras.optimizers.schedules.CosineDecay(0.1, steps)
    model.compile(
        optimizer=keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        loss=keras_calib.LabelSmoothing(alpha=alpha, from_logits=True),
    )
    model.fit(*train_set, batch_size=128, epochs=epochs, verbose=2)
    return model


def measure(model, val_set, test_set):
    """The columns of the table for one network, and p."""
    held_out = model.predict(val_set[0], batch_size=1024, verbose=0)
    logits = model.predict(test_set[0], batch_size=1024, verbose=0)
    labels = test_set[1]
    norm = keras_calib.LogitNormalization().fit(val_set[1], held_out)
    accuracy = float(np.mean(logits.argmax(-1) == labels))
    areas, coverages = [], []
    for score in ("msp", lambda z: keras.ops.convert_to_numpy(norm(z))):
        how = {"score": score, "from_logits": True}
        areas.append(1000 * keras_calib.aurc(labels, logits, **how))
        at_risk = keras_calib.functional.coverage_at_risk(
            labels, logits, risk=0.02, **how
        )
        coverages.append(at_risk)
    return [accuracy, *areas, *coverages], norm.p


def run(alphas, *, sets, seeds, **options):
    train_set, val_set, test_set = sets
    lines = ["smoothing" + "".join(f"{name:>16}" for name in COLUMNS) + "  p"]
    for alpha in alphas:
        rows, chosen = [], []
        for seed in range(seeds):
            print(f"\nsmoothing {alpha}, network {seed + 1} of {seeds}:")
            model = train(train_set, alpha=alpha, seed=seed, **options)
            values, p = measure(model, val_set, test_set)
            print(*(f"{value:.4f}" for value in values), f"p = {p}")
            rows.append(values)
            chosen.append(str(p))
        text = "".join(
            f"{f'{mean:.4g} ± {std:.2g}':>16}"
            for mean, std in zip(np.mean(rows, 0), np.std(rows, 0), strict=True)
        )
        lines.append(f"{alpha:<9}{text}  {' '.join(chosen)}")
    print("\n" + "\n".join(lines))


def main(_):
    logging.set_verbosity(logging.WARNING)
    small = _DATA.value == "digits"
    where = {"data_dir": _DATA_DIR.value, "download": _DOWNLOAD.value}
    sets, num_classes = (
        (load_digits(), 10) if small else load_tfds(_DATA.value, **where)
    )
    run(
        _ALPHA.value,
        sets=sets,
        num_classes=num_classes,
        width=_WIDTH.value or (128 if small else 1024),
        epochs=_EPOCHS.value or (50 if small else 10),
        seeds=_SEEDS.value,
    )


if __name__ == "__main__":
    start(main)
