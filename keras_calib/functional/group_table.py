"""What `by_group` returns: a table of metrics by group, and its tests."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.group_sums import Estimates, GroupedSums
from keras_calib.numerics.results import Result, interval_text

# Metrics that the sums of groups tell.
SUMMED = ("accuracy", "confidence_gap", "ece", "mce", "rmsce")
# Those whose groups are compared: means, of which each has its interval.
_COMPARED = ("accuracy", "confidence_gap", "brier_score", "nll", "risk")
_NORMS = {"ece": "l1", "mce": "max", "rmsce": "l2"}
# Largest differences that are printed.
_MOST_DIFFERENCES = 6
_TOO_FEW = "too few"


class LargestDifference(Result):
    """Largest difference of a metric between two groups of an attribute.

    Attributes:
        metric: Name of the metric.
        attribute: Name of the attribute.
        highest: Group of the largest value.
        lowest: Group of the smallest value.
        value: Difference of these, >= 0.
        low: Lower end of its interval, >= 0.
        high: Upper end of its interval.
    """

    metric: str
    attribute: str
    highest: str
    lowest: str
    value: float
    low: float
    high: float


class GroupMetrics(Result):
    """Table of metrics by group, the result of `by_group`.

    Use `table` for computing, `rows` for reading, and print it to see it. A
    metric `m` has the columns `m`, `m_low` and `m_high`. Groups of too few
    predictions have NaN there, and None in `rows`.

    Attributes:
        table: Columns by name, arrays `(rows,)`: `attribute`, `group`,
            `size`, `too_few`, the metrics, and of tests `p_value`, `p_holm`
            and `p_bh`. With `accept` also `coverage`, `risk` and
            `risk_p_value`, `risk_p_holm`.
        overall: The same of all predictions together, without tests.
        largest: `LargestDifference` of each metric and attribute.
        metrics: Names of the metrics.
        level: Level of the intervals.
        min_count: Least number of predictions of a group to say something.
    """

    table: dict[str, np.ndarray]
    overall: dict[str, Any]
    largest: tuple[LargestDifference, ...]
    metrics: tuple[str, ...]
    level: float
    min_count: int

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The table row by row; None for what is not known."""
        columns = [x.tolist() for x in self.table.values()]
        return [
            _finite(dict(zip(self.table, values, strict=True)))
            for values in zip(*columns, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.table["group"])

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it: `rows`, `overall`, `largest`."""
        return {
            "rows": self.rows,
            "overall": self.overall,
            "largest": [_finite(x.to_dict()) for x in self.largest],
            "metrics": list(self.metrics),
            "level": self.level,
            "min_count": self.min_count,
        }

    __repr__ = Result.__str__

    def _columns(self) -> dict[str, Any]:
        return self.table

    def _shown(self) -> dict[str, Any]:
        shown = [*self.metrics]
        shown += [x for x in ("coverage", "risk") if x in self.table]
        tests = [x for x in ("p_value", "p_holm", "p_bh") if x in self.table]
        names = ["attribute", "group", "size", *shown, *tests]
        lines = []
        for row in [self.overall, *self.rows]:
            head = [row["attribute"], row["group"], f"{row['size']:,}"]
            cells = [_cell(row, x) for x in shown]
            if row["too_few"]:
                cells = [_TOO_FEW, *[""] * (len(shown) - 1)]
            lines.append([*head, *cells, *(_p(row.get(x)) for x in tests)])
        return dict(zip(names, zip(*lines, strict=True), strict=True))

    def _note(self) -> str:
        texts = [
            f"Largest difference of {x.metric} by {x.attribute}: "
            f"{interval_text(x.value, x.low, x.high)}, "
            f"{x.highest} against {x.lowest}"
            for x in self.largest[:_MOST_DIFFERENCES]
        ]
        texts.append(
            f"{100 * self.level:g} % intervals; p-values are of calibration."
        )
        return "\n".join(texts)


def group_metrics(
    attributes: Mapping[str, GroupedSums],
    more: Mapping[str, Any],
    p_values: np.ndarray | None,
    *,
    metrics: tuple[str, ...],
    min_count: int,
    level: float,
    simultaneous: bool = False,
    accepts: bool = False,
) -> GroupMetrics:
    """The table of the groups of some attributes.

    `attributes` are sums of groups. `more` has the metrics beyond `SUMMED`, as
    functions of the name of an attribute, or None for all predictions, of the
    places of its groups and of a level. They return `Estimates`. P-values are
    those of all groups in order, or None.
    """
    first: GroupedSums = next(iter(attributes.values()))
    heads = [(name, x) for name, sums in attributes.items() for x in sums.names]
    # Rounding must not decide of whole numbers.
    effective = np.concatenate([x.effective for x in attributes.values()])
    enough = effective >= min_count - 1e-9
    ends = np.cumsum([len(x.names) for x in attributes.values()])[:-1]
    places: dict[str | None, np.ndarray] = {
        name: np.flatnonzero(x)
        for name, x in zip(attributes, np.split(enough, ends), strict=True)
    }
    kept = {name: x.select(places[name]) for name, x in attributes.items()}
    places[None] = np.zeros(1, int)
    named = [*metrics, *(("coverage", "risk") if accepts else ())]

    def estimates(name: str, attribute: str | None, at: float) -> Estimates:
        if name in more:
            return more[name](attribute, places[attribute], at)
        sums = first.merged() if attribute is None else kept[attribute]
        if name in _NORMS:
            return sums.binned(_NORMS[name], at)
        return getattr(sums, name)(at)

    count = max(1, int(enough.sum()))
    at = 1.0 - (1.0 - level) / (count if simultaneous else 1)
    table: dict[str, np.ndarray] = {
        "attribute": np.array([x for x, _ in heads], object),
        "group": np.array([x for _, x in heads], object),
        "size": np.concatenate([x.size for x in attributes.values()]),
        "too_few": ~enough,
    }
    table["size"] = table["size"].astype("int64")
    overall = {"attribute": "", "group": "all", "too_few": False}
    overall["size"] = int(first.size.sum())
    risky = np.concatenate(
        [x.accepted >= min_count - 1e-9 for x in kept.values()]
    )
    for name in named:
        parts = [estimates(name, attribute, at) for attribute in kept]
        total = estimates(name, None, level)
        for end in Estimates._fields:
            column = name if end == "value" else f"{name}_{end}"
            values = np.full(len(heads), np.nan)
            found = np.concatenate([getattr(x, end) for x in parts])
            if name == "risk":
                found = np.where(risky, found, np.nan)
            values[enough] = found
            table[column] = values
            overall[column] = float(getattr(total, end)[0])
    if p_values is not None:
        p_values = np.where(enough, p_values, np.nan)
        table["p_value"] = p_values
        table["p_holm"] = holm(p_values)
        table["p_bh"] = benjamini_hochberg(p_values)
    if accepts and first.are_counts:
        # Groups of too few predictions are among the others.
        found = [x.risk_p_values() for x in attributes.values()]
        values = np.concatenate(found)
        values[np.isnan(table["risk"])] = np.nan
        table["risk_p_value"], table["risk_p_holm"] = values, holm(values)
    compared = [x for x in named if x in _COMPARED]
    largest = _largest(kept, compared, estimates, level, min_count)
    return GroupMetrics(
        table, _finite(overall), largest, tuple(metrics), level, min_count
    )


def _largest(
    kept: Mapping[str, GroupedSums],
    metrics: list[str],
    estimates: Any,
    level: float,
    min_count: int,
) -> tuple[LargestDifference, ...]:
    """Largest differences, whose intervals hold for all attributes at once."""
    numbers = [len(x.names) for x in kept.values()]
    pairs = sum(n * (n - 1) // 2 for n in numbers)
    found = []
    for metric in metrics if pairs else ():
        for attribute, sums in kept.items():
            at = 1.0 - (1.0 - level) / pairs
            value, low, high = estimates(metric, attribute, at)
            names = np.array(sums.names, object)
            if metric == "risk":
                several = sums.accepted >= min_count - 1e-9
                value, low, high = value[several], low[several], high[several]
                names = names[several]
            if len(names) > 1:
                ends = names[value.argmax()], names[value.argmin()]
                interval = largest_difference(value, low, high)
                found.append(
                    LargestDifference(metric, attribute, *ends, *interval)
                )
    return tuple(found)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """A row with None for numbers that are not finite."""
    return {
        k: None if isinstance(x, float) and not np.isfinite(x) else x
        for k, x in row.items()
    }


def _cell(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "" if name != "risk" else _TOO_FEW
    ends = (row[f"{name}_{end}"] for end in ("low", "high"))
    return interval_text(row[name], *ends, digits=3)


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 1e-3 else f"{value:.3f}"


def holm(p_values: Any) -> np.ndarray:
    """P-values `(m,)` after Holm, for any dependence; NaN is no test.

    To reject those of at most alpha rejects a true hypothesis with probability
    at most alpha, however many hypotheses are true. In ascending order

    adjusted_(i) = max_{j <= i} min(1, (m - j + 1) p_(j))
    """
    return _adjusted(
        p_values, lambda p: np.maximum.accumulate(p * np.arange(len(p), 0, -1))
    )


def benjamini_hochberg(p_values: Any) -> np.ndarray:
    """P-values `(m,)` after Benjamini and Hochberg; NaN is no test.

    To reject those of at most q makes the expected share of true hypotheses
    among the rejected at most q, for independent tests. In ascending order

    adjusted_(i) = min_{j >= i} min(1, m p_(j) / j)
    """

    def of_sorted(p: np.ndarray) -> np.ndarray:
        steps = p * len(p) / np.arange(1, len(p) + 1)
        return np.minimum.accumulate(steps[::-1])[::-1]

    return _adjusted(p_values, of_sorted)


def largest_difference(
    value: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[float, float, float]:
    """Largest difference of two of m independent estimates, with its interval.

    It covers if the intervals of all pairs do. So the estimates need intervals
    of level 1 - (1 - level) / (m (m - 1) / 2).

    Derivation: docs/derivations.md, 'Intervals and guarantees'.

    Reference:
        Zou and Donner, Construction of Confidence Limits about Effect
        Measures, Statistics in Medicine 2008,
        https://doi.org/10.1002/sim.3095 (the interval of a difference)
    """
    above, below = (high - value) ** 2, (value - low) ** 2
    least, most = 0.0, 0.0
    # One row of pairs at a time, as there may be many groups.
    for i in range(len(value)):
        difference = value[i] - value
        lower = difference - np.sqrt(below[i] + above)
        upper = difference + np.sqrt(above[i] + below)
        lower[i] = upper[i] = 0.0
        least = max(least, float(lower.max()))
        most = max(most, float(upper.max()))
    return float(value.max() - value.min()), least, most


def _adjusted(p_values: Any, of_sorted: Callable) -> np.ndarray:
    """P-values at most 1, by what is made of those of tests in order."""
    p_values = np.asarray(p_values, "float64")
    is_test = ~np.isnan(p_values)
    outside = is_test & ~((p_values >= 0.0) & (p_values <= 1.0))
    if p_values.ndim != 1 or outside.any():
        raise value_error(
            "`p_values` must be one row of numbers in [0, 1], or NaN",
            **{"p_values.shape": p_values.shape},
        )
    places = np.flatnonzero(is_test)
    order = places[np.argsort(p_values[places])]
    found = np.full(len(p_values), np.nan)
    found[order] = np.minimum(of_sorted(p_values[order]), 1.0)
    return found
