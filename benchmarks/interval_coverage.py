"""How often the confidence intervals hold the truth, and how wide they are.

Predictions are drawn from populations whose calibration error is known:
calibrated, overconfident, wrong in one bin, and with gaps as large as the
noise; of middling, low and very high accuracy. `coverage` should be at least
0.95; `width / spread` is the mean width over the distance between the 2.5 %
and 97.5 % quantiles of the estimate itself. Further tables: means of skewed
losses, rank metrics by the Poisson bootstrap, also with few errors, and
differences between two networks. `--only=accuracy` has the exact coverage of
the accuracy, and `--only=small` adds every metric of 20 to 100,000
predictions of networks that make few errors. `--only=cumulative` has the
cumulative error, from the state of its metric.

    python benchmarks/interval_coverage.py \
        --out=benchmarks/results/interval_coverage.md
    python benchmarks/interval_coverage.py --only=small --num_draws=600 \
        --out=benchmarks/results/interval_coverage_small.md
    python benchmarks/interval_coverage.py --only=cumulative --num_draws=200 \
        --out=benchmarks/results/interval_coverage_cumulative.md

Each takes about twenty minutes on one CPU core, `--only=accuracy` seconds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import app, flags
from cumulative_coverage import cumulative_table
from few_error_coverage import (
    NUM_BINS,
    accuracy_table,
    moments,
    ranked,
    small_table,
)
from reporting import machine, markdown_table, publish
from scipy.special import expit, logit
from scipy.stats import beta

import keras_calib
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.bootstrap import poisson_interval
from keras_calib.formulas.intervals import mean_interval
from keras_calib.formulas.risk_coverage import augrc_of_groups, aurc_of_groups
from keras_calib.functional.comparison import compare

_NUM_DRAWS = flags.DEFINE_integer(
    "num_draws", 1000, "Per row; a quarter of it for the slow ones."
)
_SEED = flags.DEFINE_integer("seed", 0, "Of the data.")
_ONLY = flags.DEFINE_enum(
    "only", None, ["small", "accuracy", "cumulative"], "Just this table."
)
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

# Points of the populations, evenly spaced quantiles of the confidence.
POINTS = (np.arange(400_000) + 0.5) / 400_000
CONFIDENCES = {
    "middling": 0.1 + 0.9 * beta.ppf(POINTS, 5.0, 1.2),
    "near 1": beta.ppf(POINTS, 60.0, 0.6),
    "low": beta.ppf(POINTS, 1.5, 6.0),
}
SCENARIOS = [
    ("middling", "calibrated"),
    ("middling", "T = 1.5"),
    ("middling", "one bad bin"),
    ("middling", "gaps like noise"),
    ("near 1", "calibrated"),
    ("near 1", "T = 1.5"),
    ("low", "calibrated"),
    ("low", "T = 1.5"),
]
METRICS = {
    "ECE": ("l1", False),
    "AECE": ("l1", True),
    "RMSCE": ("l2", False),
    "MCE": ("max", False),
    "mean over bins": ("average", False),
}


class Population(NamedTuple):
    """Confidences and accuracies `(points,)`, and bins by width and mass."""

    confidence: np.ndarray
    accuracy: np.ndarray
    index: dict[bool, np.ndarray]
    truth: dict[bool, tuple[np.ndarray, np.ndarray]]


def population(accuracy: str, kind: str, n: int) -> Population:
    confidence = CONFIDENCES[accuracy]
    index = {
        False: bin_index(confidence, NUM_BINS),
        True: np.arange(len(POINTS)) * NUM_BINS // len(POINTS),
    }
    width = index[False]
    share = np.bincount(width, minlength=NUM_BINS) / len(POINTS)
    correct = confidence
    if kind == "T = 1.5":
        correct = expit(logit(np.clip(confidence, 1e-9, 1 - 1e-9)) / 1.5)
    elif kind == "one bad bin":
        third = np.argsort(share)[-3]
        correct = confidence - 0.25 * (width == third)
    elif kind == "gaps like noise":
        noise = 0.4 / np.sqrt(np.maximum(n * share, 1.0))
        correct = confidence + np.where(width % 2, -1, 1) * noise[width]
    correct = np.clip(correct, 0.0, 1.0)
    truth = {}
    for mass, bins in index.items():
        sums = bin_sums(confidence, correct, bins, NUM_BINS)
        truth[mass] = (sums.weight / len(POINTS), np.abs(sums.confidence_gap))
    return Population(confidence, correct, index, truth)


def draw(of: Population, rng: np.random.Generator, n: int) -> dict:
    """Bin sums of n predictions, by width and by mass."""
    i = rng.integers(0, len(POINTS), n)
    confidence = of.confidence[i]
    correct = (rng.random(n) < of.accuracy[i]).astype("float64")
    by_mass = np.empty(n, int)
    by_mass[np.argsort(confidence)] = np.arange(n) * NUM_BINS // n
    return {
        False: bin_sums(confidence, correct, of.index[False][i], NUM_BINS),
        True: bin_sums(confidence, correct, by_mass, NUM_BINS),
    }


def error(norm: str, share: np.ndarray, gap: np.ndarray) -> float:
    if norm == "l1":
        return float(np.sum(share * gap))
    if norm == "l2":
        return float(np.sqrt(np.sum(share * gap**2)))
    return float(gap.max() if norm == "max" else gap.mean())


def filled_gaps(sums: BinSums, truth: tuple) -> tuple:
    """Share and |gap| of the non-empty bins: observed, and true."""
    filled = sums.weight > 0
    share = sums.weight[filled] / sums.weight.sum()
    gap = np.abs(sums.residual[filled]) / sums.weight[filled]
    return (share, gap), tuple(v[filled] for v in truth)


def summary(name: list, draws: list[tuple]) -> list[str]:
    """Row of a table from (low, high, truth, estimate) of each draw."""
    low, high, truth, estimate = np.array(draws).T
    above, below = low > truth + 1e-12, high < truth - 1e-12
    width = np.mean(high - low)
    spread = np.subtract(*np.quantile(estimate, [0.975, 0.025]))
    return [
        *name,
        len(draws),
        f"{np.mean(truth):.5f}",
        f"{1 - np.mean(above | below):.3f}",
        f"{np.mean(above):.3f}",
        f"{np.mean(below):.3f}",
        f"{width:.5f}",
        f"{spread:.5f}",
        f"{width / spread:.2f}",
    ]


HEADER = ["draws", "truth", "coverage", "too high", "too low"]
HEADER += ["mean width", "spread", "width / spread"]


def calibration_table(num_draws: int, seed: int) -> str:
    rows = []
    for accuracy, kind in SCENARIOS:
        for n in (20, 60, 300, 1_000, 10_000, 100_000):
            of = population(accuracy, kind, n)
            rng = np.random.default_rng([seed, n])
            draws = {name: [] for name in METRICS}
            for _ in range(num_draws if n < 100_000 else num_draws // 4):
                sums = draw(of, rng, n)
                for name, (norm, mass) in METRICS.items():
                    seen, true = filled_gaps(sums[mass], of.truth[mass])
                    interval = error_interval(sums[mass], norm=norm)
                    values = (error(norm, *true), error(norm, *seen))
                    draws[name].append((*interval, *values))
            rows += [
                summary([f"{accuracy}, {kind}", f"{n:,}", name], values)
                for name, values in draws.items()
            ]
    return markdown_table(["accuracy, kind", "N", "metric", *HEADER], rows)


def losses(rng: np.random.Generator, n: int, scale: float) -> np.ndarray:
    """NLL of a confident network; the larger `scale`, the more errors."""
    t = rng.gamma(2.0, 4.0, n) + 3.0
    correct = rng.random(n) < expit(t / scale)
    return np.where(correct, np.log1p(np.exp(-t)), t)


def mean_table(num_draws: int, seed: int) -> str:
    rows = []
    for scale in (1.2, 1.8):
        rng = np.random.default_rng([seed, 1])
        many = losses(rng, 10_000_000, scale)
        truth = many.mean()
        name = f"NLL, {np.mean(many > np.log(2)):.1%} errors"
        for n in (300, 1_000, 3_000, 10_000):
            draws = []
            for _ in range(num_draws):
                x = losses(rng, n, scale)
                draws.append((*mean_interval(moments(x)), truth, x.mean()))
            rows.append(summary([name, f"{n:,}"], draws))
    return markdown_table(["mean of", "N", *HEADER], rows)


def aurc(right: np.ndarray, wrong: np.ndarray) -> float:
    return float(aurc_of_groups(ranked(right, wrong)))


def augrc(right: np.ndarray, wrong: np.ndarray) -> float:
    return float(augrc_of_groups(ranked(right, wrong)))


def auroc(right: np.ndarray, wrong: np.ndarray) -> float:
    """Probability that a right prediction ranks above a wrong one."""
    pairs = right.sum() * wrong.sum()
    if pairs == 0.0:
        return np.nan
    surer = np.cumsum(right) - 0.5 * right
    return float(np.sum(surer * wrong) / pairs)


def rank_table(num_draws: int, seed: int) -> str:
    rows = []
    cells = 100
    u = (np.arange(cells) + 0.5) / cells
    for function in (aurc, augrc, auroc):
        for n, errors in [
            (300, 1),
            (300, 10),
            (300, 45),
            (3_000, 10),
            (3_000, 450),
            (100_000, 10),
            (100_000, 15_000),
        ]:
            rate = 3.0 * u**2 * errors / n
            truth = function(1e9 * (1 - rate) / cells, 1e9 * rate / cells)
            rng = np.random.default_rng([seed, n, errors])
            draws = []
            for i in range(num_draws // 4):
                mass = rng.multinomial(n, np.full(cells, 1 / cells))
                wrong = rng.binomial(mass, rate).astype("float64")
                right = mass - wrong
                interval = poisson_interval(function, (right, wrong), seed=i)
                estimate = function(right, wrong)
                if not np.isnan(estimate):
                    draws.append((*interval, truth, estimate))
            name = [function.__name__.upper(), f"{n:,}", f"{errors:,}"]
            rows.append(summary(name, draws))
    return markdown_table(["metric", "N", "errors expected", *HEADER], rows)


def networks(rng: np.random.Generator, n: int) -> tuple:
    """Labels and the logits of a good network and of an overconfident one."""
    labels = rng.integers(0, 4, n)
    signal = 2.5 * np.eye(4)[labels]
    shared, own = rng.normal(size=(2, n, 4))
    # The Bayes classifier's logits, and with more noise twice too sharp.
    good = 2.5 * (signal + shared)
    bad = 3.0 * (signal + shared + 0.7 * own)
    return labels, good, bad


def difference_table(num_draws: int, seed: int) -> str:
    rows = []
    metrics: dict[str, Callable] = {
        "ECE": keras_calib.ece,
        "AURC": keras_calib.aurc,
        "NLL": keras_calib.nll,
    }
    for name, metric in metrics.items():
        rng = np.random.default_rng([seed, 2])
        many = networks(rng, 2_000_000)
        values = [metric(many[0], v, from_logits=True) for v in many[1:]]
        truth = values[0] - values[1]
        for n in (300, 2_000):
            draws = []
            for i in range(num_draws // 4):
                labels, *both = networks(rng, n)
                p, q = (
                    keras_calib.Predictions(labels, x, from_logits=True)
                    for x in both
                )
                results = compare(p, q, metric, num_draws=100, seed=i)
                draws.append((results.low, results.high, truth, results.value))
            rows.append(summary([name, "population", f"{n:,}"], draws))
            if name == "ECE":
                mean = np.mean([v[3] for v in draws])
                draws = [(*v[:2], mean, v[3]) for v in draws]
                rows.append(summary([name, "expected", f"{n:,}"], draws))
    return markdown_table(["difference of", "truth is", "N", *HEADER], rows)


def run_small(num_draws: int, seed: int) -> str:
    return "\n\n".join(
        [
            run_accuracy(num_draws, seed),
            f"Every metric, seed {seed}; `errors` are those to expect:",
            small_table(num_draws, seed),
        ]
    )


def run_accuracy(*_) -> str:
    return "\n\n".join(
        [
            f"95 % intervals of few errors. {machine()}.",
            "`Accuracy.interval()`, exact coverage:",
            accuracy_table(),
        ]
    )


def run_cumulative(num_draws: int, seed: int) -> str:
    return "\n\n".join(
        [
            f"95 % intervals of the cumulative error, seed {seed}. "
            f"{machine()}.",
            f"`ECCE.interval()`: {num_draws} draws, a quarter of them for the "
            "bootstrap:",
            cumulative_table(num_draws, seed),
        ]
    )


def run(num_draws: int, seed: int) -> str:
    return "\n\n".join(
        [
            f"95 % intervals, seed {seed}. {machine()}.",
            "Binned errors, `error_interval`, 15 bins:",
            calibration_table(num_draws, seed),
            "Means, `mean_interval`:",
            mean_table(num_draws, seed),
            "Rank metrics, `poisson_interval`, 400 replicates:",
            rank_table(num_draws, seed),
            "Two networks, `compare`, 100 replicates:",
            difference_table(num_draws, seed),
        ]
    )


def main(_) -> None:
    tables = {
        "small": run_small,
        "accuracy": run_accuracy,
        "cumulative": run_cumulative,
    }
    function = tables.get(_ONLY.value, run)
    publish(function(_NUM_DRAWS.value, _SEED.value), _OUT.value)


if __name__ == "__main__":
    app.run(main)
