"""What a report costs: time, memory, size of the page.

`python -m keras_calib report` on parquet files of float32 logits, in processes
of their own: wall time, processor time and the largest resident memory of the
process, with the import of the backend and the reading of the file. For
comparison a process that reads the file and does nothing else, and
scikit-learn's own `classification_report` with `log_loss` on the same arrays.

    python benchmarks/report_cost.py --out=benchmarks/results/report_cost.md

About two minutes on 2 CPU cores.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from absl import app, flags
from reporting import machine, markdown_table, publish

_REPEATS = flags.DEFINE_integer("repeats", 3, "Runs of each; medians.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_SIZES = ((10_000, 10), (50_000, 100), (50_000, 1000))
_READ = "from keras_calib import Predictions; r = Predictions.read; "
_SKLEARN = """
from sklearn.metrics import classification_report, log_loss
import numpy as np
y, z = f.labels, f.outputs.astype("float64")
p = np.exp(z - z.max(-1, keepdims=True))
p /= p.sum(-1, keepdims=True)
classification_report(y, p.argmax(-1), zero_division=0)
log_loss(y, p, labels=range(p.shape[-1]))
"""


def write(path, count, num_classes):
    """Logits of a classifier that is right in three of four cases."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, count)
    logits = rng.normal(size=(count, num_classes)).astype("float32")
    logits[np.arange(count), labels] += np.float32(
        3.0 + np.log(num_classes) / 2
    )
    values = pa.FixedSizeListArray.from_arrays(logits.reshape(-1), num_classes)
    pa.parquet.write_table(pa.table({"label": labels, "logits": values}), path)


def cost(command):
    """Seconds of wall clock and processor, MB of memory at most."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {status}")
    wall = time.perf_counter() - begin
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**10


def main(_):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for count, num_classes in _SIZES:
            path = Path(folder) / f"{count}_{num_classes}.parquet"
            page = path.with_suffix(".html")
            # Elsewhere: a process counts what its parent had in memory.
            other = multiprocessing.get_context("spawn").Process(
                target=write, args=(path, count, num_classes)
            )
            other.start()
            other.join()
            read = f"{_READ}f = r({str(path)!r})"
            commands = {
                "report": [
                    *("-m", "keras_calib", "report", "--quiet"),
                    *(f"--predictions={path}", f"--out={page}"),
                ],
                "reading alone": ["-c", read],
                "scikit-learn": ["-c", read + _SKLEARN],
            }
            for name, command in commands.items():
                found = [
                    cost([sys.executable, *command])
                    for _ in range(_REPEATS.value)
                ]
                wall, processor, memory = np.median(found, axis=0)
                size = page.stat().st_size / 2**20 if name == "report" else None
                rows.append(
                    [
                        f"{count:,} x {num_classes}",
                        name,
                        f"{wall:.1f}",
                        f"{processor:.1f}",
                        f"{memory:,.0f}",
                        "" if size is None else f"{size:.2f}",
                    ]
                )
    head = ["predictions", "what", "s", "processor s", "peak MB", "page, MB"]
    text = "\n\n".join(
        ["# What a report costs", machine(), markdown_table(head, rows)]
    )
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
