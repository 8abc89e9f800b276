r"""Metrics on logits as wide as a vocabulary: peak memory and time.

    python benchmarks/vocabulary_metrics.py \
        --out=benchmarks/results/vocabulary_metrics.md

One update with class ids and logits `(batch, length, vocabulary)`, beside
metrics of Keras in the same run. Memory is how far the resident memory of the
process rises during an update, plus the logits themselves, as multiples of
their size: 1 are the logits alone. TensorFlow runs eagerly, as a graph and by
XLA, JAX runs `stateless_update_state` by jit, and torch runs eagerly.
"""

import json
import os
import subprocess
import sys
import time

import keras
import numpy as np
from absl import app, flags
from reporting import Peak, machine, markdown_table, publish

import keras_calib as kc

_ROLES = flags.DEFINE_list(
    "roles",
    [
        "tensorflow-eager",
        "tensorflow-graph",
        "tensorflow-xla",
        "jax-jit",
        "torch-eager",
    ],
    "Backends and modes.",
)
_SHAPE = flags.DEFINE_string("shape", "8x64x50000", "Of the logits.")
_ONLY = flags.DEFINE_list("only", [], "Metrics to measure; all if empty.")
_PYTHONS = flags.DEFINE_string(
    "pythons", "", "Of each backend, jax=path,..; this interpreter if empty."
)
_TIMES = flags.DEFINE_bool("times", True, "Whether the table has seconds.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")
_WORKER = flags.DEFINE_string("role", None, "Internal: measure this role.")

_REPEATS = 3


def metrics():
    """Makers of metrics by name."""
    logits = {"from_logits": True}
    own = (kc.ECE, kc.NLL, kc.BrierScore, kc.AURC, kc.CalibrationMetrics)
    return {
        "cross entropy of Keras": lambda: (
            keras.metrics.SparseCategoricalCrossentropy(**logits)
        ),
        "accuracy of Keras": keras.metrics.SparseCategoricalAccuracy,
        **{make.__name__: lambda make=make: make(**logits) for make in own},
        "CalibrationMetrics without losses": lambda: kc.CalibrationMetrics(
            ["ece", "aece", "aurc", "accuracy"], **logits
        ),
        "CalibrationMetrics with a mask": lambda: kc.CalibrationMetrics(
            ignore_class=0, **logits
        ),
    }


def update_of(metric, mode):
    """A function of labels and logits that updates and waits."""
    if mode in ("graph", "xla"):
        import tensorflow as tf

        update = tf.function(metric.update_state, jit_compile=mode == "xla")
    elif mode == "jit":
        import jax

        step = jax.jit(metric.stateless_update_state)
        held = [[v.value for v in metric.variables]]

        def update(labels, logits):
            held[0] = jax.block_until_ready(step(held[0], labels, logits))

        return update
    else:
        update = metric.update_state

    def run(labels, logits):
        update(labels, logits)
        keras.ops.convert_to_numpy(metric.variables[0])

    return run


def measure(mode, shape, only):
    """Peak in multiples of the logits, and seconds, by metric."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal(shape, "float32") * 4
    labels = rng.integers(1, shape[-1], size=shape[:-1]).astype("int32")
    logits, few, labels, few_labels = map(
        keras.ops.convert_to_tensor,
        (array, array[:1, :2].copy(), labels, labels[:1, :2].copy()),
    )
    size = array.nbytes / 2**20
    del array
    found = {}
    for name, make in metrics().items():
        if only and name not in only:
            continue
        update = update_of(make(), mode)
        update(few_labels, few)
        peak = Peak()
        peak.forget()
        update(labels, logits)
        peak.note()
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            update(labels, logits)
            times.append(time.perf_counter() - start)
        found[name] = 1.0 + peak.growth / size, min(times)
    return found


def run(python, role):
    """What a process of its own prints, read from its last line."""
    options = [f"--role={role}", f"--shape={_SHAPE.value}"]
    options.append(f"--only={','.join(_ONLY.value)}")
    done = subprocess.run(
        [python, __file__, *options],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "KERAS_BACKEND": role.split("-")[0]},
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(_):
    shape = tuple(map(int, _SHAPE.value.split("x")))
    if _WORKER.value:
        mode = _WORKER.value.split("-")[1]
        found = measure(mode, shape, _ONLY.value)
        print(json.dumps([machine(), found]))
        return
    pythons = dict(x.split("=") for x in _PYTHONS.value.split(",") if x)
    machines, titles, rows = [], ["metric"], {}
    for role in _ROLES.value:
        python = pythons.get(role.split("-")[0], sys.executable)
        titles += [role.replace("-", " "), "s"][: 1 + _TIMES.value]
        where, found = run(python, role)
        machines.append(where)
        for name, (memory, seconds) in found.items():
            print(role, name, memory, seconds, flush=True)
            values = [f"{memory:.1f}", f"{seconds:.2f}"][: 1 + _TIMES.value]
            rows.setdefault(name, [name]).extend(values)
    shown = "\n".join(f"- {x}" for x in dict.fromkeys(machines))
    publish(
        f"# Metrics of vocabulary-sized heads\n\n{shown}\n\n"
        "Peak memory as multiples of the logits, themselves included"
        f"{', and seconds of an update' * _TIMES.value}. {_SHAPE.value}, "
        "float32, class ids:\n\n" + markdown_table(titles, rows.values()),
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
