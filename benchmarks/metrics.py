"""What the streaming metrics cost: time and memory, beside their peers.

Seconds of passes over the same predictions (updates and one result), each
metric as eager code, as a tf.function and with XLA, as ratios to Keras' own
accuracy in the same run; growth of memory, each in a process of its own; and
milliseconds that a metric adds to a step of `fit`. Peers are torchmetrics and
TensorFlow Probability, where they are installed.

    python benchmarks/metrics.py --out=benchmarks/results/metrics.md
    KERAS_BACKEND=torch python benchmarks/metrics.py  # beside torchmetrics
    python benchmarks/metrics.py --num_scores=100_000_000

Takes several minutes on 2 CPU cores. On a busy machine set OMP_NUM_THREADS=1
with torch, whose threads wait for one another. Passes of all metrics take
turns, so that other load on the machine meets them alike; still, differences
below 1.5x mean little on a shared machine.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from absl import app
from absl import flags
from keras import ops
from reporting import machine
from reporting import markdown_table
from reporting import modes
from reporting import publish
from reporting import state_bytes

import keras_calib

_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1_000_000, "Of 10 classes.")
_NUM_STEPS = flags.DEFINE_integer("num_steps", 200, "Updates of 256 and fit.")
_NUM_SCORES = flags.DEFINE_integer(
    "num_scores", 0, "Binary confidences to stream, for example 100_000_000."
)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Passes of each metric.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")
_MEMORY_OF = flags.DEFINE_string(
    "memory_of", None, "Measure the memory of this metric only (internal)."
)

METRICS = {
    "keras accuracy": keras.metrics.SparseCategoricalAccuracy,
    "keras_calib.ECE": lambda: keras_calib.ECE(from_logits=True),
    "keras_calib.AECE": lambda: keras_calib.AECE(from_logits=True),
    "keras_calib.AURC": lambda: keras_calib.AURC(from_logits=True),
    "keras_calib.AURC, 2048 bins": lambda: keras_calib.AURC(
        resolution=2048, from_logits=True
    ),
    "keras_calib.NLL": lambda: keras_calib.NLL(from_logits=True),
}
TORCHMETRICS = "torchmetrics MulticlassCalibrationError"
TFP = "tfp expected_calibration_error, one call"
REFERENCE = "keras accuracy"

Batches = list[tuple[Any, Any]]


def make_batches(num_batches: int, size: int, num_classes: int) -> Batches:
    """Labels and overconfident logits, as tensors of the backend."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(num_batches):
        labels = rng.integers(num_classes, size=size, dtype="int32")
        logits = 2.0 * rng.standard_normal((size, num_classes), "float32")
        logits[np.arange(size), labels] += 3.0
        batches.append(
            (ops.convert_to_tensor(labels), ops.convert_to_tensor(logits))
        )
    return batches


def keras_pass(metric: Any, batches: Batches, compiled: Callable) -> Callable:
    """A function that streams all batches and reads the result."""
    update, result = compiled(metric.update_state), compiled(metric.result)

    def run_once():
        metric.reset_state()
        for labels, logits in batches:
            update(labels, logits)
        return float(result())

    return run_once


def torchmetrics_pass(batches: Batches, num_classes: int) -> Callable | None:
    """The same with torchmetrics; None if it is not installed."""
    try:
        import torch
        from torchmetrics.classification import MulticlassCalibrationError
    except ImportError:
        return None
    metric = MulticlassCalibrationError(num_classes, n_bins=15)
    batches = [
        (torch.as_tensor(np.asarray(labels)), torch.as_tensor(np.asarray(x)))
        for labels, x in batches
    ]

    def run_once():
        metric.reset()
        for labels, logits in batches:
            metric.update(logits, labels)
        return float(metric.compute())

    return run_once


def tfp_pass(batches: Batches, compiled: Callable) -> Callable | None:
    """The same in one call of TFP; None if it is not installed."""
    if keras.backend.backend() != "tensorflow":
        return None
    try:
        import tensorflow_probability as tfp
    except ImportError:
        return None
    labels, logits = (ops.concatenate(x) for x in zip(*batches, strict=True))

    def once(labels, logits):
        return tfp.stats.expected_calibration_error(
            num_bins=15, logits=logits, labels_true=labels
        )

    compiled_once = compiled(once)
    try:
        compiled_once(labels, logits)
    except Exception as error:  # XLA refuses its bincount at some sizes
        print(f"{TFP} left out of one mode: {type(error).__name__}")
        return None
    return lambda: float(compiled_once(labels, logits))


