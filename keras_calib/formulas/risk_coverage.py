"""Risk-coverage and ROC curves of groups of samples: areas and points.

Whole data sets have one group per distinct score (NumPy, float64). Streaming
metrics have one group per cell of a histogram (tensors, float32). A value is
the mean over all orders of the samples inside groups, or, with `order`, that of
the `"best"` or the `"worst"` order.

With frequency weights AURC is the mean over the prefixes k = 1 .. N, from which
the conventions of other libraries follow in closed form. With fractional
weights it is the integral over the mass.

Derivation: docs/derivations.md, 'AURC under ties', 'AURC from a histogram'.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import digamma

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_in
from keras_calib.numerics.arrays import array_namespace, safe_divide
from keras_calib.numerics.results import Result

_FOR_ANY_WEIGHTS = ("mean", "merged", "achievable")
_FOR_COUNTS = ("trapezoid", "origin", "geifman")
# Rounding in float32 must not move a point that lies on the limit.
_FLOAT32 = 3e-7
_FLOAT64 = 1e-12


class RankedGroups(NamedTuple):
    """Groups of tied scores, highest first, arrays `(n,)`.

    Attributes:
        mass: Weight of the group.
        wrong: Weight of its wrong predictions.
        before: Weight of all groups with higher scores.
        wrong_before: Weight of the wrong predictions of those groups.
        slope: Mean score of the correct minus that of the wrong predictions
            of the group, as a share of its width. It lies in [-1/3, 1/3], as
            for a risk that is linear in the score, and is 0 for real ties.
        frequency_weights: Whether all weights are whole numbers, a bool or a
            bool tensor.
    """

    mass: Any
    wrong: Any
    before: Any
    wrong_before: Any
    slope: Any
    frequency_weights: Any = True

    @classmethod
    def of(
        cls,
        mass: np.ndarray,
        wrong: np.ndarray,
        slope: np.ndarray | float = 0.0,
        frequency_weights: Any = True,
    ) -> Self:
        """NumPy groups, highest first, with what lies before each."""
        before, wrong_before = (
            np.cumsum(np.r_[0.0, x[:-1]]) for x in (mass, wrong)
        )
        slope = np.zeros_like(mass) + slope
        return cls(mass, wrong, before, wrong_before, slope, frequency_weights)


def aurc_of_groups(groups: RankedGroups, order: str | None = None) -> Any:
    """AURC, 0 without predictions."""
    xp = array_namespace(groups.mass)
    if order:
        total = _total_in_order(groups, order)
        return safe_divide(total, xp.sum(groups.mass))
    m, q, n, a, _, frequency_weights = groups
    step = xp.where(frequency_weights, 1.0, 0.0)
    step = step if xp is np else xp.cast(step, m.dtype)
    rate = safe_divide(q, m)
    # The plain form cancels for m << n; this form adds only positive terms.
    n1 = n + 0.5 * step
    x = safe_divide(m, n1)
    shifted = (a + 0.5 * step * rate) * xp.log1p(x) + q * _phi(x)
    if xp is not np:
        # The rest of the harmonic sum after the shift by one half.
        rest = _digamma_rest(n1 + m) - _digamma_rest(xp.maximum(n1, 0.5))
        rest = rest * (a - n * rate)
        shifted = shifted + xp.where(
            frequency_weights, rest, xp.zeros_like(rest)
        )
    first = n1 == 0
    shifted = xp.where(first, q, shifted)
    plain = q + (a - n * rate) * _harmonic_difference(n, m)
    use_plain = (
        xp.logical_and(frequency_weights, n < 64)
        if xp is not np
        else frequency_weights
    )
    terms = xp.where(use_plain, plain, shifted)
    # With |slope| <= 1/3 the value stays in the range of all orders.
    correction = 6.0 * rate * (1.0 - rate) * groups.slope * m
    correction = correction * _slope_factor(safe_divide(n1, m))
    return safe_divide(xp.sum(terms - correction), xp.sum(m))


def _optimal_aurc(groups: RankedGroups) -> Any:
    """AURC of the ranking with all wrong predictions last."""
    return aurc_of_groups(_as_one(groups), "best")


def eaurc_of_groups(groups: RankedGroups, order: str | None = None) -> Any:
    """AURC minus its optimum, >= 0."""
    excess = aurc_of_groups(groups, order) - _optimal_aurc(groups)
    return array_namespace(excess).maximum(excess, 0.0)


def normalized_aurc_of_groups(
    groups: RankedGroups, order: str | None = None
) -> Any:
    """(AURC - optimum) / (error rate - optimum), 0 if all correct or wrong."""
    # Error rate minus the optimal AURC, as a product.
    xp = array_namespace(groups.mass)
    one = _as_one(groups)
    good = xp.maximum(one.mass - one.wrong, 0.0)
    scale = good * _difference(good, one.wrong, groups.frequency_weights)
    scale = xp.sum(safe_divide(scale, one.mass))
    return safe_divide(eaurc_of_groups(groups, order), scale)


def augrc_of_groups(groups: RankedGroups, order: str | None = None) -> Any:
    """AUGRC: the area under wrong accepted mass over coverage."""
    xp = array_namespace(groups.mass)
    m, q, a = groups.mass, groups.wrong, groups.wrong_before
    # Shares are used because squares of masses overflow float32.
    total = xp.sum(m)
    m, q, a = (safe_divide(v, total) for v in (m, q, a))
    # All terms are positive, also where the slope is 1/2.
    good = xp.maximum(m - q, 0.0)
    return xp.sum(
        m * a + 0.5 * q * q + good * q * (0.5 - _slope(groups, order))
    )


def failure_auroc_of_groups(
    groups: RankedGroups, order: str | None = None
) -> Any:
    """P(a correct prediction scores above a wrong one), ties half.

    It is 0.5 if all predictions are correct, all are wrong, or there are none.
    """
    xp = array_namespace(groups.mass)
    q, a = groups.wrong, groups.wrong_before
    good = xp.maximum(groups.mass - q, 0.0)
    # Pairs in the wrong order are summed, not subtracted from long sums.
    num_wrong, num_good = xp.sum(q), xp.sum(good)
    share = safe_divide(good, num_good)
    above = safe_divide(a + q * (0.5 - _slope(groups, order)), num_wrong)
    auroc = 1.0 - xp.sum(share * above)
    both = xp.logical_and(num_wrong > 0, num_good > 0)
    return xp.where(both, auroc, xp.full_like(auroc, 0.5))


def _slope(groups: RankedGroups, order: str | None) -> Any:
    """P(correct above wrong) in a group, minus 1/2."""
    if order is None:
        return groups.slope
    return 0.5 if order == "best" else -0.5


def _as_one(groups: RankedGroups) -> RankedGroups:
    """Merge all groups into one."""
    xp = array_namespace(groups.mass)
    total, wrong = xp.sum(groups.mass), xp.sum(groups.wrong)
    zero = xp.zeros_like(xp.reshape(total, (1,)))
    return RankedGroups(
        zero + total, zero + wrong, zero, zero, zero, groups.frequency_weights
    )


def _phi(x: Any) -> Any:
    """1 - log1p(x) / x, without cancellation at small x."""
    xp = array_namespace(x)
    # There the series is exact to the precision of the arrays.
    small = x < (1e-3 if xp is np else 0.06)
    near = xp.where(small, x, xp.zeros_like(x))
    far = xp.where(small, xp.ones_like(x), x)
    series = near * (
        1 / 2 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near / 6)))
    )
    return xp.where(small, series, 1.0 - xp.log1p(far) / far)


def _slope_factor(x: Any) -> Any:
    """(1 + 2x) / 2 - x (1 + x) log(1 + 1/x), x >= 0."""
    xp = array_namespace(x)
    far = x > 20.0
    near = xp.where(far, xp.ones_like(x), xp.maximum(x, 1e-6))
    exact = 0.5 * (1.0 + 2.0 * near)
    exact = exact - near * (1.0 + near) * xp.log1p(1.0 / near)
    h = xp.where(far, x, xp.full_like(x, 20.0)) + 0.5
    return xp.where(far, (1 / 6 + 1 / (120 * xp.square(h))) / h, exact)


def _harmonic_difference(n: Any, m: Any) -> Any:
    """1/(n+1) + ... + 1/(n+m), for real n, m >= 0."""
    if array_namespace(n) is np:
        return digamma(n + m + 1.0) - digamma(n + 1.0)
    xp = array_namespace(n)
    # Three exact terms, then the expansion of digamma at y = n + 3.5.
    y = n + 3.5
    total = xp.log1p(m / y) + _digamma_rest(y + m) - _digamma_rest(y)
    for i in range(1, 4):
        total = total + m / ((n + i) * (n + m + i))
    return total


def _digamma_rest(y: Any) -> Any:
    """digamma(y + 1/2) - log(y), to 1e-8 for y >= 3.5."""
    inverse = 1.0 / (y * y)
    return inverse * (
        1 / 24
        - inverse * (7 / 960 - inverse * (31 / 8064 - inverse * (127 / 30720)))
    )


def _difference(n: Any, m: Any, frequency_weights: Any) -> Any:
    """Integral of 1/c over m after n: a harmonic sum, or a logarithm.

    It is 0 where the logarithm is infinite, because its factor is 0 there.
    """
    xp = array_namespace(n)
    return xp.where(
        frequency_weights,
        _harmonic_difference(n, m),
        xp.log1p(safe_divide(m, n)),
    )


def _total_in_order(groups: RankedGroups, order: str) -> Any:
    """N times AURC with errors last, or first, in each group."""
    xp = array_namespace(groups.mass)
    m, q, n, a, _, counts = groups
    good = xp.maximum(m - q, 0.0)
    if order == "best":
        total = a * _difference(n, good, counts) + q
        return xp.sum(total + (a - n - good) * _difference(n + good, q, counts))
    total = q + (a - n) * _difference(n, q, counts)
    return xp.sum(total + (a + q) * _difference(n + q, good, counts))


class RiskCoveragePoints(Result):
    """Risk-coverage curve with one point per threshold, arrays `(n,)`.

    Attributes:
        coverage: Share of the weight with a score of at least `threshold`.
        risk: Share of wrong predictions among those accepted.
        threshold: Distinct scores, descending.
    """

    coverage: np.ndarray
    risk: np.ndarray
    threshold: np.ndarray


def curve_of_groups(
    groups: RankedGroups, threshold: np.ndarray
) -> RiskCoveragePoints:
    """Curve through the ends of the NumPy groups that are not empty."""
    filled = groups.mass > 0
    mass, wrong, before, wrong_before = (x[filled] for x in groups[:4])
    through = before + mass
    return RiskCoveragePoints(
        through / through[-1:],
        (wrong_before + wrong) / through,
        threshold[filled],
    )


def aurc_by_convention(groups: RankedGroups, area: str = "mean") -> float:
    """AURC of NumPy groups by one of the conventions of `aurc`."""
    check_in("area", area, (*_FOR_ANY_WEIGHTS, *_FOR_COUNTS))
    _check_weights(groups, area, _FOR_ANY_WEIGHTS)
    groups = _filled(groups)
    if area == "merged":
        return _merged(groups)
    if area == "achievable":
        return float(aurc_of_groups(_convex(groups)))
    mean = float(aurc_of_groups(groups))
    if area == "mean":
        return mean
    total, wrong = np.sum(groups.mass), np.sum(groups.wrong)
    if area == "origin":
        return float(mean - wrong / total / (2.0 * total))
    if area == "trapezoid":
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


def optimum_by_convention(groups: RankedGroups, area: str = "mean") -> float:
    """`aurc_by_convention` with all wrong predictions last, without ties."""
    wrong = float(np.sum(groups.wrong))
    good = float(max(np.sum(groups.mass) - wrong, 0.0))
    best = RankedGroups.of(
        np.array([good, wrong]),
        np.array([0.0, wrong]),
        frequency_weights=groups.frequency_weights,
    )
    if area != "merged":
        return aurc_by_convention(best, area)
    _check_weights(groups, "merged with a finite optimum", ())
    # Every sample is a group, and the curve is flat to coverage 0.
    total = good + wrong
    first = 0.0 if good else 1.0
    mean = aurc_by_convention(best)
    return mean + (first - wrong / total) / (2.0 * total)


def analytic_optimum(groups: RankedGroups) -> float:
    """r + (1 - r) log(1 - r), the optimal AURC of many samples at risk r."""
    return float(_optimal_aurc(groups._replace(frequency_weights=False)))


def augrc_by_convention(groups: RankedGroups, area: str = "origin") -> float:
    """AUGRC of NumPy groups by one of the conventions of `augrc`."""
    check_in("area", area, ("origin", "trapezoid"))
    _check_weights(groups, area, ("origin",))
    groups = _filled(groups)
    value = float(augrc_of_groups(groups))
    if area == "origin":
        return value
    total = np.sum(groups.mass)
    first = groups.wrong[0] / groups.mass[0]
    if total == 1:
        return float(first)
    return float((total**2 * value - 0.5 * first) / (total * (total - 1.0)))


def _check_weights(groups: RankedGroups, area: str, allowed: tuple) -> None:
    if not groups.frequency_weights and area not in allowed:
        raise value_error(
            "`sample_weight` must be whole numbers, counts of repeats, "
            "for this area",
            area=area,
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
    return RankedGroups.of(mass, wrong, frequency_weights=False)


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
