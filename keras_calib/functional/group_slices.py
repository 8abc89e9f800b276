"""Predictions of each group, for what their sums do not tell."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_calib.formulas.bootstrap import rank_interval
from keras_calib.formulas.group_sums import Estimates
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.formulas.proper import loss_interval
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    augrc_of_groups,
    aurc_of_groups,
    failure_auroc_of_groups,
)
from keras_calib.functional.hypothesis_tests import records_test
from keras_calib.functional.ranking import rank
from keras_calib.numerics.softmax import Top1

__all__ = ["RANKS", "Records", "Slices", "records_at"]

RANKS: dict[str, tuple[Callable[[RankedGroups], Any], bool]] = {
    "aurc": (aurc_of_groups, False),
    "augrc": (augrc_of_groups, False),
    "failure_auroc": (failure_auroc_of_groups, True),
}


class Records(NamedTuple):
    """Top-1 records that count, and losses of those of all classes."""

    top: Top1
    weight: np.ndarray
    votes: np.ndarray | None
    is_votes: bool
    losses: dict[str, np.ndarray]


class Slices:
    """What needs the predictions of a group and not only their sums."""

    def __init__(
        self,
        records: Records,
        weight: np.ndarray,
        codes: dict[str, np.ndarray],
        starts: dict[str, np.ndarray],
    ):
        self._records, self._weight = records, weight
        self._codes, self._starts = codes, starts
        self._orders: dict[str, np.ndarray] = {}

    def parts(self, attribute: str | None, places: Any) -> list[np.ndarray]:
        """Places of the predictions of each group."""
        if attribute is None:
            return [np.arange(len(self._weight))]
        if attribute not in self._orders:
            code = self._codes[attribute]
            self._orders[attribute] = np.argsort(code, kind="stable")
        order, starts = self._orders[attribute], self._starts[attribute]
        return [order[starts[k] : starts[k + 1]] for k in places]

    def p_values(
        self,
        attribute: str,
        min_size: int,
        statistic: str,
        num_bins: int,
        draws: dict[str, int],
    ) -> np.ndarray:
        """P-values of the test of each group that is large enough."""
        starts = self._starts[attribute]
        found = np.full(len(starts) - 1, np.nan)
        places = np.flatnonzero(np.diff(starts) >= min_size)
        parts = self.parts(attribute, places)
        for place, part in zip(places, parts, strict=True):
            own = records_at(self._records, part)
            test = records_test(
                own.top, own.votes, statistic, num_bins, **draws
            )
            found[place] = test.p_value
        return found

    def mean_confidence(
        self, attribute: str | None, places: Any, level: float
    ) -> Estimates:
        """Mean confidence of each group."""
        values = self._records.top.confidence.astype("float64")
        moments = self._moments(values, attribute, places)
        low, high = mean_interval(moments, level=level, unseen=(0.0, 1.0))
        low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
        return Estimates(moments.mean, low, high)

    def ranking(
        self, name: str, attribute: str | None, places: Any, level: float
    ) -> Estimates:
        """A metric of `RANKS` of each group."""
        formula, needs_both = RANKS[name]

        def value(groups: RankedGroups) -> float:
            return float(formula(groups))

        rows = []
        for part in self.parts(attribute, places):
            ranks, weight = (
                rank(records_at(self._records, part).top),
                self._weight,
            )
            weight = weight[part]
            ends = rank_interval(
                value,
                ranks,
                needs_both=needs_both,
                weight_ratio=float(np.sum(weight**2) / np.sum(weight)),
                level=level,
            )
            rows.append([value(ranks), *ends])
        return Estimates(*np.reshape(rows, (-1, 3)).T)

    def loss(
        self, name: str, attribute: str | None, places: Any, level: float
    ) -> Estimates:
        """Mean loss of each group, `"brier"` or `"nll"`."""
        losses = self._records.losses[name]
        largest = 2.0 if name == "brier" else None
        finite = np.isfinite(losses)
        moments = self._moments(np.where(finite, losses, 0), attribute, places)
        wrong = self._moments(
            1.0 - self._records.top.correct, attribute, places
        )
        errors = wrong.mean * wrong.weight**2 / wrong.squared_weight
        low, high = loss_interval(moments, errors, level=level, largest=largest)
        # A probability of 0 of the label has an infinite loss.
        lost = self._moments(1.0 * ~finite, attribute, places).total > 0
        mean = np.where(lost, np.inf, moments.mean)
        low, high = np.where(lost, 0.0, low), np.where(lost, np.inf, high)
        return Estimates(mean, low, high)

    def _moments(
        self, values: np.ndarray, attribute: str | None, places: Any
    ) -> Moments:
        """Moments of values of the predictions of each group."""
        code, w = np.zeros(len(values), int), self._weight
        if attribute is not None:
            code = self._codes[attribute]

        def total(terms: np.ndarray) -> np.ndarray:
            found = np.bincount(code, terms)
            return found if attribute is None else found[places]

        wx = w * values
        terms = (w, wx, w**2, w * wx, wx**2, wx * values, wx * values**2)
        return Moments(*map(total, terms))


def records_at(records: Records, places: np.ndarray) -> Records:
    """The records at these places."""
    top, _, votes, is_votes, losses = records
    return Records(
        Top1(
            top.confidence[places],
            top.score[places],
            top.correct[places],
            None if top.weight is None else top.weight[places],
        ),
        records.weight[places],
        None if votes is None else votes[places],
        is_votes,
        {name: x[places] for name, x in losses.items()},
    )