def take_turns(passes: dict[Any, Callable], repeats: int) -> dict[Any, float]:
    """Median seconds of each pass, run in turns after a first one each."""
    times = {key: [] for key in passes}
    for run_once in passes.values():
        run_once()
    for _ in range(repeats):
        for key, run_once in passes.items():
            start = time.perf_counter()
            run_once()
            times[key].append(time.perf_counter() - start)
    return {key: float(np.median(t)) for key, t in times.items()}


def time_table(num_batches, size, num_classes, repeats) -> str:
    """Milliseconds per update of every metric, and ratios to accuracy."""
    batches = make_batches(num_batches, size, num_classes)
    passes = {}
    for mode, compiled in modes().items():
        for name, make in METRICS.items():
            passes[name, mode] = keras_pass(make(), batches, compiled)
        if (once := tfp_pass(batches, compiled)) is not None:
            passes[TFP, mode] = once
    passes[TORCHMETRICS, "eager"] = torchmetrics_pass(batches, num_classes)
    passes = {key: x for key, x in passes.items() if x is not None}
    seconds = take_turns(passes, repeats)
    rows = []
    for name in [*METRICS, TORCHMETRICS, TFP]:
        row = [name]
        for mode in modes():
            taken = seconds.get((name, mode))
            if taken is None:
                row += ["-", "-"] if mode != "eager" else ["not installed", "-"]
                continue
            ratio = taken / seconds[REFERENCE, mode]
            row += [f"{1e3 * taken / num_batches:.2f}", f"{ratio:.1f}"]
        rows.append(row)
    header = [f"ms per update of {size:,} x {num_classes}"]
    for mode in modes():
        header += [mode, "ratio"]
    return (
        f"{num_batches:,} updates and one result, over the number of updates; "
        f"ratio to {REFERENCE}:\n\n" + markdown_table(header, rows)
    )


