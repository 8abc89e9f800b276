"""Units: what is independent where rows are not, as images are of their pixels.

Rows go to groups of units, of which there are at most 256. The spread of the
sums of the groups tells the error of ratios of these sums, such as means. With
up to 256 units each is a group of its own.

Derivation: docs/derivations.md, 'Units'.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import norm, t

from keras_calib.formulas.bins import BinSums
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.hashing import mixed

# A power of two, as a hash chooses among them.
NUM_GROUPS = 256


def group_of(unit: np.ndarray) -> np.ndarray:
    """The group `(n,)` of each number of a unit, which start at 0."""
    unit = unit.astype("int32")
    return np.where(unit < NUM_GROUPS, unit, mixed(unit) & (NUM_GROUPS - 1))


def sums_by_unit(
    group: np.ndarray, index: np.ndarray, num: int, *values: np.ndarray
) -> np.ndarray:
    """Sums `(values, groups, num)` of rows `(n,)` by group and by index."""
    key = group.astype("int64") * num + index
    size = NUM_GROUPS * num
    found = [np.bincount(key, x, minlength=size) for x in values]
    return np.reshape(found, (len(values), NUM_GROUPS, num))


def spread_of(total: np.ndarray, weight: np.ndarray) -> tuple[Any, Any]:
    """Variance of ratios of sums over groups, and their effective number.

    `total` and `weight` are `(groups, ...)`; both results lack that axis. With
    m = sum_g total_g / sum_g weight_g and the effective number n of groups, the
    variance is n / (n - 1) sum_g (total_g - m weight_g)^2 / (sum_g weight_g)^2.

    Reference:
        Cochran, Sampling Techniques, 1977, chapter 6 (ratio estimates)
    """
    size, squares = weight.sum(axis=0), (weight**2).sum(axis=0)
    rest = total - weight * safe_divide(total.sum(axis=0), size)
    num = safe_divide(size**2, squares)
    variance = safe_divide((rest**2).sum(axis=0), size**2)
    return variance * safe_divide(num, num - 1.0), num


def effective_count(
    alone: np.ndarray, total: np.ndarray, weight: np.ndarray, count: np.ndarray
) -> np.ndarray:
    """How many independent rows tell as much of a ratio as the units do.

    `alone` is the variance of one row, and `count` the effective number of
    rows. So many rows have the variance of the ratio between units, times
    Student's factor where units are few. The number is at least 1, at most
    `count`, and the number of units where these do not differ.

    Reference:
        Korn and Graubard, Confidence Intervals for Proportions with Small
        Expected Number of Positive Counts Estimated from Survey Data, Survey
        Methodology 24, 1998
    """
    variance, num = spread_of(total, weight)
    degrees = np.maximum(num - 1.0, 0.1)
    few = (t.isf(0.025, degrees) / norm.isf(0.025)) ** 2
    own = safe_divide(alone, variance * few)
    own = np.where(variance > 0.0, own, num)
    return np.clip(own, np.minimum(1.0, count), count)


def clustered(
    sums: BinSums,
    by_unit: np.ndarray,
    *,
    together: bool = False,
    of_gap: bool = True,
) -> BinSums:
    """Bin sums whose effective numbers are those of their units.

    `by_unit` has weight, confidence and correctness by group of units,
    `(3, groups, bins)`. `together` says that it is for a sum over the bins,
    whose gaps one unit moves alike. The variance is that of the gap between
    confidence and accuracy, or else that of the accuracy.
    """
    weight, confidence, correct = by_unit
    residual = confidence - correct if of_gap else correct
    count = safe_divide(sums.weight**2, sums.squared_weight)
    # Drawn to the confidence, as a bin of right predictions looks sure.
    share = count * sums.accuracy + 2.0 * sums.mean_confidence
    share = safe_divide(share, count + 2.0)
    alone = share * (1.0 - share)
    if sums.squared_residual is not None:
        alone = np.maximum(sums.residual_variance, 1e-12)
    own = effective_count(alone, residual, weight, count)
    if together:
        each, num = spread_of(residual, weight)
        total, _ = spread_of(residual.sum(axis=-1), weight.sum(axis=-1))
        part = safe_divide(sums.weight, sums.weight.sum())
        gap = sums.confidence_gap
        among = np.sum(part * gap**2) - np.sum(part * gap) ** 2
        apart = np.sum(part**2 * each) + among / max(1.0, num.max())
        own = own / max(float(safe_divide(total, apart)), 1.0)
        own = np.clip(own, np.minimum(1.0, count), count)
    return replace(sums, squared_weight=safe_divide(sums.weight**2, own))
