"""Risk-coverage curves of whole data sets, exact and tie-aware in float64."""

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from keras_calib.formulas import risk_coverage as areas
from keras_calib.formulas.risk_coverage import RiskCoveragePoints
from keras_calib.functional.ranking import rank, ranked, thresholds, top_scored
from keras_calib.inputs.checks import check_in, check_share
from keras_calib.inputs.options import ArrayOptions
from keras_calib.numerics.arrays import safe_divide


def aurc(
    labels: Any,
    outputs: Any = None,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    area: str = "mean",
    **options: Unpack[ArrayOptions],
) -> float:
    """Area under the risk-coverage curve (AURC), in float64.

    Use it to compare models that reject some of their predictions. Lower is
    better, and a random ranking gives the error rate.

    AURC = (1/N) sum_k (errors among the k highest scores) / k

    Other code and papers print other areas; `area` reproduces them:

    - `"mean"`: The formula above.
    - `"trapezoid"`: The trapezoid rule from coverage 1/N, over 1 - 1/N.
    - `"origin"`: The trapezoid rule from (0, 0).
    - `"merged"`: The trapezoid rule between thresholds, flat to coverage 0.
    - `"geifman"`: The mean with denominators k + 1 for k < N.
    - `"achievable"`: The area below the convex hull.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        score: Score that ranks the predictions: `"msp"` (the probability of
            the predicted class), `"max_logit"`, `"logit_margin"`,
            `"prob_margin"`, `"neg_entropy"`, `"neg_energy"`, `"gini"` (in the
            precision of the backend, float32 on JAX) or `"p_norm"`. Or a
            function of logits `(n, num_classes)`, or of log p, to `(n,)`,
            higher = surer.
        ties: `"average"` for the mean over all orders of tied samples,
            `"order"` for the order given.
        area: One of the list above. Fractional weights need `"mean"`,
            `"merged"` or `"achievable"`.
        **options: As in `ece`.

    Returns:
        AURC in [0, 1]. Papers print it times 1000.

    Example:

    >>> round(aurc([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.25

    Reference:
        Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural
        Classifiers, ICLR 2019, https://arxiv.org/abs/1805.08206

    Differs:
        The released code, `"geifman"`, leaves tied samples in the order of
        the data. The default here is the exact mean over their orders.
    """
    groups = ranked(labels, outputs, score, ties, **options)
    return areas.aurc_by_convention(groups, area)


def eaurc(
    labels: Any,
    outputs: Any = None,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    area: str = "mean",
    optimum: str = "finite",
    **options: Unpack[ArrayOptions],
) -> float:
    """Excess AURC: AURC minus that of a ranking with all errors last.

    Use it to look at the ranking of predictions apart from their accuracy.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        score, ties, area: As in `aurc`.
        optimum: `"finite"` for the optimum of as many samples, by the same
            area. `"analytic"` for its limit r + (1 - r) log(1 - r) at
            the error rate r.
        **options: As in `ece`.

    Returns:
        E-AURC in [0, 1]. With the analytic optimum it can be below 0.

    Reference:
        That of `aurc`.

    Differs:
        The paper uses the analytic optimum.
    """
    check_in("optimum", optimum, ("finite", "analytic"))
    groups = ranked(labels, outputs, score, ties, **options)
    value = areas.aurc_by_convention(groups, area)
    if optimum == "analytic":
        return value - areas.analytic_optimum(groups)
    return value - areas.optimum_by_convention(groups, area)


def naurc(
    labels: Any,
    outputs: Any = None,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    area: str = "mean",
    **options: Unpack[ArrayOptions],
) -> float:
    """AURC scaled to 0 for a perfect and 1 for a random ranking, in float64.

    Use it to compare the rankings of models whose error rates differ.

    (AURC - AURC*) / (error rate - AURC*), AURC* the AURC with all errors last

    Args:
        labels, outputs, score, ties, area, **options: As in `aurc`.

    Returns:
        0 for a perfect ranking, 1 for a random one (with `"mean"`), and more
        for a worse one. It is 0 if all predictions are correct or all wrong.

    Reference:
        Cattelan and Silva, How to Fix a Broken Confidence Estimator:
        Evaluating Post-hoc Methods for Selective Classification with Deep
        Neural Networks, UAI 2024, https://arxiv.org/abs/2305.15508

    Differs:
        The released code uses `area="origin"`, and no mean over ties.
    """
    groups = ranked(labels, outputs, score, ties, **options)
    if area == "mean":
        return float(areas.normalized_aurc_of_groups(groups))
    value = areas.aurc_by_convention(groups, area)
    best = areas.optimum_by_convention(groups, area)
    wrong, total = np.sum(groups.wrong), np.sum(groups.mass)
    if wrong in (0.0, total):
        return 0.0
    return float(safe_divide(value - best, wrong / total - best))


