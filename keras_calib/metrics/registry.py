"""The values that metrics report, by name, with bounds and intervals.

The class of a metric and `CalibrationMetrics` both take its formula from here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_calib.formulas import binned_errors
from keras_calib.formulas import risk_coverage as areas
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, equal_mass_error
from keras_calib.formulas.bootstrap import rank_interval
from keras_calib.formulas.cumulative import cumulative_error
from keras_calib.formulas.intervals import (
    Moments,
    clopper_pearson,
    mean_interval,
)
from keras_calib.formulas.proper import loss_interval
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.formulas.smooth import smooth_error_of_points
from keras_calib.metrics.gap_estimates import gap_of
from keras_calib.metrics.state_dicts import nan_if_lost
from keras_calib.metrics.states.cells import (
    aece_bounds,
    cell_differences,
    ecce_bounds,
    ecce_interval,
    equal_mass_bins,
)
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.histogram import Cells
from keras_calib.numerics.arrays import array_namespace, safe_divide

# Rounding errors of float32, relative to the value.
_ROUNDING = 1e-6
# Sums of squares below it are rounded by more than a thousandth.
_COARSE = 2.0**-20
# Share of scores beyond a histogram above which there is a warning.
_CLIPPED = 0.01


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A value computed from the `Readings` of a state.

    `metric` holds the arguments of the formula, such as `risk`.

    Attributes:
        mode: `"min"` where lower is better, `"max"` where higher is, or None.
    """

    mode: str | None = "min"

    def value(self, readings: Readings, metric: Any) -> Any:
        """Compute the scalar (array-agnostic)."""
        raise NotImplementedError

    def bounds(self, readings: Readings, metric: Any) -> Any:
        """Bounds over all orders inside cells; None if order has no effect."""

    def interval(self, readings: Readings, metric: Any, level: float) -> Any:
        """Confidence interval; None if there is none."""


@dataclass(frozen=True)
class Rank(Quantity):
    """A formula of ranked groups, at the operating point of a metric.

    `point` names the argument that says it, or is None.
    """

    of_groups: Callable[..., Any]
    point: str | None = None
    # Whether it compares correct predictions with wrong ones.
    needs_both: bool = False

    def at(self, metric: Any) -> dict[str, float]:
        """The operating point of a metric by its name; none is empty."""
        return {self.point: getattr(metric, self.point)} if self.point else {}

    def value(self, readings, metric):
        return self.of_groups(readings.groups, **self.at(metric))

    def bounds(self, readings, metric):
        groups, point = readings.groups, self.at(metric)
        if readings.votes and self.mode == "max" and point:
            # A share of a sample may be wrong, so no number is rounded down.
            groups = groups._replace(frequency_weights=False)
        low, high = sorted(
            float(self.of_groups(groups, **point, order=order))
            for order in ("best", "worst")
        )
        if self.of_groups is areas.failure_auroc_of_groups:
            # It is computed as a difference from 1, and rounded as such.
            return max(0.0, low - _ROUNDING), min(1.0, high + _ROUNDING)
        return low - _ROUNDING * abs(low), high + _ROUNDING * abs(high)

    def interval(self, readings, metric, level):
        point = self.at(metric)

        def value(groups: RankedGroups) -> float:
            return float(self.of_groups(groups, **point))

        return rank_interval(
            value,
            readings.groups,
            needs_both=self.needs_both,
            weight_ratio=float(readings.weight_ratio) or 1.0,
            level=level,
            variance=readings.share_variances,
        )


@dataclass(frozen=True)
class _Binned(Quantity):
    """A formula of bin sums and of whether weights are frequency weights.

    `norm` is that of the gaps; None has no interval.
    """

    formula: Callable[[BinSums, Any], Any]
    norm: str | None = None

    def value(self, readings, metric):
        return self.formula(readings.bins, readings.frequency_weights)

    def interval(self, readings, metric, level):
        if self.norm is None:
            return None
        return error_interval(readings.bins, norm=self.norm, level=level)


class _EqualMass(Quantity):
    """The error over bins of equal mass, from the cells of a histogram."""

    def value(self, readings, metric):
        cells = readings.cells
        return equal_mass_error(
            cells.before,
            cells.mass,
            cells.confidence_minus_correct,
            metric.num_bins,
            readings.frequency_weights,
            self._sample(readings, metric),
        )

    def bounds(self, readings, metric):
        low, high = aece_bounds(
            readings.cells,
            readings.histogram.lower_confidence(),
            metric.num_bins,
            readings.frequency_weights,
            self._sample(readings, metric),
        )
        room = _ROUNDING + readings.histogram.confidence_room
        return max(0.0, low - room), min(1.0, high + room)

    def _sample(self, readings: Readings, metric: Any) -> Any:
        """The mass of a sample for edges between samples, else None."""
        if getattr(metric, "edges", "mass") == "mass":
            return None
        ratio, whole = readings.weight_ratio, readings.frequency_weights
        return array_namespace(ratio).where(whole, 1.0, ratio)

    def bins(self, readings: Readings, metric: Any) -> BinSums:
        """Sums of the bins, NumPy arrays `(num_bins,)`."""
        return equal_mass_bins(
            readings.cells,
            metric.num_bins,
            readings.frequency_weights,
            readings.weight_ratio,
        )

    def interval(self, readings, metric, level):
        return error_interval(self.bins(readings, metric), level=level)


