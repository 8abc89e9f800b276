"""AURC and AUGRC as other libraries integrate them.

With frequency weights every form follows in closed form from the mean over the
prefixes k = 1 .. N. This keeps them exact under ties.
"""

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import digamma

from keras_calib.backend.errors import value_error
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    augrc_of_groups,
    aurc_of_groups,
    optimal_aurc,
)
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import safe_divide

__all__ = [
    "analytic_optimum",
    "augrc_by_convention",
    "aurc_by_convention",
    "optimum_by_convention",
]

_FOR_ANY_WEIGHTS = ("mean", "merged", "achievable")
_FOR_COUNTS = ("trapezoid", "origin", "geifman")


def aurc_by_convention(groups: RankedGroups, convention: str = "mean") -> float:
    """AURC of NumPy groups by one of the conventions of `aurc`.

    Derivation: docs/derivations.md, 'AURC under ties'.
    """
    check_in("convention", convention, (*_FOR_ANY_WEIGHTS, *_FOR_COUNTS))
    _check_weights(groups, convention, _FOR_ANY_WEIGHTS)
    groups = _filled(groups)
    if convention == "merged":
        return _merged(groups)
    if convention == "achievable":
        return float(aurc_of_groups(_convex(groups)))
    mean = float(aurc_of_groups(groups))
    if convention == "mean":
        return mean
    total, wrong = np.sum(groups.mass), np.sum(groups.wrong)
    if convention == "origin":
        return float(mean - wrong / total / (2.0 * total))
    if convention == "trapezoid":
        if total == 1:
            return mean
        ends = groups.wrong[0] / groups.mass[0] + wrong / total
        return float((total * mean - 0.5 * ends) / (total - 1.0))
    # Shifted by one, the sum over j = k + 1 is of (a + (j - 1 - n) rate) / j.
    m, q, n, a, *_ = groups
    rate = q / m
    harmonic = digamma(n + m + 2.0) - digamma(n + 2.0)
    shifted = np.sum(q + (a - (n + 1.0) * rate) * harmonic)
    last = wrong / total - wrong / (total + 1.0)
    return float((shifted + last) / total)


def optimum_by_convention(
    groups: RankedGroups, convention: str = "mean"
) -> float:
    """`aurc_by_convention` with all wrong predictions last, without ties."""
    wrong = float(np.sum(groups.wrong))
    good = float(max(np.sum(groups.mass) - wrong, 0.0))
    best = RankedGroups(
        mass=np.array([good, wrong]),
        wrong=np.array([0.0, wrong]),
        before=np.array([0.0, good]),
        wrong_before=np.zeros(2),
        slope=np.zeros(2),
        frequency_weights=groups.frequency_weights,
    )
    if convention != "merged":
        return aurc_by_convention(best, convention)
    _check_weights(groups, "merged with a finite optimum", ())
    # Every sample is a group, and the curve is flat to coverage 0.
    total = good + wrong
    first = 0.0 if good else 1.0
    mean = aurc_by_convention(best)
    return mean + (first - wrong / total) / (2.0 * total)


def analytic_optimum(groups: RankedGroups) -> float:
    """r + (1 - r) log(1 - r), the optimal AURC of many samples at risk r."""
    return float(optimal_aurc(groups._replace(frequency_weights=False)))


def augrc_by_convention(
    groups: RankedGroups, convention: str = "origin"
) -> float:
    """AUGRC of NumPy groups by one of the conventions of `augrc`."""
    check_in("convention", convention, ("origin", "trapezoid"))
    _check_weights(groups, convention, ("origin",))
    groups = _filled(groups)
    area = float(augrc_of_groups(groups))
    if convention == "origin":
        return area
    total = np.sum(groups.mass)
    first = groups.wrong[0] / groups.mass[0]
    if total == 1:
        return float(first)
    return float((total**2 * area - 0.5 * first) / (total * (total - 1.0)))


def _check_weights(
    groups: RankedGroups, convention: str, allowed: tuple
) -> None:
    if not groups.frequency_weights and convention not in allowed:
        raise value_error(
            "`sample_weight` must be whole numbers, counts of repeats, "
            "for this convention",
            convention=convention,
        )


def _filled(groups: RankedGroups) -> RankedGroups:
    """Drop groups without mass."""
    filled = groups.mass > 0
    *arrays, frequency_weights = groups
    return RankedGroups._make([*(v[filled] for v in arrays), frequency_weights])


def _merged(groups: RankedGroups) -> float:
    through = groups.before + groups.mass
    risk = (groups.wrong_before + groups.wrong) / through
    before = np.r_[risk[:1], risk[:-1]]
    area = np.sum(groups.mass * 0.5 * (before + risk))
    return float(area / through[-1])


def _convex(groups: RankedGroups) -> RankedGroups:
    """Merge groups until higher scores never have a higher risk."""
    m, q = groups.mass, groups.wrong
    starts = isotonic_regression(safe_divide(q, m), weights=m).blocks[:-1]
    mass, wrong = np.add.reduceat(m, starts), np.add.reduceat(q, starts)
    before = groups.before[starts]
    wrong_before = groups.wrong_before[starts]
    slope = np.zeros_like(mass)
    return RankedGroups(mass, wrong, before, wrong_before, slope, False)
