"""Ranking scores by name, for every function and metric with a `score`."""

from collections.abc import Callable
from typing import Any

from keras_calib.formulas import scores
from keras_calib.inputs.checks import invalid

__all__ = ["SCORE_NAMES", "SCORE_RANGES", "score_function"]

SCORE_NAMES = (
    "msp",
    "max_logit",
    "logit_margin",
    "prob_margin",
    "neg_entropy",
    "neg_energy",
    "gini",
    "p_norm",
)

# Scores in [0, 1] crowd at its ends; the others may have any size.
SCORE_RANGES = {
    "msp": "unit",
    "prob_margin": "unit",
    "gini": "unit",
    "p_norm": "unit",
}


def score_function(score: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function of logits that `score` stands for.

    Args:
        score: One of `SCORE_NAMES`, or a function of logits
            `(n, num_classes)` that returns `(n,)`, higher = surer.

    Returns:
        That function.

    Raises:
        ValueError: If `score` is neither.

    Example:

    >>> score_function("max_logit").__name__
    'max_logit'
    """
    if callable(score):
        return score
    if score not in SCORE_NAMES:
        raise ValueError(
            invalid(
                f"`score` must be a function or one of {SCORE_NAMES}",
                score=score,
            )
        )
    return getattr(scores, score)
