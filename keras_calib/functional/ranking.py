"""Whole data sets ranked by a score, for the functions of selection."""

from collections.abc import Callable
from typing import Any
from typing import Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas import scores
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.top_label import counted
from keras_calib.inputs.top_label import top_of_arrays
from keras_calib.inputs.weights import are_frequency_weights
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import Top1
from keras_calib.numerics.softmax import to_logits

__all__ = ["rank", "ranked", "thresholds", "top_scored"]

# Relative rounding error of float64 scores, sums over some thousand classes.
_ROUNDING = 1e-13
# Number of float64 values in a block, 32 MB.
_BLOCK = 2**22


def ranked(
    labels: Any,
    probs: Any,
    score: str | Callable[[Any], Any],
    ties: str = "average",
    **options: Unpack[ArrayOptions],
) -> RankedGroups:
    """Rank the predictions of a whole data set by a score."""
    check_in("ties", ties, ("average", "order"))
    return rank(top_scored(labels, probs, score, **options), ties)


def rank(top: Top1, ties: str = "average") -> RankedGroups:
    """Group top-1 records by distinct score, or by sample, in order.

    Scores that differ by no more than rounding are tied. Which of two equal
    scores comes out larger may depend on the order of the classes.
    """
    order = np.argsort(-top.score, kind="stable")
    mass = np.ones(len(order)) if top.weight is None else top.weight[order]
    wrong = mass * (1.0 - top.correct[order])
    if ties == "average":
        score = top.score[order]
        starts = _starts(score)
        mass = np.add.reduceat(mass, starts)
        wrong = np.add.reduceat(wrong, starts)
    before = np.cumsum(np.r_[0.0, mass[:-1]])
    wrong_before = np.cumsum(np.r_[0.0, wrong[:-1]])
    return RankedGroups(
        mass,
        wrong,
        before,
        wrong_before,
        slope=np.zeros_like(mass),
        frequency_weights=are_frequency_weights(top.weight),
    )


def thresholds(top: Top1) -> np.ndarray:
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
    probs: Any,
    score: str | Callable[[Any], Any],
    **options: Unpack[ArrayOptions],
) -> Top1:
    """Top-1 records of a whole data set with a named or own score, checked."""
    function = scores.get(score)
    read = standardize_arrays(labels, probs, **options)
    top, outputs = top_of_arrays(read), read.outputs
    if score == "msp":
        if not read.from_logits:
            return counted(top)
        # Probabilities near 1 still differ in their log-odds.
        facts = read_rows(outputs, from_logits=True, dtype="float64")
        return counted(top._replace(score=facts.log_odds))
    if not read.from_logits:
        outputs = to_logits(outputs)
    if callable(score):
        values = to_numpy(function(outputs), "float64")
    else:
        values = _in_blocks(function, outputs)
    if values.shape != top.correct.shape:
        raise value_error(
            "`score` must return one value per sample",
            **{
                "score.shape": shape_of(values),
                "samples": len(top.correct),
            },
        )
    bad = int(np.sum(~np.isfinite(values)))
    if bad:
        raise value_error(
            "`score` must return finite values", **{"values that are not": bad}
        )
    return counted(top._replace(score=values))


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
