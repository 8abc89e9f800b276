"""Fits of calibrators beside their peers: seconds, and the NLL reached.

Temperature, vector and matrix scaling, isotonic and beta calibration by this
library, netcal, scikit-learn and probmetrics, on one data set after another.

    pip install "torch==2.13.0"  # newer wheels bring gigabytes for GPUs
    pip install -e ".[examples,bench]"
    python benchmarks/calibrators.py --out=benchmarks/results/calibrators.md

Logits are normal; labels are drawn from an affine map of them, so that every
method has something to find. Each contender is fitted once unseen, then
`--repeats` times, all in turn, and the median counts. NLL is that of the
fitting set, by `keras_calib.nll` from the calibrated logits or probabilities
that the contender returns. Some contenders take minutes at 50000x1000.
"""

import importlib.metadata
import os
import time
import warnings
from pathlib import Path

import numpy as np
from absl import app, flags
from calibrator_contenders import CONTENDERS
from reporting import Peak, machine, markdown_table, publish

import keras_calib

_SIZES = flags.DEFINE_multi_string(
    "sizes", ["10000x10", "10000x100", "50000x1000"], "Samples x classes."
)
_PIXELS = flags.DEFINE_integer("pixels", 10_000_000, "0 leaves them out.")
_LOGITS = flags.DEFINE_string(
    "logits", None, "npz of logits_val, labels_val, logits_test, labels_test."
)
_ONLY = flags.DEFINE_string("only", "", "Contenders whose names contain this.")
_METHODS = flags.DEFINE_multi_string(
    "methods", list(CONTENDERS), "Methods, as the tables call them."
)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Fits; 1 where they are long.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_PEERS = ("netcal", "scikit-learn", "probmetrics", "torch")
# A contender that takes longer is fitted once.
_LONG = 10.0
# Of many classes, only what the others can do at all.
_MANY = ("temperature", "vector", "structured vector")


def samples(n, num_classes, seed=0):
    """Logits, float32, and labels of an affine map of them."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(n, num_classes)) * 2.5).astype("float32")
    scale = rng.uniform(0.3, 0.7, num_classes)
    bias = rng.normal(size=num_classes) * 0.5
    noise = rng.gumbel(size=logits.shape)
    return (logits * scale + bias + noise).argmax(axis=-1), logits


def seconds(fit, labels, logits):
    start = time.perf_counter()
    predict = fit(labels, logits)
    return time.perf_counter() - start, predict


def measure(contenders, labels, logits):
    """Median seconds and NLL of each; those that fail say why."""
    times, answers, failed = {}, {}, {}
    for round_ in range(_REPEATS.value + 1):
        for name, fit in contenders.items():
            if name in failed or max(times.get(name, [0.0])) > _LONG:
                continue
            try:
                took, answers[name] = seconds(fit, labels, logits)
            except Exception as error:  # a peer may not know this case
                failed[name] = f"{type(error).__name__}: {error}"[:60]
                continue
            # The first compiles, unless there will be no other.
            if round_ or took > _LONG:
                times.setdefault(name, []).append(took)
    found = {}
    for name in times:
        outputs, from_logits = answers[name](logits)
        found[name] = (
            float(np.median(times[name])),
            keras_calib.nll(labels, outputs, from_logits=from_logits),
        )
    return found, failed


def rows_of(size):
    n, num_classes = map(int, size.split("x"))
    labels, logits = samples(n, num_classes)
    before = keras_calib.nll(labels, logits, from_logits=True)
    rows = [[size, "none", "", "", "", f"{before:.7f}"]]
    for method, contenders in CONTENDERS.items():
        large = num_classes > 100 and method not in _MANY
        if large or method not in _METHODS.value:
            continue
        chosen = {k: v for k, v in contenders.items() if _ONLY.value in k}
        found, failed = measure(chosen, labels, logits)
        own = found.get("keras_calib", (np.nan, np.nan))[0]
        for name, (took, loss) in found.items():
            ratio = f"{took / own:.2f}"
            rows.append(
                [size, method, name, f"{took:.3g}", ratio, f"{loss:.7f}"]
            )
        for name, why in failed.items():
            rows.append([size, method, name, "", "", why])
        print(markdown_table([""] * 6, rows[-len(chosen) :]), flush=True)
    return rows


def pixel_rows(count, num_classes=12):
    """Fits on the pixels of a segmenter: seconds, and memory beside them."""
    logits = np.empty((count, num_classes), "float32")
    labels = np.empty(count, "int64")
    for start in range(0, count, 100_000):
        part = slice(start, start + 100_000)
        size = len(labels[part])
        labels[part], logits[part] = samples(size, num_classes, seed=start)
    rows = []
    for make in CALIBRATORS:
        calibrator, peak = make(), Peak()
        peak.forget()
        start = time.perf_counter()
        calibrator.fit(labels, logits)
        took = time.perf_counter() - start
        peak.note()
        rows.append([type(calibrator).__name__, f"{took:.3g}"])
        rows[-1].append(f"{peak.growth:.0f}")
        print(*rows[-1], flush=True)
    return rows, logits.nbytes / 2**20


CALIBRATORS = (
    keras_calib.TemperatureScaling,
    keras_calib.VectorScaling,
    keras_calib.StructuredVectorScaling,
    keras_calib.MatrixScaling,
    keras_calib.StructuredMatrixScaling,
    keras_calib.DirichletCalibration,
    keras_calib.EnsembleTemperatureScaling,
    keras_calib.HistogramBinning,
    keras_calib.IsotonicCalibration,
    keras_calib.BetaCalibration,
)


def real_rows(path):
    """Error, ECE and NLL of a test set, calibrated on a validation set."""
    data = np.load(path)
    labels, rows = data["labels_test"], []
    for make in (None, *CALIBRATORS):
        name, logits = "as trained", data["logits_test"]
        if make is not None:
            calibrator = make().fit(data["labels_val"], data["logits_val"])
            name = type(calibrator).__name__
            logits = np.asarray(calibrator(logits))
        how = {"from_logits": True}
        error = 100 * np.mean(logits.argmax(axis=-1) != labels)
        ece = keras_calib.ece(labels, logits, **how)
        nll = keras_calib.nll(labels, logits, clip=1e-15, **how)
        rows.append([name, f"{error:.2f}", f"{ece:.4f}", f"{nll:.4f}"])
    return rows


def main(_):
    warnings.simplefilter("ignore")
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in _PEERS
    )
    sizes = [size for size in _SIZES.value if size]
    rows = [row for size in sizes for row in rows_of(size)]
    header = ["samples x classes", "method", "by", "s", "ratio", "NLL reached"]
    table = markdown_table(header, rows) if rows else ""
    text = (
        f"{machine()}; {versions}. Load of the machine at the start: "
        f"{os.getloadavg()[0]:.1f}.\n\n"
        "`ratio`: seconds over those of keras_calib; force=True where a "
        "matrix has more parameters than there are samples.\n\n" + table
    )
    if _PIXELS.value:
        rows, size = pixel_rows(_PIXELS.value)
        text += (
            f"\n\n{_PIXELS.value:,} pixels of 12 classes, whose logits take "
            f"{size:.0f} MB:\n\n"
        )
        text += markdown_table(["calibrator", "s", "MB more"], rows)
    if _LOGITS.value:
        name = Path(_LOGITS.value).stem
        text += (
            f"\n\n{name}, fitted on its validation set, on its test set:\n\n"
        )
        header = ["calibrator", "error %", "ECE", "NLL, clipped at 1e-15"]
        text += markdown_table(header, real_rows(_LOGITS.value))
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
