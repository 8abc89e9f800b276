"""The groups of a report that come with its data, such as sites."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.group_sums import GroupedSums
from keras_calib.functional.group_table import group_metrics
from keras_calib.functional.groups import Grouping, grouping, groupings
from keras_calib.numerics.row_blocks import RowFacts
from keras_calib.predictions.row_order import Told
from keras_calib.reporting.annotators import wrong_of
from keras_calib.reporting.measures import kinds_told

__all__ = ["AttributeGroups", "with_groups", "worst_first"]

_MIN_SIZE, _LEVEL = 30, 0.95


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
        lead: tuple[int, ...],
        facts: RowFacts,
        truth: np.ndarray,
        weight: np.ndarray,
        accept: np.ndarray | None,
    ) -> None:
        """Adds predictions `(prod(lead),)`."""
        counts = np.flatnonzero(weight)
        correct = 1.0 - wrong_of(truth[counts], facts.predicted[counts])
        self._accepts = accept is not None
        for name, (names, code) in groups.items():
            if name not in self._sums:
                made = GroupedSums(self._num_bins, votes=self._votes)
                self._sums[name] = made
            if len(code) != len(weight):
                # A sample of several predictions, as an image of pixels.
                code = np.repeat(code, int(np.prod(lead[1:])))
            self._sums[name].add(
                names,
                code[counts],
                facts.confidence[counts],
                correct,
                weight[counts],
                None if accept is None else accept[counts],
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
            metrics=("accuracy", "gap", "ece"),
            min_size=_MIN_SIZE,
            level=_LEVEL,
            simultaneous=True,
            accepts=self._accepts,
        )
        found = table.to_dict()
        return {**found, "sentences": _sentences(found["rows"], chosen)}


def with_groups(batches: Iterable[tuple], groups: Any) -> Iterator[tuple]:
    """Batches with the groups of their samples, given for all of them."""
    if groups is None:
        yield from batches
        return
    given = groups if isinstance(groups, Mapping) else {"group": groups}
    told = {str(k): x for k, x in given.items() if isinstance(x, Told)}
    given = {k: x for k, x in given.items() if not isinstance(x, Told)}
    grouped: dict[str, Grouping] = {}
    start, total = 0, 0
    if given:
        grouped = groupings(given, (len(next(iter(given.values()))),))
        total = min(len(x.code) for x in grouped.values())
    for batch in batches:
        rows = slice(start, start := start + len(batch[0]))
        if given and start > total:
            break
        own = {k: x.part(rows, (total,)) for k, x in grouped.items()}
        for name, values in told.items():
            count = len(batch[0])
            label = f"groups[{name!r}]"
            own[name] = grouping(values.take(count), (count,), label)
        yield (*batch, own)
    if given and start != total:
        raise value_error(
            "`groups` must have a group for each sample of the data",
            groups=total,
            samples=start if start < total else f"at least {start}",
        )


def worst_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by how far the interval of the gap is from 0; too few come last."""

    def place(row):
        if row["too_few"]:
            return 1, -row["size"]
        return 0, -max(row["gap_low"], -row["gap_high"])

    return sorted(rows, key=place)


def _sentences(rows: list[dict[str, Any]], chosen: Any) -> list[str]:
    """Which groups differ, after an adjustment for their number."""
    kinds = {
        "Overconfident": [x for x in rows if _rejected(x) and x["gap"] > 0],
        "Underconfident": [x for x in rows if _rejected(x) and x["gap"] < 0],
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


def _rejected(row: dict[str, Any]) -> bool:
    p_value = row.get("p_holm")
    if p_value is not None:
        return p_value <= 0.05
    # Without a test the simultaneous interval decides.
    return row["gap"] is not None and not (
        row["gap_low"] <= 0 <= row["gap_high"]
    )
