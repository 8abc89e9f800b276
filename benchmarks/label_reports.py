"""What a report says of several labels: coverage of intervals, and verdicts.

    python benchmarks/label_reports.py --out=benchmarks/results/label_reports.md

Each draw makes a test set of ten labels that depend on each other. A first
table has how often the 95 % intervals of means over labels hold the mean of
the population, which is that of two million examples. A second one has the
answers of the report, of calibrated labels and of a model that needs a
temperature of 2, which is fitted to each label on a calibration set. Neither
should be called off. In the last rows two labels are off beside that.

It takes about 15 minutes on one CPU core.
"""

import re

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.special import expit, ndtr

from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.labels.example_sums import ExampleSums
from keras_calib.metrics.gap_estimates import GapEstimate, gap_estimate
from keras_calib.reporting.verdict_of_labels import (
    MISTAKE,
    label_verdict,
    side_of,
)

_NUM_DRAWS = flags.DEFINE_integer("num_draws", 1000, "Per row.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

NUM_LABELS, NUM_BINS = 10, 15
SIZES = (200, 1_000, 5_000)
# Correlation of the normals behind the outcomes given the logits, and of those
# of the logits.
DEPENDENCE = 0.5
MEASURES = ("nll", "brier_score", "accuracy", "precision", "recall", "auroc")
MEASURES += ("ece",)
# True logits times the first, plus and minus the second by turns.
MODELS = {
    "calibrated": (1.0, 0.0),
    "logits x 1.6": (1.6, 0.0),
    "logits +- 0.5": (1.0, 0.5),
}
TESTED, FITTED = (300, 1_000, 10_000), (300, 1_000)
# Points that two of ten labels are off by.
OFF = 0.024
ANSWERS = {
    "all": "Yes(, after calibration)?, as",
    "most": "Yes(, after calibration,)? for",
    "nearly": "Nearly",
    "no": "No",
}


def examples(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and true logits, `(n, labels)`."""
    ours, theirs = np.sqrt(DEPENDENCE), np.sqrt(1.0 - DEPENDENCE)

    def normals():
        shared = rng.standard_normal((n, 1))
        return ours * shared + theirs * rng.standard_normal((n, NUM_LABELS))

    truth = np.linspace(-3.0, 0.5, NUM_LABELS) + 1.5 * normals()
    return (ndtr(normals()) < expit(truth)).astype(int), truth


def bins_of(labels: np.ndarray, p: np.ndarray):
    """Bins of a label."""
    return bin_sums(p, labels, bin_index(p, NUM_BINS), NUM_BINS)


def means(n: int, model: tuple[float, float], rng: np.random.Generator):
    """The means of the report, with their intervals."""
    (labels, logits), (scale, shift) = examples(n, rng), model
    logits = scale * logits + shift * (1.0 - 2.0 * (np.arange(NUM_LABELS) % 2))
    sums, one = ExampleSums(NUM_BINS), np.ones(labels.shape)
    sums.add(labels, one, logits, logits > 0, np.arange(n))
    return sums.means([*map(bins_of, labels.T, expit(logits).T)])


def coverage(num_draws: int, seed: int) -> list[list[str]]:
    """Rows of shares of intervals that hold the mean of the population."""
    rows = []
    for name, model in MODELS.items():
        truth = means(2_000_000, model, np.random.default_rng([seed, 1]))
        for n in SIZES:
            rng = np.random.default_rng([seed, n])
            drawn = [means(n, model, rng) for _ in range(num_draws)]
            for mean, true in truth.items():
                shares, widths = [], []
                for x in MEASURES:
                    ends = f"{x}_low", f"{x}_high"
                    values = np.array(
                        [[d[mean][k] for k in ends] for d in drawn]
                    )
                    low, high = values.T
                    inside = (low <= true[x]) & (true[x] <= high)
                    shares.append(f"{inside.mean():.3f}")
                    widths.append(f"{(high - low).mean():.4f}")
                ece = f"{true['ece']:.4f}"
                rows.append([name, mean, f"{n:,}", *shares, ece, widths[-1]])
    return rows


def gap_of_label(y: np.ndarray, p: np.ndarray, level: float) -> GapEstimate:
    """The gap with its interval, which is left out where it surely has 0."""
    gap, error = (p - y).mean(), np.sqrt((p * (1.0 - p)).sum()) / len(y)
    if abs(gap) < 1.5 * error:
        return GapEstimate(gap, -1.0, 1.0, None)
    return gap_estimate(np.ones(len(y)), 1.0 - y, 1.0 - p, level=level)


def judged(
    labels: np.ndarray, logits: np.ndarray, fitted: int | None
) -> tuple[dict, list[dict]]:
    """The verdict, and the rows that it is of."""
    rows, level = [], 1.0 - MISTAKE / NUM_LABELS
    for k, y in enumerate(labels.T):
        order = np.argsort(logits[:, k])
        y, p = y[order], expit(logits[order, k])
        gap = gap_of_label(y, p, level)
        bins = bins_of(y, p)
        rows.append(
            {
                "label": str(k),
                "count": len(y),
                "positives": y.sum(),
                "prevalence": y.mean(),
                "confidence_gap": gap.value,
                "side": side_of(gap, bins, level, fitted),
                "ece": np.abs(bins.residual).sum() / len(y),
                "nll": 0.0,
                "base_nll": 1.0,
            }
        )
    return label_verdict(rows, fitted is not None, fitted), rows


def temperatures(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """The optimal one of each label."""
    return np.array(
        [
            optimal_temperature(FittingData(y, np.stack([0.0 * z, z], -1)))
            for y, z in zip(labels.T, logits.T, strict=True)
        ]
    )


def verdicts(
    num_draws: int, fitted: int | None, n: int, off: float, seed: int
) -> list[str]:
    """Shares in percent of answers, and of labels that are called off."""
    rng, found = np.random.default_rng([seed, n, fitted or 0]), []
    for _ in range(num_draws):
        scale = 1.0
        if fitted is not None:
            labels, truth = examples(fitted, rng)
            scale = 2.0 / temperatures(labels, 2.0 * truth)
        labels, truth = examples(n, rng)
        logits = scale * truth
        if off:
            p = expit(logits[:, -2:])
            logits[:, -2:] += off / (p * (1.0 - p)).mean(axis=0)
        answer, rows = judged(labels, logits, fitted)
        kind = [bool(re.match(x, answer["answer"])) for x in ANSWERS.values()]
        sides = [x["side"] not in ("even", "few") for x in rows]
        found.append([*kind, any(sides[:-2]), np.mean(sides[-2:])])
    return [f"{100 * x:.1f}" for x in np.mean(found, axis=0)]


def answers(num_draws: int, seed: int) -> list[list[str]]:
    """Rows of what reports say of labels that are calibrated, and are not."""
    rows = []
    for off, draws in ((0.0, num_draws), (OFF, num_draws // 4)):
        for fitted in (None, *FITTED[off > 0.0 :]):
            for n in TESTED:
                told = "none" if fitted is None else f"{fitted:,}"
                shares = verdicts(draws, fitted, n, off, seed)
                rows.append([f"{100 * off:.1f}", told, f"{n:,}", *shares])
    return rows


def main(_) -> None:
    draws, seed = _NUM_DRAWS.value, _SEED.value
    text = [
        f"{NUM_LABELS} labels that depend on each other, {draws} draws per "
        f"row. {machine()}.",
        "Share of 95 % intervals that hold the mean of the population; the "
        "ECE of the population over the same bins, and the mean width of its "
        "intervals.",
        markdown_table(
            ["model", "mean over", "N", *MEASURES, "true ECE", "width"],
            coverage(draws, seed),
        ),
        "Answers of the report in percent: yes for all labels, yes for most, "
        "nearly, no. Then reports that call one of the first eight labels "
        "off, and labels called off of the last two, which are off by so many "
        "points; these rows have a quarter of the draws.",
        markdown_table(
            ["points off", "fitted on", "N", *ANSWERS, "of 8", "the 2"],
            answers(draws, seed),
        ),
    ]
    publish("\n\n".join(text), _OUT.value)


if __name__ == "__main__":
    app.run(main)
