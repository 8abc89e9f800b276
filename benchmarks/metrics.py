"""The streaming metrics beside their peers: seconds, memory, and error.

ECE, AECE, ClasswiseECE and AURC of the same predictions by this library and
by torchmetrics, torch-uncertainty, netcal, uncertainty-calibration, TensorFlow
Probability and scikit-learn; NumPy in parentheses is a yardstick, no product.

    pip install "torch==2.13.0"  # newer wheels bring gigabytes for GPUs
    pip install -e ".[examples,bench]"
    python benchmarks/metrics.py --out=benchmarks/results/metrics.md

Each contender runs in a process of its own, all with as many threads. Seconds
are those inside the library, its result included, after a first batch that
compiles; the median of some passes. Megabytes are what it adds to the peak of
the resident memory, data not counted, and the state that it has from the
start. Errors are relative to float64. Half an hour on 2 CPU cores.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
from absl import app, flags
from peer_contenders import CONTENDERS, METRICS, OneCall
from peer_data import Data, reference
from reporting import Peak

_ROWS = flags.DEFINE_multi_string("rows", None, "Tables by name; all if none.")
_METRICS = flags.DEFINE_multi_string("metrics", METRICS, "Of these metrics.")
_ONLY = flags.DEFINE_string("only", "", "Contenders whose names contain this.")
_THREADS = flags.DEFINE_integer("threads", 1, "Of every library.")
_REPEATS = flags.DEFINE_integer(
    "repeats", 3, "Passes, if a table does not say."
)
_LIMIT = flags.DEFINE_integer("limit", 300, "Seconds for one process.")
_SHRINK = flags.DEFINE_integer("shrink", 1, "Divide all sizes, to try it out.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")
_CHILD = flags.DEFINE_string("child", None, "Measure this only (internal).")

_PEERS = (
    "torchmetrics",
    "torch-uncertainty",
    "netcal",
    "uncertainty-calibration",
    "tensorflow-probability",
    "scikit-learn",
    "torch",
)
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


class Table(NamedTuple):
    """What is measured on one data set, and what is left out and why."""

    title: str
    data: Data
    metrics: tuple[str, ...]
    skipped: dict[str, str] = {}
    passes: int | None = None  # None for `--repeats`


_WHOLE_INPUT = "needs all 4 GB of predictions at once"
TABLES = {
    # How fast rows are read, which is most of what one update costs.
    "1e4x1000": Table(
        "10,000 x 1,000, one update",
        Data(10**4, 1000),
        ("ECE", "AECE", "AURC"),
        passes=30,
    ),
    "1e6x10": Table("1,000,000 x 10", Data(10**6, 10), METRICS),
    "1e5x1000": Table(
        "100,000 x 1,000", Data(10**5, 1000), ("ClasswiseECE",), passes=1
    ),
    "1e7": Table("10,000,000 scores", Data(10**7, 0), ("ECE", "AECE", "AURC")),
    "1e8": Table(
        "100,000,000 scores",
        Data(10**8, 0),
        ("ECE", "AECE", "AURC"),
        {
            "CE uncertainty": "20 GB, ten times that of 10,000,000",
            "AECE TFP": "20 GB, ten times that of 10,000,000",
            "AURC torch": "6 GB, ten times that of 10,000,000",
        },
        passes=1,
    ),
    "1e6x1000": Table(
        "1,000,000 x 1,000, streamed",
        Data(10**6, 1000),
        METRICS,
        {
            "one call": _WHOLE_INPUT,
            "ClasswiseECE torch-uncertainty": "would keep 12 GB",
        },
        passes=1,
    ),
}


class Clock:
    """Seconds between `start` and `stop`, on the wall and of the CPU."""

    def __init__(self):
        self.seconds = np.zeros(2)

    def start(self) -> None:
        self._start = self._now()

    def stop(self) -> None:
        self.seconds += self._now() - self._start

    def _now(self):
        return np.array([time.perf_counter(), time.process_time()])


def measure(make, data: Data, repeats: int) -> dict[str, float]:
    """Median seconds, MB, and value of a contender, in this process."""
    contender = make(data)
    if isinstance(contender, OneCall):
        return _measure_call(contender, data, repeats)
    contender.reset()
    contender.update(*contender.prepare(*next(data.batches())))
    contender.result()
    clocks, peak = [], None
    for _ in range(repeats):
        contender.reset()
        clock = Clock()
        for batch in data.batches():
            batch = contender.prepare(*batch)
            peak = peak or Peak()
            peak.forget()
            clock.start()
            contender.update(*batch)
            clock.stop()
            peak.note()
        peak.forget()
        clock.start()
        value = contender.result()
        clock.stop()
        peak.note()
        clocks.append(clock)
    return _measured(clocks, peak.growth + contender.held / 2**20, value)


def _measure_call(contender, data, repeats):
    whole = data.whole()
    few = contender.prepare(*(x[: min(10_000, len(x))] for x in whole))
    contender.call(*few)
    arguments = contender.prepare(*whole)
    del whole
    clocks, peak = [], Peak()
    for _ in range(repeats):
        clock = Clock()
        peak.forget()
        clock.start()
        value = contender.call(*arguments)
        clock.stop()
        peak.note()
        clocks.append(clock)
    return _measured(clocks, peak.growth, value)


def _measured(clocks, mb, value):
    wall, cpu = np.median([clock.seconds for clock in clocks], axis=0)
    return {
        "wall": float(wall),
        "cpu": float(cpu),
        "mb": mb,
        "value": float(value),
    }


def child(data: Data, metric: str, name: str, repeats: int) -> dict:
    """What is measured of one contender, or why it is not."""
    if metric == "reference":
        return {k: float(v) for k, v in reference(data).items()}
    make, _ = CONTENDERS[metric, name]
    try:
        return measure(make, data, repeats)
    except ImportError as error:
        if (error.name or "").startswith("keras"):
            raise
        return {"failed": "not installed"}
    except Exception as error:
        text = str(error).strip().splitlines()
        return {
            "failed": f"{type(error).__name__}: {text[0] if text else ''}"[:60]
        }


def ask_child(table: Table, metric: str, name: str, repeats: int) -> dict:
    """The same in a process of its own, within the limit of time."""
    job = json.dumps([*table.data, metric, name, repeats])
    command = [sys.executable, __file__, f"--child={job}"]
    threads = dict.fromkeys(_THREAD_VARIABLES, str(_THREADS.value))
    try:
        done = subprocess.run(
            command,
            env=os.environ | threads | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=_LIMIT.value,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {_LIMIT.value} s"}
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"failed": f"process ended with {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def measured_table(table: Table) -> str:
    """One table: every contender of every metric."""
    from reporting import markdown_table

    exact = ask_child(table, "reference", "", 1)
    rows = []
    for metric in table.metrics:
        if metric in _METRICS.value:
            rows += _rows_of_metric(table, metric, exact[metric])
    header = [f"{table.title}: metric", "contender", "s"]
    return markdown_table(
        [*header, "CPU s", "ratio", "MB", "rel. error", "note"], rows
    )


def _rows_of_metric(table, metric, exact):
    measured = {}
    for of_metric, name in CONTENDERS:
        if of_metric != metric or _ONLY.value not in name:
            continue
        reason = _skip_reason(table, metric, name)
        if reason:
            measured[name] = {"failed": reason}
            continue
        repeats = table.passes or _REPEATS.value
        measured[name] = ask_child(table, metric, name, repeats)
        print(table.title, metric, name, measured[name], file=sys.stderr)
    own = {
        k: v
        for k, v in measured.items()
        if k.startswith("keras_calib") and "cpu" in v
    }
    best = min(own, key=lambda k: own[k]["cpu"], default=None)
    rows = []
    for name, x in measured.items():
        if name.startswith("keras_calib") and own and name != best:
            continue
        if "failed" in x:
            rows.append([metric, name, *["-"] * 5, x["failed"]])
            continue
        ratio = f"{x['cpu'] / own[best]['cpu']:.2f}" if own else "-"
        note = CONTENDERS[metric, name][1]
        rows.append(
            [
                metric,
                name,
                f"{x['wall']:.3g}",
                f"{x['cpu']:.3g}",
                ratio,
                f"{x['mb']:.1f}",
                f"{x['value'] / exact - 1:+.0e}",
                note,
            ]
        )
    return rows


def _skip_reason(table, metric, name):
    label = f"{metric} {name}"
    for pattern, reason in table.skipped.items():
        if pattern in label:
            return reason
    if not table.data.num_classes and "TFP, one call" in name:
        return "takes logits only"
    return None


def versions() -> str:
    """Peers that are installed, as one line."""
    found = []
    for name in _PEERS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


def run() -> str:
    from reporting import machine

    load = os.getloadavg()
    names = _ROWS.value or list(TABLES)
    tables = [TABLES[name] for name in names]
    shrink = _SHRINK.value
    tables = [
        t._replace(data=t.data._replace(num=t.data.num // shrink))
        for t in tables
    ]
    parts = [
        f"{machine()}; {versions()}. Threads: {_THREADS.value}. Load of the "
        f"machine at the start: {load[0]:.1f}.",
        "`ratio`: CPU seconds, which other load disturbs least, over those of "
        "keras_calib in its fastest mode.",
    ]
    return "\n\n".join([*parts, *map(measured_table, tables)])


def main(_) -> None:
    if _CHILD.value:
        num, num_classes, *job = json.loads(_CHILD.value)
        print(json.dumps(child(Data(num, num_classes), *job)))
        return
    from reporting import publish

    publish(run(), _OUT.value)


if __name__ == "__main__":
    app.run(main)
