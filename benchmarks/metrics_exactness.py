"""Streamed metrics against float64: many predictions, and few with weights.

Confidences of a sure network, Beta(30, 1.2), and all of one value, stream
through `CalibrationMetrics` in batches of 250,000, as top-1 records. The
reference counts right and wrong predictions of every distinct float32
confidence, and computes in float64. Beside the errors stand the width of the
certified bounds, the error of the values that compiled code computes from
the same sums in float32, and how far the peak of the memory grew after the
first batch.

Small samples have logits of four classes, with gaps of both signs, and weights
of which the largest is so many times the least. Their errors are the largest
of twenty draws.

    python benchmarks/metrics_exactness.py \
        --out=benchmarks/results/metrics_exactness.md
    KERAS_BACKEND=jax python benchmarks/metrics_exactness.py

Two minutes on 2 CPU cores.
"""

import itertools
import resource
import sys
import time

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish

import keras_calib
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import bin_index, bin_sums, equal_mass_error
from keras_calib.formulas.risk_coverage import RankedGroups, aurc_of_groups

_NUM = flags.DEFINE_integer("num_predictions", 100_000_000, "In all.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BATCH = 250_000
# Bits of the float32 numbers 2^-4 and 1.
_FIRST, _LAST = 0x3D800000, 0x3F800000


def batches(kind: str, num_predictions: int):
    """Confidences and correctness, batch by batch; the same each time."""
    rng = np.random.default_rng(0)
    for _ in range(num_predictions // _BATCH):
        if kind == "one value":
            confidence = np.full(_BATCH, 0.95, "float32")
            accuracy = 0.9
        else:
            confidence = rng.beta(30.0, 1.2, _BATCH).astype("float32")
            # Mixed signs of the gaps for the last kind.
            swing = 0.01 * np.sin(60 * confidence)
            accuracy = confidence - (0.01 if kind == "beta" else swing)
        correct = rng.random(_BATCH, "float32") < accuracy
        yield confidence, correct.astype("float32")


def reference(kind: str, num_predictions: int) -> dict[str, float]:
    """ECE, AECE and AURC in float64, from counts per distinct confidence."""
    counts = np.zeros((2, _LAST - _FIRST + 1), "int64")
    for confidence, correct in batches(kind, num_predictions):
        bits = confidence.view("int32") - _FIRST
        for right in (0, 1):
            which = np.bincount(bits[correct == right])
            counts[right, : len(which)] += which
    seen = np.flatnonzero(counts.sum(axis=0))
    wrong, right = counts[:, seen].astype("float64")
    mass = wrong + right
    value = (seen + _FIRST).astype("int32").view("float32")
    p = value.astype("float64")
    # Membership as float32 decides it; it is the edges that are rounded.
    sums = bin_sums(p, right / mass, bin_index(value, 15), 15, mass)
    before = np.cumsum(mass) - mass
    flipped = [x[::-1] for x in (mass, wrong)]
    ranked = [np.cumsum(x) - x for x in flipped]
    groups = RankedGroups(*flipped, *ranked, np.zeros(len(mass)))
    residual = mass * p - right
    return {
        "ece": float(calibration_error(sums)),
        "aece": float(equal_mass_error(before, mass, residual, 15, True)),
        "aurc": float(aurc_of_groups(groups)),
    }


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def stream(kind: str, num_predictions: int):
    """The metric that has seen all, seconds of updates, and MB of growth."""
    metrics = {
        "ece": keras_calib.ECE(),
        "all": keras_calib.CalibrationMetrics(["ece", "aece", "aurc"]),
    }
    seconds, before = 0.0, None
    for confidence, correct in batches(kind, num_predictions):
        start = time.perf_counter()
        for metric in metrics.values():
            metric.update_scores(confidence, correct)
        seconds += time.perf_counter() - start
        if before is None:
            before = peak_mb()
    return metrics, seconds, peak_mb() - before


def in_float32(metric):
    """The values as compiled code computes them."""
    return metric._from_tensors()


def run(num_predictions: int) -> str:
    rows = []
    for kind in ("beta", "one value", "beta, gaps of both signs"):
        metrics, seconds, growth = stream(kind, num_predictions)
        exact = reference(kind, num_predictions)
        values = {k: float(v) for k, v in metrics["all"].result().items()}
        values["ece"] = float(metrics["ece"].result())
        compiled = in_float32(metrics["all"])
        compiled["ece"] = in_float32(metrics["ece"])
        bounds = metrics["all"].bounds()
        cells = metrics["all"]._readings().cells
        largest = float(cells.mass.max() / cells.mass.sum())
        for name, value in values.items():
            low, high = bounds.get(name, (None, None))
            inside = "-" if low is None else str(low <= exact[name] <= high)
            rows.append(
                [
                    kind,
                    name,
                    f"{exact[name]:.9f}",
                    f"{value / exact[name] - 1:+.1e}",
                    f"{float(compiled[name]) / exact[name] - 1:+.1e}",
                    inside,
                    "-" if low is None else f"{high - low:.1e}",
                    f"{largest:.1e}",
                    f"{seconds:.1f}",
                    f"{growth:.0f}",
                ]
            )
    header = [
        f"{num_predictions:,} predictions",
        "metric",
        "float64",
        "rel. error",
        "the same, in float32",
        "in bounds",
        "width of bounds",
        "largest cell",
        "s, both metrics",
        "growth of the peak, MB",
    ]
    return f"{machine()}.\n\n" + markdown_table(header, rows)


def draw(num_samples: int, spread: float, seed: int):
    """Labels, logits and weights of a small sample."""
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.normal(size=(num_samples, 4))
    true = np.where(logits[:, :1] > 0.0, logits / 2.0, logits * 2.0)
    labels = (true + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    weight = np.exp(rng.uniform(0.0, np.log(spread), num_samples))
    return labels, logits.astype("float32"), weight.astype("float32")


def small(sizes=(1_000, 10_000, 100_000), spreads=(1.0, 1e2, 1e4)) -> str:
    """A table of the largest errors of small samples."""
    functions = {
        "ece": keras_calib.ece,
        "aece": keras_calib.functional.aece,
        "aurc": keras_calib.aurc,
    }
    rows = []
    for size, spread in itertools.product(sizes, spreads):
        errors, inside = dict.fromkeys(functions, 0.0), 0
        for seed in range(20):
            given = draw(size, spread, seed)
            metric = keras_calib.CalibrationMetrics(
                [*functions], from_logits=True
            )
            metric.update_state(*given)
            found, bounds = metric.result(), metric.bounds()
            for name, function in functions.items():
                y, z, weight = given
                exact = function(y, z, from_logits=True, sample_weight=weight)
                error = abs(float(found[name]) / exact - 1.0)
                errors[name] = max(errors[name], error)
                low, high = bounds.get(name, (exact, exact))
                inside += low <= exact <= high
        told = [f"{error:.1e}" for error in errors.values()]
        all_inside = str(inside == 20 * len(functions))
        rows.append([f"{size:,}", f"{spread:,.0f}", *told, all_inside])
    header = ["predictions", "largest weight / least", *functions, "in bounds"]
    return markdown_table(header, rows)


def main(_) -> None:
    publish(f"{run(_NUM.value)}\n\n{small()}", _OUT.value)


if __name__ == "__main__":
    app.run(main)
