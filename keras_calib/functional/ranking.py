"""Whole data sets ranked by a score, for the functions of selection."""

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas import scores
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    failure_auroc_of_groups,
    failure_fpr95_of_groups,
)
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_in, check_share
from keras_calib.inputs.options import ArrayOptions, is_log
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import top_label, top_of_arrays
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import safe_divide, shape_of, to_numpy
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import to_logits

# Relative rounding error of float64 scores, sums over some thousand classes.
_ROUNDING = 1e-13
# Number of float64 values in a block, 32 MB.
_BLOCK = 2**22


def ranked(
    labels: Any,
    outputs: Any,
    score: str | Callable[[Any], Any],
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> RankedGroups:
    """Rank the predictions of a whole data set by a score."""
    check_in("ties", ties, ("average", "order"))
    return rank(top_scored(labels, outputs, score, **options), ties)


def rank(top: Outcomes, ties: str = "average") -> RankedGroups:
    """Group outcomes by distinct score, or by sample, in order.

    Scores that differ by no more than rounding are tied. Which of two equal
    scores comes out larger may depend on the order of the classes.
    """
    order = np.argsort(-top.score, kind="stable")
    mass = np.ones(len(order)) if top.weight is None else top.weight[order]
    wrong = mass * top.loss[order]
    if ties == "average":
        score = top.score[order]
        starts = _starts(score)
        mass = np.add.reduceat(mass, starts)
        wrong = np.add.reduceat(wrong, starts)
    counts = are_frequency_weights(top.weight)
    return RankedGroups.of(mass, wrong, frequency_weights=counts)


def thresholds(top: Outcomes) -> np.ndarray:
    """Smallest score of each group of `rank(top)`."""
    score = -np.sort(-top.score)
    return score[np.r_[_starts(score)[1:], len(score)] - 1]


def _starts(score: np.ndarray) -> np.ndarray:
    """First index of each group of tied scores, in descending order."""
    first, second = score[:-1], score[1:]
    if score.dtype != np.float64:
        # Scores of low precision tie only if equal: a tolerance could merge
        # most of them.
        return np.flatnonzero(np.r_[True, first != second])
    size = np.maximum(np.abs(first), np.abs(second))
    size = np.maximum(np.where(np.isfinite(size), size, 0.0), 1.0)
    with np.errstate(invalid="ignore"):
        # Equal infinities have no difference.
        apart = first - second > _ROUNDING * size
    return np.flatnonzero(np.r_[True, apart])


def top_scored(
    labels: Any,
    outputs: Any,
    score: str | Callable[[Any], Any],
    **options: Unpack[ArrayOptions],
) -> Outcomes:
    """Outcomes of a whole data set with a named or own score, checked."""
    function = scores.get(score)
    if is_log(labels):
        if score != "msp":
            raise value_error(
                '`score` must be "msp" for a log, which has no other score',
                score=score,
            )
        return top_label(labels, outputs, **options).counted()
    read = standardize_arrays(labels, outputs, **options)
    top, outputs = top_of_arrays(read), read.outputs
    if score == "msp":
        if not read.from_logits:
            return top.counted()
        # Probabilities near 1 still differ in their log-odds.
        facts = read_rows(outputs, from_logits=True, dtype="float64")
        return top._replace(score=facts.log_odds).counted()
    if not read.from_logits:
        outputs = to_logits(outputs)
    if callable(score):
        values = to_numpy(function(outputs), "float64")
    else:
        values = _in_blocks(function, outputs)
    if values.shape != top.score.shape:
        raise value_error(
            "`score` must return one value per sample",
            **{"score.shape": shape_of(values), "samples": len(top.score)},
        )
    bad = int(np.sum(~np.isfinite(values)))
    if bad:
        raise value_error(
            "`score` must return finite values", **{"values that are not": bad}
        )
    return top._replace(score=values).counted()


def _in_blocks(
    function: Callable[[np.ndarray], Any], outputs: np.ndarray
) -> np.ndarray:
    """Scores in float64, without a float64 copy of all outputs."""
    size = max(1, _BLOCK // max(1, outputs.shape[-1]))
    values = [
        to_numpy(function(outputs[i : i + size].astype("float64")), "float64")
        for i in range(0, len(outputs), size)
    ]
    return np.concatenate(values)


def failure_auroc(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs, score, **options: As in `aurc`.

    Returns:
        AUROC in [0, 1]. It is 0.5, as by chance, if all predictions are
        correct or all are wrong.

    Reference:
        Hendrycks and Gimpel, A Baseline for Detecting Misclassified and
        Out-of-Distribution Examples, ICLR 2017,
        https://arxiv.org/abs/1610.02136
    """
    groups = ranked(labels, outputs, score, **options)
    return float(failure_auroc_of_groups(groups))


def failure_fpr95(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        tpr: Share of the correct predictions to accept, in (0, 1].
        score, **options: As in `aurc`.

    Returns:
        Share in [0, 1], 0 if all predictions are correct or all are wrong.

    Reference:
        Hendrycks et al., Deep Anomaly Detection with Outlier Exposure, ICLR
        2019, section 4.1, https://arxiv.org/abs/1812.04606
    """
    check_share("tpr", tpr, positive=True)
    groups = ranked(labels, outputs, score, **options)
    return float(failure_fpr95_of_groups(groups, tpr))


def failure_average_precision(
    labels: Any,
    outputs: Any = None,
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
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
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
        That of `failure_auroc`.
    """
    check_in("positive", positive, ("error", "success"))
    groups = ranked(labels, outputs, score, **options)
    mass, found = groups.mass, groups.mass - groups.wrong
    if positive == "error":
        mass, found = mass[::-1], groups.wrong[::-1]
    precision = safe_divide(np.cumsum(found), np.cumsum(mass))
    return float(safe_divide(np.sum(found * precision), np.sum(found)))
