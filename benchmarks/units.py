"""Do intervals hold the truth where rows depend on each other, as pixels do?

Images have an effect of their own on the confidence of their 300 pixels and
on how often they are right. `coverage` of the 95 % intervals of the report and
of `evaluate`, which take images as units, and beside it the coverage if pixels
were units. `bars` is the mean over the bins of the reliability diagram that
hold 1 % of the pixels, and the least of these. The last table has the level of
`calibration_test` at 5 % for images that are calibrated.

    python benchmarks/units.py --out=benchmarks/results/units.md

Takes about an hour on one CPU core.
"""

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish
from scipy.special import expit

import keras_calib as kc
from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.metrics.states.units import UnitSums
from keras_calib.reporting.by_unit import UnitTable

_NUM_RUNS = flags.DEFINE_integer("num_runs", 500, "Runs of a setting.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

PIXELS = 300
SIZES = (20, 60, 200)
NAMES = (
    *("accuracy", "mean_confidence", "confidence_gap", "nll", "brier_score"),
    *("ece", "aece", "mce", "ecce", "aurc", "failure_auroc"),
    "coverage_at_risk",
)
# Mean log-odds, temperature, and deviation of the effect on being right.
SETTINGS = {
    "calibrated, no effect": (1.5, 1.0, 0.0),
    "overconfident": (1.5, 1.5, 0.7),
    "overconfident, strong effects": (1.5, 1.5, 1.5),
    "few errors": (4.5, 1.2, 0.7),
}
STATISTICS = ("ece", "chi2", "spiegelhalter", "ecce_range", "ecce_maximum")


def draw(
    rng: np.random.Generator, n: int, setting: tuple[float, float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of the predicted class and correctness, by image and pixel."""
    center, temperature, spread = setting
    score = center + rng.normal(0.0, 1.0, (n, 1))
    score = np.abs(score + rng.normal(0.0, 1.5, (n, PIXELS)))
    effect = rng.normal(0.0, 1.0, (n, 1)) * spread
    right = rng.random(score.shape) < expit(score / temperature + effect)
    return score.astype("float32"), right


def tables(score: np.ndarray, right: np.ndarray) -> tuple[UnitTable, UnitTable]:
    """Metrics of these pixels, by image and by pixel."""
    labels, top = 1 - right.reshape(-1).astype(int), score.reshape(-1)
    logits = np.stack([top, np.zeros_like(top)], axis=-1)
    confidence = expit(top.astype("float64"))
    of_label = np.where(labels == 0, confidence, 1.0 - confidence)
    columns = {
        "score": top,
        "confidence": confidence,
        "correct": 1.0 - labels,
        "nll": -np.log(of_label),
        "brier_score": 2.0 * (1.0 - of_label) ** 2,
    }
    found = [UnitTable(include=NAMES, from_logits=True) for _ in range(2)]
    for table in found:
        table.update_state(labels, logits)
    sums = UnitSums(1, 15, ("nll", "brier_score"))
    unit = np.repeat(np.arange(len(score)), PIXELS)
    sums.add(unit, np.ones(len(unit)), [columns])
    found[0].take(sums, 0, "images")
    return found[0], found[1]


def coverage(num_runs: int) -> list[list]:
    """Rows of the first table."""
    rows = []
    for name, setting in SETTINGS.items():
        rng = np.random.default_rng(0)
        many = [tables(*draw(rng, 2000, setting))[1] for _ in range(4)]
        truth = {
            k: np.mean([float(x.result()[k]) for x in many]) for k in NAMES
        }
        bins = [x.bins() for x in many]
        right = sum(x.correct for x in bins) / sum(x.weight for x in bins)
        share = bins[0].weight / bins[0].weight.sum()
        for n in SIZES:
            hit = {k: np.zeros(2) for k in NAMES}
            bars = []
            for _ in range(num_runs):
                both = tables(*draw(rng, n, setting))
                for k, table in enumerate(both):
                    for x, (low, high) in table.interval().items():
                        hit[x][k] += low - 1e-9 <= truth[x] <= high + 1e-9
                low, high = accuracy_interval(both[0].bins())
                bars.append((low <= right) & (right <= high))
            bars = np.mean(bars, axis=0)[share >= 0.01]
            told = ["{:.3f} ({:.2f})".format(*hit[x] / num_runs) for x in NAMES]
            bar = f"{bars.mean():.3f}, {bars.min():.3f}"
            rows.append([name, n, *told, bar])
            print(rows[-1], flush=True)
    return rows


def levels(num_runs: int) -> list[list]:
    """Rows of the second table."""
    rows = []
    for n in SIZES:
        rng, hit = np.random.default_rng(1), np.zeros(len(STATISTICS))
        for _ in range(num_runs):
            score, _ = draw(rng, n, SETTINGS["overconfident"])
            # Right pixels of an image come together, as often as told.
            common = rng.random((n, 1))
            alone = rng.random(score.shape)
            own = rng.random(score.shape) < 0.5
            drawn = np.where(own, alone, common)
            right = drawn < expit(score)
            labels = 1 - right.astype(int)
            outputs = np.stack([score, np.zeros_like(score)], axis=-1)
            p = kc.Predictions(labels, outputs, from_logits=True)
            hit += [
                kc.functional.calibration_test(
                    p, statistic=x, num_draws=200
                ).p_value
                <= 0.05
                for x in STATISTICS
            ]
        rows.append([n, *(f"{x:.3f}" for x in hit / num_runs)])
        print(rows[-1], flush=True)
    return rows


def main(_: list[str]) -> None:
    runs = _NUM_RUNS.value
    text = (
        f"Coverage of 95 % intervals with images as units, in brackets with "
        f"pixels as units; {runs:,} runs a row, {PIXELS} pixels an image. "
        f"{machine()}.\n\n"
    )
    header = ["setting", "images", *NAMES, "bars: mean, least"]
    text += markdown_table(header, coverage(runs))
    text += "\n\n`calibration_test` at 5 %, images that are calibrated.\n\n"
    text += markdown_table(["images", *STATISTICS], levels(runs))
    publish(text, _OUT.value)


if __name__ == "__main__":
    app.run(main)
