r"""Seven losses on one small network: train, measure, repair, draw, serve.

    python examples/quickstart.py
    python examples/quickstart.py --losses=all

The first line trains seven losses on the handwritten digits of scikit-learn
under heavy noise, and prints how calibrated they are, in under a minute on 2
cores. The second trains seventeen.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import keras
import matplotlib.pyplot as plt
import numpy as np
from absl import app, flags
from sklearn.datasets import load_digits

import keras_calib as kc

_LOSSES = flags.DEFINE_enum("losses", "seven", ["seven", "all"], "Losses.")
_EPOCHS = flags.DEFINE_integer("epochs", 25, "Passes over the data.")
_WORKDIR = flags.DEFINE_string("workdir", "work/quickstart", "Output folder.")

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


def noisy_digits():
    """898 to train; ten copies of others, each with its own noise, to test."""
    x, y = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    parts = np.split(random.permutation(len(y)), [898, 1198])
    for part, copies in zip(parts, (1, 10, 10), strict=True):
        rows = np.repeat(part, copies)
        noise = random.normal(0.0, 0.4, size=(len(rows), x.shape[1]))
        yield (x[rows] / 16 + noise).astype("float32"), y[rows]


def trained(loss, train_set, *, epochs):
    keras.utils.set_random_seed(0)
    dense = keras.layers.Dense
    hidden = [dense(128, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, dense(10)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), loss)
    model.fit(*train_set, batch_size=64, epochs=epochs, verbose=0)
    return model


def measured(labels, logits):
    """Accuracy, ECE, and cells of the table."""
    metric = kc.CalibrationMetrics(["accuracy", "nll", "ece", "aurc"], **LOGITS)
    metric.update_state(labels, logits)
    accuracy, nll, ece, aurc = map(float, metric.result().values())
    low, high = metric.interval()["ece"]
    cells = f"{nll:8.3f}{ece:8.3f} [{low:.3f}, {high:.3f}]{1000 * aurc:8.1f}"
    return accuracy, ece, cells


def draw(labels, before, after, others, workdir):
    """Cross entropy as trained and repaired, and what may be accepted."""
    figure = plt.figure(figsize=(13, 4.6), layout="constrained")
    left, middle, right = figure.subfigures(1, 3)
    for part, outputs, name in (
        (left, before, "Cross entropy"),
        (middle, after, "With its temperature"),
    ):
        axes = part.subplots(2, 1, height_ratios=(3, 1), sharex=True)
        predictions = kc.Predictions(labels, outputs, **LOGITS)
        kc.ReliabilityDisplay(predictions, name=name).plot(axes)
    both = {
        "cross entropy": predictions,
        "ACLS": kc.Predictions(labels, others, **LOGITS),
    }
    kc.RiskCoverageDisplay(both, band=True).plot(right.subplots())
    figure.savefig(workdir / "before_and_after.png", dpi=110)


def serve(model, scaling, _, scaled, images, workdir):
    """Exports a model, and reads it where neither Keras nor this package is."""
    shutil.rmtree(workdir / "serving", ignore_errors=True)
    kc.export(model, workdir / "serving" / "1", scaling)
    np.save(workdir / "images.npy", images)
    script = Path(__file__).parent / "serving" / "reload_savedmodel.py"
    files = ("serving/1", "images.npy", "probabilities.npy")
    paths = [workdir / file for file in files]
    subprocess.run([sys.executable, script, *paths], check=True)
    expected = keras.ops.softmax(scaled[: len(images)])
    difference = np.abs(np.load(paths[-1]) - expected).max()
    print(f"ACLS, reloaded without Keras: differs by {difference:.1e}")


def main(_):
    workdir = Path(_WORKDIR.value)
    workdir.mkdir(parents=True, exist_ok=True)
    train_set, val_set, (images, labels) = noisy_digits()
    names = "     NLL     ECE [95 % interval]   AURC"
    lines = [
        f"{'as trained':>47}{'after temperature scaling':>51}",
        f"{'loss':19}{'accuracy':>8}{names}{'T':>8}{names}   (AURC x 1000)",
    ]
    losses, found = SEVEN if _LOSSES.value == "seven" else ALL, {}
    for i, (name, loss) in enumerate(losses.items(), 1):
        model = trained(loss, train_set, epochs=_EPOCHS.value)
        raw = model.predict(images, verbose=0)
        scaling = kc.TemperatureScaling().fit_on(model, val_set, verbose=0)
        scaled = keras.ops.convert_to_numpy(scaling(raw))
        found[name] = model, scaling, raw, scaled
        accuracy, ece, before = measured(labels, raw)
        _, repaired, after = measured(labels, scaled)
        lines.append(
            f"{name:19}{accuracy:8.3f}{before}{scaling.temperature:8.2f}{after}"
        )
        told = f"accuracy {accuracy:.3f}   ECE {ece:.3f} -> {repaired:.3f}"
        print(f"[{i}/{len(losses)}] {name:19} {told}", flush=True)
    print("\n" + "\n".join(lines) + "\n")
    (workdir / "table.txt").write_text("\n".join(lines) + "\n")
    draw(labels, *found["cross entropy"][2:], found["ACLS"][3], workdir)
    serve(*found["ACLS"], images[:256], workdir)
    names = ("table.txt", "before_and_after.png", "serving/1")
    print("Written:", *(workdir / name for name in names), sep="\n  ")


if __name__ == "__main__":
    app.run(main)
