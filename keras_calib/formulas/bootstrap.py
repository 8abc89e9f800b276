"""Bootstrap intervals of rank metrics, from the cells of a histogram alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.formulas.intervals import tail_of
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.inputs.checks import generator
from keras_calib.numerics.arrays import safe_divide, to_numpy

# Shares of votes of no variance are drawn as if of so many votes.
_MOST_VOTES = 1e9


def poisson_interval(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    masses: tuple[Any, Any],
    *,
    weight_ratio: float = 1.0,
    num_draws: int = 400,
    level: float = 0.95,
    seed: int = 0,
    beside: bool = False,
    variance: Any = None,
) -> tuple[float, float]:
    """Bootstrap interval of a statistic of cells; NaN without predictions.

    Each replicate gets one more prediction in a random cell. It is wrong in
    half of the replicates and correct in the other half. The interval spans the
    percentiles of both halves.

    Derivation: docs/derivations.md, 'Intervals and guarantees', 'Votes'.

    Args:
        statistic: Function of the masses of correct and of wrong predictions,
            each `(cells,)`. It returns NaN where it is not defined.
        masses: The masses of the sample.
        weight_ratio: Sum of squared weights divided by the sum of weights,
            which turns masses into effective numbers.
        num_draws, level, seed: Replicates, and the probability to cover.
        beside: Whether the further prediction lies before or after a random
            cell instead of in it, because ties in the sample need not be
            ties in the population. Every second cell must then be empty.
        variance: Variance of the shares of votes of each cell `(cells,)`. The
            samples of a cell then have shares, not classes. None for classes.

    Reference:
        Chamandy et al., Estimating Uncertainty for Massive Data Streams,
        Google 2012, https://research.google/pubs/pub43157/; Fay and Feuer,
        Confidence Intervals for Directly Standardized Rates, Statistics in
        Medicine 1997 (the added error)
    """
    tail = tail_of(level)
    right, wrong = (to_numpy(x, "float64") for x in masses)
    # Rounding of a state may leave slightly less than 0.
    right, wrong = np.maximum(right, 0.0), np.maximum(wrong, 0.0)
    mass = right + wrong
    if not mass.any():
        return np.nan, np.nan
    rng = generator(seed)
    seen = np.flatnonzero(mass)
    cells = rng.choice(seen, (num_draws, 2), p=mass[seen] / mass[seen].sum())
    if beside:
        cells += rng.choice([-1, 1], cells.shape)
    extra = rng.exponential(size=(num_draws, 2))
    values = np.empty((num_draws, 2))
    draw = _counts_of(right, wrong, weight_ratio, variance)
    for i in range(num_draws):
        counts = draw(rng)
        for kind in range(2):
            replicate = counts.copy()
            replicate[kind, cells[i, kind]] += extra[i, kind]
            values[i, kind] = statistic(*(weight_ratio * replicate))
    if np.isnan(values).all():
        return np.nan, np.nan
    ends = np.nanquantile(values, [tail, 1.0 - tail], axis=0)
    return float(np.nanmin(ends[0])), float(np.nanmax(ends[1]))


def _counts_of(
    right: np.ndarray,
    wrong: np.ndarray,
    weight_ratio: float,
    variance: np.ndarray | None,
) -> Callable[[np.random.Generator], np.ndarray]:
    """A function that draws correct and wrong samples by cell, `(2, cells)`."""
    if variance is None:
        both = np.stack([right, wrong]) / weight_ratio
        return lambda rng: rng.poisson(both).astype("float64")
    count = (right + wrong) / weight_ratio
    share = np.clip(safe_divide(right, right + wrong), 0.0, 1.0)
    # So many votes that are independent have a mean of this variance.
    most = share * (1.0 - share)
    votes = most / np.maximum(variance, most / _MOST_VOTES + 1e-300)
    votes = np.maximum(votes, 1.0)

    def draw(rng: np.random.Generator) -> np.ndarray:
        drawn = rng.poisson(count)
        trials = np.maximum(np.round(drawn * votes), 1.0).astype("int64")
        good = drawn * (rng.binomial(trials, share) / trials)
        return np.stack([good, drawn - good])

    return draw


def rank_interval(
    value: Callable[[RankedGroups], float],
    groups: RankedGroups,
    *,
    needs_both: bool,
    weight_ratio: float = 1.0,
    level: float = 0.95,
    variance: np.ndarray | None = None,
) -> tuple[float, float]:
    """Bootstrap interval of a value of NumPy groups.

    `needs_both` says that the value compares correct with wrong predictions.
    `variance` is that of the shares of votes in each group, or None.
    """
    # Empty cells stay empty.
    filled = groups.mass > 0
    mass, wrong, slope = (
        x[filled] for x in (groups.mass, groups.wrong, groups.slope)
    )
    variance = None if variance is None else variance[filled]
    if needs_both:
        if not 0.0 < wrong.sum() < mass.sum():
            # Without both kinds any value is possible.
            return 0.0, 1.0
        # Empty cells take the further prediction, which ties with none.
        mass, wrong, slope = (
            np.insert(x, np.arange(len(x) + 1), 0.0)
            for x in (mass, wrong, slope)
        )
        if variance is not None:
            variance = np.insert(variance, np.arange(len(variance) + 1), 0.0)

    def statistic(right: np.ndarray, wrong: np.ndarray) -> float:
        if needs_both and not (right.any() and wrong.any()):
            return np.nan
        mixed = np.where((right > 0) & (wrong > 0), slope, 0.0)
        counts = groups.frequency_weights
        return value(RankedGroups.of(right + wrong, wrong, mixed, counts))

    return poisson_interval(
        statistic,
        (mass - wrong, wrong),
        weight_ratio=weight_ratio,
        level=level,
        beside=needs_both,
        variance=variance,
    )
