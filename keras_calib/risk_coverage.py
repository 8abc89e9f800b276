"""Risk-coverage curves and what is read off them, exact and tie-aware.

Every formula works on `RankedGroups`: groups of equal score, surest first.
Whole data sets give one group per distinct score (NumPy, float64); the
streaming metrics give the cells of a histogram (tensors, float32). Inside a
group every order of the samples is as good as any other, so a value is its
mean over all orders, and best and worst order bound what ranking inside the
groups could change.

With whole-number weights a weight is a count of repeats and AURC is the mean
over the prefixes k = 1 .. N. Otherwise a weight is mass and AURC is the
integral over coverage, the limit of cutting every sample finely.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
from scipy.special import digamma

from keras_calib.bins import TopLabel
from keras_calib.bins import top_label
from keras_calib.bins import whole_weights
from keras_calib.checks import check_above
from keras_calib.checks import check_at_least
from keras_calib.checks import check_at_most
from keras_calib.checks import check_in
from keras_calib.numerics import namespace
from keras_calib.numerics import safe_divide

__all__ = [
    "RankedGroups",
    "RiskCoverageCurve",
    "augrc",
    "augrc_of_groups",
    "aurc",
    "aurc_bounds_of_groups",
    "aurc_of_groups",
    "coverage_at_risk",
    "coverage_at_risk_of_groups",
    "eaurc",
    "optimal_aurc",
    "rank",
    "risk_at_coverage",
    "risk_coverage_curve",
]


class RankedGroups(NamedTuple):
    """Groups of tied scores, surest first; shapes `(n,)`.

    Attributes:
        mass: Weight of the group.
        wrong: Weight of its wrong predictions.
        before: Weight of all surer groups.
        wrong_before: Weight of their wrong predictions.
        slope: By how much the correct ones tend to score higher than the
            wrong ones inside the group, as a share of its width: -1/3 to
            1/3, what a risk that is linear in the score allows; 0 for real
            ties.
    """

    mass: Any
    wrong: Any
    before: Any
    wrong_before: Any
    slope: Any


class RiskCoverageCurve(NamedTuple):
    """Points of the curve, one for each threshold that can be set, `(n,)`.

    Attributes:
        coverage: Share of the weight that scores at least `threshold`.
        risk: Share of wrong predictions among it.
        threshold: Distinct scores, descending.
    """

    coverage: np.ndarray
    risk: np.ndarray
    threshold: np.ndarray


def rank(top: TopLabel, ties: str = "average") -> RankedGroups:
    """Groups of a whole data set, one per distinct score (or per sample)."""
    order = np.argsort(-top.score, kind="stable")
    mass = np.ones(len(order)) if top.weight is None else top.weight[order]
    wrong = mass * (1.0 - top.correct[order])
    if ties == "average":
        score = top.score[order]
        starts = np.flatnonzero(np.r_[True, score[1:] != score[:-1]])
        mass = np.add.reduceat(mass, starts)
        wrong = np.add.reduceat(wrong, starts)
    before = np.cumsum(np.r_[0.0, mass[:-1]])
    wrong_before = np.cumsum(np.r_[0.0, wrong[:-1]])
    return RankedGroups(mass, wrong, before, wrong_before, np.zeros_like(mass))


def aurc_of_groups(groups: RankedGroups, whole: Any) -> Any:
    """AURC, the mean over all orders inside groups (either).

    Args:
        groups: Ranked groups.
        whole: Whether weights are counts: bool, or a bool tensor.

    Returns:
        A scalar; 0 when empty.
    """
    xp = namespace(groups.mass)
    m, q, n, a, _ = groups
    step = xp.where(whole, 1.0, 0.0)
    step = step if xp is np else xp.cast(step, m.dtype)
    rate = safe_divide(q, m)
    # The plain form cancels for m << n; this one adds positive terms only.
    n1 = n + 0.5 * step
    x = safe_divide(m, n1)
    shifted = (a + 0.5 * step * rate) * xp.log1p(x) + q * _phi(x)
    first = n1 == 0
    shifted = xp.where(first, q, shifted)
    plain = q + (a - n * rate) * _harmonic_difference(n, m)
    use_plain = xp.logical_and(whole, n < 64) if xp is not np else whole
    terms = xp.where(use_plain, plain, shifted)
    # With |slope| <= 1/3 this never leaves the range of orders of a group.
    correction = 6.0 * rate * (1.0 - rate) * groups.slope * m
    correction = correction * _slope_factor(safe_divide(n1, m))
    return safe_divide(xp.sum(terms - correction), xp.sum(m))


def aurc_bounds_of_groups(groups: RankedGroups, whole: Any) -> tuple[Any, Any]:
    """AURC if each group is ordered best, and worst (either)."""
    total = namespace(groups.mass).sum(groups.mass)
    best, worst = _extreme_orders(groups, whole)
    return safe_divide(best, total), safe_divide(worst, total)


def optimal_aurc(groups: RankedGroups, whole: Any) -> Any:
    """AURC if every wrong prediction ranked last (either)."""
    xp = namespace(groups.mass)
    total, wrong = xp.sum(groups.mass), xp.sum(groups.wrong)
    # All mass in one group, best order.
    one = RankedGroups(
        *(xp.reshape(v, (1,)) for v in (total, wrong)),
        *(xp.zeros_like(xp.reshape(total, (1,))) for _ in range(3)),
    )
    return aurc_bounds_of_groups(one, whole)[0]


def augrc_of_groups(groups: RankedGroups) -> Any:
    """AUGRC: the area under wrong accepted mass over coverage (either)."""
    xp = namespace(groups.mass)
    m, q, _, a, slope = groups
    area = xp.sum(m * a + 0.5 * m * q - q * (m - q) * slope)
    return safe_divide(area, xp.square(xp.sum(m)))


def coverage_at_risk_of_groups(groups: RankedGroups, risk: float) -> Any:
    """The largest coverage of a whole group whose risk is at most `risk`."""
    xp = namespace(groups.mass)
    through = groups.before + groups.mass
    kept = groups.wrong_before + groups.wrong <= risk * through
    covered = xp.max(xp.where(kept, through, xp.zeros_like(through)))
    return safe_divide(covered, xp.sum(groups.mass))


def aurc(
    labels: Any,
    probs: Any,
    *,
    ties: str = "average",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Area under the risk-coverage curve of a whole data set, in float64.

    AURC = (1/N) sum_k (errors among the k surest) / k, ranked by the
    probability of the predicted class. Lower is better; a random ranking
    gives the error rate.

    Args:
        labels: Class ids `(n, ...)` or one-hot or soft labels
            `(n, ..., num_classes)`.
        probs: Probabilities `(n, ..., num_classes)`, or `(n, 1)` for the
            second of two classes.
        ties: `"average"`: the mean over all orders of tied samples;
            `"order"`: tied samples stay in the order given.
        from_logits: Whether `probs` are logits; these tie less.
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
            Whole numbers count as repeats of the sample, others as mass.
        ignore_class: Class id that does not count.

    Returns:
        AURC in [0, 1]; papers print it times 1000.

    Raises:
        ValueError: If shapes do not fit, there is no sample, or a value is
            out of range.

    Example:

    >>> round(aurc([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.25

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The released code sorts tied samples as they come; the default here
        is the exact mean over their orders.
    """
    check_in("ties", ties, ("average", "order"))
    top = _read(labels, probs, from_logits, sample_weight, ignore_class)
    return float(aurc_of_groups(rank(top, ties), whole_weights(top.weight)))


