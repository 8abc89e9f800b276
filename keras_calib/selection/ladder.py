"""Ladders: thresholds of a score, strictest first, and what each accepts.

Derivation: docs/derivations.md, 'Families of claims'.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import (
    check_any_weight,
    check_independent,
    check_not_empty,
    located,
)
from keras_calib.inputs.groups import read_groups as read_units
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array, running_sum, safe_divide
from keras_calib.predictions.predictions import Predictions


class Ladder(NamedTuple):
    """Thresholds, strictest first, and what each accepts, `(num_thresholds,)`.

    Attributes:
        threshold: Least score to accept. Midway between two scores of the data
            where there is a float between; the last is -inf.
        accepted: Weight of the accepted.
        loss: Their errors, shares of errors or costs, by weight.
        size: Number of samples.
        counts: Whether every weight is 1.
        score: The least score that each accepts; None for given thresholds.
        never: Weight and loss of what has an infinite score, which no
            threshold accepts.
    """

    threshold: np.ndarray
    accepted: np.ndarray
    loss: np.ndarray
    size: int
    counts: bool
    score: Any = None
    never: Any = (0.0, 0.0)

    @property
    def total(self) -> float:
        """Weight of all samples."""
        return float(self.accepted[-1] + self.never[0])

    @property
    def coverage(self) -> np.ndarray:
        """Accepted share; 1 for the last if all scores are finite."""
        return self.accepted / self.total

    @property
    def risk(self) -> np.ndarray:
        """Mean loss of the accepted."""
        return safe_divide(self.loss, self.accepted)

    def covering(self, coverage: float) -> np.ndarray:
        """Which thresholds accept this share; raises ValueError if none."""
        # A coverage such as 1 - 0.9 is rounded.
        reached = self.coverage >= coverage - 1e-12
        if not reached.any():
            rule = "`coverage` must be at most the share of finite scores"
            share = float(self.coverage[-1])
            raise value_error(rule, coverage=coverage, share=share)
        return reached

    def at(self, place: int) -> tuple[float, float, float]:
        """A threshold, its coverage and its risk."""
        accepted, lost = float(self.accepted[place]), float(self.loss[place])
        risk = lost / accepted if accepted else 0.0
        return float(self.threshold[place]), accepted / self.total, risk


def named_group(given: Any, groups: Any) -> Any:
    """Groups as they are, or those that `Predictions` have by a name."""
    if not isinstance(groups, str):
        return groups
    known = given.groups if isinstance(given, Predictions) else {}
    if groups not in known:
        raise value_error(
            "`groups` must be a group of each sample, or the name of one that "
            "`Predictions` have",
            groups=groups,
            names=[*known],
        )
    return known[groups]


def records_of(
    scores: Any, correct: Any, sample_weight: Any = None
) -> tuple[Any, Any, Any, Any]:
    """Scores, correctness, weights and units: as given, or of `Predictions`.

    Those have the shape of the class ids; what does not count weighs 0.
    """
    if not isinstance(scores, Predictions):
        if correct is None:
            raise type_error(
                "`correct` must be given, unless `scores` are `Predictions`",
                correct=None,
            )
        return scores, correct, sample_weight, None
    # It refuses what is told twice.
    scores.arguments(None, {"sample_weight": sample_weight})
    if correct is None and scores.votes:
        raise value_error(
            "`Predictions` must have class ids for labels, as an answer is "
            "right or wrong: take the class of the most votes",
            kind=scores.kind,
        )
    found, shape = scores.outcomes(every=True), scores.shape
    if correct is None:
        correct = found.correct.reshape(shape)
    weight = found.weight
    weight = None if weight is None else weight.reshape(shape)
    return found.score.reshape(shape), correct, weight, found.unit


def in_log_odds(scores: Any) -> bool:
    """Whether scores are `Predictions`, of which the score is in log-odds."""
    return isinstance(scores, Predictions) and scores.from_logits


def check_equal_weights(weight: Any, delta: float | None) -> None:
    """Raises ValueError for a guarantee on samples that count unequally."""
    if weight is None or delta is None:
        return
    if not np.all((weight == 1.0) | (weight == 0.0)):
        raise value_error(
            "`sample_weight` must be 1 with `delta`, or 0 for samples to "
            "leave out: the guarantee counts samples",
            minimum=float(weight.min()),
            maximum=float(weight.max()),
        )


def read_outcomes(
    scores: Any,
    correct: Any,
    sample_weight: Any = None,
    delta: float | None = None,
    *,
    groups: Any = None,
    classes: Any = None,
    largest_cost: float | None = None,
    units: Any = None,
) -> Outcomes:
    """Scores and correctness of one shape as rows that count, checked.

    `scores` may be `Predictions`, which know correctness and weights, and
    groups by their name. `classes` are codes of the scores' shape, in place of
    groups. With `largest_cost`, costs up to it take the place of correctness.
    `units` are codes too, None for those of `Predictions`.
    """
    groups, unit = named_group(scores, groups), None
    name = "correct" if largest_cost is None else "cost"
    missing = correct is None and largest_cost is None
    if missing or isinstance(scores, Predictions):
        scores, correct, sample_weight, unit = records_of(
            scores, correct, sample_weight
        )
    scores = as_array(scores, "scores")
    names: tuple = ()
    if groups is not None:
        # Here, as it needs Keras, which verification does without.
        from keras_calib.selection.served_groups import read_groups

        names, classes = read_groups(groups, scores.shape, sample_weight)
    correct = as_array(correct, name, "float64")
    if delta is not None:
        check_independent("`delta`", scores.shape)
    check_not_empty("scores", scores)
    if scores.dtype not in (np.float32, np.float64):
        scores = scores.astype("float64")
    if scores.shape != correct.shape:
        raise value_error(
            f"`scores` and `{name}` must have one shape",
            **{"scores": scores.shape, name: correct.shape},
        )
    weight = np.ones(scores.shape)
    if sample_weight is not None:
        # Here, as it needs Keras, which records without weights do without.
        from keras_calib.inputs.weights import weight_of_rows

        weight = weight_of_rows(sample_weight, scores.shape)
        weight = weight.reshape(scores.shape)
        check_any_weight(weight)
    cost = None
    if largest_cost is None:
        good = (correct == 0.0) | (correct == 1.0)
        rule, told = "be 0 or 1; shares go to `choose_threshold(cost=)`", {}
    else:
        cost, correct = correct, correct == 0.0
        good = (cost >= 0.0) & (cost <= largest_cost)
        rule = "lie between 0 and `largest_cost`"
        told = {"largest_cost": largest_cost}
    bad = ~good & (weight > 0)
    if bad.any():
        raise value_error(f"`{name}` must {rule}", **located(bad), **told)
    unit = unit if units is None else units
    if unit is not None:
        unit = unit.reshape(scores.shape)
    outcomes = counted(
        Outcomes(
            scores, correct, cost, weight, unit=unit, group=classes, names=names
        ),
        delta,
    )
    if delta is not None:
        check_independent("`delta`", outcomes.score.shape, outcomes.unit)
    return outcomes


def of_units(
    given: Any,
    correct: Any,
    cost: Any,
    sample_weight: Any,
    units: Any,
    largest_cost: float,
) -> Outcomes:
    """The mean score and the mean cost of each unit that has a row that counts.

    Rows are as in `read_outcomes`, and `units` as in `choose_threshold`. The
    score of `Predictions` is the confidence of all rows: in use nobody knows
    which of them the labels ignore.
    """
    is_told = isinstance(given, Predictions)
    shape = given.shape if is_told else as_array(given, "scores").shape
    if units is True:
        units = given.units if is_told else None
        units = np.arange(shape[0]) if units is None else units
    unit = read_units(units, shape, "units")[1]
    if cost is not None:
        correct = as_array(cost, "cost", "float64")
        if correct.shape == shape[:1]:
            correct = correct.reshape(-1, *[1] * (len(shape) - 1))
            correct = np.broadcast_to(correct, shape)
    largest = None if cost is None else largest_cost
    rows = every = read_outcomes(
        given, correct, sample_weight, largest_cost=largest, units=unit
    )
    if is_told:
        if given.ignore_class is not None:
            labels = np.full(shape, int(given.ignore_class == 0))
            given = given.with_columns({"labels": labels})
        every = given.outcomes(every=True)._replace(unit=unit.reshape(-1))
        every = every.counted()
        every = every._replace(score=every.confidence)
    found = []
    for some, values in ((every, every.score), (rows, rows.loss)):
        weight = np.ones(len(values)) if some.weight is None else some.weight
        mass, total = (
            np.bincount(some.unit, x, unit.max() + 1)
            for x in (weight, weight * values)
        )
        found.append(safe_divide(total, mass))
    score, cost = (x[mass > 0] for x in found)
    # Means are rounded.
    cost = np.minimum(cost, largest_cost)
    return Outcomes(score, cost == 0.0, cost, np.ones(len(cost)))


def counted(outcomes: Outcomes, delta: float | None = None) -> Outcomes:
    """The rows `(n,)` that count, with a weight each, checked.

    Raises ValueError for scores that are NaN or all infinite, and with `delta`
    for weights that differ.
    """
    scores, weight = outcomes.score, outcomes.weight
    if weight is None:
        weight = np.ones(scores.shape)
    check_equal_weights(weight, delta)
    counts = weight > 0
    bad = np.isnan(scores) & counts
    if bad.any():
        raise value_error("`scores` must not be NaN", **located(bad))
    if not (np.isfinite(scores) & counts).any():
        rule = "`scores` must not all be infinite: these are not accepted"
        raise value_error(rule, scores=scores[counts][:4].tolist())
    return outcomes._replace(weight=weight).part(counts)


def of_scores(outcomes: Outcomes) -> Ladder:
    """A threshold between each two groups of tied scores, and -inf for all."""
    scores, loss = outcomes.score, outcomes.loss
    weight = outcomes.weight
    weight = np.ones(len(scores)) if weight is None else weight
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
    accepted, lost = sums[last].T
    if np.max(loss, initial=0.0) <= 1.0:
        # Sums of weights are rounded.
        lost = np.minimum(lost, accepted)
    threshold = _midpoints(scores[last])
    return Ladder(
        threshold if accepted[-1] else np.full_like(threshold, np.inf),
        accepted,
        lost,
        len(finite),
        bool(np.all(weight == 1.0)),
        scores[last],
        never,
    )


def ranked_losses(outcomes: Outcomes) -> np.ndarray:
    """Losses of finite scores, surest first, as a `Ladder` counts them.

    They are sorted among ties, so that the order of the data does not matter.
    """
    finite = np.isfinite(outcomes.score)
    loss = outcomes.loss[finite]
    return loss[np.lexsort((loss, -outcomes.score[finite]))]


def by_group(outcomes: Outcomes) -> list[Ladder | None]:
    """The ladder of each group in `names`; None for one without rows."""
    order = np.argsort(outcomes.group, kind="stable")
    places = np.arange(len(outcomes.names) + 1)
    ends = np.searchsorted(outcomes.group[order], places)
    return [
        of_scores(outcomes.part(order[a:b])) if b > a else None
        for a, b in zip(ends, ends[1:], strict=False)
    ]


def _midpoints(scores: np.ndarray) -> np.ndarray:
    """Midpoints of distinct descending scores, and -inf for all."""
    # The middle is safest if another runtime rounds scores differently.
    upper, lower = scores[:-1].astype("float64"), scores[1:]
    middle = (0.5 * upper + 0.5 * lower).astype(scores.dtype)
    # There may be no float between the two.
    middle = np.where(middle > lower, middle, scores[:-1])
    return np.append(middle, np.array(-np.inf, scores.dtype))


def of_grid(outcomes: Outcomes, threshold: np.ndarray) -> Ladder:
    """Given thresholds, descending, with what each accepts."""
    scores, weight = outcomes.score, outcomes.weight
    given = weight is not None
    weight = weight if given else np.ones(len(scores))
    one = np.zeros(len(scores), int)
    accepted, lost = (
        counts_at(scores, one, 1, threshold, x)[:, 0]
        for x in (weight, weight * outcomes.loss)
    )
    never = float(weight[~np.isfinite(scores)].sum()), 0.0
    lost = np.minimum(lost, accepted)
    return Ladder(
        threshold, accepted, lost, len(scores), not given, None, never
    )


def counts_at(
    scores: np.ndarray,
    kind: np.ndarray,
    num_kinds: int,
    threshold: np.ndarray,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Accepted samples of each kind `(num_thresholds, num_kinds)`.

    Thresholds descend. Weights `(n,)` count instead of samples.
    """
    place = len(threshold) - np.searchsorted(
        threshold[::-1], scores, side="right"
    )
    # No threshold accepts an infinite score.
    place = np.where(np.isfinite(scores), place, len(threshold))
    cells = (len(threshold) + 1) * num_kinds
    counts = np.bincount(place * num_kinds + kind, weight, cells)
    counts = counts.reshape(len(threshold) + 1, num_kinds)
    return np.cumsum(counts[:-1], axis=0)
