r"""Seven losses on one small network: train, measure, repair, draw, serve.

    python examples/quickstart.py
    python examples/quickstart.py --losses=all
    python examples/quickstart.py --data=fashion_mnist --data_dir=DIR

The first line trains seven losses on the handwritten digits of scikit-learn
under heavy noise, and prints how calibrated they are, in under a minute on 2
cores. The second trains seventeen. The third reads a TensorFlow data set and
trains the network of Lienen and Hüllermeier (AAAI 2021) for seven minutes.
"""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import keras
import matplotlib.pyplot as plt
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

# Standard deviation of the noise on digits, whose pixels are in [0, 1], and how
# many noisy copies of each digit the network is measured on.
_NOISE, _COPIES = 0.4, 10

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
        return _noisy_digits()
    read = {"batch_size": -1, "as_supervised": True, "with_info": True}
    data, info = tfds.load(name, split="train+test", **read, **options)
    x, y = tfds.as_numpy(data)
    count = info.splits["train"].num_examples
    x = x.reshape(len(x), -1).astype("float32") / 255
    parts = np.split(range(len(y)), [count * 5 // 6, count])
    return [(x[part], y[part].astype("int32")) for part in parts]


def _noisy_digits():
    """Few digits to train on, and fresh noise for every other image."""
    x, y = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    parts = np.split(random.permutation(len(y)), [898, 1198])
    sets = []
    for part, copies in zip(parts, (1, _COPIES, _COPIES), strict=True):
        rows = np.repeat(part, copies)
        noise = random.normal(0.0, _NOISE, size=(len(rows), x.shape[1]))
        images = (x[rows] / 16 + noise).astype("float32")
        sets.append((images, y[rows].astype("int32")))
    return sets


def trained(loss, train_set, *, width, epochs):
    keras.utils.set_random_seed(0)
    num_classes = int(max(train_set[1]) + 1)
    dense, inputs = keras.layers.Dense, keras.Input(train_set[0].shape[1:])
    hidden = [dense(width, activation="relu") for _ in range(2)]
    model = keras.Sequential([inputs, *hidden, dense(num_classes)])
    sgd = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
    model.compile(sgd, loss)
    model.fit(*train_set, 64, epochs, verbose=0)
    return model


def measured(labels, logits):
    """Measures by name, and the 95 % interval of the ECE."""
    metric = kc.CalibrationMetrics(["accuracy", "nll", "ece", "aurc"], **LOGITS)
    metric.update_state(labels, logits)
    values = {name: float(value) for name, value in metric.result().items()}
    return values | {"interval": metric.interval()["ece"]}


def cells(found):
    low, high = found["interval"]
    return (
        f"{found['nll']:8.3f}{found['ece']:8.3f} [{low:.3f}, {high:.3f}]"
        f"{1000 * found['aurc']:8.1f}"
    )


def run(losses, sets, workdir, **options):
    train_set, val_set, (images, labels) = sets
    counts = " to train, ".join(f"{len(y):,}" for _, y in sets[:2])
    print(f"{counts} for the temperature, {len(labels):,} to test.", flush=True)
    workdir.mkdir(parents=True, exist_ok=True)
    names = "     NLL     ECE [95 % interval]   AURC"
    lines = [
        f"{'as trained':>47}{'after temperature scaling':>51}",
        f"{'loss':19}{'accuracy':>8}{names}{'T':>8}{names}   (AURC x 1000)",
    ]
    found = {}
    for i, (name, loss) in enumerate(losses.items(), 1):
        start = time.monotonic()
        model = trained(loss, train_set, **options)
        raw = model.predict(images, verbose=0)
        scaling = kc.TemperatureScaling().fit_on(model, val_set, verbose=0)
        scaled = keras.ops.convert_to_numpy(scaling(raw))
        found[name] = model, scaling, raw, scaled
        before, after = measured(labels, raw), measured(labels, scaled)
        lines.append(
            f"{name:19}{before['accuracy']:8.3f}{cells(before)}"
            f"{scaling.temperature:8.2f}{cells(after)}"
        )
        print(
            f"[{i}/{len(losses)}] {name:19} accuracy {before['accuracy']:.3f}"
            f"   ECE {before['ece']:.3f} -> {after['ece']:.3f}"
            f"   {time.monotonic() - start:3.0f} s",
            flush=True,
        )
    print("\n" + "\n".join(lines) + "\n")
    (workdir / "table.txt").write_text("\n".join(lines) + "\n")
    draw(labels, found, workdir / "before_and_after.png")
    serve(*found["ACLS"], images, workdir)
    names = ("table.txt", "before_and_after.png", "serving/1")
    print("Written:", *(workdir / name for name in names), sep="\n  ")


def draw(labels, found, file):
    """Cross entropy as trained and repaired, and what may be accepted."""
    _, _, raw, scaled = found["cross entropy"]
    figure = plt.figure(figsize=(13, 4.6), layout="constrained")
    axes = figure.subplots(2, 3, height_ratios=(5, 1), sharex="col")
    for column, (outputs, name) in enumerate(
        [(raw, "Cross entropy"), (scaled, "With its temperature")]
    ):
        kc.ReliabilityDisplay.from_predictions(
            labels, outputs, name=name, **LOGITS
        ).plot(axes[:, column])
    for ax in axes[:, 2]:
        ax.remove()
    curves = {name: found[name][3] for name in ("cross entropy", "ACLS")}
    kc.RiskCoverageDisplay.from_predictions(
        labels, curves, band=True, **LOGITS
    ).plot(figure.add_subplot(axes[0, 2].get_gridspec()[:, 2]))
    figure.savefig(file, dpi=110)


def serve(model, scaling, _, scaled, images, workdir):
    """Exports a model, and reads it where neither Keras nor this package is."""
    shutil.rmtree(workdir / "serving", ignore_errors=True)
    kc.export(model, workdir / "serving" / "1", scaling)
    np.save(workdir / "images.npy", images[:256])
    script = Path(__file__).parent / "serving" / "reload_savedmodel.py"
    files = ("serving/1", "images.npy", "probabilities.npy")
    paths = [workdir / file for file in files]
    subprocess.run([sys.executable, script, *paths], check=True)
    expected = keras.ops.softmax(scaled[:256])
    difference = np.abs(np.load(paths[-1]) - expected).max()
    print(f"ACLS, reloaded without Keras: differs by {difference:.1e}")


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
