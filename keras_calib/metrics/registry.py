"""The quantities of a table of metrics, by name: formula, bounds, interval.

The metric classes and `CalibrationMetrics` both take them from here.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.formulas.binned_errors import average_error
from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_errors import debiased_error
from keras_calib.formulas.binned_errors import overconfidence_error
from keras_calib.formulas.bootstrap import poisson_interval
from keras_calib.formulas.intervals import Moments
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.intervals import mean_interval
from keras_calib.formulas.operating_points import (
    coverage_at_risk_bounds_of_groups,
)
from keras_calib.formulas.operating_points import coverage_at_risk_of_groups
from keras_calib.formulas.operating_points import failure_fpr95_bounds_of_groups
from keras_calib.formulas.operating_points import failure_fpr95_of_groups
from keras_calib.formulas.operating_points import (
    risk_at_coverage_bounds_of_groups,
)
from keras_calib.formulas.operating_points import risk_at_coverage_of_groups
from keras_calib.formulas.risk_coverage import RankedGroups
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.risk_coverage import augrc_bounds_of_groups
from keras_calib.formulas.risk_coverage import augrc_of_groups
from keras_calib.formulas.risk_coverage import aurc_bounds_of_groups
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.formulas.risk_coverage import eaurc_bounds_of_groups
from keras_calib.formulas.risk_coverage import eaurc_of_groups
from keras_calib.formulas.risk_coverage import failure_auroc_bounds_of_groups
from keras_calib.formulas.risk_coverage import failure_auroc_of_groups
from keras_calib.formulas.risk_coverage import normalized_aurc_bounds_of_groups
from keras_calib.formulas.risk_coverage import normalized_aurc_of_groups
from keras_calib.metrics.states.histogram import Cells
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.numerics.arrays import safe_divide

__all__ = [
    "BINNED",
    "BinnedQuantity",
    "CONFIDENCE",
    "RANK",
    "RankQuantity",
    "confidence_by_cell",
    "confidence_interval",
    "confidence_moments",
    "curve_of_groups",
    "lost_order",
    "mode_of",
    "rank_bounds",
    "rank_interval",
]

# What float32 leaves undecided, relative to the value.
_ROUNDING = 1e-6
# The share of scores beyond a histogram of which nothing is said.
_CLIPPED = 0.01


class RankQuantity(NamedTuple):
    """What is read off ranked groups.

    Attributes:
        of_groups: The formula, of `(groups)` or `(groups, point)`.
        bounds_of_groups: Of the same, `(lower, upper)` over the orders
            inside groups.
        point: The operating point, of options such as a metric; or None.
    """

    of_groups: Callable[..., Any]
    bounds_of_groups: Callable[..., tuple[Any, Any]]
    point: Callable[[Any], float] | None = None

    def value(self, groups: RankedGroups, options: Any) -> Any:
        """The value for groups at the operating point of the options."""
        return self.of_groups(groups, *self._points(options))

    def bounds(self, groups: RankedGroups, options: Any) -> tuple[Any, Any]:
        """Its bounds over the orders inside groups."""
        return self.bounds_of_groups(groups, *self._points(options))

    def _points(self, options: Any) -> list[float]:
        return [] if self.point is None else [self.point(options)]


class BinnedQuantity(NamedTuple):
    """What is read off the sums of bins.

    Attributes:
        value: Of `(sums, whole)`: BinSums, and whether weights are counts.
        norm: Norm of the population's gaps that it estimates, or None.
    """

    value: Callable[[Any, Any], Any]
    norm: str | None


RANK = {
    "aurc": RankQuantity(aurc_of_groups, aurc_bounds_of_groups),
    "eaurc": RankQuantity(eaurc_of_groups, eaurc_bounds_of_groups),
    "naurc": RankQuantity(
        normalized_aurc_of_groups, normalized_aurc_bounds_of_groups
    ),
    "augrc": RankQuantity(augrc_of_groups, augrc_bounds_of_groups),
    "failure_auroc": RankQuantity(
        failure_auroc_of_groups, failure_auroc_bounds_of_groups
    ),
    "failure_fpr95": RankQuantity(
        failure_fpr95_of_groups, failure_fpr95_bounds_of_groups
    ),
    "coverage_at_risk": RankQuantity(
        coverage_at_risk_of_groups,
        coverage_at_risk_bounds_of_groups,
        lambda options: options.risk,
    ),
    "coverage_at_accuracy": RankQuantity(
        coverage_at_risk_of_groups,
        coverage_at_risk_bounds_of_groups,
        lambda options: 1.0 - options.accuracy,
    ),
    "risk_at_coverage": RankQuantity(
        risk_at_coverage_of_groups,
        risk_at_coverage_bounds_of_groups,
        lambda options: options.coverage,
    ),
}

BINNED = {
    "ece": BinnedQuantity(lambda sums, _: calibration_error(sums), "l1"),
    "mce": BinnedQuantity(
        lambda sums, _: calibration_error(sums, "max"), "max"
    ),
    "rmsce": BinnedQuantity(
        lambda sums, _: calibration_error(sums, "l2"), "l2"
    ),
    "debiased_calibration_error": BinnedQuantity(debiased_error, "l2"),
    "average_calibration_error": BinnedQuantity(
        lambda sums, _: average_error(sums), "average"
    ),
    # Of positive gaps only, which no interval here is for.
    "overconfidence_error": BinnedQuantity(
        lambda sums, _: overconfidence_error(sums), None
    ),
}

CONFIDENCE = (
    "accuracy",
    "mean_confidence",
    "overconfidence",
    "underconfidence",
)


_HIGHER_IS_BETTER = {
    "accuracy",
    "coverage_at_accuracy",
    "coverage_at_risk",
    "failure_auroc",
}


def mode_of(name: str) -> str | None:
    """The `mode` of callbacks that monitor a quantity; None if it has none."""
    if name == "mean_confidence":
        return None
    return "max" if name in _HIGHER_IS_BETTER else "min"


def rank_bounds(
    name: str, groups: RankedGroups, options: Any
) -> tuple[float, float]:
    """Bounds of a rank quantity of groups in float64."""
    low, high = map(float, RANK[name].bounds(groups, options))
    if name == "failure_auroc":
        # A difference from 1, rounded as that.
        return max(0.0, low - _ROUNDING), min(1.0, high + _ROUNDING)
    return low - _ROUNDING * abs(low), high + _ROUNDING * abs(high)


def rank_interval(
    name: str,
    groups: RankedGroups,
    options: Any,
    weight_ratio: float,
    level: float,
) -> tuple[float, float]:
    """Bootstrap interval of a rank quantity of groups in float64."""
    num_wrong = groups.wrong.sum()
    of_both = name in ("failure_auroc", "failure_fpr95")
    if of_both and not 0.0 < num_wrong < groups.mass.sum():
        # There is nothing to compare: any value is possible.
        return 0.0, 1.0

    def statistic(right, wrong):
        if of_both and not (right.any() and wrong.any()):
            return np.nan
        mass = right + wrong
        resampled = RankedGroups(
            mass=mass,
            wrong=wrong,
            before=np.cumsum(mass) - mass,
            wrong_before=np.cumsum(wrong) - wrong,
            slope=np.where((right > 0) & (wrong > 0), slope, 0.0),
            frequency_weights=groups.frequency_weights,
        )
        return float(RANK[name].value(resampled, options))

    # Empty cells stay empty.
    filled = groups.mass > 0
    mass, wrong, slope = (
        x[filled] for x in (groups.mass, groups.wrong, groups.slope)
    )
    if of_both:
        # Room beside each cell for a prediction that ties with none.
        mass, wrong, slope = (
            np.insert(x, np.arange(len(x) + 1), 0.0)
            for x in (mass, wrong, slope)
        )
    return poisson_interval(
        statistic,
        mass - wrong,
        wrong,
        weight_ratio=float(weight_ratio) or 1.0,
        level=level,
        beside=of_both,
    )


def lost_order(
    name: str, histogram: HistogramSummary, limbs: np.ndarray
) -> Iterator[str]:
    """What the users of a ranking must know of scores beyond its histogram.

    Args:
        name: Of the metric.
        histogram: Of the score.
        limbs: NumPy limbs of its sums.

    Yields:
        Texts of warnings.
    """
    share = float(histogram.clipped_share(limbs))
    if share > _CLIPPED:
        yield (
            f"`{name}` has seen scores (log-odds, of a confidence) beyond the "
            f"+-4,000 that it tells apart, and takes {share:.1%} of all for "
            "tied: the exact value is within `bounds()`. Use the exact "
            "function, such as `aurc`, or divide the logits"
        )


def confidence_by_cell(name: str, cells: Cells) -> tuple[Any, Any]:
    """Mass, and sum of the values whose mean is asked for, by cell.

    Array-agnostic.
    """
    right = cells.mass - cells.wrong
    if name == "accuracy":
        return cells.mass, right
    if name == "mean_confidence":
        return cells.mass, cells.confidence
    if name == "overconfidence":
        total = cells.confidence_minus_correct
        return cells.wrong, total + cells.correct_one_minus_confidence
    return right, cells.correct_one_minus_confidence


def confidence_moments(name: str, cells: Cells, weight_ratio: float) -> Moments:
    """Moments of those values, NumPy; alike inside a cell."""
    mass, total = confidence_by_cell(name, cells)
    squares = total if name == "accuracy" else safe_divide(total**2, mass)
    cubes = total if name == "accuracy" else safe_divide(total**3, mass**2)
    return Moments(
        weight=mass.sum(),
        total=total.sum(),
        squared_weight=weight_ratio * mass.sum(),
        squared_total=weight_ratio * total.sum(),
        squares=weight_ratio * squares.sum(),
        second=squares.sum(),
        third=cubes.sum(),
    )


def confidence_interval(
    name: str, moments: Moments, level: float
) -> tuple[Any, Any]:
    """Interval of the mean of values in [0, 1] with these moments."""
    if name != "accuracy":
        ends = mean_interval(moments, level=level, unseen=(0.0, 1.0))
        return tuple(np.clip(ends, 0.0, 1.0))
    count = safe_divide(moments.weight**2, moments.squared_weight)
    share = np.clip(safe_divide(moments.total, moments.weight), 0.0, 1.0)
    return clopper_pearson(share * count, count, level=level)


def curve_of_groups(
    groups: RankedGroups, lower_score: np.ndarray
) -> RiskCoverageCurve:
    """The curve through the ends of the groups that are not empty."""
    filled = groups.mass > 0
    mass, wrong, before, wrong_before = (v[filled] for v in groups[:4])
    through = before + mass
    return RiskCoverageCurve(
        coverage=through / through[-1:],
        risk=(wrong_before + wrong) / through,
        threshold=np.flip(lower_score)[filled],
    )
