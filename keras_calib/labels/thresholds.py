"""Several labels as outcomes, and a target for whole examples.

Derivation: docs/derivations.md, 'Families of claims'.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import TESTS
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.labels.columns import LabelColumns
from keras_calib.selection.choice import Choice, chosen_alone, out_of_reach
from keras_calib.selection.claims import means
from keras_calib.selection.families import alone
from keras_calib.selection.ladder import (
    Ladder,
    check_equal_weights,
    counted,
    of_scores,
    read_outcomes,
)
from keras_calib.selection.thresholds import ErrorTarget


class ShareTarget(NamedTuple):
    """Target for the mean share of wrong labels of the accepted examples."""

    plain: ErrorTarget
    method: str | None

    def check(self) -> "ShareTarget":
        """Returns self; raises ValueError for values that are not allowed."""
        self.plain.check()
        if self.method is not None:
            check_in("method", self.method, TESTS)
        return self

    @property
    def delta(self) -> float | None:
        """Probability that the guarantee may fail, or None."""
        return self.plain.delta

    def choose(self, outcomes: Outcomes) -> Choice:
        """The best threshold; ValueError if none reaches the target."""
        check_equal_weights(outcomes.weight, self.delta)
        outcomes = counted(outcomes)
        if self.plain.promise is None:
            return self.plain.choose(outcomes)
        limit, delta = self.plain.promise
        ladder, test = of_scores(outcomes), self.method or TESTS[0]
        losses = outcomes.loss[np.argsort(-outcomes.score, kind="stable")]
        claim = means(ladder, losses, limit, delta, test)
        certified = alone(claim, len(ladder.threshold))
        if not certified.any():
            raise out_of_reach(
                [ladder],
                "risk",
                limit,
                delta,
                advice=(
                    "take more data, or ask for a larger `risk` or `delta`"
                ),
                samples=ladder.size,
            )
        place = int(np.flatnonzero(certified)[-1])
        facts = {**self.plain.facts(), "method": test}
        return chosen_alone(ladder, certified, place, **facts)


def ladders_of_labels(
    columns: LabelColumns,
    score: np.ndarray,
    right: np.ndarray,
    delta: float | None,
) -> list[Ladder | None]:
    """The thresholds of each label; None for one that no example has."""
    found: list[Ladder | None] = []
    # One by one, as copies of all columns at once take long.
    for k in range(columns.num_labels):
        kept: Any = slice(None)
        if columns.present is not None:
            kept = columns.present[:, k]
        weight = columns.weight
        weight = None if weight is None else weight[kept, k]
        one = score[kept, k], right[kept, k], weight
        some = len(one[0]) > 0
        found.append(of_scores(read_outcomes(*one, delta)) if some else None)
    return found


def outcomes_of_examples(
    columns: LabelColumns, score: np.ndarray, right: np.ndarray, example: str
) -> Outcomes:
    """Examples that have all labels, and how far each is wrong.

    Raises ValueError if only some labels of an example are missing: its score
    is of all labels.
    """
    kept: np.ndarray = np.ones(len(right), bool)
    if columns.present is not None:
        kept = np.asarray(columns.present.all(axis=-1))
        partly = columns.present.any(axis=-1) & ~kept
        if partly.any():
            raise value_error(
                "`labels` must have all labels of an example, or none, with "
                '`by="example"`: the score of an example is of all',
                examples=int(partly.sum()),
            )
    right, weight = right[kept], columns.weight
    found = np.asarray(right.all(axis=-1), "float64")
    if example == "mean":
        found = right.mean(axis=-1)
    if weight is not None:
        weight = weight[kept]
        if not np.all(weight == weight[:, :1]):
            raise value_error(
                "`sample_weight` must be one for each example, `(n,)`, with "
                '`by="example"`',
                shape=weight.shape,
            )
        weight = weight[:, 0]
    return Outcomes(score[kept], found, weight=weight)
