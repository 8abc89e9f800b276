"""Confidence and errors of groups of predictions: classes, levels, sites."""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq

from keras_calib.formulas.group_sums import GroupedSums
from keras_calib.functional.group_table import group_metrics
from keras_calib.functional.groups import Grouping
from keras_calib.reporting.measures import kinds_told

# Least confidences from which the page calls predictions sure, ascending.
SURE = (0.8, 0.9, 0.95, 0.99)
# Least size and level of the groups that come with the data.
_MIN_SIZE, _LEVEL = 30, 0.95


def side_of_ends(low: float, high: float) -> str:
    """Which side of 0 an interval of a gap is on, or `"even"`."""
    if low > 0.0:
        return "over"
    return "under" if high < 0.0 else "even"


class GroupRow(NamedTuple):
    """One group of predictions.

    Attributes:
        group: Number of the group.
        weight: Sum of the weights.
        wrong: Sum of the weights of wrong predictions. With votes, of the
            shares of votes for other classes.
        confidence: Mean confidence.
        error: Error rate, with an interval from `low` to `high`.
        confidence_gap_low: Lower end of the gap of confidence and accuracy. The
            confidences are taken as fixed where each row is a unit.
        confidence_gap_high: Its upper end.
    """

    group: int
    weight: float
    wrong: float
    confidence: float
    error: float
    low: float
    high: float
    confidence_gap_low: float
    confidence_gap_high: float

    @property
    def confidence_gap(self) -> float:
        """Mean confidence less accuracy."""
        return self.confidence - 1.0 + self.error

    @property
    def side(self) -> str:
        """`"over"` or `"under"` if the interval of the gap excludes 0."""
        return side_of_ends(self.confidence_gap_low, self.confidence_gap_high)


class StageGroups:
    """The groups of the page, before or after calibration."""

    def __init__(self, num_classes: int, votes: bool = False):
        self._classes = GroupedSums(1, votes, num_classes)
        self._levels = GroupedSums(1, votes, len(SURE) + 1)

    def add(
        self,
        confidence: np.ndarray,
        predicted: np.ndarray,
        correct: np.ndarray,
        weight: np.ndarray,
        unit: np.ndarray | None = None,
    ) -> None:
        """Adds predictions `(n,)`, right by a share with votes."""
        level = np.searchsorted(SURE, confidence, side="right")
        for sums, group in ((self._classes, predicted), (self._levels, level)):
            sums.add(None, group, confidence, correct, weight, None, unit)

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
    ends = totals.mean_confidence - high, totals.mean_confidence - low
    if sums.has_units:
        ends = sums.confidence_gap(level)[1:]
    rows = np.stack([*columns, 1.0 - high, 1.0 - low, *ends], axis=-1)
    return [GroupRow(int(k), *rows[k].tolist()) for k in filled]


class AttributeGroups:
    """Sums of the groups of each attribute, in fixed memory."""

    def __init__(self, num_bins: int, votes: bool):
        self._num_bins, self._votes = num_bins, votes
        self._sums: dict[str, GroupedSums] = {}
        self._accepts = False

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(
        self,
        groups: dict[str, Grouping],
        size: int,
        counts: np.ndarray,
        confidence: np.ndarray,
        correct: np.ndarray,
        weight: np.ndarray,
        accept: np.ndarray | None,
        unit: np.ndarray | None = None,
    ) -> None:
        """Adds the predictions that count: `counts` are their places of `size`.

        Groups may be of samples that have several predictions, as an image has
        pixels.
        """
        self._accepts = accept is not None
        for name, (names, code) in groups.items():
            if name not in self._sums:
                made = GroupedSums(self._num_bins, votes=self._votes)
                self._sums[name] = made
            code = np.repeat(code, size // len(code))[counts]
            self._sums[name].add(
                names, code, confidence, correct, weight, accept, unit
            )

    def results(self, chosen: Any) -> dict[str, Any]:
        """The table of `by_group`, with sentences on it."""
        # A group may have come late; numbers are in their own order.
        ordered = {}
        for name, sums in self._sums.items():
            digits = all(map(str.isdecimal, sums.names))
            keys = [(len(x) if digits else 0, x) for x in sums.names]
            places = sorted(range(len(keys)), key=keys.__getitem__)
            ordered[name] = sums.select(np.array(places))
        p_values = None
        if next(iter(ordered.values())).are_counts:
            found = [x.count_p_values() for x in ordered.values()]
            p_values = np.concatenate(found)
        table = group_metrics(
            ordered,
            {},
            p_values,
            metrics=("accuracy", "confidence_gap", "ece"),
            min_count=_MIN_SIZE,
            level=_LEVEL,
            simultaneous=True,
            accepts=self._accepts,
        )
        found = table.to_dict()
        rows = found["rows"]
        num_tests = sum(not row["too_few"] for row in rows)
        for row in rows:
            p_value, sums = row.get("p_holm"), ordered[row["attribute"]]
            if p_value is not None and (p_value <= 0.05) != _excludes_0(row):
                place = np.array([sums.names.index(row["group"])])
                row["p_holm"] = _p_of_interval(sums.select(place), num_tests)
        return {**found, "sentences": _sentences(rows, chosen)}


def worst_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by how far the interval of the gap is from 0; too few come last."""

    def place(row):
        if row["too_few"]:
            return 1, -row["size"]
        return 0, -max(row["confidence_gap_low"], -row["confidence_gap_high"])

    return sorted(rows, key=place)


def _sentences(rows: list[dict[str, Any]], chosen: Any) -> list[str]:
    """Which groups differ, after an adjustment for their number."""
    kinds = {
        "Overconfident": [
            x for x in rows if _excludes_0(x) and x["confidence_gap"] > 0
        ],
        "Underconfident": [
            x for x in rows if _excludes_0(x) and x["confidence_gap"] < 0
        ],
        "More errors among the accepted than in the other groups": [
            x
            for x in rows
            if (p := x.get("risk_p_holm")) is not None and p <= 0.05
        ],
    }
    limit = getattr(chosen, "risk_limit", None)
    if limit is not None:
        above = [x for x in rows if (x.get("risk_low") or 0.0) > limit]
        text = (
            f"A risk above the {100 * limit:g} % that is certified for all "
            "predictions together, but for no group"
        )
        kinds[text] = above
    texts = kinds_told(kinds, lambda x: f"{x['attribute']} {x['group']}")
    if all(row["too_few"] for row in rows):
        return [
            f"Every group has fewer than {_MIN_SIZE} predictions, which is too"
            " few to say whether its confidence differs from its accuracy."
        ]
    return texts or [
        "These data show no group whose confidence differs from its accuracy"
        " after an adjustment for the number of groups."
    ]


def _excludes_0(row: dict[str, Any]) -> bool:
    """Whether the simultaneous interval of the gap does."""
    return row["confidence_gap"] is not None and not (
        row["confidence_gap_low"] <= 0 <= row["confidence_gap_high"]
    )


def _p_of_interval(sums: GroupedSums, num_tests: int) -> float:
    """The p-value, over all groups, at which an interval ends at 0."""

    def excess(p: float) -> float:
        _, low, high = sums.confidence_gap(1.0 - p / num_tests)
        return float(max(low[0], -high[0]))

    ends = 1e-9, 1.0 - 1e-9
    least, most = map(excess, ends)
    if least >= 0.0 or most <= 0.0:
        return ends[most <= 0.0]
    return float(brentq(excess, *ends))
