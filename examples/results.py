"""What the examples print, draw and serve of trained models."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

import keras_calib

__all__ = ["draw", "measure", "serve", "table"]


def measure(labels, logits):
    """Accuracy, NLL, ECE, AECE and 1000 AURC of one model's logits."""
    accuracy = np.mean(np.argmax(logits, axis=-1) == labels)
    functions = (
        keras_calib.nll,
        keras_calib.ece,
        keras_calib.adaptive_ece,
        keras_calib.aurc,
    )
    values = [f(labels, logits, from_logits=True) for f in functions]
    return [accuracy, *values[:-1], 1000 * values[-1]]


def table(rows):
    """Text of `{name: (before, temperature, after)}`, with measures."""
    names = "".join(f"{n:>8}" for n in ("acc", "NLL", "ECE", "AECE"))
    names += f"{'AURC*1e3':>10}"
    title = f"{'':19}{'as trained':^42}{'':8}{'after temperature scaling':^42}"
    lines = [title.rstrip(), f"{'loss':19}{names}{'T':>8}{names}"]
    for name, (before, temperature, after) in rows.items():
        parts = [
            "".join(f"{v:8.4f}" for v in values[:-1]) + f"{values[-1]:10.2f}"
            for values in (before, after)
        ]
        lines.append(f"{name:19}{parts[0]}{temperature:8.3f}{parts[1]}")
    return "\n".join(lines)


def draw(labels, logits, shown, scaled, workdir):
    """Reliability of the model `shown`, risk-coverage curves of all.

    Args:
        labels: Class ids `(n,)`.
        logits: Name of each model to its logits `(n, num_classes)`.
        shown: The name of one of them.
        scaled: Its logits after temperature scaling.
        workdir: Folder to write to.

    Returns:
        Paths of the two pictures.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
    panels = {"as trained": logits[shown], "temperature scaled": scaled}
    for ax, (state, values) in zip(axes, panels.items(), strict=True):
        keras_calib.ReliabilityDisplay.from_predictions(
            labels, values, from_logits=True, name=f"{shown}, {state}"
        ).plot(ax)
    reliability = workdir / "reliability.png"
    figure.savefig(reliability, dpi=150)
    curves = keras_calib.RiskCoverageDisplay.from_predictions(
        labels, logits, from_logits=True
    ).plot()
    risk_coverage = workdir / "risk_coverage.png"
    curves.figure_.savefig(risk_coverage, dpi=150)
    return reliability, risk_coverage


def serve(model, calibrator, images, workdir):
    """Exports a model and runs it in a process without Keras.

    Returns:
        The SavedModel's path, and the largest difference between its
        probabilities and those computed here.
    """
    version = 1
    while (workdir / "serving" / str(version)).exists():
        version += 1
    path = workdir / "serving" / str(version)
    keras_calib.export(model, path, calibrator=calibrator)
    inputs, outputs = workdir / "images.npy", workdir / "probabilities.npy"
    np.save(inputs, images)
    script = Path(__file__).with_name("reload_savedmodel.py")
    subprocess.run([sys.executable, script, path, inputs, outputs], check=True)
    logits = calibrator(model.predict(images, verbose=0))
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    return path, float(np.abs(np.load(outputs) - expected).max())
