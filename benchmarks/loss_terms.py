"""Time and memory of CPC and MMCE beside their formulas as published.

The exclusion term of CPC compares all pairs of classes, MMCE all pairs of
samples. As published, both make those pairs at once, and automatic
differentiation keeps them; here CPC goes round the classes with a gradient in
closed form, and MMCE sorts the confidences. Each row checks that value and
gradient agree. TensorFlow, value and gradient, as a graph and with XLA.

    python benchmarks/loss_terms.py --out=benchmarks/results/loss_terms.md

About five minutes on 2 CPU cores; 12 GB of memory.
"""

import numpy as np
import tensorflow as tf
from absl import app, flags
from reporting import (
    TensorFlowStep,
    machine,
    markdown_table,
    medians_in_turn,
    publish,
)

import keras_calib

_ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each cell.")
_CLASSES = flags.DEFINE_list("classes", [100, 200, 500, 1000, 2000], "For CPC.")
_SAMPLES = flags.DEFINE_list(
    "samples", [256, 1024, 4096, 16384, 65536, 262144], "For MMCE."
)
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH = 256
# Largest array of pairs that is made, in entries.
_MOST_PAIRS = 3e8


def plain_cpc(labels, logits):
    """Cross entropy, discrimination and exclusion, from all pairs."""
    num_classes = logits.shape[-1]
    entropy = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    wrong = 1.0 - labels
    true = tf.reduce_sum(labels * logits, axis=-1, keepdims=True)
    ahead = tf.reduce_sum(wrong * tf.nn.softplus(logits - true), axis=-1)
    distance = logits[:, :, None] - logits[:, None, :]
    pairs = tf.nn.softplus(distance) / 2.0
    others = wrong[:, :, None] * wrong[:, None, :] * (1 - tf.eye(num_classes))
    apart = tf.reduce_sum(others * pairs, axis=(1, 2))
    apart /= (num_classes - 1) * (num_classes - 2)
    return entropy, ahead / (num_classes - 1), apart


def plain_mmce(labels, logits):
    probs = tf.nn.softmax(logits)
    confidence = tf.reduce_max(probs, axis=-1)
    right = tf.cast(
        tf.equal(tf.argmax(probs, -1), tf.argmax(labels, -1)), "float32"
    )
    error = right - confidence
    distance = tf.abs(confidence[:, None] - confidence[None, :])
    kernel = tf.exp(-distance / 0.4)
    return tf.reduce_mean(error[:, None] * error[None, :] * kernel)


def batch(n, num_classes):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(n, num_classes)).astype("float32")
    ids = rng.integers(num_classes, size=n)
    ids = np.where(rng.uniform(size=n) < 0.5, logits.argmax(-1), ids)
    return tf.one_hot(ids, num_classes), tf.constant(logits)


def compare(ours, plain, labels, logits, rounds):
    """Cells: milliseconds and MB of both, by mode, and their agreement."""
    cells = []
    apart = 0.0
    for jit_compile in (False, True):
        found = {"ours": TensorFlowStep(ours, labels, logits, jit_compile)}
        if plain is not None:
            step = TensorFlowStep(plain, labels, logits, jit_compile)
            found["plain"] = step
            apart = max(apart, difference(found["ours"], step))
        times = medians_in_turn(found, rounds)
        for name in ("ours", "plain"):
            if name in found:
                cells.append(f"{times[name]:.1f}")
                cells.append(f"{found[name].memory() / 1e6:.1f}")
            else:
                cells += ["-", "-"]
    return [*cells, f"{apart:.0e}" if plain is not None else "-"]


def difference(one, other):
    """The largest of value and gradient, relative to the largest entry."""
    pairs = zip(one.outputs(), other.outputs(), strict=True)
    return max(
        np.abs(a.numpy() - b.numpy()).max() / np.abs(b.numpy()).max()
        for a, b in pairs
    )


def cpc_table(rounds):
    rows = []
    ours = keras_calib.CPC(from_logits=True)

    def plain(labels, logits):
        entropy, ahead, apart = plain_cpc(labels, logits)
        return tf.reduce_mean(entropy + 0.1 * ahead + apart)

    for num_classes in map(int, _CLASSES.value):
        possible = _BATCH * num_classes**2 <= _MOST_PAIRS
        labels, logits = batch(_BATCH, num_classes)
        cells = compare(
            ours, plain if possible else None, labels, logits, rounds
        )
        rows.append([num_classes, *cells])
        print(rows[-1], flush=True)
    return rows


def mmce_table(rounds):
    rows = []
    for n in map(int, _SAMPLES.value):
        possible = n**2 <= _MOST_PAIRS
        labels, logits = batch(n, 10)
        cells = compare(
            keras_calib.losses.mmce,
            plain_mmce if possible else None,
            labels,
            logits,
            rounds,
        )
        rows.append([n, *cells])
        print(rows[-1], flush=True)
    return rows


def main(_):
    columns = [
        f"{mode}, {whose}, {unit}"
        for mode in ("graph", "XLA")
        for whose in ("ours", "plain")
        for unit in ("ms", "MB")
    ]
    columns.append("largest relative difference")
    parts = [
        f"# CPC and MMCE beside all pairs\n\n{machine()}",
        f"CPC, batch of {_BATCH}, by the number of classes:",
        markdown_table(["classes", *columns], cpc_table(_ROUNDS.value)),
        "The term MMCE of 10 classes, by the size of the batch:",
        markdown_table(["samples", *columns], mmce_table(_ROUNDS.value)),
        "`-`: an array of all pairs would have more than 3e8 entries. The "
        "allocator does not count blocks of less than 0.3 MB.",
    ]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)
