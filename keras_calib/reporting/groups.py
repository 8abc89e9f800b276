"""Confidence and errors of groups of predictions, such as classes."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.numerics.arrays import safe_divide

__all__ = ["GroupRow", "GroupSums", "SURE", "StageGroups"]

# Least confidences from which the page calls predictions sure, ascending.
SURE = (0.8, 0.9, 0.95, 0.99)


class GroupRow(NamedTuple):
    """One group of predictions.

    Attributes:
        group: Number of the group.
        weight: Sum of the weights.
        wrong: Sum of the weights of wrong predictions.
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

    def __init__(self, num_groups: int):
        # Weight, squared weight, weighted confidence, weight of the wrong.
        self._sums = np.zeros((4, num_groups))

    def add(
        self,
        group: np.ndarray,
        confidence: np.ndarray,
        wrong: np.ndarray,
        weight: np.ndarray,
    ) -> None:
        """Adds predictions `(n,)` with the numbers of their groups."""
        num_groups = self._sums.shape[1]
        for sums, values in zip(
            self._sums,
            (weight, weight**2, weight * confidence, weight * wrong),
            strict=True,
        ):
            sums += np.bincount(group, values, num_groups)

    def at_least(self) -> "GroupSums":
        """Sums of each group together with all groups of larger numbers."""
        sums = GroupSums(self._sums.shape[1])
        sums._sums = self._sums[:, ::-1].cumsum(axis=1)[:, ::-1]
        return sums

    def rows(self, *, together: bool = False) -> list[GroupRow]:
        """Groups that have weight, with exact 95 % intervals of the error.

        Args:
            together: Whether all intervals hold at once, with 95 %
                probability (Bonferroni), rather than each one.
        """
        weight, squares, confidence, wrong = self._sums
        filled = np.flatnonzero(weight > 0)
        count = safe_divide(weight**2, squares)
        error = safe_divide(wrong, weight)
        level = 1.0 - 0.05 / (max(1, len(filled)) if together else 1)
        low, high = clopper_pearson(
            np.minimum(error * count, count), count, level=level
        )
        columns = (weight, wrong, safe_divide(confidence, weight), error)
        columns = np.stack([*columns, low, high], axis=-1)
        return [GroupRow(int(k), *columns[k].tolist()) for k in filled]


class StageGroups:
    """The groups of the page, before or after calibration."""

    def __init__(self, num_classes: int):
        self._classes = GroupSums(num_classes)
        self._levels = GroupSums(len(SURE) + 1)

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
