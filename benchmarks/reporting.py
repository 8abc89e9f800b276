"""What the benchmarks share: timing, and the report they print and write."""

import contextlib
import ctypes
import importlib
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np


class Peak:
    """How far the resident memory rises above where it was, in MB."""

    def __init__(self):
        with contextlib.suppress(OSError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        self._start = self._read("VmRSS")
        self.growth = 0.0

    def forget(self) -> None:
        """What follows counts, what was before does not."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def note(self) -> None:
        self.growth = max(self.growth, self._read("VmHWM") - self._start)

    def _read(self, field: str) -> float:
        try:
            status = Path("/proc/self/status").read_text(encoding="utf-8")
        except OSError:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak / (2**20 if sys.platform == "darwin" else 2**10)
        return int(re.search(field + r":\s+(\d+)", status)[1]) / 2**10


def machine() -> str:
    """Cores, system and versions, as one line."""
    parts = [
        f"{os.cpu_count()} CPU cores ({platform.machine()})",
        platform.system(),
        f"Python {platform.python_version()}",
        f"Keras {keras.__version__}",
        f"NumPy {np.__version__}",
    ]
    backend = keras.backend.backend()
    module = importlib.import_module(backend)
    return ", ".join([*parts, f"{backend} {module.__version__}"])


def markdown_table(header: list[str], rows: Iterable[list[Any]]) -> str:
    """A Markdown table; first column left, numbers right."""
    lines = [header, ["---", *(["---:"] * (len(header) - 1))], *rows]
    return "\n".join("| " + " | ".join(map(str, x)) + " |" for x in lines)


def median_ms(function: Callable[[], Any], repeats: int = 30) -> float:
    """Median milliseconds of a call whose value is read; the first is free."""
    keras.ops.convert_to_numpy(function())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        keras.ops.convert_to_numpy(function())
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def medians_in_turn(
    functions: dict[str, Callable[[], Any]], rounds: int = 30
) -> dict[str, float]:
    """Median milliseconds of each, called in turn so that load is shared.

    Each is called twice and timed once, so that caches hold its data and
    not those of the one before.
    """
    times = {name: [] for name in functions}
    for _ in range(rounds + 2):
        for name, function in functions.items():
            keras.ops.convert_to_numpy(function())
            start = time.perf_counter()
            keras.ops.convert_to_numpy(function())
            times[name].append(time.perf_counter() - start)
    return {k: 1e3 * float(np.median(v[2:])) for k, v in times.items()}


def modes() -> dict[str, Callable[[Callable], Callable]]:
    """The ways to run a function on this backend, slowest first."""
    if keras.backend.backend() != "tensorflow":
        return {"eager": lambda function: function}
    import tensorflow as tf

    return {
        "eager": lambda function: function,
        "tf.function": tf.function,
        "XLA": lambda function: tf.function(function, jit_compile=True),
    }


class TensorFlowStep:
    """Value and gradient as a graph; a call waits and gives the value."""

    def __init__(self, loss, labels, logits, jit_compile):
        import tensorflow as tf

        @tf.function(jit_compile=jit_compile)
        def value_and_gradient(labels, logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                value = loss(labels, logits)
            return value, tape.gradient(value, logits)

        self._step = lambda: value_and_gradient(labels, logits)

    def __call__(self):
        return self._step()[0]

    def outputs(self):
        """Value and gradient."""
        return self._step()

    def memory(self):
        """Bytes that a call adds at its peak, what it returns included."""
        import tensorflow as tf

        on_gpu = tf.config.list_physical_devices("GPU")
        device = "GPU:0" if on_gpu else "CPU:0"
        self._step()
        tf.config.experimental.reset_memory_stats(device)
        before = tf.config.experimental.get_memory_info(device)["current"]
        self._step()
        return tf.config.experimental.get_memory_info(device)["peak"] - before


def state_bytes(metric: keras.metrics.Metric) -> int:
    """Size of the variables of a metric."""
    arrays = (keras.ops.convert_to_numpy(v) for v in metric.variables)
    return sum(a.nbytes for a in arrays)


def quartiles(values: np.ndarray, digits: int) -> tuple[str, str]:
    """Median, and lower to upper quartile."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    scatter = f"{low:.{digits}f} to {high:.{digits}f}"
    return f"{middle:.{digits}f}", scatter


def publish(text: str, out: str | None) -> None:
    """Prints report and command, and writes them where `out` names a file."""
    flags = [x for x in sys.argv[1:] if not x.startswith("--out")]
    script = Path(sys.argv[0]).name
    command = " ".join([f"python benchmarks/{script}", *flags])
    text = f"{text}\n\nCommand: `{command}`"
    print(text)
    if out:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(text + "\n", encoding="utf-8")
