"""Confidence and errors of groups of predictions, such as classes."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.formulas.bins import BinSums, VoteBinSums, bin_sums

__all__ = ["GroupRow", "GroupSums", "SURE", "StageGroups"]

# Least confidences from which the page calls predictions sure, ascending.
SURE = (0.8, 0.9, 0.95, 0.99)


class GroupRow(NamedTuple):
    """One group of predictions.

    Attributes:
        group: Number of the group.
        weight: Sum of the weights.
        wrong: Sum of the weights of wrong predictions. With votes, of the
            shares of votes for other classes.
        confidence: Mean confidence.
        error: Error rate, with an interval from `low` to `high`.
    """

    group: int
    weight: float
    wrong: float
    confidence: float
    error: float
    low: float
    high: float

    @property
    def gap(self) -> float:
        """Mean confidence less accuracy."""
        return self.confidence - 1.0 + self.error

    @property
    def gap_low(self) -> float:
        """Lower end of the gap, whose confidences are taken as fixed."""
        return self.confidence - 1.0 + self.low

    @property
    def gap_high(self) -> float:
        """Upper end of the gap."""
        return self.confidence - 1.0 + self.high

    @property
    def side(self) -> str:
        """`"over"` or `"under"` if the interval of the gap excludes 0."""
        if self.gap_low > 0.0:
            return "over"
        return "under" if self.gap_high < 0.0 else "even"


class GroupSums:
    """Sums over the predictions of each group, in fixed memory.

    A group may be the predicted class, a range of confidence, or a column that
    comes with the data, such as groups of people.
    """

    def __init__(self, num_groups: int, votes: bool = False):
        self._votes = votes
        # Those of `BinSums`; of votes also the squared residual.
        self._sums = np.zeros((5 + votes, num_groups))

    def add(
        self,
        group: np.ndarray,
        confidence: np.ndarray,
        wrong: np.ndarray,
        weight: np.ndarray,
    ) -> None:
        """Adds predictions `(n,)` with the numbers of their groups."""
        found = bin_sums(
            confidence.astype("float64"),
            1.0 - wrong,
            group,
            self._sums.shape[1],
            weight,
            self._votes,
        )
        more = [found.squared_residual] if self._votes else []
        self._sums += np.stack([*found, *more])

    def at_least(self) -> "GroupSums":
        """Sums of each group together with all groups of larger numbers."""
        sums = GroupSums(self._sums.shape[1], self._votes)
        sums._sums = self._sums[:, ::-1].cumsum(axis=1)[:, ::-1]
        return sums

    def rows(self, *, together: bool = False) -> list[GroupRow]:
        """Groups that have weight, with exact 95 % intervals of the error.

        Args:
            together: Whether all intervals hold at once, with 95 %
                probability (Bonferroni), rather than each one.
        """
        sums = BinSums(*self._sums[:5])
        if self._votes:
            sums = VoteBinSums(*sums, squared_residual=self._sums[5])
        filled = np.flatnonzero(sums.weight > 0)
        level = 1.0 - 0.05 / (max(1, len(filled)) if together else 1)
        low, high = accuracy_interval(sums, level=level)
        wrong = np.maximum(sums.weight - sums.correct, 0.0)
        columns = (sums.weight, wrong, sums.mean_confidence)
        columns = (*columns, np.maximum(1.0 - sums.accuracy, 0.0))
        rows = np.stack([*columns, 1.0 - high, 1.0 - low], axis=-1)
        return [GroupRow(int(k), *rows[k].tolist()) for k in filled]


class StageGroups:
    """The groups of the page, before or after calibration."""

    def __init__(self, num_classes: int, votes: bool = False):
        self._classes = GroupSums(num_classes, votes)
        self._levels = GroupSums(len(SURE) + 1, votes)

    def add(
        self,
        confidence: np.ndarray,
        predicted: np.ndarray,
        wrong: np.ndarray,
        weight: np.ndarray,
    ) -> None:
        """Adds predictions `(n,)`."""
        level = np.searchsorted(SURE, confidence, side="right")
        for sums, group in ((self._classes, predicted), (self._levels, level)):
            sums.add(group, confidence, wrong, weight)

    def classes(self) -> list[GroupRow]:
        """Predicted classes, those that differ most certainly first."""
        rows = self._classes.rows(together=True)
        return sorted(rows, key=lambda x: (x.side == "even", -x.low, x.group))

    def sure(self) -> list[GroupRow]:
        """Predictions of at least each confidence in `SURE`, by its place."""
        rows = self._levels.at_least().rows()
        return [x._replace(group=x.group - 1) for x in rows if x.group > 0]

    def totals(self) -> Any:
        """All predictions as one group, or None without any."""
        # The lowest level with all above it.
        rows = self._levels.at_least().rows()
        return rows[0] if rows else None