def eaurc(
    labels: Any,
    probs: Any,
    *,
    ties: str = "average",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Excess AURC: AURC less that of a ranking with every error last.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        ties: `"average"` or `"order"`, as in `aurc`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        E-AURC in [0, 1], against the optimum of a finite sample.

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The paper subtracts the limit r + (1 - r) log(1 - r).
    """
    check_in("ties", ties, ("average", "order"))
    top = _read(labels, probs, from_logits, sample_weight, ignore_class)
    groups, whole = rank(top, ties), whole_weights(top.weight)
    return float(aurc_of_groups(groups, whole) - optimal_aurc(groups, whole))


def augrc(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Area under the generalised risk-coverage curve.

    The average over thresholds of the share of all samples that is accepted
    and wrong; a random ranking gives half the error rate.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        AUGRC in [0, 0.5].

    Reference:
        Traub et al., Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems, NeurIPS 2024, https://arxiv.org/abs/2407.01032
    """
    top = _read(labels, probs, from_logits, sample_weight, ignore_class)
    return float(augrc_of_groups(rank(top)))


def coverage_at_risk(
    labels: Any,
    probs: Any,
    risk: float,
    *,
    ties: str = "average",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """The largest coverage at which the risk is at most `risk`.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        risk: Allowed share of errors among the accepted, in [0, 1].
        ties: `"average"`: only thresholds that can be set count, tied
            samples are accepted together; `"order"`: any prefix counts.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        Coverage in [0, 1]; 0 if no threshold is good enough.

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    check_at_least("risk", risk, 0.0)
    check_at_most("risk", risk, 1.0)
    check_in("ties", ties, ("average", "order"))
    top = _read(labels, probs, from_logits, sample_weight, ignore_class)
    return float(coverage_at_risk_of_groups(rank(top, ties), risk))


def risk_at_coverage(
    labels: Any,
    probs: Any,
    coverage: float,
    *,
    ties: str = "average",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """The risk at the smallest coverage of at least `coverage`.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        coverage: Share of the samples to accept, in (0, 1]. The weight is
            rounded up to whole samples.
        ties: `"average"`: samples tied at the threshold count in
            proportion; `"order"`: tied samples stay in the order given.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        Share of errors among the accepted, in [0, 1].

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    check_above("coverage", coverage, 0.0)
    check_at_most("coverage", coverage, 1.0)
    check_in("ties", ties, ("average", "order"))
    top = _read(labels, probs, from_logits, sample_weight, ignore_class)
    groups = rank(top, ties)
    accepted = coverage * np.sum(groups.mass)
    if whole_weights(top.weight):
        # 0.8 * 1000 must not become 801.
        accepted = max(1.0, np.ceil(accepted * (1 - 1e-12)))
    share = np.clip(safe_divide(accepted - groups.before, groups.mass), 0, 1)
    return float(safe_divide(np.sum(share * groups.wrong), accepted))


def risk_coverage_curve(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> RiskCoverageCurve:
    """The risk-coverage curve at every threshold that can be set.

    Args:
        labels: As in `aurc`, shape `(n, ...)`.
        probs: As in `aurc`, shape `(n, ..., num_classes)`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `aurc`.
        ignore_class: Class id that does not count.

    Returns:
        RiskCoverageCurve of arrays `(num_thresholds,)`, coverage ascending.
        Thresholds are confidences, or log-odds of logits.

    Reference:
        El-Yaniv and Wiener, On the Foundations of Noise-free Selective
        Classification, JMLR 2010,
        https://www.jmlr.org/papers/v11/el-yaniv10a.html
    """
    top = _read(labels, probs, from_logits, sample_weight, ignore_class)
    groups = rank(top)
    through = groups.before + groups.mass
    return RiskCoverageCurve(
        coverage=through / through[-1],
        risk=safe_divide(groups.wrong_before + groups.wrong, through),
        threshold=-np.unique(-top.score),
    )


def _read(labels, probs, from_logits, sample_weight, ignore_class):
    return top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )


def _phi(x: Any) -> Any:
    """1 - log1p(x) / x, without cancellation at small x (either)."""
    xp = namespace(x)
    small = x < 0.06
    near = xp.where(small, x, xp.zeros_like(x))
    far = xp.where(small, xp.ones_like(x), x)
    series = near * (
        1 / 2 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near / 6)))
    )
    return xp.where(small, series, 1.0 - xp.log1p(far) / far)


