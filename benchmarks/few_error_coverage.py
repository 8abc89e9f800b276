"""Coverage of the intervals of networks that make few errors.

The tables of `interval_coverage.py --only=small` and `--only=accuracy`.
"""

import numpy as np
from reporting import markdown_table
from scipy.special import expit
from scipy.stats import binom

from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import bin_index, bin_sums
from keras_calib.formulas.bootstrap import rank_interval
from keras_calib.formulas.intervals import (
    Moments,
    clopper_pearson,
    mean_interval,
)
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.metrics.registry import QUANTITIES

NUM_BINS = 15
# Shape and scale of the log-odds of the confidence, what is added to them,
# and by what they must be divided to be right.
FEW_ERRORS = {
    "many errors": (2.0, 1.5, 0.3, 1.5),
    "few errors": (2.0, 4.0, 3.0, 1.2),
    "hardly any": (3.0, 3.0, 4.0, 1.0),
}


def moments(values, weight=None):
    """The sums of an interval, of values `(n,)` with weights `(n,)`."""
    x = np.asarray(values, "float64")
    w = np.ones_like(x) if weight is None else np.asarray(weight, "float64")
    terms = (w, w * x, w * w, w * w * x, (w * x) ** 2, w * x**2, w * x**3)
    return Moments(*(term.sum() for term in terms))


def ranked(right: np.ndarray, wrong: np.ndarray) -> RankedGroups:
    mass = right + wrong
    before, wrong_before = np.cumsum(mass) - mass, np.cumsum(wrong) - wrong
    return RankedGroups(mass, wrong, before, wrong_before, np.zeros_like(mass))


def sure(rng: np.random.Generator, name: str, n: int) -> tuple:
    """Confidence, and whether right, of a network of `FEW_ERRORS`."""
    shape, scale, more, temperature = FEW_ERRORS[name]
    log_odds = rng.gamma(shape, scale, n) + more
    right = rng.random(n) < expit(log_odds / temperature)
    return np.stack([expit(log_odds), expit(-log_odds)]), right


def read(p: np.ndarray, right: np.ndarray) -> dict:
    """Estimate and interval of every metric."""
    c, doubt = p
    n = float(len(c))
    losses = -np.log(np.where(right, c, doubt))
    squares = 2.0 * np.where(right, doubt, c) ** 2
    sums = bin_sums(c, right, bin_index(c, NUM_BINS), NUM_BINS)
    values = {
        "accuracy": (right, "accuracy"),
        "mean confidence": (c, "mean_confidence"),
        "overconfidence": (c[~right], "overconfidence"),
        "underconfidence": (doubt[right], "underconfidence"),
        "NLL": (losses, "nll"),
        "Brier score": (squares, "brier_score"),
    }
    found = {}
    for name, (x, kind) in values.items():
        sums_of_x = moments(x)
        if kind in ("nll", "brier_score"):
            ends = QUANTITIES[kind].interval_of(sums_of_x, sums, 0.95)
        else:
            ends = QUANTITIES[kind].interval_of(sums_of_x, 0.95)
        found[name] = (*ends, np.mean(x) if len(x) else 0.0)
    share = sums.weight / n
    gap = np.abs(sums.confidence_gap)
    found["ECE"] = (*error_interval(sums), float(np.sum(share * gap)))
    root = float(np.sqrt(np.sum(share * gap**2)))
    found["RMSCE"] = (*error_interval(sums, norm="l2"), root)
    by_mass = np.empty(len(c), int)
    by_mass[np.argsort(c)] = np.arange(len(c)) * NUM_BINS // len(c)
    sums = bin_sums(c, right, by_mass, NUM_BINS)
    mean_gap = float(np.sum(sums.weight / n * np.abs(sums.confidence_gap)))
    found["AECE"] = (*error_interval(sums), mean_gap)
    return found


def ranks(p: np.ndarray, right: np.ndarray) -> dict:
    """The same of the rank metrics, whose bootstrap is slow."""
    mass, wrong = np.ones(len(right)), (~right).astype("float64")
    # Cells of alike log-odds, surest first, as in the fine histogram.
    cell = np.floor(40.0 * np.log(p[1] / p[0])).astype(int)
    _, cell = np.unique(cell, return_inverse=True)
    mass, wrong = np.bincount(cell, mass), np.bincount(cell, wrong)
    groups = ranked(mass - wrong, wrong)
    found = {}
    for name in ("aurc", "augrc", "failure_auroc"):
        quantity = QUANTITIES[name]
        ends = rank_interval(
            lambda of, formula=quantity.of_groups: float(formula(of)),
            groups,
            needs_both=quantity.needs_both,
        )
        found[name] = (*ends, float(quantity.of_groups(groups)))
    return found


def small_table(num_draws: int, seed: int) -> str:
    rows = []
    for name in FEW_ERRORS:
        rng = np.random.default_rng([seed, 3])
        many = sure(rng, name, 3_000_000)
        truth = {k: v[-1] for k, v in {**read(*many), **truths(*many)}.items()}
        for n in (20, 60, 300, 1_000, 10_000, 100_000):
            hits = {k: [] for k in truth}
            for i in range(num_draws if n < 100_000 else num_draws // 4):
                data = sure(rng, name, n)
                found = read(*data)
                if i < num_draws // 4:
                    found |= ranks(*data)
                for key, (low, high, _) in found.items():
                    inside = low - 1e-12 <= truth[key] <= high + 1e-12
                    hits[key].append((inside, high - low))
            errors = f"{n * (1 - truth['accuracy']):.1f}"
            for key, values in hits.items():
                covered, width = np.mean(values, axis=0)
                row = [name, f"{n:,}", errors, key, len(values)]
                row += [f"{truth[key]:.5f}", f"{covered:.3f}", f"{width:.5f}"]
                rows.append(row)
    header = ["network", "N", "errors", "metric", "draws", "truth"]
    return markdown_table([*header, "coverage", "mean width"], rows)


def truths(p: np.ndarray, right: np.ndarray) -> dict:
    """Rank metrics of the population, without intervals."""
    order = np.argsort(p[1])
    right = right[order].astype("float64")
    groups = ranked(right, 1.0 - right)
    return {
        name: (QUANTITIES[name].of_groups(groups),)
        for name in ("aurc", "augrc", "failure_auroc")
    }


def accuracy_table() -> str:
    """Exact coverage of the accuracy, from the binomial distribution."""
    rows = []
    for n in (20, 60, 300, 1_000, 10_000):
        for accuracy in (0.9, 0.99, 0.998):
            right = np.arange(n + 1.0)
            low, high = clopper_pearson(right, n)
            inside = (low <= accuracy) & (accuracy <= high)
            found = [np.sum(binom.pmf(right, n, accuracy) * inside)]
            plain = []
            # Student's interval with Hall's transformation, for comparison.
            for k in np.flatnonzero(binom.pmf(right, n, accuracy) > 1e-9):
                x = np.r_[np.ones(k), np.zeros(n - k)]
                low, high = mean_interval(moments(x))
                share = binom.pmf(k, n, accuracy)
                plain.append(share * (low <= accuracy <= high))
            found.append(np.sum(plain))
            rows.append([f"{n:,}", accuracy, *(f"{v:.3f}" for v in found)])
    header = ["N", "accuracy", "Clopper and Pearson", "mean of 0 and 1"]
    return markdown_table(header, rows)
