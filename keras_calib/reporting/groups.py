"""Confidence and errors of groups of predictions, such as classes."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.formulas.group_sums import GroupedSums

__all__ = ["GroupRow", "SURE", "StageGroups"]

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


class StageGroups:
    """The groups of the page, before or after calibration."""

    def __init__(self, num_classes: int, votes: bool = False):
        self._classes = GroupedSums(1, votes, num_classes)
        self._levels = GroupedSums(1, votes, len(SURE) + 1)

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
            sums.add(None, group, confidence, 1.0 - wrong, weight)

    def classes(self) -> list[GroupRow]:
        """Predicted classes, those that differ most certainly first."""
        rows = _rows(self._classes, together=True)
        return sorted(rows, key=lambda x: (x.side == "even", -x.low, x.group))

    def sure(self) -> list[GroupRow]:
        """Predictions of at least each confidence in `SURE`, by its place."""
        rows = _rows(self._levels.at_least())
        return [x._replace(group=x.group - 1) for x in rows if x.group > 0]

    def totals(self) -> Any:
        """All predictions as one group, or None without any."""
        # The lowest level with all above it.
        rows = _rows(self._levels.at_least())
        return rows[0] if rows else None


def _rows(sums: GroupedSums, *, together: bool = False) -> list[GroupRow]:
    """Groups that have weight, with exact 95 % intervals of the error.

    All intervals hold at once if `together` (Bonferroni), else each one.
    """
    totals = sums.totals
    filled = np.flatnonzero(totals.weight > 0)
    level = 1.0 - 0.05 / (max(1, len(filled)) if together else 1)
    accuracy, low, high = sums.accuracy(level)
    wrong = np.maximum(totals.weight - totals.correct, 0.0)
    columns = (totals.weight, wrong, totals.mean_confidence)
    columns = (*columns, np.maximum(1.0 - accuracy, 0.0))
    rows = np.stack([*columns, 1.0 - high, 1.0 - low], axis=-1)
    return [GroupRow(int(k), *rows[k].tolist()) for k in filled]
