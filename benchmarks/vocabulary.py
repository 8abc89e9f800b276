r"""Losses on logits as wide as a vocabulary: peak memory and time.

    python benchmarks/vocabulary.py --out=benchmarks/results/vocabulary.md

Value and gradient of each loss of class ids, beside the sparse cross entropy
of Keras in the same run. Memory is how far the resident memory of the process
rises during a call, plus the logits themselves, as multiples of their size: 2
are logits and gradient alone. TensorFlow runs a graph and XLA, JAX jit, and
torch as Keras' `fit` runs it. Each loss has a process of its own, so that no
memory is left over from another.
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
    ["tensorflow-graph", "tensorflow-xla", "jax-jit", "torch-eager"],
    "Backends and modes.",
)
_SHAPES = flags.DEFINE_list(
    "shapes", ["512x50000", "64x256000"], "Tokens and classes."
)
_ONLY = flags.DEFINE_list("only", [], "Losses to measure; all if empty.")
_PYTHONS = flags.DEFINE_string(
    "pythons", "", "Of each backend, jax=path,..; this interpreter if empty."
)
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")
_WORKER = flags.DEFINE_string("role", None, "Internal: measure this role.")

_BASE = "sparse cross entropy of Keras"
_REPEATS = 3


def losses():
    options = {"from_logits": True}
    found = {_BASE: keras.losses.SparseCategoricalCrossentropy(**options)}
    for make in (
        kc.LabelSmoothing,
        kc.FocalLoss,
        kc.LabelRelaxation,
        kc.ACLS,
        kc.MbLS,
        kc.FLSD,
        kc.InverseFocalLoss,
        kc.ConfidencePenalty,
        kc.UniformityPenalty,
        kc.BrierLoss,
        kc.CRLMargin,
        kc.MDCA,
        kc.DCA,
        kc.MMCE,
    ):
        found[make.__name__] = make(**options)
    return found


def step_of(loss, mode):
    """A function of labels and logits that returns value and gradient."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        spec = [tf.TensorSpec([None], "int32"), tf.TensorSpec([None, None])]

        def make(num_classes):
            spec[1] = tf.TensorSpec([None, num_classes])

            @tf.function(jit_compile=mode == "xla", input_signature=spec)
            def step(labels, logits):
                with tf.GradientTape() as tape:
                    tape.watch(logits)
                    value = loss(labels, logits)
                return value, tape.gradient(value, logits)

            return step

        return make
    if backend == "jax":
        import jax

        compiled = jax.jit(jax.value_and_grad(lambda z, y: loss(y, z)))
        return lambda _: lambda labels, logits: compiled(logits, labels)

    def step(labels, logits):
        logits.grad = None
        logits.requires_grad_(True)
        value = loss(labels, logits)
        value.backward()
        return value.detach(), logits.grad

    return lambda _: step


def wait(value):
    return float(keras.ops.convert_to_numpy(value))


def measure(mode, rows, num_classes, only):
    """Peak in multiples of the logits, and seconds, by loss."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal((rows, num_classes), "float32") * 4
    labels = rng.integers(num_classes, size=rows).astype("int32")
    logits = keras.ops.convert_to_tensor(array)
    few = keras.ops.convert_to_tensor(array[:2].copy())
    labels = keras.ops.convert_to_tensor(labels)
    size = array.nbytes / 2**20
    del array
    found = {}
    for name, loss in losses().items():
        if only and name not in only:
            continue
        step = step_of(loss, mode)(num_classes)
        wait(step(labels[:2], few)[0])
        if hasattr(logits, "grad"):
            logits.grad = None
        peak = Peak()
        peak.forget()
        value = wait(step(labels, logits)[0])
        peak.note()
        times = []
        for _ in range(_REPEATS):
            start = time.perf_counter()
            wait(step(labels, logits)[0])
            times.append(time.perf_counter() - start)
        if not np.isfinite(value):
            raise ValueError(f"{name} is {value}")
        found[name] = 1.0 + peak.growth / size, min(times)
    return found


def run(python, role, *arguments):
    """What a process of its own prints, read from its last line."""
    command = [python, __file__, f"--role={role}", *arguments]
    environment = {**os.environ, "KERAS_BACKEND": role.split("-")[0]}
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(_):
    if _WORKER.value:
        mode = _WORKER.value.split("-")[1]
        rows, num_classes = map(int, _SHAPES.value[0].split("x"))
        found = measure(mode, rows, num_classes, _ONLY.value)
        print(json.dumps([machine(), found]))
        return
    machines = []
    pythons = dict(
        pair.split("=") for pair in _PYTHONS.value.split(",") if pair
    )
    parts = []
    for shape in _SHAPES.value:
        titles, rows = ["loss"], {}
        for role in _ROLES.value:
            python = pythons.get(role.split("-")[0], sys.executable)
            titles += [role.replace("-", " "), "s"]
            for name in _ONLY.value or losses():
                where, found = run(
                    python,
                    role,
                    f"--shapes={shape}",
                    f"--only={name}",
                )
                machines.append(where)
                for memory, seconds in found.values():
                    rows.setdefault(name, [name]).extend(
                        [f"{memory:.1f}", f"{seconds:.2f}"]
                    )
        text = markdown_table(titles, rows.values())
        parts.append(
            f"Peak memory as multiples of the logits, themselves included, and "
            f"seconds of a step. {shape}, float32, class ids:\n\n{text}"
        )
        print(parts[-1], flush=True)
    shown = "\n".join(f"- {x}" for x in dict.fromkeys(machines))
    publish(
        f"# Vocabulary-sized heads\n\n{shown}\n\n" + "\n\n".join(parts),
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
