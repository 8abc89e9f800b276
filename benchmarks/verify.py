"""Seconds of `keras-calib verify` on records of many samples.

A run is a process of its own, with all imports.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib as kc

_REPEATS = flags.DEFINE_integer("repeats", 5, "Of each row.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

ROWS = 10_000, 100_000, 1_000_000
ENDINGS = "parquet", "npz", "csv"


def exported(
    folder: Path, num_rows: int
) -> tuple[Path, kc.SelectiveClassifier]:
    """A certified file, and its selector."""
    rng = np.random.default_rng(0)
    score = rng.normal(3.0, 2.0, num_rows).astype("float32")
    correct = rng.random(num_rows) < 1.0 / (1.0 + np.exp(-score))
    selector = kc.SelectiveClassifier()
    selector.fit_scores(score, correct, risk=0.05, delta=0.05)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(10)])
    path = folder / "m.tflite"
    kc.export(
        model,
        path,
        selector=selector,
        from_logits=True,
        overwrite=True,
        certificate=True,
    )
    return path, selector


def seconds(path: Path, data: Path) -> float:
    """Median seconds of a run that confirms the certificate."""
    command = [sys.executable, "-m", "keras_calib", "verify", str(path)]
    times = []
    for _ in range(_REPEATS.value):
        start = time.perf_counter()
        subprocess.run([*command, f"--data={data}"], check=True, stdout=-3)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main(_):
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for num_rows in ROWS:
            path, selector = exported(Path(name), num_rows)
            files = [Path(name) / f"data.{x}" for x in ENDINGS]
            found = [
                f"{seconds(path, kc.exporting.save_records(selector, x)):.1f}"
                for x in files
            ]
            rows.append([f"{num_rows:,}", *found])
    table = markdown_table(["rows", *ENDINGS], rows)
    publish(
        "# Verifying a certificate\n\nMedian seconds of `keras-calib verify`, "
        f"imports included.\n\n{table}\n\n{machine()}",
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
