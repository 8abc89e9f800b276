"""Risk-coverage curves of whole data sets, exact and tie-aware in float64."""

from collections.abc import Callable
from typing import Any
from typing import Unpack

import numpy as np

from keras_calib.formulas.operating_points import coverage_at_risk_of_groups
from keras_calib.formulas.operating_points import risk_at_coverage_of_groups
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.risk_coverage import augrc_of_groups
from keras_calib.formulas.risk_coverage import normalized_aurc_of_groups
from keras_calib.formulas.risk_coverage_conventions import analytic_optimum
from keras_calib.formulas.risk_coverage_conventions import augrc_by_convention
from keras_calib.formulas.risk_coverage_conventions import aurc_by_convention
from keras_calib.formulas.risk_coverage_conventions import optimum_by_convention
from keras_calib.functional.ranking import rank
from keras_calib.functional.ranking import ranked
from keras_calib.functional.ranking import thresholds
from keras_calib.functional.ranking import top_scored
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_share
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.options import reads_arrays
from keras_calib.numerics.arrays import safe_divide

__all__ = [
    "augrc",
    "aurc",
    "coverage_at_accuracy",
    "coverage_at_risk",
    "eaugrc",
    "eaurc",
    "normalized_aurc",
    "risk_at_coverage",
    "risk_coverage_curve",
]


@reads_arrays
def aurc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    convention: str = "mean",
    **options: Unpack[ArrayOptions],
) -> float:
    """Area under the risk-coverage curve of a whole data set, in float64.

    AURC = (1/N) sum_k (errors among the k surest) / k, ranked by the
    probability of the predicted class or another score. Lower is better; a
    random ranking gives the error rate.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        score: What ranks: `"msp"` (the probability of the predicted class),
            `"max_logit"`, `"logit_margin"`, `"prob_margin"`,
            `"neg_entropy"`, `"neg_energy"`, `"gini"` (in the precision of
            the backend, float32 on JAX), `"p_norm"`, or a function of
            logits `(n, num_classes)`, or log p, to `(n,)`, higher = surer.
        ties: `"average"`: the mean over all orders of tied samples;
            `"order"`: tied samples stay in the order given.
        convention: `"mean"` as above, or that of other code: `"trapezoid"`,
            the trapezoid rule from coverage 1/N, over 1 - 1/N; `"origin"`,
            the same from (0, 0); `"merged"`, between thresholds, flat to
            coverage 0; `"geifman"`, the mean with denominators k + 1 for
            k < N; `"achievable"`, the area below the convex hull. Weights
            that are not whole need `"mean"`, `"merged"` or `"achievable"`.
        **options: `from_logits`, `sample_weight`, `ignore_class`; see `ece`.

    Returns:
        AURC in [0, 1]; papers print it times 1000.

    Example:

    >>> round(aurc([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.25

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The released code, `"geifman"`, sorts tied samples as they come; the
        default here is the exact mean over their orders.
    """
    groups = ranked(labels, probs, score, ties, **options)
    return aurc_by_convention(groups, convention)


@reads_arrays
def eaurc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    convention: str = "mean",
    optimum: str = "finite",
    **options: Unpack[ArrayOptions],
) -> float:
    """Excess AURC: AURC less that of a ranking with every error last.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        score, ties, convention: As in `aurc`.
        optimum: `"finite"`: the optimum of as many samples, by the same
            convention; `"analytic"`: the limit r + (1 - r) log(1 - r).
        **options: `from_logits`, `sample_weight`, `ignore_class`; see `ece`.

    Returns:
        E-AURC in [0, 1]; with the analytic optimum it can be below 0.

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The paper has the analytic optimum.
    """
    check_in("optimum", optimum, ("finite", "analytic"))
    groups = ranked(labels, probs, score, ties, **options)
    value = aurc_by_convention(groups, convention)
    if optimum == "analytic":
        return value - analytic_optimum(groups)
    return value - optimum_by_convention(groups, convention)


@reads_arrays
def normalized_aurc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    convention: str = "mean",
    **options: Unpack[ArrayOptions],
) -> float:
    """Normalised AURC of a whole data set.

    (AURC - AURC*) / (error - AURC*), AURC* the AURC with every error last:
    comparable between models of different error rates.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        score, ties, convention, **options: As in `aurc`.

    Returns:
        0 for a perfect ranking, 1 for a random one (by `"mean"`), above 1
        for worse; 0 where all predictions are right or all are wrong.

    Example:

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]
    >>> round(normalized_aurc([0, 1, 0], probs), 4)
    0.75

    Reference:
        Cattelan and Silva, How to Fix a Broken Confidence Estimator:
        Evaluating Post-hoc Methods for Selective Classification with Deep
        Neural Networks, UAI 2024, https://arxiv.org/abs/2305.15508

    Differs:
        The released code has the convention `"origin"` and the order of the
        samples among ties.
    """
    groups = ranked(labels, probs, score, ties, **options)
    if convention == "mean":
        return float(normalized_aurc_of_groups(groups))
    value = aurc_by_convention(groups, convention)
    best = optimum_by_convention(groups, convention)
    wrong, total = np.sum(groups.wrong), np.sum(groups.mass)
    if wrong in (0.0, total):
        return 0.0
    return float(safe_divide(value - best, wrong / total - best))