@dataclass(frozen=True)
class _Cumulative(Quantity):
    """The cumulative error of a kind, from the cells of a histogram."""

    kind: str

    def value(self, readings, metric):
        return cumulative_error(cell_differences(readings.cells), self.kind)

    def bounds(self, readings, metric):
        low, high = ecce_bounds(readings.cells, self.kind)
        room = _ROUNDING + readings.histogram.confidence_room
        return max(0.0, low - room), min(1.0, high + room)

    def interval(self, readings, metric, level):
        bins, in_bin = readings.bins, readings.histogram.calibration_bin
        ratio = safe_divide(bins.squared_weight, bins.weight)[in_bin]
        return ecce_interval(readings.cells, self.kind, ratio, level)


class _Smooth(Quantity):
    """The smooth error, from the cells of a histogram."""

    def value(self, readings, metric):
        cells = readings.cells
        total = array_namespace(cells.mass).sum(cells.mass)
        return smooth_error_of_points(
            safe_divide(cells.confidence, cells.mass),
            safe_divide(cells.confidence_minus_correct, total),
        )


@dataclass(frozen=True)
class _Share(Quantity):
    """The mean of a value in [0, 1], from its moments or from cells."""

    # Weights of the cells, and sums of the values in them.
    by_cell: Callable[[Cells], tuple[Any, Any]] | None = None
    # Whether the values are 0 and 1.
    is_count: bool = False

    def value(self, readings, metric):
        moments = self._moments(readings)
        mean = moments.mean
        return nan_if_lost(mean, readings.num_invalid, moments.weight)

    def interval(self, readings, metric, level):
        counts = self.is_count and not readings.votes
        return self.interval_of(self._moments(readings), level, counts)

    def interval_of(
        self, moments: Moments, level: float, counts: bool
    ) -> tuple[Any, Any]:
        """Interval of the mean of values, which `counts` says are 0 and 1."""
        if not counts:
            ends = mean_interval(moments, level=level, unseen=(0.0, 1.0))
            return tuple(np.clip(ends, 0.0, 1.0))
        count = safe_divide(moments.weight**2, moments.squared_weight)
        share = np.clip(moments.mean, 0.0, 1.0)
        return clopper_pearson(share * count, count, level=level)

    def _moments(self, readings: Readings) -> Moments:
        """Moments of the values; those of one cell are taken as equal."""
        if readings.histogram is None or self.by_cell is None:
            return readings.moments()
        mass, total = self.by_cell(readings.cells)
        squares = cubes = total
        if self.is_count and readings.votes:
            squares, cubes = readings.cells.share_moments()
        elif not self.is_count:
            squares = safe_divide(total**2, mass)
            cubes = safe_divide(total**3, mass**2)
        xp, ratio = array_namespace(mass), readings.weight_ratio
        mass, total, squares, cubes = map(xp.sum, (mass, total, squares, cubes))
        return Moments.of_ratio(ratio, mass, total, squares, cubes)


class _Gap(Quantity):
    """Mean confidence less accuracy, from the cells of a histogram."""

    def value(self, readings, metric):
        cells = readings.cells
        xp = array_namespace(cells.mass)
        mass = xp.sum(cells.mass)
        gap = safe_divide(xp.sum(cells.confidence_minus_correct), mass)
        return nan_if_lost(gap, readings.num_invalid, mass)

    def interval(self, readings, metric, level):
        estimate = gap_of(readings, level)
        return estimate.low, estimate.high


@dataclass(frozen=True)
class _Loss(Quantity):
    """The mean of a proper loss, at `index` among those of the state."""

    index: int
    largest: float | None = None

    def value(self, readings, metric):
        mean = readings.moments(self.index).mean
        xp = array_namespace(mean)
        nothing = xp.full_like(mean, float("nan"))
        return xp.where(readings.has_all_rows, mean, nothing)

    def interval(self, readings, metric, level):
        if not readings.has_all_rows:
            return np.nan, np.nan
        if readings.is_saturated(self.index):
            return 0.0, np.inf
        return self.interval_of(
            readings.moments(self.index),
            readings.bins,
            level,
            getattr(metric, "clip", None),
        )

    def interval_of(
        self,
        moments: Moments,
        bins: BinSums,
        level: float,
        clip: float | None = None,
    ) -> tuple[Any, Any]:
        """Interval of the mean of losses with these moments."""
        weight, squares = bins.weight.sum(), bins.squared_weight.sum()
        errors = (weight - bins.correct.sum()) * safe_divide(weight, squares)
        return loss_interval(
            moments, errors, level=level, largest=self.largest, clip=clip
        )