def memory_of(name: str, num_samples: int) -> str:
    """State in bytes and growth of the peak in MB, in this process.

    Batches of 10,000 are made one by one. A first, small batch brings in the
    kernels. The one call of TFP gets all predictions, which do not count.
    """
    size, num_classes = 10_000, 10
    small = make_batches(1, 16, num_classes)
    stream = (
        make_batches(1, size, num_classes)[0]
        for _ in range(num_samples // size)
    )
    if name == TFP:
        tfp_once = tfp_pass(small, lambda function: function)
        run_once = tfp_pass(list(stream), lambda function: function)
        if run_once is None:
            return "not installed,-"
        tfp_once()
        before = peak_mb()
        run_once()
        return f"none,{peak_mb() - before:.0f}"
    if name == TORCHMETRICS:
        return torchmetrics_memory(small[0], stream, num_classes)
    metric = METRICS[name]()
    metric.update_state(*small[0])
    metric.result()
    metric.reset_state()
    make_batches(1, size, num_classes)
    before = peak_mb()
    for labels, logits in stream:
        metric.update_state(labels, logits)
    metric.result()
    return f"{state_bytes(metric)},{peak_mb() - before:.0f}"


def torchmetrics_memory(first, stream, num_classes) -> str:
    if torchmetrics_pass([first], num_classes) is None:
        return "not installed,-"
    import torch
    from torchmetrics.classification import MulticlassCalibrationError

    metric = MulticlassCalibrationError(num_classes, n_bins=15)
    torchmetrics_pass([first], num_classes)()
    before = peak_mb()
    for labels, logits in stream:
        labels, logits = np.asarray(labels), np.asarray(logits)
        metric.update(torch.as_tensor(logits), torch.as_tensor(labels))
    size = sum(
        x.numel() * x.element_size()
        for x in [*metric.confidences, *metric.accuracies]
    )
    metric.compute()
    return f"{size},{peak_mb() - before:.0f}"


def peak_mb() -> float:
    """Peak of the resident memory of this process, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def memory_table(num_samples: int) -> str:
    """One process per metric: peaks never come down again."""
    rows = []
    for name in [*METRICS, TORCHMETRICS, TFP]:
        command = [sys.executable, __file__, f"--memory_of={name}"]
        command += [f"--num_samples={num_samples}"]
        finished = subprocess.run(
            command, check=True, capture_output=True, text=True
        )
        state, growth = finished.stdout.strip().splitlines()[-1].split(",")
        rows.append([name, f"{int(state):,}" if state.isdigit() else state])
        rows[-1].append(growth)
    header = ["memory, eager", "state, bytes", "growth of the peak, MB"]
    return f"{num_samples:,} x 10 in batches of 10,000:\n\n" + markdown_table(
        header, rows
    )


def fit_table(num_steps: int, repeats: int) -> str:
    """Milliseconds per step of `fit`, and what a metric adds."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((256 * num_steps, 64), "float32")
    y = rng.integers(100, size=len(x))
    compiled = [False]
    if keras.backend.backend() == "tensorflow":
        compiled = [False, True]
    passes = {}
    for jit in compiled:
        passes["no metric", jit] = fit_pass(x, y, [], jit)
        for name, make in METRICS.items():
            passes[name, jit] = fit_pass(x, y, [make()], jit)
    seconds = take_turns(passes, repeats)
    rows = []
    for name in ["no metric", *METRICS]:
        row = [name]
        for jit in compiled:
            step = 1e3 * seconds[name, jit] / num_steps
            without = 1e3 * seconds["no metric", jit] / num_steps
            row += [f"{step:.2f}", f"{step - without:+.2f}"]
        rows.append(row)
    header = ["ms per step of fit"]
    for jit in compiled:
        header += [f"jit_compile={jit}", "added"]
    return (
        f"Batch 256, 100 classes, MLP 64-128-100, {num_steps} steps:\n\n"
        + markdown_table(header, rows)
    )


def fit_pass(x, y, metrics, jit_compile) -> Callable:
    model = keras.Sequential(
        [
            keras.Input((x.shape[-1],)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(100),
        ]
    )
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=metrics,
        jit_compile=jit_compile,
    )
    return lambda: model.fit(x, y, 256, shuffle=False, verbose=0)


def scores_table(num_scores: int) -> str:
    """Binary confidences by the hundred million: seconds, and the value."""
    rng = np.random.default_rng(0)
    size = min(1_000_000, num_scores // 10)
    blocks = []
    for _ in range(10):
        p = rng.beta(30.0, 1.2, size).astype("float32")
        labels = (rng.random(size) < p - 0.01).astype("int32")
        blocks.append((labels, p[:, None]))
    # Blocks come round again, so the exact value is that of one round.
    repeats = max(1, num_scores // (10 * size))
    labels, p = (np.concatenate(x) for x in zip(*blocks, strict=True))
    p64 = p.astype("float64")
    exact = {
        "ECE": keras_calib.ece(labels, p64),
        "AECE": keras_calib.adaptive_ece(labels, p64),
        "AURC": keras_calib.aurc(labels, p64),
    }
    blocks = [tuple(map(ops.convert_to_tensor, block)) for block in blocks]
    compiled = list(modes().values())[-1]
    rows = []
    for name, value in exact.items():
        run_once = keras_pass(
            getattr(keras_calib, name)(), blocks * repeats, compiled
        )
        start = time.perf_counter()
        streamed = run_once()
        taken = time.perf_counter() - start
        error = streamed / value - 1
        rows.append([f"keras_calib.{name}", f"{taken:.1f}", f"{error:+.0e}"])
    header = ["binary confidences", "s", "rel. error"]
    mode = list(modes())[-1]
    return (
        f"{10 * size * repeats:,} in batches of {size:,}, {mode}, compilation "
        "included; AURC against one round of the data, which repeats:\n\n"
        + markdown_table(header, rows)
    )


def run(num_samples, num_steps, num_scores, repeats) -> str:
    # Memory first: a new process starts with the peak of its parent.
    parts = [f"{machine()}.", memory_table(num_samples)]
    parts.append(time_table(num_samples // 10_000, 10_000, 10, repeats))
    parts.append(time_table(num_steps, 256, 100, repeats))
    parts.append(fit_table(num_steps, repeats))
    if num_scores:
        parts.append(scores_table(num_scores))
    return "\n\n".join(parts)


def main(_) -> None:
    if _MEMORY_OF.value:
        print(memory_of(_MEMORY_OF.value, _NUM_SAMPLES.value))
        return
    text = run(
        _NUM_SAMPLES.value,
        _NUM_STEPS.value,
        _NUM_SCORES.value,
        _REPEATS.value,
    )
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