@reads_arrays
def augrc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    convention: str = "origin",
    **options: Unpack[ArrayOptions],
) -> float:
    """Area under the generalised risk-coverage curve.

    The average over thresholds of the share of all samples that is accepted
    and wrong; a random ranking gives half the error rate.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        score, ties: As in `aurc`.
        convention: `"origin"`: the area from coverage 0; `"trapezoid"`: the
            trapezoid rule from coverage 1/N, over 1 - 1/N, for whole
            weights.
        **options: `from_logits`, `sample_weight`, `ignore_class`; see `ece`.

    Returns:
        AUGRC in [0, 0.5].

    Reference:
        Traub et al., Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems, NeurIPS 2024, https://arxiv.org/abs/2407.01032
    """
    groups = ranked(labels, probs, score, ties, **options)
    return augrc_by_convention(groups, convention)


@reads_arrays
def eaugrc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> float:
    """Excess AUGRC: AUGRC less r^2 / 2, its optimum at the error rate r.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        score, **options: As in `aurc`.

    Returns:
        (1 - AUROC) r (1 - r), in [0, 0.25], AUROC as in `failure_auroc`.

    Reference:
        Traub et al., Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems, NeurIPS 2024, https://arxiv.org/abs/2407.01032
    """
    groups = ranked(labels, probs, score, **options)
    rate = np.sum(groups.wrong) / np.sum(groups.mass)
    return float(augrc_of_groups(groups) - 0.5 * rate**2)


@reads_arrays
def coverage_at_risk(
    labels: Any,
    probs: Any,
    risk: float,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """The largest coverage at which the risk is at most `risk`.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        risk: Allowed share of errors among the accepted, in [0, 1].
        score: As in `aurc`.
        ties: `"average"`: only thresholds that can be set count, tied
            samples are accepted together; `"order"`: any prefix counts.
        **options: `from_logits`, `sample_weight`, `ignore_class`; see `ece`.

    Returns:
        Coverage in [0, 1]; 0 if no threshold is good enough.

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    check_share("risk", risk)
    groups = ranked(labels, probs, score, ties, **options)
    return float(coverage_at_risk_of_groups(groups, risk))


@reads_arrays
def coverage_at_accuracy(
    labels: Any,
    probs: Any,
    accuracy: float,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """The largest coverage at which the accuracy is at least `accuracy`.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        accuracy: Share of correct predictions among the accepted, in [0, 1].
        score, ties, **options: As in `coverage_at_risk`.

    Returns:
        Coverage in [0, 1]; 0 if no threshold is good enough.

    Reference:
        Galil et al., What Can We Learn From The Selective Prediction And
        Uncertainty Estimation Performance Of 523 Imagenet Classifiers?, ICLR
        2023, https://arxiv.org/abs/2302.11874
    """
    check_share("accuracy", accuracy)
    return coverage_at_risk(
        labels, probs, 1.0 - accuracy, score=score, ties=ties, **options
    )


@reads_arrays
def risk_at_coverage(
    labels: Any,
    probs: Any,
    coverage: float,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """The risk at the smallest coverage of at least `coverage`.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        coverage: Share of the samples to accept, in (0, 1]. The weight is
            rounded up to whole samples.
        score: As in `aurc`.
        ties: `"average"`: samples tied at the threshold count in
            proportion; `"order"`: tied samples stay in the order given.
        **options: `from_logits`, `sample_weight`, `ignore_class`; see `ece`.

    Returns:
        Share of errors among the accepted, in [0, 1].

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    check_share("coverage", coverage, positive=True)
    groups = ranked(labels, probs, score, ties, **options)
    return float(risk_at_coverage_of_groups(groups, coverage))


@reads_arrays
def risk_coverage_curve(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> RiskCoverageCurve:
    """The risk-coverage curve at every threshold that can be set.

    Args:
        labels, probs: `(n, ...)` and `(n, ..., num_classes)`, as in `ece`.
        score, **options: As in `aurc`.

    Returns:
        RiskCoverageCurve of arrays `(num_thresholds,)`, coverage ascending.
        Thresholds are scores: of `"msp"` confidences, or log-odds of logits.

    Reference:
        El-Yaniv and Wiener, On the Foundations of Noise-free Selective
        Classification, JMLR 2010,
        https://www.jmlr.org/papers/v11/el-yaniv10a.html
    """
    top = top_scored(labels, probs, score, **options)
    groups = rank(top)
    through = groups.before + groups.mass
    risk = safe_divide(groups.wrong_before + groups.wrong, through)
    return RiskCoverageCurve(through / through[-1], risk, thresholds(top))