def _slope_factor(x: Any) -> Any:
    """(1 + 2x) / 2 - x (1 + x) log(1 + 1/x), x >= 0 (either)."""
    xp = namespace(x)
    far = x > 20.0
    near = xp.where(far, xp.ones_like(x), xp.maximum(x, 1e-6))
    exact = 0.5 * (1.0 + 2.0 * near)
    exact = exact - near * (1.0 + near) * xp.log1p(1.0 / near)
    h = xp.where(far, x, xp.full_like(x, 20.0)) + 0.5
    return xp.where(far, (1 / 6 + 1 / (120 * xp.square(h))) / h, exact)


def _harmonic_difference(n: Any, m: Any) -> Any:
    """1/(n+1) + ... + 1/(n+m), for real n, m >= 0 (either)."""
    if namespace(n) is np:
        return digamma(n + m + 1.0) - digamma(n + 1.0)
    xp = namespace(n)
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


def _difference(n: Any, m: Any, whole: Any) -> Any:
    """Integral of 1/c over m after n: a harmonic sum, or a logarithm.

    0 where the logarithm is infinite: its factor is 0 there.
    """
    xp = namespace(n)
    return xp.where(
        whole, _harmonic_difference(n, m), xp.log1p(safe_divide(m, n))
    )


def _extreme_orders(groups: RankedGroups, whole: Any) -> tuple[Any, Any]:
    """Sums over groups with errors last, and first, inside each (either)."""
    xp = namespace(groups.mass)
    m, q, n, a, _ = groups
    good = xp.maximum(m - q, 0.0)
    best = a * _difference(n, good, whole) + q
    best = best + (a - n - good) * _difference(n + good, q, whole)
    worst = q + (a - n) * _difference(n, q, whole)
    worst = worst + (a + q) * _difference(n + q, good, whole)
    return xp.sum(best), xp.sum(worst)
