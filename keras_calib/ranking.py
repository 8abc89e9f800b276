"""Whole data sets ranked by a score: what selection functions work on."""

from collections.abc import Callable
from typing import Any

import numpy as np

from keras_calib.checks import check_in
from keras_calib.checks import invalid
from keras_calib.checks import shape_of
from keras_calib.inputs import read_arrays
from keras_calib.numerics import to_logits
from keras_calib.numerics import to_numpy
from keras_calib.ranked_groups import RankedGroups
from keras_calib.score_names import score_function
from keras_calib.top_label import TopLabel
from keras_calib.top_label import top_label
from keras_calib.top_label import whole_weights

__all__ = ["TIES", "rank", "ranked", "top_scored"]

TIES = ("average", "order")


def ranked(
    labels: Any,
    probs: Any,
    *,
    score: str | Callable[[Any], Any] = "msp",
    ties: str = "average",
    **reading: Any,
) -> tuple[RankedGroups, bool]:
    """Groups of a whole data set, and whether its weights are counts.

    `reading` as in `top_label`.
    """
    check_in("ties", ties, TIES)
    top = top_scored(labels, probs, score, **reading)
    return rank(top, ties), whole_weights(top.weight)


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


def top_scored(
    labels: Any,
    probs: Any,
    score: str | Callable[[Any], Any] = "msp",
    **reading: Any,
) -> TopLabel:
    """`top_label` with the score of that name or function.

    Raises:
        ValueError: Also if a score is not finite, or not one per sample.
    """
    function = score_function(score)
    top = top_label(labels, probs, **reading)
    if score == "msp":
        # Log-odds of logits, where probabilities near 1 still differ.
        return top
    outputs = read_arrays(labels, probs, **reading).outputs
    if not reading.get("from_logits", False):
        outputs = to_logits(outputs)
    values = to_numpy(function(outputs), "float64")
    if values.shape != top.correct.shape:
        raise ValueError(
            invalid(
                "`score` must return one value per sample",
                **{
                    "score.shape": shape_of(values),
                    "samples": len(top.correct),
                },
            )
        )
    bad = int(np.sum(~np.isfinite(values)))
    if bad:
        raise ValueError(
            invalid(
                "`score` must return finite values",
                **{"values that are not": bad},
            )
        )
    return top._replace(score=values)