def augrc(
    labels: Any,
    outputs: Any = None,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    area: str = "origin",
    **options: Unpack[ArrayOptions],
) -> float:
    """Area under the generalised risk-coverage curve (AUGRC), in float64.

    Use it in place of `aurc` when the few highest scores should not dominate.

    The value is the average over thresholds of the share of all samples that
    is accepted and wrong. A random ranking gives half of the error rate.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        score, ties: As in `aurc`.
        area: `"origin"` for the area from coverage 0. `"trapezoid"` for
            the trapezoid rule from coverage 1/N, over 1 - 1/N, without
            fractional weights.
        **options: As in `ece`.

    Returns:
        AUGRC in [0, 0.5].

    Reference:
        Traub et al., Overcoming Common Flaws in the Evaluation of Selective
        Classification Systems, NeurIPS 2024, https://arxiv.org/abs/2407.01032
    """
    groups = ranked(labels, outputs, score, ties, **options)
    return areas.augrc_by_convention(groups, area)


def eaugrc(
    labels: Any,
    outputs: Any = None,
    *,
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> float:
    """Excess AUGRC: AUGRC minus r^2 / 2, its optimum at the error rate r.

    Use it to look at the ranking of predictions apart from their accuracy.

    Args:
        labels, outputs, score, **options: As in `aurc`.

    Returns:
        (1 - AUROC) r (1 - r), in [0, 0.25], with the AUROC of
        `failure_auroc`.

    Reference:
        That of `augrc`.
    """
    groups = ranked(labels, outputs, score, **options)
    rate = np.sum(groups.wrong) / np.sum(groups.mass)
    return float(areas.augrc_of_groups(groups) - 0.5 * rate**2)


def coverage_at_risk(
    labels: Any,
    outputs: Any = None,
    *,
    risk: float,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """Largest coverage at which the risk is at most `risk`.

    Use it to see how much can be accepted at an allowed share of errors. It
    guarantees nothing on new data; `SelectiveClassifier` can.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        risk: Allowed share of errors among accepted predictions, in [0, 1].
        score: As in `aurc`.
        ties: With `"average"` tied samples are accepted together, as by any
            threshold. With `"order"` the last accepted may be one of them.
        **options: As in `ece`.

    Returns:
        Coverage in [0, 1], 0 if no threshold is good enough.

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    check_share("risk", risk)
    groups = ranked(labels, outputs, score, ties, **options)
    return float(areas.coverage_at_risk_of_groups(groups, risk))


def coverage_at_accuracy(
    labels: Any,
    outputs: Any = None,
    *,
    accuracy: float,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """Largest coverage at which the accuracy is at least `accuracy`.

    Use it in place of `coverage_at_risk` if you think in accuracies: it is the
    coverage at risk 1 - `accuracy`.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        accuracy: Share of correct predictions wanted among accepted ones, in
            [0, 1].
        score, ties, **options: As in `coverage_at_risk`.

    Returns:
        Coverage in [0, 1], 0 if no threshold is good enough.

    Reference:
        Galil et al., What Can We Learn From The Selective Prediction And
        Uncertainty Estimation Performance Of 523 Imagenet Classifiers?, ICLR
        2023, https://arxiv.org/abs/2302.11874
    """
    check_share("accuracy", accuracy)
    return coverage_at_risk(
        labels, outputs, risk=1.0 - accuracy, score=score, ties=ties, **options
    )


def risk_at_coverage(
    labels: Any,
    outputs: Any = None,
    *,
    coverage: float,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> float:
    """Share of errors when the share `coverage` is accepted.

    Use it when the share to accept is fixed.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        coverage: Share of the samples to accept, in (0, 1]. The weight is
            rounded up to whole samples.
        score: As in `aurc`.
        ties: With `"average"` samples tied at the threshold are accepted in
            proportion. With `"order"` tied samples stay in the order given.
        **options: As in `ece`.

    Returns:
        Share of errors among accepted predictions, in [0, 1].

    Reference:
        That of `coverage_at_risk`.
    """
    check_share("coverage", coverage, positive=True)
    groups = ranked(labels, outputs, score, ties, **options)
    return float(areas.risk_at_coverage_of_groups(groups, coverage))


def risk_coverage_curve(
    labels: Any,
    outputs: Any = None,
    *,
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> RiskCoveragePoints:
    """Risk-coverage curve at every possible threshold.

    Use it to plot risk against coverage, or to choose a threshold by eye.

    Args:
        labels, outputs, score, **options: As in `aurc`.

    Returns:
        RiskCoveragePoints of arrays `(num_thresholds,)`, coverage ascending.
        Thresholds are scores. Those of `"msp"` are confidences, or log-odds
        if `from_logits=True`.

    Reference:
        El-Yaniv and Wiener, On the Foundations of Noise-free Selective
        Classification, JMLR 2010,
        https://www.jmlr.org/papers/v11/el-yaniv10a.html
    """
    top = top_scored(labels, outputs, score, **options)
    return areas.curve_of_groups(rank(top), thresholds(top))
