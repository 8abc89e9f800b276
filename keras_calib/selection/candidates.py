"""Every threshold that data let one set: between groups of tied scores."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.checks import check_not_empty
from keras_calib.checks import invalid
from keras_calib.numerics import safe_divide
from keras_calib.numerics import to_numpy
from keras_calib.ranked_groups import RankedGroups
from keras_calib.ranking import rank
from keras_calib.top_label import TopLabel

__all__ = ["Candidates", "candidates", "check_units"]


class Candidates(NamedTuple):
    """Every threshold that can be set, strictest first.

    Attributes:
        threshold: `(num_thresholds,)`, in the precision of the scores.
        groups: The groups of tied samples that each one adds.
        num_samples: Number of samples that count.
        counts: Whether every weight is 1.
    """

    threshold: np.ndarray
    groups: RankedGroups
    num_samples: int
    counts: bool

    @property
    def accepted(self) -> np.ndarray:
        """Weight that is accepted."""
        return self.groups.before + self.groups.mass

    @property
    def wrong(self) -> np.ndarray:
        """Weight of the wrong predictions among it."""
        return self.groups.wrong_before + self.groups.wrong

    @property
    def coverage(self) -> np.ndarray:
        """Share that is accepted."""
        return self.accepted / np.sum(self.groups.mass)

    @property
    def risk(self) -> np.ndarray:
        """Share of wrong ones among the accepted."""
        return safe_divide(self.wrong, self.accepted)


def check_units(delta: float | None, shape: tuple) -> None:
    """Raises ValueError for a guarantee on samples that are not `(n,)`."""
    if delta is not None and len(shape) != 1:
        raise ValueError(
            invalid(
                "`delta` needs independent samples, which the pixels of an "
                "image are not: reduce to one score and one correctness per "
                "image and call `choose_threshold`, or leave `delta` out",
                delta=delta,
                **{"shape of the class ids": shape},
            )
        )


def candidates(
    scores: Any, correct: Any, sample_weight: Any, delta: float | None
) -> Candidates:
    """Ranked groups of scores, read and checked, with thresholds between."""
    scores, correct = to_numpy(scores), to_numpy(correct, "float64")
    check_units(delta, scores.shape)
    check_not_empty("scores", scores)
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype("float64")
    if scores.shape != correct.shape:
        raise ValueError(
            invalid(
                "`scores` and `correct` must have one shape",
                **{
                    "scores.shape": scores.shape,
                    "correct.shape": correct.shape,
                },
            )
        )
    bad = int(np.isnan(scores).sum())
    if bad:
        raise ValueError(invalid("`scores` must not be NaN", rows=bad))
    if not np.all((correct == 0.0) | (correct == 1.0)):
        raise ValueError(
            invalid(
                "`correct` must be 0 or 1",
                minimum=correct.min(),
                maximum=correct.max(),
            )
        )
    weight = None if sample_weight is None else to_numpy(sample_weight)
    if weight is not None:
        weight = weight.astype("float64", copy=False).reshape(-1)
        scores, correct = scores.reshape(-1), correct.reshape(-1)
        if delta is not None and not np.all(weight == 1.0):
            raise ValueError(
                invalid(
                    "`sample_weight` must be 1 everywhere with `delta`: the "
                    "guarantee counts samples",
                    minimum=float(weight.min()),
                    maximum=float(weight.max()),
                )
            )
        counted = weight > 0
        scores, correct = scores[counted], correct[counted]
        weight = weight[counted]
    scores, correct = scores.reshape(-1), correct.reshape(-1)
    groups = rank(TopLabel(scores, scores, correct, weight))
    return Candidates(
        _thresholds(-np.unique(-scores)),
        groups,
        len(scores),
        weight is None or bool(np.all(weight == 1.0)),
    )


def _thresholds(scores: np.ndarray) -> np.ndarray:
    """Midpoints of distinct descending scores, and -inf for all.

    Every value between two neighbours accepts the same samples; the middle
    is safest if another runtime rounds scores differently.
    """
    upper, lower = scores[:-1].astype("float64"), scores[1:]
    middle = (0.5 * upper + 0.5 * lower).astype(scores.dtype)
    # Neighbouring floats have nothing between them.
    middle = np.where(middle > lower, middle, scores[:-1])
    return np.append(middle, np.array(-np.inf, scores.dtype))
