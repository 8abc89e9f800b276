"""Is a change of the report's table called clear where it is one?

The first table has 20 real pairs of outputs for the same test rows: a model
before and after calibration, or two models. It compares what the paired tests
of the report call clear with `compare`, 400 draws of the rows, after Holm over
the same metrics. The second has the level: how often the tests call two models
different that are equally good, by metric at 5 %, and any metric after Holm.

    KERAS_CALIB_DATA=DIR python benchmarks/changes.py \
        --out=benchmarks/results/changes.md

Takes about half an hour on one CPU core.
"""

import itertools
import os
from pathlib import Path

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.special import log_softmax

import keras_calib as kc
from keras_calib.functional.group_table import holm
from keras_calib.metrics.paired import paired_p_values
from keras_calib.metrics.states.units import UnitSums

_NUM_RUNS = flags.DEFINE_integer("num_runs", 1000, "Runs of a setting.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

METRICS = {
    "accuracy": kc.functional.accuracy,
    "nll": kc.nll,
    "brier_score": kc.brier_score,
    "ece": kc.ece,
    "aece": kc.aece,
    "mce": kc.functional.mce,
    "ecce": kc.functional.ecce,
    "aurc": kc.aurc,
    "failure_auroc": kc.functional.failure_auroc,
    "coverage_at_risk": kc.functional.coverage_at_risk,
}
LEVEL = 0.05
TABLE = kc.CalibrationMetrics(include=["ece"])


def stage_of(labels: np.ndarray, logits: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of a stage of `UnitSums`."""
    log_p = log_softmax(logits.astype("float64"), axis=-1)
    probs = np.exp(log_p)
    rows, best = np.arange(len(labels)), logits.argmax(axis=-1)
    top = log_p[rows, best]
    score = top - np.log(-np.expm1(np.minimum(top, -1e-12)))
    right = probs[rows, labels]
    return {
        "score": score,
        "confidence": probs[rows, best],
        "correct": (best == labels).astype("float64"),
        "nll": -log_p[rows, labels],
        "brier_score": (probs**2).sum(axis=-1) - 2.0 * right + 1.0,
    }


def p_values(stages: list[dict], unit: np.ndarray) -> dict[str, float]:
    """Those of the report."""
    sums = UnitSums(2, 15, ("nll", "brier_score"))
    sums.add(unit, np.ones(len(unit)), stages)
    return paired_p_values(sums, [*METRICS], TABLE, (0, 1))


def real_pairs(folder: Path) -> dict[str, tuple]:
    """Labels and logits of two, by name."""
    found, outputs = {}, {}
    for path in sorted(folder.glob("*.npz")):
        data = np.load(path)
        if "logits_test" in data:
            labels, logits = data["labels_test"], data["logits_test"]
        elif "probs" in data and data["probs"].shape[-1] <= 100:
            labels = data["labels"]
            logits = np.log(np.maximum(data["probs"], 1e-12))
        else:
            continue
        labels, logits = labels.reshape(-1).astype(int), np.float32(logits)
        name = path.stem
        half = len(labels) // 2
        cal, test = slice(None, half), slice(half, None)
        outputs[name] = labels, logits
        fitted = kc.TemperatureScaling().fit(labels[cal], logits[cal])
        after = np.asarray(fitted(logits[test]))
        found[f"{name}, temperature"] = labels[test], logits[test], after
    for (a, x), (b, y) in itertools.combinations(outputs.items(), 2):
        same = np.array_equal(x[0], y[0]) and x[1].shape == y[1].shape
        if same and len(found) < 20:
            found[f"{a} against {b}"] = x[0], x[1], y[1]
    return found


def table_of_pairs(folder: Path) -> list[dict]:
    """Decisions of the report and of `compare` on real pairs."""
    rows = []
    for name, (labels, before, after) in real_pairs(folder).items():
        stages = [stage_of(labels, x) for x in (before, after)]
        own = p_values(stages, np.arange(len(labels)))
        a, b = (
            kc.Predictions(labels, x, from_logits=True) for x in (after, before)
        )
        other = {
            k: kc.compare(
                a,
                b,
                fn,
                verbose=0,
                **({"risk": 0.05} if k == "coverage_at_risk" else {}),
            ).p_value
            for k, fn in METRICS.items()
        }
        both = [holm([x[k] for k in METRICS]) for x in (own, other)]
        apart = [
            (k, p, q)
            for k, p, q in zip(METRICS, *both, strict=True)
            if (p <= LEVEL) != (q <= LEVEL)
        ]
        far = [
            x
            for x in apart
            if not any(LEVEL / 2 <= p <= 2 * LEVEL for p in x[1:])
        ]
        rows.append(
            {
                "pair": name,
                "n": f"{len(labels):,}",
                "clear": int((both[0] <= LEVEL).sum()),
                "by `compare`": int((both[1] <= LEVEL).sum()),
                "different": ", ".join(
                    f"{k} ({p:.3f}, {q:.3f})" for k, p, q in apart
                ),
                "beyond a factor of 2": len(far),
            }
        )
        print(rows[-1], flush=True)
    return rows


def table_of_levels(num_runs: int) -> list[dict]:
    """How often two equally good models are called different."""
    rows = []
    settings = ((300, 1.0, 1), (300, 2.0, 1), (300, 1.0, 10), (2000, 2.0, 1))
    for n, factor, size in settings:
        rng, found = np.random.default_rng(0), []
        for _ in range(num_runs):
            unit = np.arange(n) // size
            effect = rng.normal(0.0, 1.0, (n, 4))[unit] * (size > 1)
            truth = rng.normal(0.0, 1.5, (n, 4)) + effect
            # A unit has answers of its own, which the models do not know.
            logits = [truth + rng.normal(0.0, 0.7, (n, 4)) for _ in range(2)]
            noise = rng.gumbel(size=(n, 4))
            if size > 1:
                noise = 0.5 * noise + 0.5 * rng.gumbel(size=(n, 4))[unit]
            labels = (truth + noise).argmax(axis=-1)
            stages = [stage_of(labels, factor * x) for x in logits]
            p_of = p_values(stages, unit)
            found.append([p_of[k] for k in METRICS])
        p = np.array(found)
        some = np.mean([holm(x).min() <= LEVEL for x in p])
        rows.append(
            {
                "n": f"{n:,}",
                "units": f"{n // size:,}",
                "logits times": factor,
                **{
                    k: f"{x:.3f}"
                    for k, x in zip(
                        METRICS, np.mean(p <= LEVEL, axis=0), strict=True
                    )
                },
                "any after Holm": f"{some:.3f}",
            }
        )
        print(rows[-1], flush=True)
    return rows


def as_text(rows: list[dict]) -> str:
    """A table of rows of the same columns."""
    return markdown_table([*rows[0]], [[*x.values()] for x in rows]) + "\n"


def main(_: list[str]) -> None:
    text = f"Changes that are called clear. {machine()}.\n\n"
    if data := os.environ.get("KERAS_CALIB_DATA"):
        text += as_text(table_of_pairs(Path(data) / "logits"))
        text += (
            "\nIn brackets p after Holm, of the report and of `compare`.\n\n"
        )
    text += f"Two equally good models, {_NUM_RUNS.value:,} runs a row: share "
    text += "of p-values of at most 0.05.\n\n"
    text += as_text(table_of_levels(_NUM_RUNS.value))
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
