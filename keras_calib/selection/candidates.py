"""Candidate thresholds: one between each two groups of tied scores."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_not_empty, located
from keras_calib.numerics.arrays import as_array, running_sum, safe_divide

__all__ = [
    "Candidates",
    "candidates",
    "check_equal_weights",
    "check_units",
    "of_records",
    "ranked_candidates",
    "read_records",
]


class Candidates(NamedTuple):
    """All candidate thresholds, strictest first, `(num_thresholds,)`.

    `accepted` and `wrong` are weights of accepted samples and of errors among
    them, or of their costs. `counts` is True if every weight is 1. `score` is
    the least score that each accepts.
    """

    threshold: np.ndarray
    accepted: np.ndarray
    wrong: np.ndarray
    num_samples: int
    counts: bool
    score: np.ndarray | None = None
    # Weight and loss of what has an infinite score and is not accepted.
    never: Any = (0.0, 0.0)

    @property
    def total(self) -> float:
        """Weight of all samples."""
        return float(self.accepted[-1] + self.never[0])

    @property
    def coverage(self) -> np.ndarray:
        """Accepted share; 1 for the last if all scores are finite."""
        return self.accepted / self.total

    def covering(self, coverage: float) -> np.ndarray:
        """Which thresholds accept this share; raises ValueError if none."""
        # A coverage such as 1 - 0.9 is rounded.
        reached = self.coverage >= coverage - 1e-12
        if not reached.any():
            rule = "`coverage` must be at most the share of finite scores"
            share = float(self.coverage[-1])
            raise value_error(rule, coverage=coverage, share=share)
        return reached

    @property
    def risk(self) -> np.ndarray:
        """Share of errors among the accepted, or their mean cost."""
        return safe_divide(self.wrong, self.accepted)

    def at(self, place: int) -> tuple[float, float, float]:
        """A threshold, its coverage and its risk."""
        columns = self.threshold, self.coverage, self.risk
        threshold, coverage, risk = (float(x[place]) for x in columns)
        return threshold, coverage, risk


def check_units(delta: float | None, shape: tuple) -> None:
    """Raises ValueError for a guarantee on samples that are not `(n,)`."""
    if delta is not None and len(shape) != 1:
        raise value_error(
            "`delta` needs independent samples, which the pixels of an "
            "image are not: reduce to one score and one correctness per "
            "image and call `choose_threshold`, or leave `delta` out",
            delta=delta,
            **{"shape of the class ids": shape},
        )


def candidates(
    scores: Any, correct: Any, sample_weight: Any, delta: float | None
) -> Candidates:
    """Checks scores and correctness and returns the candidate thresholds."""
    records = read_records(scores, correct, sample_weight, delta)
    kept = records[2] > 0
    return of_records(*(x[kept] for x in records))


def read_records(
    scores: Any, correct: Any, sample_weight: Any, delta: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, correctness and weights `(n,)`, checked where they count."""
    scores = as_array(scores, "scores")
    correct = as_array(correct, "correct", "float64")
    check_units(delta, scores.shape)
    check_not_empty("scores", scores)
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype("float64")
    if scores.shape != correct.shape:
        raise value_error(
            "`scores` and `correct` must have one shape",
            scores=scores.shape,
            correct=correct.shape,
        )
    weight = np.ones(scores.shape)
    if sample_weight is not None:
        # Here, as it needs Keras, which records without weights do without.
        from keras_calib.inputs.weights import weight_of_rows

        weight = weight_of_rows(sample_weight, scores.shape)
        weight = weight.reshape(scores.shape)
        if not weight.any():
            raise value_error(
                "`sample_weight` must not be 0 everywhere", sum=0.0
            )
        check_equal_weights(weight, delta)
    counted = weight > 0
    bad = np.isnan(scores) & counted
    if bad.any():
        raise value_error("`scores` must not be NaN", **located(bad))
    bad = (correct != 0.0) & (correct != 1.0) & counted
    if bad.any():
        raise value_error("`correct` must be 0 or 1", **located(bad))
    if not (np.isfinite(scores) & counted).any():
        rule = "`scores` must not all be infinite: these are not accepted"
        raise value_error(rule, scores=scores[counted][:4].tolist())
    return scores.reshape(-1), correct.reshape(-1), weight.reshape(-1)


def of_records(
    score: np.ndarray, correct: np.ndarray, weight: np.ndarray
) -> Candidates:
    """The candidates of records that all count, each `(n,)`."""
    found = ranked_candidates(score, 1.0 - correct, weight)
    return found._replace(wrong=np.minimum(found.wrong, found.accepted))


def check_equal_weights(weight: np.ndarray, delta: float | None) -> None:
    """Raises ValueError for a guarantee on samples that count unequally."""
    if delta is not None and not np.all((weight == 1.0) | (weight == 0.0)):
        raise value_error(
            "`sample_weight` must be 1 with `delta`, or 0 for samples to "
            "leave out: the guarantee counts samples",
            minimum=float(weight.min()),
            maximum=float(weight.max()),
        )


def ranked_candidates(
    scores: np.ndarray, loss: np.ndarray, weight: np.ndarray
) -> Candidates:
    """The candidates of scores, losses and weights, each `(n,)`."""
    columns = np.stack([weight, weight * loss], axis=-1)
    finite = np.isfinite(scores)
    never = columns[~finite].sum(axis=0)
    order = np.flatnonzero(finite)
    order = order[np.argsort(-scores[order], kind="stable")]
    if not len(order):
        # Nothing can be accepted.
        order, columns = np.zeros(1, int), np.zeros((len(scores), 2))
    scores, sums = scores[order], running_sum(columns[order])
    last = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    accepted, wrong = sums[last].T
    threshold = _thresholds(scores[last])
    return Candidates(
        threshold if accepted[-1] else np.full_like(threshold, np.inf),
        accepted,
        wrong,
        len(finite),
        bool(np.all(weight == 1.0)),
        scores[last],
        never,
    )


def _thresholds(scores: np.ndarray) -> np.ndarray:
    """Midpoints of distinct descending scores, and -inf for all."""
    # The middle is safest if another runtime rounds scores differently.
    upper, lower = scores[:-1].astype("float64"), scores[1:]
    middle = (0.5 * upper + 0.5 * lower).astype(scores.dtype)
    # There may be no float between the two.
    middle = np.where(middle > lower, middle, scores[:-1])
    return np.append(middle, np.array(-np.inf, scores.dtype))
