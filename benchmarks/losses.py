r"""Forward and backward time and peak memory of every loss, beside Keras'.

    python benchmarks/losses.py --out=benchmarks/results/losses.md
    python benchmarks/losses.py --shapes=4x256x256x12 --rounds=11 \
        --only=LabelSmoothing,MbLS,MDCA,SVLS,NACL,L1ACE \
        --out=benchmarks/results/losses_pixels.md
    KERAS_BACKEND=jax python benchmarks/losses.py \
        --shapes=8192x1000,8x512x512x21

Each cell is the median time of value and gradient, and its ratio to the cross
entropy of Keras for the same labels, in the same mode and run: for class ids
`SparseCategoricalCrossentropy`, for one-hot labels `CategoricalCrossentropy`.
On TensorFlow the modes are a graph and the same compiled by XLA; on JAX, jit.
Losses are timed in turn, round after round, so that load on the machine falls
on all of them; CPC apart, and not beyond 2,000 classes.

Memory is what a call adds at its peak, the gradient included, as multiples of
the logits' size: on TensorFlow by its allocator, which rounds blocks up, on JAX
as its compiler plans. On JAX the bytes per second of one read and one write of
the logits, the least that a gradient can do, stand beside those of a copy of
the logits. About three minutes on 2 CPU cores.
"""

import keras
import numpy as np
from absl import app, flags
from keras import ops
from reporting import (
    TensorFlowStep,
    machine,
    markdown_table,
    median_ms,
    medians_in_turn,
    publish,
)

import keras_calib

_ROUNDS = flags.DEFINE_integer("rounds", 31, "Measurements of each cell.")
_SHAPES = flags.DEFINE_list(
    "shapes",
    ["256x10", "1024x1000", "64x50000", "4x256x256x21"],
    "Shapes of the logits.",
)
_LABELS = flags.DEFINE_list("labels", ["ids", "one-hot"], "Forms of labels.")
_ONLY = flags.DEFINE_list("only", [], "Losses to measure; all if empty.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BASE = "cross entropy of Keras"
_COPY = "copy of the logits"
_SLOW, _MOST_CLASSES = "CPC", 2000


def losses(form, shape):
    options = {"from_logits": True}
    kc = keras_calib
    if form == "ids":
        base = {_BASE: keras.losses.SparseCategoricalCrossentropy(**options)}
    else:
        base = {
            _BASE: keras.losses.CategoricalCrossentropy(**options),
            "Keras label_smoothing=0.1": keras.losses.CategoricalCrossentropy(
                label_smoothing=0.1, **options
            ),
            "Keras CategoricalFocal": keras.losses.CategoricalFocalCrossentropy(
                gamma=3.0, **options
            ),
        }
    # These need axes of space.
    spatial = {
        "SVLS": kc.SVLS(**options),
        "NACL": kc.NACL(**options),
        "L1ACE": kc.L1ACE(**options),
    }
    return {
        **base,
        **(spatial if len(shape) > 2 else {}),
        "LabelSmoothing alpha=0": kc.LabelSmoothing(alpha=0.0, **options),
        "LabelSmoothing": kc.LabelSmoothing(**options),
        "AdaptiveLabelSmoothing": kc.AdaptiveLabelSmoothing(**options),
        "MbLS": kc.MbLS(**options),
        "ACLS": kc.ACLS(**options),
        "ACLS jit_compile": kc.ACLS(jit_compile=True, **options),
        "ACLS reference zero": kc.ACLS(reference="zero", **options),
        "FocalLoss": kc.FocalLoss(**options),
        "FLSD": kc.FLSD(**options),
        "InverseFocalLoss": kc.InverseFocalLoss(**options),
        "LabelRelaxation": kc.LabelRelaxation(**options),
        "ConfidencePenalty": kc.ConfidencePenalty(**options),
        "UniformityPenalty": kc.UniformityPenalty(**options),
        "BrierLoss": kc.BrierLoss(**options),
        "CRLMargin": kc.CRLMargin(**options),
        "MMCE": kc.MMCE(**options),
        "MMCE weighted": kc.MMCE(variant="weighted", **options),
        "MDCA": kc.MDCA(**options),
        "DCA": kc.DCA(**options),
        "CPC": kc.CPC(**options),
    }


class JaxStep:
    """Value and gradient under jit, as `TensorFlowStep`."""

    def __init__(self, function, *args):
        import jax

        self._args = args
        self._compiled = jax.jit(function).lower(*args).compile()

    def __call__(self):
        return self._compiled(*self._args)[0]

    def memory(self):
        plan = self._compiled.memory_analysis()
        return plan.temp_size_in_bytes + plan.output_size_in_bytes


def steps(loss, labels, logits):
    """The step of one loss in each mode of the backend."""
    if keras.backend.backend() == "jax":
        import jax

        function = jax.value_and_grad(lambda z, y: loss(y, z))
        return {"jit": JaxStep(function, logits, labels)}
    return {
        "graph": TensorFlowStep(loss, labels, logits, False),
        "XLA": TensorFlowStep(loss, labels, logits, True),
    }


def inputs(shape, form):
    """Logits, labels, and (class id, objectness) pairs."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=shape).astype("float32") * 4
    ids = rng.integers(shape[-1], size=shape[:-1])
    objectness = rng.uniform(size=shape[:-1])
    pairs = np.stack([ids, objectness], axis=-1).astype("float32")
    labels = ops.convert_to_tensor(ids.astype("int32"))
    if form == "one-hot":
        labels = ops.one_hot(labels, shape[-1], dtype="float32")
    return ops.convert_to_tensor(logits), labels, ops.convert_to_tensor(pairs)


def all_steps(shape, form, only):
    """Steps by mode and by loss; on JAX a copy of the logits besides."""
    logits, labels, pairs = inputs(shape, form)
    found = {}
    for name, loss in losses(form, shape).items():
        if only and name not in (_BASE, *only):
            continue
        if name == _SLOW and shape[-1] > _MOST_CLASSES:
            continue
        given = pairs if name == "AdaptiveLabelSmoothing" else labels
        for mode, step in steps(loss, given, logits).items():
            found.setdefault(mode, {})[name] = step
    if "jit" in found:
        copy = JaxStep(lambda z: (z.ravel()[0], z * 1.5), logits)
        found["jit"][_COPY] = copy
    return found


def table(text, form, rounds, only):
    shape = tuple(int(size) for size in text.split("x"))
    size = 4 * int(np.prod(shape))
    titles = ["loss"]
    rows = {}
    for mode, found in all_steps(shape, form, only).items():
        times = medians_in_turn(
            {name: step for name, step in found.items() if name != _SLOW},
            rounds,
        )
        if _SLOW in found:
            # In turn it would leave cold caches to the next one.
            times[_SLOW] = median_ms(found[_SLOW], 5)
        titles += [f"{mode} ms", "ratio", "memory"]
        if mode == "jit":
            titles.append("GB/s")
        for name, time in times.items():
            row = rows.setdefault(name, [name])
            row.append(f"{time:.2f}")
            row.append(f"{time / times[_BASE]:.2f}")
            row.append(f"{found[name].memory() / size:.1f}")
            if mode == "jit":
                row.append(f"{2 * size / time / 1e6:.1f}")
    cells = markdown_table(titles, rows.values())
    return f"Shape {shape}, labels as {form}:\n\n{cells}"


def main(_):
    parts = [f"# Forward and backward cost of the losses\n\n{machine()}"]
    for text in _SHAPES.value:
        for form in _LABELS.value:
            parts.append(table(text, form, _ROUNDS.value, _ONLY.value))
            print(parts[-1], flush=True)
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)