def _norm(norm: str) -> _Binned:
    return _Binned(
        lambda sums, _: binned_errors.calibration_error(sums, norm), norm
    )


QUANTITIES = {
    "accuracy": _Share(
        lambda c: (c.mass, c.mass - c.wrong), is_count=True, mode="max"
    ),
    "mean_confidence": _Share(lambda c: (c.mass, c.confidence), mode=None),
    "confidence_gap": _Gap(mode=None),
    "overconfidence": _Share(
        lambda c: (
            c.wrong,
            c.confidence_minus_correct + c.correct_one_minus_confidence,
        )
    ),
    "underconfidence": _Share(
        lambda c: (c.mass - c.wrong, c.correct_one_minus_confidence)
    ),
    "objectness_deviation": _Share(),
    "nll": _Loss(0),
    "brier_score": _Loss(1, largest=2.0),
    "ece": _norm("l1"),
    "mce": _norm("max"),
    "rmsce": _norm("l2"),
    "debiased_calibration_error": _Binned(binned_errors.debiased_error, "l2"),
    "average_calibration_error": _Binned(
        lambda sums, _: binned_errors.average_error(sums), "average"
    ),
    # It sums positive gaps alone; `error_interval` is for absolute gaps.
    "overconfidence_error": _Binned(
        lambda sums, _: binned_errors.overconfidence_error(sums)
    ),
    "aece": _EqualMass(),
    "ecce": _Cumulative("range"),
    "ecce_maximum": _Cumulative("maximum"),
    "aurc": Rank(areas.aurc_of_groups),
    "eaurc": Rank(areas.eaurc_of_groups),
    "naurc": Rank(areas.normalized_aurc_of_groups),
    "augrc": Rank(areas.augrc_of_groups),
    "failure_auroc": Rank(
        areas.failure_auroc_of_groups, needs_both=True, mode="max"
    ),
    "failure_fpr95": Rank(areas.failure_fpr95_of_groups, needs_both=True),
    "coverage_at_risk": Rank(
        areas.coverage_at_risk_of_groups, "risk", mode="max"
    ),
    "coverage_at_accuracy": Rank(
        lambda groups, accuracy, **order: areas.coverage_at_risk_of_groups(
            groups, 1.0 - accuracy, **order
        ),
        "accuracy",
        mode="max",
    ),
    "risk_at_coverage": Rank(areas.risk_at_coverage_of_groups, "coverage"),
    "smooth_ece": _Smooth(),
}


def point_of(name: str, metric: Any) -> dict[str, float]:
    """The operating point of a value of a metric, such as its `risk`."""
    quantity = QUANTITIES.get(name)
    if isinstance(quantity, Rank) and hasattr(metric, quantity.point or ""):
        return quantity.at(metric)
    return {}


def mode_of(name: str) -> str | None:
    """The `mode` of callbacks that monitor a value; None if it has none."""
    return QUANTITIES[name].mode if name in QUANTITIES else None


def kind_of(name: str) -> str:
    """A word for what a value tells of, `"other"` for other names."""
    quantity = QUANTITIES.get(name)
    if isinstance(quantity, Rank):
        return "ranking"
    if isinstance(quantity, _Loss):
        return "proper score"
    if isinstance(quantity, _Share | _Gap):
        return "accuracy"
    return "other" if quantity is None else "calibration"


def lost_order(
    metric: Any, quantities: Sequence[str], readings: Readings
) -> Iterator[str]:
    """Yield warnings of scores beyond a histogram, and of lost squares."""
    if "debiased_calibration_error" in quantities:
        bins = readings.bins
        # In units of 2^-30.
        coarse = np.asarray(bins.squared_weight) < _COARSE
        weight = np.asarray(bins.weight)
        if weight[coarse].sum() > 0.01 * weight.sum():
            yield (
                f"`{metric.name}` rounds the squares of weights that are so "
                "small: multiply all by 1,000, as only ratios matter"
            )
    histogram = readings.histogram
    if not any(isinstance(QUANTITIES.get(q), Rank) for q in quantities):
        return
    of_logits = metric.options.from_logits and readings.has_all_rows
    if not (histogram.is_unbounded or of_logits and histogram.score is None):
        return
    share = float(readings.clipped_share)
    if share > _CLIPPED:
        yield (
            f"`{metric.name}` treats {share:.1%} of the scores as tied, "
            "because their log-odds or values lie beyond +-4,000. The exact "
            "value is within `bounds()`. Use the exact function, such as "
            "`aurc`, or divide the logits"
        )
