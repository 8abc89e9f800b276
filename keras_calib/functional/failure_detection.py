"""How well a score separates correct from wrong predictions, in float64."""

from collections.abc import Callable
from typing import Any
from typing import Unpack

import numpy as np

from keras_calib.formulas.operating_points import failure_fpr95_of_groups
from keras_calib.formulas.risk_coverage import failure_auroc_of_groups
from keras_calib.functional.ranking import ranked
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_share
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.options import reads_arrays
from keras_calib.numerics.arrays import safe_divide

__all__ = ["failure_auroc", "failure_average_precision", "failure_fpr95"]


@reads_arrays
def failure_auroc(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> float:
    """AUROC of detecting errors by a score, in float64.

    Use it to see how well the score separates correct from wrong predictions.
    It does not depend on the error rate; use `augrc` for both together.

    AUROC = P(a correct prediction scores higher than a wrong one), ties half

    With the accuracy a, AUGRC = (1 - AUROC) a (1 - a) + (1 - a)^2 / 2.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        score, **options: As in `aurc`.

    Returns:
        AUROC in [0, 1]. It is 0.5, as by chance, if all predictions are
        correct or all are wrong.

    Example:

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]
    >>> failure_auroc([0, 1, 0], probs)
    0.5

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and
        Out-of-Distribution Examples, ICLR 2017,
        https://arxiv.org/abs/1610.02136
    """
    groups = ranked(labels, probs, score, **options)
    return float(failure_auroc_of_groups(groups))


@reads_arrays
def failure_fpr95(
    labels: Any,
    probs: Any,
    *,
    tpr: float = 0.95,
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> float:
    """Share of the errors accepted with 95 % of the correct predictions.

    Use it to see how many errors pass when nearly all correct predictions must
    be accepted.

    The threshold is the highest that accepts at least the share `tpr` of the
    correct predictions. Tied samples are accepted together.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        tpr: Share of the correct predictions to accept, in (0, 1].
        score, **options: As in `aurc`.

    Returns:
        Share in [0, 1], 0 if all predictions are correct or all are wrong.

    Example:

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]
    >>> failure_fpr95([0, 0, 1], probs)
    0.0

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, section 4.1, https://arxiv.org/abs/1812.04606
    """
    check_share("tpr", tpr, positive=True)
    groups = ranked(labels, probs, score, **options)
    return float(failure_fpr95_of_groups(groups, tpr))


@reads_arrays
def failure_average_precision(
    labels: Any,
    probs: Any,
    *,
    positive: str = "error",
    score: str | Callable[[Any], Any] = "msp",
    **options: Unpack[ArrayOptions],
) -> float:
    """Average precision of finding wrong, or correct, predictions.

    Use it in place of `failure_auroc` when errors are rare and you look for
    them.

    sum_t (recall_t - recall_(t-1)) precision_t, over the thresholds t

    A random score gives the share of the positive predictions.

    Args:
        labels, probs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        positive: `"error"` to find wrong predictions, lowest scores first.
            `"success"` to find correct ones, highest scores first.
        score, **options: As in `aurc`.

    Returns:
        Average precision in [0, 1], 0 if no prediction is positive.

    Example:

    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]
    >>> failure_average_precision([0, 0, 1], probs)
    1.0

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and
        Out-of-Distribution Examples, ICLR 2017,
        https://arxiv.org/abs/1610.02136
    """
    check_in("positive", positive, ("error", "success"))
    groups = ranked(labels, probs, score, **options)
    mass, found = groups.mass, groups.mass - groups.wrong
    if positive == "error":
        mass, found = mass[::-1], groups.wrong[::-1]
    precision = safe_divide(np.cumsum(found), np.cumsum(mass))
    return float(safe_divide(np.sum(found * precision), np.sum(found)))
