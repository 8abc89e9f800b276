r"""Logits of a vocabulary, shrunk to fit a temperature: memory, time, errors.

    python benchmarks/compact_logits.py \
        --out=benchmarks/results/compact_logits.md

Tokens stream by once, in batches that are made on the fly. Memory is how far
the resident memory of the process rises, the batch of logits included. The
exact temperature is one Newton step from the one found, by all logits in
float64 in a second pass. Errors of hard rows are those of the log-sum-exp at
T from 0.5 to 4, in nats.
"""

import time

import numpy as np
from absl import app, flags
from reporting import Peak, machine, markdown_table, publish

import keras_calib as kc

_TOKENS = flags.DEFINE_integer("tokens", 1_000_000, "Tokens of the stream.")
_CLASSES = flags.DEFINE_integer("classes", 2000, "Classes of the stream.")
_WIDE = flags.DEFINE_list("wide", [2000, 50_000, 128_000], "Classes to time.")
_TIMES = flags.DEFINE_bool("times", True, "Whether tables have times.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH = 1000
_KINDS = (
    "normal",
    "one class above",
    "40 classes above",
    "three groups",
    "heavy tails",
    "nearly uniform",
    "classes ruled out",
)


def batches(count, num_classes):
    """Labels and logits of `count` tokens, the same in each call."""
    base = np.random.default_rng(0)
    base = 2.5 * base.standard_normal((_BATCH, num_classes), "float32")
    base[:, :40] += np.linspace(12.0, 0.0, 40, dtype="float32")
    for seed in range(count // _BATCH):
        rng = np.random.default_rng(seed)
        scale = rng.uniform(0.7, 1.3, size=(_BATCH, 1)).astype("float32")
        logits = scale * np.roll(base, rng.integers(num_classes), axis=-1)
        # By the inverse of the distribution function at 1.4.
        sums = np.cumsum(np.exp(logits / 1.4), axis=-1, dtype="float64")
        draw = sums[:, -1:] * rng.random((_BATCH, 1))
        labels = (sums < draw).sum(axis=-1)
        yield np.minimum(labels, num_classes - 1), logits


def exact_temperature(found, data):
    """One Newton step of all logits from `found`, in float64."""
    beta, slope, curvature = 1.0 / found, 0.0, 0.0
    for labels, logits in data:
        z = logits.astype("float64")
        z -= z.max(axis=-1, keepdims=True)
        p = np.exp(beta * z)
        p /= p.sum(axis=-1, keepdims=True)
        mean = np.einsum("ij,ij->i", p, z)
        square = np.einsum("ij,ij,ij->i", p, z, z)
        slope += (mean - z[np.arange(len(z)), labels]).sum()
        curvature += (square - mean**2).sum()
    return 1.0 / (beta - slope / curvature)


def stream():
    """Row of the table of many tokens."""
    tokens, num_classes = _TOKENS.value, _CLASSES.value
    kc.calibrators.CompactLogits().update(*next(batches(_BATCH, num_classes)))
    peak, seconds, compact = Peak(), 0.0, kc.calibrators.CompactLogits()
    peak.forget()
    for labels, logits in batches(tokens, num_classes):
        start = time.perf_counter()
        compact.update(labels, logits)
        seconds += time.perf_counter() - start
    start = time.perf_counter()
    found = compact.optimal_temperature()
    fit = time.perf_counter() - start
    peak.note()
    exact = exact_temperature(found, batches(tokens, num_classes))
    return [
        len(compact),
        num_classes,
        f"{peak.growth:.0f}",
        f"{found:.6f}",
        f"{exact:.6f}",
        f"{abs(found / exact - 1.0):.1e}",
        f"{1e6 * seconds / tokens:.0f}",
        f"{fit:.1f}",
    ]


def wide(num_classes):
    """Row of the table of bytes and time of one token."""
    num_classes = int(num_classes)
    rng = np.random.default_rng(0)
    logits = 2.5 * rng.standard_normal((200, num_classes), "float32")
    labels = rng.integers(num_classes, size=200)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        compact = kc.calibrators.CompactLogits().update(labels, logits)
        seconds.append(time.perf_counter() - start)
    size = sum(x.nbytes for part in compact._parts for x in part) / 200
    fastest = 1e6 * min(seconds) / 200
    return [num_classes, 4 * num_classes, f"{size:.0f}", f"{fastest:.0f}"]


def hard_rows(kind, rng, shape=(20, 50_000)):
    z = rng.standard_normal(shape)
    if kind == "one class above":
        z[:, 7] += 12.0
    elif kind == "40 classes above":
        z[:, :40] += 20.0
    elif kind == "three groups":
        z[:, :4000] += 12.0
        z[:, :400] += 12.0
    elif kind == "heavy tails":
        z = 2.0 * rng.standard_t(3, size=shape)
    elif kind == "nearly uniform":
        z *= 0.01
    elif kind == "classes ruled out":
        z[:, 500:] = -np.inf
    return z.astype("float32")


def errors(kind):
    """Row of the table of errors, and of the temperature."""
    rng = np.random.default_rng(0)
    logits = hard_rows(kind, rng)
    labels = logits.argmax(axis=-1)
    parts = [
        kc.calibrators.CompactLogits().update(
            labels[i : i + 1], logits[i : i + 1]
        )
        for i in range(len(logits))
    ]
    worst = 0.0
    for temperature in np.geomspace(0.5, 4.0, 25):
        z = logits.astype("float64") / temperature
        z -= z.max(axis=-1, keepdims=True)
        exact = np.log(np.exp(z).sum(axis=-1))
        found = [part.nll(temperature) for part in parts]
        worst = max(worst, np.abs(found - exact).max())
    return [kind, f"{worst:.1e}"]


def main(_):
    of_stream = markdown_table(
        ["tokens", "classes", "MB", "T", "exact T", "relative error"]
        + ["us a token", "s to fit"] * _TIMES.value,
        [stream()[: 6 + 2 * _TIMES.value]],
    )
    of_wide = markdown_table(
        ["classes", "bytes of logits", "bytes kept"]
        + ["us a token"] * _TIMES.value,
        [wide(x)[: 3 + _TIMES.value] for x in _WIDE.value],
    )
    of_rows = markdown_table(["rows", "largest error"], map(errors, _KINDS))
    publish(
        f"# Compact logits\n\n- {machine()}\n\n"
        f"A stream of tokens, in one pass:\n\n{of_stream}\n\n"
        f"One token:\n\n{of_wide}\n\n"
        f"Log-sum-exp of 50,000 classes:\n\n{of_rows}",
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
