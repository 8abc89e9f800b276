r"""Forward and backward time of every loss, against Keras' cross entropy.

    python benchmarks/losses.py --out=benchmarks/results/losses.md

Each cell is the median time of value and gradient with one-hot labels, and
its ratio to `keras.losses.CategoricalCrossentropy(from_logits=True)` in the
same mode and run. Modes: a TensorFlow graph, and the same compiled by XLA.
Losses are timed in turn, round after round, so that load on the machine falls
on all of them. About four minutes.
"""

import keras
import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from reporting import machine
from reporting import markdown_table
from reporting import medians_in_turn
from reporting import publish

import keras_calib

_ROUNDS = flags.DEFINE_integer("rounds", 31, "Measurements of each cell.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_SHAPES = ((1024, 1000), (4, 256, 256, 21))


def losses():
    options = {"from_logits": True}
    return {
        "CategoricalCrossentropy": keras.losses.CategoricalCrossentropy(
            **options
        ),
        "Keras, label_smoothing=0.1": keras.losses.CategoricalCrossentropy(
            label_smoothing=0.1, **options
        ),
        "Keras, CategoricalFocal": keras.losses.CategoricalFocalCrossentropy(
            gamma=3.0, **options
        ),
        "LabelSmoothing": keras_calib.LabelSmoothing(**options),
        "MbLS": keras_calib.MbLS(**options),
        "ACLS": keras_calib.ACLS(**options),
        "ACLS, reference zero": keras_calib.ACLS(reference="zero", **options),
        "FocalLoss": keras_calib.FocalLoss(**options),
        "LabelRelaxation": keras_calib.LabelRelaxation(**options),
        "ConfidencePenalty": keras_calib.ConfidencePenalty(**options),
    }


def compiled(loss, labels, logits, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def value_and_gradient(labels, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = loss(labels, logits)
        return value, tape.gradient(value, logits)

    return lambda: value_and_gradient(labels, logits)[1]


def run(rounds):
    rng = np.random.default_rng(0)
    parts = []
    for shape in _SHAPES:
        logits = tf.constant(rng.normal(size=shape).astype("float32") * 4)
        ids = rng.integers(shape[-1], size=shape[:-1])
        labels = tf.one_hot(ids, shape[-1])
        columns = {}
        for mode, jit_compile in (("graph", False), ("XLA", True)):
            functions = {
                name: compiled(loss, labels, logits, jit_compile)
                for name, loss in losses().items()
            }
            columns[mode] = medians_in_turn(functions, rounds)
            print(f"{shape} {mode} done", flush=True)
        rows = []
        for name in losses():
            cells = [name]
            for times in columns.values():
                base = times["CategoricalCrossentropy"]
                cells.append(f"{times[name]:.2f}")
                cells.append(f"{times[name] / base:.2f}")
            rows.append(cells)
        titles = ["loss", "graph ms", "ratio", "XLA ms", "ratio"]
        parts.append(f"Shape {shape}:\n\n{markdown_table(titles, rows)}")
    return "\n\n".join(parts)


def main(_):
    title = f"# Forward and backward time of the losses\n\n{machine()}"
    publish(f"{title}\n\n{run(_ROUNDS.value)}", _OUT.value)


if __name__ == "__main__":
    app.run(main)
