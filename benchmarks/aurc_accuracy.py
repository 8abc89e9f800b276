"""How far the streaming AURC, AECE and ECE are from the exact values.

Thirteen kinds of scores, from easy to nasty: overconfident, piled up by label
smoothing, packed into three cells, half precision, tied, saturated. Each is
streamed through `keras_calib.AURC` and `keras_calib.AECE` and compared with
the exact functions on the same float64 scores. `in float64` is the error of
the same sums read in float64, that of the histogram without the rounding of
`result()`; `target` is the error the design of the histogram aimed at for
this kind of data, in float64. Further tables: the
time of `result()`, the size of the state, and ECE of many predictions whose
confidence is close to 1, where float32 sums go wrong.

    python benchmarks/aurc_accuracy.py --out=benchmarks/results/accuracy.md

Takes one to two minutes on 2 CPU cores.
"""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np
from absl import app, flags
from reporting import (
    machine,
    markdown_table,
    median_ms,
    modes,
    publish,
    state_bytes,
)
from scipy.special import expit, logit

import keras_calib
from keras_calib.formulas.bins import equal_mass_error
from keras_calib.formulas.risk_coverage import aurc_of_groups

_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1_000_000, "Per kind.")
_NUM_ECE = flags.DEFINE_integer("num_ece", 10_000_000, "For the ECE table.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 65_536, "Of the updates.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")


class Data(NamedTuple):
    """Outputs `(n, 1)` or `(n, 2)`, float32, and class ids `(n,)`."""

    outputs: np.ndarray
    labels: np.ndarray
    from_logits: bool


# Relative error of AURC and absolute error of AECE that the design of the
# histogram aimed at.
TARGETS = {
    "overconfident, t ~ gamma(2, 10)": (3e-8, 3e-11),
    "calibrated": (2e-7, 3e-6),
    "label-smoothed, piled at p = .91": (8e-8, 5e-11),
    "tight, p = .91 +- .0003": (2e-3, 3e-3),
    "near-uniform, 1000 classes": (3e-6, 8e-6),
    "untrained, p = .00105 to .00108": (2e-5, 7e-6),
    "bfloat16 confidence": (0.0, 3e-9),
    "float16 confidence": (2e-7, 7e-6),
    "6 values, two .001 apart in t": (3e-4, 2e-8),
    "constant": (0.0, 3e-8),
    "float32 confidence, 48 % exactly 1": (2e-7, 6e-12),
    "raw logits, t ~ 400": (2e-8, 7e-12),
    "binary, two-sided": (3e-8, 1e-6),
}


def make(kind: str, rng: np.random.Generator, n: int) -> Data:
    """Scores of one kind, with errors that thin out as the score rises."""
    if kind == "overconfident, t ~ gamma(2, 10)":
        t = rng.gamma(2.0, 10.0, n)
        return from_log_odds(t, expit(t / 10), rng)
    if kind == "calibrated":
        t = rng.gamma(2.0, 1.7, n)
        return from_log_odds(t, expit(t), rng)
    if kind == "label-smoothed, piled at p = .91":
        # Most at the smoothed target, the rest trailing off below it.
        low = rng.random(n) < 0.2
        t = logit(0.91) + rng.normal(0.0, 0.07, n)
        t = np.abs(t - low * rng.exponential(0.7, n))
        return from_log_odds(t, expit(3.0 + 2.5 * (t - logit(0.91))), rng)
    if kind == "tight, p = .91 +- .0003":
        z = rng.normal(0.0, 1.0, n)
        return from_log_odds(logit(0.91) + 0.004 * z, expit(2.3 + z), rng)
    if kind == "near-uniform, 1000 classes":
        t = np.abs(rng.normal(1.4, 1.0, n)) - np.log(999.0)
        return from_confidence(expit(t), expit(t), rng)
    if kind == "untrained, p = .00105 to .00108":
        p = rng.uniform(0.00105, 0.00108, n)
        return from_confidence(p, p, rng)
    if kind == "bfloat16 confidence":
        t = rng.gamma(2.0, 1.7, n)
        # Between 1/2 and 1 bfloat16 is a grid of 1/256.
        return from_confidence(np.round(256 * expit(t)) / 256, expit(t), rng)
    if kind == "float16 confidence":
        t = rng.gamma(2.0, 1.7, n)
        return from_confidence(expit(t).astype("float16"), expit(t), rng)
    if kind == "6 values, two .001 apart in t":
        t = rng.choice([0.5, 1.0, 2.0, 2.001, 4.0, 6.0], n)
        return from_log_odds(t, expit(t / 2), rng)
    if kind == "constant":
        return from_confidence(np.full(n, 0.7), np.full(n, 0.7), rng)
    if kind == "float32 confidence, 48 % exactly 1":
        t = rng.gamma(2.0, 10.0, n)
        return from_confidence(expit(t), expit(t / 10), rng)
    if kind == "raw logits, t ~ 400":
        t = rng.gamma(2.0, 200.0, n)
        return from_log_odds(t, expit(t / 200), rng)
    if kind == "binary, two-sided":
        z = rng.normal(0.0, 10.0, n)
        labels = (rng.random(n) < expit(z / 3)).astype("int32")
        return Data(z.astype("float32")[:, None], labels, from_logits=True)
    raise ValueError(f"Unknown kind: {kind}")


def from_log_odds(t, p_correct, rng) -> Data:
    """Two-class logits of which the second is predicted, with log-odds t."""
    logits = np.stack([np.zeros_like(t), t], axis=-1).astype("float32")
    labels = (rng.random(len(t)) < p_correct).astype("int32")
    return Data(logits, labels, from_logits=True)


def from_confidence(p, p_correct, rng) -> Data:
    """The largest of the probabilities is all that counts; the rest is 0."""
    probs = np.stack([np.zeros_like(p), p], axis=-1).astype("float32")
    labels = (rng.random(len(p)) < p_correct).astype("int32")
    return Data(probs, labels, from_logits=False)


def batches(data: Data, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(data.labels), size):
        part = slice(start, start + size)
        yield data.labels[part], data.outputs[part]


def stream(metric, data: Data, size: int) -> float:
    """The value after all batches, with the updates compiled."""
    update = modes().get("tf.function", lambda function: function)(
        metric.update_state
    )
    metric.reset_state()
    for labels, outputs in batches(data, size):
        update(labels, outputs)
    return float(metric.result())


def inside(value: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] <= value <= bounds[1]


def accuracy_row(kind: str, data: Data, batch_size: int) -> list[str]:
    aurc = keras_calib.AURC(from_logits=data.from_logits)
    aece = keras_calib.AECE(from_logits=data.from_logits)
    value = stream(aurc, data, batch_size)
    adaptive = stream(aece, data, batch_size)
    exact_data = (data.labels, data.outputs.astype("float64"))
    exact = keras_calib.aurc(*exact_data, from_logits=data.from_logits)
    exact_adaptive = keras_calib.functional.aece(
        *exact_data, from_logits=data.from_logits
    )
    low, high = aurc.bounds()
    # The same sums read in float64: what is left is the histogram's share.
    sums = keras.ops.convert_to_numpy(aurc.sums)
    value64 = float(aurc_of_groups(aurc.summary.ranked(sums, True)))
    cells = aurc.summary.cells(sums)
    adaptive64 = equal_mass_error(
        cells.before,
        cells.mass,
        cells.confidence_minus_correct,
        aece.num_bins,
        True,
    )
    mass = aurc.summary.cells(sums).mass
    held = [inside(v, (low, high)) for v in (exact, value)]
    held += [inside(v, aece.bounds()) for v in (exact_adaptive, adaptive)]
    target, target_adaptive = TARGETS[kind]
    return [
        kind,
        f"{exact:.8f}",
        f"{value:.8f}",
        f"{abs(value / exact - 1):.0e}",
        f"{abs(value64 / exact - 1):.0e}",
        f"{target:.0e}",
        f"{low:.6f} to {high:.6f}",
        f"{(high - low) / value:.0e}",
        "/".join(["no", "yes"][ok] for ok in held[:2]),
        f"{exact_adaptive:.6f}",
        f"{abs(adaptive - exact_adaptive):.0e}",
        f"{abs(adaptive64 - exact_adaptive):.0e}",
        f"{target_adaptive:.0e}",
        "/".join(["no", "yes"][ok] for ok in held[2:]),
        f"{mass.max() / mass.sum():.0e}",
    ]


def accuracy_table(num_samples: int, batch_size: int, seed: int) -> str:
    rows = []
    for index, kind in enumerate(TARGETS):
        rng = np.random.default_rng([seed, index])
        rows.append(
            accuracy_row(kind, make(kind, rng, num_samples), batch_size)
        )
    header = ["kind", "AURC", "streamed", "rel. error", "in float64"]
    header += ["target", "interval", "width / value", "exact/streamed inside"]
    header += ["AECE", "abs. error", "in float64", "target"]
    header += ["exact/streamed inside", "largest cell"]
    return markdown_table(header, rows)


def cost_table(num_samples: int, batch_size: int, seed: int) -> str:
    """Milliseconds of `result()` after real updates, and bytes of state."""
    kind = "overconfident, t ~ gamma(2, 10)"
    data = make(kind, np.random.default_rng(seed), num_samples)
    rows = []
    for metric in (
        keras_calib.AURC(from_logits=True),
        keras_calib.AURC(resolution=2048, from_logits=True),
        keras_calib.AECE(from_logits=True),
        keras_calib.ECE(from_logits=True),
    ):
        stream(metric, data, batch_size)
        times = [
            f"{median_ms(compiled(metric.result)):.2f}"
            for compiled in modes().values()
        ]
        times += ["-"] * (3 - len(times))
        resolution = getattr(metric, "resolution", "")
        name = f"{type(metric).__name__} {resolution}".strip()
        rows.append([name, *times, f"{state_bytes(metric):,}"])
    header = ["result() in ms", "eager", "tf.function", "XLA", "state, bytes"]
    return markdown_table(header, rows)


def ece_table(num_samples: int, seed: int) -> str:
    """ECE of confidences near 1: exact, streamed, and with float32 sums."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(30.0, 1.2, num_samples).astype("float32")
    labels = rng.random(num_samples) < confidence - 0.01
    data = Data(confidence[:, None], labels.astype("int32"), False)
    exact = keras_calib.ece(data.labels, data.outputs.astype("float64"))
    metric = keras_calib.ECE()
    values = {
        f"keras_calib.ECE, batches of {size:,}": stream(metric, data, size)
        for size in (1_000_000, 1024)
    }
    values["float32 segment_sum over all"] = float32_ece(confidence, labels)
    rows = [["float64 over all", f"{exact:.9f}", "-"]]
    for name, value in values.items():
        rows.append([name, f"{value:.9f}", f"{value / exact - 1:+.1e}"])
    header = [f"ECE of {num_samples:,}", "value", "rel. error"]
    return markdown_table(header, rows)


def float32_ece(confidence: np.ndarray, correct: np.ndarray) -> float:
    """What an implementation without care for the sums does."""
    index = np.clip(np.ceil(confidence * 15).astype("int32") - 1, 0, 14)
    gaps = [
        keras.ops.segment_sum(values.astype("float32"), index, 15)
        for values in (confidence, correct)
    ]
    error = keras.ops.sum(keras.ops.abs(gaps[0] - gaps[1]))
    return float(error) / len(confidence)


def run(num_samples, num_ece, batch_size, seed) -> str:
    return "\n\n".join(
        [
            f"{num_samples:,} predictions per kind, seed {seed}. {machine()}.",
            accuracy_table(num_samples, batch_size, seed),
            cost_table(num_samples, batch_size, seed),
            ece_table(num_ece, seed),
        ]
    )


def main(_) -> None:
    text = run(
        _NUM_SAMPLES.value, _NUM_ECE.value, _BATCH_SIZE.value, _SEED.value
    )
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
