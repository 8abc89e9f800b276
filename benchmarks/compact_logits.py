"""Logits of a vocabulary, shrunk to fit a temperature: bytes and time.

    python benchmarks/compact_logits.py \\
        --out=benchmarks/results/compact_logits.md
"""

import time

import numpy as np
from absl import app
from absl import flags
from reporting import machine
from reporting import markdown_table
from reporting import publish

import keras_calib as kc

_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")


def compact(num_classes):
    """Row of the table of compact logits: 1,000 tokens."""
    rng = np.random.default_rng(0)
    total, seconds, held = 0, [], kc.CompactLogits()
    logits = 2.5 * rng.standard_normal((200, num_classes), "float32")
    logits[:, :40] += np.linspace(12.0, 0.0, 40, dtype="float32")
    for _ in range(5):
        noise = rng.gumbel(size=logits.shape)
        labels = np.argmax(logits / 1.4 + noise, axis=-1)
        start = time.perf_counter()
        held.update(labels, logits)
        seconds.append((time.perf_counter() - start) / len(labels))
        total += len(labels)
    size = sum(x.nbytes for part in held._parts for x in part) / total
    return [
        num_classes,
        f"{4 * num_classes}",
        f"{size:.0f}",
        f"{1e6 * min(seconds):.0f}",
        f"{held.optimal_temperature():.4f}",
    ]


def main(_):
    titles = ["classes", "bytes of logits", "bytes kept", "us a token", "T"]
    text = markdown_table(titles, map(compact, (2000, 50_000, 128_000)))
    publish(
        f"# Compact logits\n\n- {machine()}\n\n"
        f"Compact logits, bytes and time of one token:\n\n{text}",
        _OUT.value,
    )


if __name__ == "__main__":
    app.run(main)
