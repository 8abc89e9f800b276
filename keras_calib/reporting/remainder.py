"""What calibration leaves: chance of its fit, real gaps, and worse classes.

Derivation: docs/derivations.md, 'Intervals and guarantees'.
"""

from dataclasses import replace
from typing import Any, NamedTuple

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
        has_gap: Whether the mean gap is more than chance.
        is_bent: Whether the ECE is more than chance.
        reach: Mean gap that the fit alone leaves at most, in 95 % of fits.
        few_tested: Whether the data at hand leave more chance than the fit.
    """

    fitted: int | None
    unit: str
    has_gap: bool
    is_bent: bool
    reach: float = 0.0
    few_tested: bool = False

    @property
    def told(self) -> str:
        """Number and name of what it was fitted on."""
        return f"{self.fitted:,} {self.unit}"


def remainder(
    gap: GapEstimate,
    ece: dict[str, float],
    bins: BinSums,
    calibrator: Any,
    num_units: int | None = None,
    unit: str = "units",
) -> Remainder:
    """What is left after calibration, and what explains it.

    Args:
        gap, ece: Mean gap and ECE after calibration, with 95 % intervals.
        bins: Sums by bin after calibration, whose squared weights tell how
            many independent rows they are worth.
        calibrator: It may know the `num_samples` and `num_units` of its fit.
        num_units: Number of images or other units that the intervals of `gap`
            and `ece` are over; None if each row is alone.
        unit: What units are called, in the plural.
    """
    # That of a correction of the prior is inside.
    fit = getattr(calibrator, "calibrator", None) or calibrator
    units = getattr(fit, "num_units", None)
    fitted = units or getattr(fit, "num_samples", None)
    has_gap, is_bent = not gap.low <= 0.0 <= gap.high, ece["low"] > 0.0
    found = Remainder(fitted, unit if units else "rows", has_gap, is_bent)
    if fitted is None:
        return found
    tested = bins.weight.sum() ** 2 / bins.squared_weight.sum()
    if num_units is not None and units is not None:
        tested = num_units
    # The variance that the fit adds to that of these data, at most.
    ratio = float(tested) / fitted
    squares = bins.squared_weight * (1.0 + ratio)
    low, _ = error_interval(replace(bins, squared_weight=squares), level=_LEVEL)
    wider = (1.0 + ratio) ** 0.5 * _Z / _Z_SHOWN
    below, above = gap.value - gap.low, gap.high - gap.value
    return found._replace(
        has_gap=not -wider * above <= gap.value <= wider * below,
        is_bent=is_bent and low > 0.0,
        reach=0.5 * (below + above) * ratio**0.5,
        few_tested=ratio < 1.0,
    )


def worse_classes(
    before: list[GroupRow], after: list[GroupRow]
) -> list[dict[str, Any]]:
    """Classes that calibration clearly made worse, the worst first.

    If the rows are the same, the gap grew if and only if the accuracy lies
    beyond the middle of the mean confidences before and after. The interval of
    the accuracy, which holds for all classes at once, tests that exactly. If
    the rows differ, the intervals of both gaps must not meet.
    """
    first, found = {x.group: x for x in before}, []
    for now in after:
        was, value = first.get(now.group), now.confidence_gap
        ends = now.confidence_gap_low, now.confidence_gap_high
        if was is None or abs(value) <= max(_SMALL, abs(was.confidence_gap)):
            continue
        least = ends[0] if value > 0 else -ends[1]
        limit = max(was.confidence_gap_high, -was.confidence_gap_low)
        if (was.weight, was.wrong) == (now.weight, now.wrong):
            limit = 0.5 * abs(now.confidence - was.confidence)
        if least > limit:
            gaps = was.confidence_gap, value, *ends
            names = "group", "before", "value", "low", "high"
            found.append(dict(zip(names, (now.group, *gaps), strict=True)))
    return sorted(found, key=lambda x: abs(x["before"]) - abs(x["value"]))
