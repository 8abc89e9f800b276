r"""Losses on one small network: train, measure, repair, draw, serve.

    python examples/quickstart.py
    python examples/quickstart.py --losses=all
    python examples/quickstart.py --data=fashion_mnist --data_dir=DIR

The first line trains seven losses on the handwritten digits of scikit-learn
and prints how calibrated they are (the table is in README.md), in a minute on
2 cores. The second trains seventeen. The third reads a TensorFlow data set and
trains the network of Lienen and Hüllermeier (AAAI 2021) for seven minutes.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow_datasets as tfds
from absl import app
from absl import flags
from absl import logging
from sklearn.datasets import load_digits

import keras_calib as kc

_DATA = flags.DEFINE_string("data", "digits", "'digits', or a TFDS name.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "TFDS folder to read.")
_DOWNLOAD = flags.DEFINE_bool("download", False, "Into --data_dir.")
_LOSSES = flags.DEFINE_enum("losses", "seven", ["seven", "all"], "Which.")
_EPOCHS = flags.DEFINE_integer("epochs", None, "25 for digits, else 5.")
_WORKDIR = flags.DEFINE_string("workdir", "work/quickstart", "For results.")

LOGITS = {"from_logits": True}
SEVEN = {
    "cross entropy": keras.losses.SparseCategoricalCrossentropy(**LOGITS),
    "label smoothing": kc.LabelSmoothing(alpha=0.05, **LOGITS),
    "MbLS": kc.MbLS(margin=6.0, **LOGITS),
    "ACLS": kc.ACLS(margin=6.0, **LOGITS),
    "focal": kc.FocalLoss(gamma=3.0, **LOGITS),
    "label relaxation": kc.LabelRelaxation(alpha=0.1, **LOGITS),
    "confidence penalty": kc.ConfidencePenalty(0.1, **LOGITS),
}
FOCAL = kc.FocalLoss(gamma=1.0, **LOGITS)
ALL = SEVEN | {
    "ACLS as released": kc.ACLS(margin=6.0, reference="zero", **LOGITS),
    "FLSD": kc.FLSD(**LOGITS),
    "inverse focal": kc.InverseFocalLoss(gamma=2.0, **LOGITS),
    "L1 to uniform": kc.UniformityPenalty(0.1, **LOGITS),
    "Brier": kc.BrierLoss(**LOGITS),
    "CPC": kc.CPC(**LOGITS),
    "MMCE": kc.MMCE(1.0, **LOGITS),
    "MMCE weighted": kc.MMCE(2.0, variant="weighted_released", **LOGITS),
    "MDCA + focal": kc.MDCA(1.0, fidelity=FOCAL, **LOGITS),
    "DCA": kc.DCA(1.0, **LOGITS),
}


def load(name, **options):
    """Images and class ids for training, for the temperature, for testing."""
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        parts, scale = np.split(order, [898, 1198]), 16
    else:
        read = {"batch_size": -1, "as_supervised": True, "with_info": True}
        data, info = tfds.load(name, split="train+test", **read, **options)
        x, y = tfds.as_numpy(data)
        count = info.splits["train"].num_examples
        parts, scale = np.split(range(len(y)), [count * 5 // 6, count]), 255
    x = x.reshape(len(x), -1).astype("float32") / scale
    return [(x[part], y[part].astype("int32")) for part in parts]


def trained(loss, train_set, val_set, *, width, epochs):
    keras.utils.set_random_seed(0)
    num_classes = int(max(train_set[1]) + 1)
    dense, inputs = keras.layers.Dense, keras.Input(train_set[0].shape[1:])
    hidden = [dense(width, activation="relu") for _ in range(2)]
    model = keras.Sequential([inputs, *hidden, dense(num_classes)])
    sgd = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    model.compile(sgd, loss, metrics=["accuracy", kc.ECE(**LOGITS)])
    model.fit(*train_set, 64, epochs, verbose=2, validation_data=val_set)
    return model


def measured(labels, logits):
    accuracy = np.mean(logits.argmax(-1) == labels)
    functions = (kc.nll, kc.ece, kc.adaptive_ece, kc.aurc)
    *values, aurc = (f(labels, logits, **LOGITS) for f in functions)
    cells = "".join(f"{v:8.4f}" for v in (accuracy, *values))
    return f"{cells}{1000 * aurc:10.2f}"


def run(losses, sets, workdir, **options):
    train_set, val_set, (images, labels) = sets
    workdir.mkdir(parents=True, exist_ok=True)
    names = "     acc     NLL     ECE    AECE  AURC*1e3"
    title = f"{'as trained':>45}{'after temperature scaling':>57}"
    lines = [title, f"{'loss':19}{names}{'T':>8}{names}"]
    logits = {}
    for i, (name, loss) in enumerate(losses.items(), 1):
        print(f"\n[{i}/{len(losses)}] {name}", flush=True)
        model = trained(loss, train_set, val_set, **options)
        logits[name] = raw = model.predict(images, verbose=0)
        scaling = kc.TemperatureScaling().fit_on(model, val_set, verbose=0)
        scaled = keras.ops.convert_to_numpy(scaling(raw))
        cells = measured(labels, raw), measured(labels, scaled)
        lines.append(f"{name:19}{cells[0]}{scaling.temperature:8.3f}{cells[1]}")
        if name == "ACLS":
            shown = model, scaling, scaled
    print("\n" + "\n".join(lines) + "\n")
    (workdir / "table.txt").write_text("\n".join(lines) + "\n")
    model, scaling, scaled = shown
    kc.ReliabilityDisplay.from_predictions(
        labels, scaled, name="ACLS, temperature scaled", **LOGITS
    ).plot().figure_.savefig(workdir / "reliability.png", dpi=150)
    curves = kc.RiskCoverageDisplay.from_predictions(labels, logits, **LOGITS)
    curves.plot().figure_.savefig(workdir / "risk_coverage.png", dpi=150)
    shutil.rmtree(workdir / "serving", ignore_errors=True)
    kc.export(model, workdir / "serving" / "1", scaling)
    np.save(workdir / "images.npy", images[:256])
    # A process that can import neither Keras nor this package.
    script = Path(__file__).parent / "serving" / "reload_savedmodel.py"
    files = ("serving/1", "images.npy", "probabilities.npy")
    paths = [workdir / file for file in files]
    subprocess.run([sys.executable, script, *paths], check=True)
    expected = keras.ops.softmax(scaled[:256])
    difference = np.abs(np.load(paths[-1]) - expected).max()
    print(f"ACLS, reloaded without Keras: differs by {difference:.1e}")
    names = ("table.txt", "reliability.png", "risk_coverage.png", files[0])
    print("Written:", *(workdir / name for name in names), sep="\n  ")


def main(_):
    logging.set_verbosity(logging.WARNING)
    small = _DATA.value == "digits"
    sets = load(_DATA.value, data_dir=_DATA_DIR.value, download=_DOWNLOAD.value)
    run(
        SEVEN if _LOSSES.value == "seven" else ALL,
        sets,
        Path(_WORKDIR.value),
        width=128 if small else 1024,
        epochs=_EPOCHS.value or (25 if small else 5),
    )


if __name__ == "__main__":
    app.run(main)
