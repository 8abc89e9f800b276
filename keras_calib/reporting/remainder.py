"""What calibration leaves: chance of its fit, real gaps, and worse classes.

Derivation: docs/derivations.md, 'Intervals and guarantees'.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.reporting.groups import GroupRow

# A calibrator is blamed for a mean gap, or for an ECE, at this level each.
_LEVEL = 0.99
# Quantiles of that level, and of the intervals on the page.
_Z, _Z_SHOWN = float(ndtri(0.5 + 0.5 * _LEVEL)), float(ndtri(0.975))
# Gaps up to this are small enough for a class, whatever they were before.
_SMALL = 0.01


class Remainder(NamedTuple):
    """Gaps after calibration, beside what the chance of its fit explains.

    Attributes:
        fitted: On how many rows or units it was fitted; None if unknown.
        unit: What these are called.
        effect: How many rows of units are worth one.
        reach: Mean gap that the fit alone leaves at most, in 95 % of fits.
        few_tested: Whether the data at hand leave more chance than the fit.
        has_gap: Whether the mean gap is more than chance.
        is_bent: Whether the ECE is more than chance.
        by_class: Whether the calibrator has parameters for each class.
        worse: Classes that calibration made worse: `group`, `name`, and the
            gap `before` and after, a `value` from `low` to `high`.
    """

    fitted: int | None
    unit: str
    effect: float
    reach: float
    few_tested: bool
    has_gap: bool
    is_bent: bool
    by_class: bool
    worse: list[dict[str, Any]]

    @property
    def told(self) -> str:
        """Number and name of what it was fitted on."""
        return f"{self.fitted:,} {self.unit}"


def remainder(
    gap: GapEstimate,
    ece: dict[str, float],
    bins: BinSums,
    calibrator: Any,
    *,
    classes: Sequence[list[GroupRow]] = (),
    name_of: Callable[[int], str] = str,
    num_units: int | None = None,
    unit: str = "units",
) -> Remainder:
    """What is left after calibration, and what explains it.

    Args:
        gap, ece: Mean gap and ECE after calibration, with 95 % intervals.
        bins: Sums of rows by bin after calibration.
        calibrator: It knows `num_samples` and `num_units` of its fit, or not.
        classes: Rows of `StageGroups.classes` before and after calibration.
        name_of: Name of a class by its number.
        num_units: Number of images or other units that the intervals of `gap`
            and `ece` are over; None if each row is alone.
        unit: What units are called, in the plural.
    """
    weight, squares = float(bins.weight.sum()), bins.squared_weight.sum()
    count = weight**2 / float(squares)
    # Rows of a unit are worth fewer than there are.
    effect = 1.0
    if num_units is not None:
        accuracy = bins.accuracy
        spread = float(bins.weight @ (accuracy * (1.0 - accuracy))) / weight
        reach = 0.5 * (gap.high - gap.low) / _Z_SHOWN
        effect = max(1.0, reach**2 * count / max(spread, 1e-12))
    samples = getattr(calibrator, "num_samples", None)
    units = getattr(calibrator, "num_units", None)
    parameters = getattr(calibrator, "num_parameters", lambda k: 0)
    known = max((x.group + 1 for rows in classes for x in rows), default=2)
    found = Remainder(
        fitted=samples if units is None else units,
        unit="rows" if units is None else unit,
        effect=effect,
        reach=0.0,
        few_tested=False,
        has_gap=not gap.low <= 0.0 <= gap.high,
        is_bent=ece["low"] > 0.0,
        by_class=parameters(max(known, 3)) >= max(known, 3),
        worse=[
            {**x, "name": name_of(x["group"])}
            for x in (worse_classes(*classes, effect) if classes else ())
        ],
    )
    if found.fitted is None:
        return found
    # How many times the variance of these data that of the fit is, at most.
    ratio = count / effect / found.fitted
    if num_units is not None and units is not None:
        ratio = num_units / units
    wider = np.sqrt(1.0 + ratio) * _Z / _Z_SHOWN
    more = bins.squared_weight * effect * (1.0 + ratio)
    low, _ = error_interval(replace(bins, squared_weight=more), level=_LEVEL)
    below, above = gap.value - gap.low, gap.high - gap.value
    return found._replace(
        reach=0.5 * (below + above) * np.sqrt(ratio),
        few_tested=ratio < 1.0,
        has_gap=not -wider * above <= gap.value <= wider * below,
        is_bent=ece["low"] > 0.0 and low > 0.0,
    )


def worse_classes(
    before: list[GroupRow], after: list[GroupRow], effect: float = 1.0
) -> list[dict[str, Any]]:
    """Classes that calibration clearly made worse, the worst first.

    Of the same rows, the gap grew if and only if the accuracy lies on the far
    side of the middle of both mean confidences. That is tested exactly, by the
    interval of the accuracy, which holds for all classes at once. Where the
    rows differ, the intervals of both gaps must not meet. `effect` is how many
    rows of units are worth one.
    """
    first, found = {x.group: x for x in before}, []
    for now in (_widened(x, effect) for x in after):
        was = first.get(now.group)
        if was is None or abs(now.confidence_gap) <= _SMALL:
            continue
        was, side = _widened(was, effect), np.sign(now.confidence_gap)
        if (was.weight, was.wrong) == (now.weight, now.wrong):
            middle = 0.5 * (was.confidence + now.confidence)
            grew = side * (now.confidence - was.confidence) > 0.0
            middle = now._replace(confidence=middle)
            clear = grew and _least(middle, side) > 0.0
        else:
            most = max(was.confidence_gap_high, -was.confidence_gap_low)
            clear = _least(now, side) > most
        if clear:
            found.append(
                {
                    "group": now.group,
                    "before": was.confidence_gap,
                    "value": now.confidence_gap,
                    "low": now.confidence_gap_low,
                    "high": now.confidence_gap_high,
                }
            )
    return sorted(found, key=lambda x: abs(x["before"]) - abs(x["value"]))


def _least(row: GroupRow, side: float) -> float:
    """How far the gap of a class is on a side at least."""
    return row.confidence_gap_low if side > 0 else -row.confidence_gap_high


def _widened(row: GroupRow, effect: float) -> GroupRow:
    """A class of which so many rows are worth one."""
    by = np.sqrt(effect)
    low = row.error - by * (row.error - row.low)
    high = row.error + by * (row.high - row.error)
    return row._replace(low=max(low, 0.0), high=min(high, 1.0))
