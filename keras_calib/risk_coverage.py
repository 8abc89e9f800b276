"""Risk-coverage curves of whole data sets, exact and tie-aware in float64."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.calibration_error import TopLabel
from keras_calib.calibration_error import top_label
from keras_calib.calibration_error import whole_weights
from keras_calib.checks import check_above
from keras_calib.checks import check_at_least
from keras_calib.checks import check_at_most
from keras_calib.checks import check_in
from keras_calib.numerics import safe_divide
from keras_calib.ranked_groups import RankedGroups
from keras_calib.ranked_groups import augrc_of_groups
from keras_calib.ranked_groups import aurc_of_groups
from keras_calib.ranked_groups import coverage_at_risk_of_groups
from keras_calib.ranked_groups import optimal_aurc

__all__ = [
    "RiskCoverageCurve",
    "augrc",
    "aurc",
    "coverage_at_risk",
    "eaurc",
    "rank",
    "risk_at_coverage",
    "risk_coverage_curve",
]


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
