"""Single points of risk-coverage and ROC curves, from groups of samples.

Thresholds lie between groups of tied scores, not inside them. With `order`,
`"best"` or `"worst"`, values are those of the best or worst order inside
groups, for the cells of a histogram, whose samples are not really tied. The
functions take NumPy arrays or tensors.
"""

from typing import Any

import numpy as np

from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.numerics.arrays import array_namespace, safe_divide

__all__ = [
    "coverage_at_risk_of_groups",
    "failure_fpr95_of_groups",
    "risk_at_coverage_of_groups",
    "within_risk",
]

# Rounding in float32 must not move a point that lies on the limit.
_FLOAT32 = 3e-7
_FLOAT64 = 1e-12


def risk_at_coverage_of_groups(
    groups: RankedGroups, coverage: float, order: str | None = None
) -> Any:
    """Risk at a coverage in (0, 1]; a cut group is shared in proportion.

    With frequency weights the accepted mass is rounded up to a whole number.
    """
    xp = array_namespace(groups.mass)
    m, q, slope = groups.mass, groups.wrong, groups.slope
    accepted, taken = _taken(groups, coverage)
    good = xp.maximum(m - q, 0.0)
    if order == "best":
        inside = xp.maximum(taken - good, 0.0)
        inside = xp.where(taken >= m, q, inside)
    elif order == "worst":
        inside = xp.minimum(taken, q)
    else:
        share = safe_divide(taken, m)
        # If the risk is linear in the score, higher scores have a lower risk.
        lower = 6.0 * slope * (1.0 - safe_divide(q, m)) * (1.0 - share)
        inside = q * share * (1.0 - lower)
        inside = xp.maximum(inside, taken - good)
        inside = xp.maximum(xp.minimum(inside, xp.minimum(q, taken)), 0.0)
    return safe_divide(xp.sum(inside), accepted)


def coverage_at_risk_of_groups(
    groups: RankedGroups, risk: float, order: str | None = None
) -> Any:
    """Largest coverage of whole groups whose risk is at most `risk`.

    It is 0 if no threshold is good enough. The best order accepts the correct
    predictions of a group first, and then wrong ones while the risk allows.
    With frequency weights it accepts whole predictions.
    """
    xp = array_namespace(groups.mass)
    m, q, n, a, _, frequency_weights = groups
    through = n + m
    kept = within_risk(a + q, through, risk)
    covered = xp.max(xp.where(kept, through, xp.zeros_like(through)))
    if order == "best":
        limit = _limit(risk, xp)
        good = n + xp.maximum(m - q, 0.0)
        room = limit * good - a
        more = q if limit >= 1.0 else xp.minimum(room / (1.0 - limit), q)
        # Rounding may leave a number just below a whole one.
        more = xp.where(
            frequency_weights, xp.floor(more * (1.0 + _tolerance(xp))), more
        )
        more = xp.minimum(xp.maximum(more, 0.0), q)
        reached = xp.where(room >= 0.0, good + more, xp.zeros_like(good))
        covered = xp.maximum(covered, xp.max(reached))
    return safe_divide(covered, xp.sum(m))


def within_risk(wrong: Any, accepted: Any, risk: float) -> Any:
    """Whether wrong is at most the share `risk` of accepted, up to rounding."""
    return wrong <= _limit(risk, array_namespace(accepted)) * accepted


def failure_fpr95_of_groups(
    groups: RankedGroups, tpr: float = 0.95, order: str | None = None
) -> Any:
    """Share of the wrong predictions accepted with `tpr` of the correct ones.

    The threshold is the highest that accepts at least this share of the correct
    predictions. Real ties are as bad as the worst order. The value is 0 without
    wrong or without correct predictions.
    """
    xp = array_namespace(groups.mass)
    _, q, n, a, *_ = groups
    wrong = a + q
    accepted = n + groups.mass - wrong
    num_good, num_wrong = xp.sum(groups.mass) - xp.sum(q), xp.sum(q)
    enough = accepted >= tpr * (1.0 - _tolerance(xp)) * num_good
    # The first group that reaches the share has the fewest errors.
    all_wrong = xp.zeros_like(a) + num_wrong
    least = xp.where(enough, a if order == "best" else wrong, all_wrong)
    least = xp.where(num_good > 0, xp.min(least), xp.zeros_like(num_wrong))
    return safe_divide(least, num_wrong)


def _taken(groups: RankedGroups, coverage: float) -> Any:
    """Accepted mass, and the part of it from each group."""
    xp = array_namespace(groups.mass)
    total = xp.sum(groups.mass)
    accepted = coverage * total
    # 0.8 * 1000 must not become 801.
    nearest = xp.round(accepted)
    close = xp.abs(nearest - accepted) <= _tolerance(xp) * accepted
    counted = xp.where(close, nearest, xp.ceil(accepted))
    counted = xp.maximum(counted, 1.0)
    accepted = xp.where(groups.frequency_weights, counted, accepted)
    accepted = xp.where(total > 0, accepted, xp.zeros_like(accepted))
    return accepted, xp.minimum(
        xp.maximum(accepted - groups.before, 0.0), groups.mass
    )


def _limit(risk: float, xp: Any) -> float:
    """The allowed risk with a tolerance for rounding, except at 0 and 1."""
    if xp is np:
        # 1 - 0.9 has such an error.
        return min(risk + _FLOAT64, 1.0) if risk > 0 else risk
    return min(risk * (1.0 + _FLOAT32), 1.0)


def _tolerance(xp: Any) -> float:
    return _FLOAT64 if xp is np else _FLOAT32
