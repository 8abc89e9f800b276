"""Numbers of the page where rows depend on each other: units are what counts.

Units are images of pixels, sequences of tokens, or what `units` names.
"""

import copy
import math
from typing import Any

import keras
import numpy as np
from scipy.stats import t

from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.cumulative import CumulativeCurve
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.formulas.units import clustered, group_of
from keras_calib.metrics import CalibrationMetrics
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.metrics.registry import QUANTITIES, Rank
from keras_calib.metrics.states.units import UnitSums
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import safe_divide

# Groups of units for the jackknife of a metric, a power of two.
_PARTS = 64
# Fewer units tell nothing of the error of a mean.
_FEWEST = 5


class UnitNumbers:
    """Numbers of units in the order that they come.

    Attributes:
        are_told: Whether rows belong to units, and are not their own.
    """

    def __init__(self) -> None:
        self.are_told = False
        self._by_name: dict[Any, int] = {}

    def of(
        self, units: Any, lead: tuple[int, ...], num_before: int
    ) -> np.ndarray:
        """Numbers `(n,)` of samples of the shape `lead`, after so many rows.

        Without `units` each row is a unit, with all of its samples.
        """
        found = num_before + np.arange(lead[0])
        if units is not None:
            names, places = np.asarray(units).tolist(), self._by_name
            found = np.array([places.setdefault(x, len(places)) for x in names])
        self.are_told |= units is not None or len(lead) > 1
        return np.repeat(found, math.prod(lead[1:]))


class UnitTable(CalibrationMetrics):
    """Metrics whose intervals are those of units, once `take` was called.

    - Means (accuracy, confidence, their gap, NLL, Brier score): Student's
      interval of a ratio of sums over units, with Hall's term for skewness.
    - Binned errors: intervals of as many independent predictions as have the
      variance of each gap between units (the design effect).
    - Ranking metrics: the value -+ Student's quantile times the deviation in
      replicates, of which each repeats a unit a Poisson(1) number of times.
    """

    _units: Any = None
    _stage = 0
    _what = "units"

    def take(self, units: UnitSums, stage: int, what: str) -> None:
        """Takes the sums of units, which are called `what`."""
        self._units, self._stage, self._what = units, stage, what

    def bins(self):
        sums = super().bins()
        if self._units is None:
            return sums
        return clustered(sums, self._units.by_bin(self._stage))

    def confidence_gap(self, level: float = 0.95) -> GapEstimate:
        found = super().confidence_gap(level)
        if self._units is None:
            return found
        ends = self._mean("confidence_gap", level) or (found.low, found.high)
        few = self._what if self._units.num_units < _FEWEST else None
        return GapEstimate(found.value, *ends, few)

    def differences(self) -> CumulativeCurve:
        found = super().differences()
        if self._units is None:
            return found
        _, effect = self._clustered()
        wide = found.deviation * math.sqrt(effect)
        return CumulativeCurve(found.share, found.difference, wide)

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        if self._units is None:
            return super().interval(level)
        readings, (sums, effect) = copy.copy(self._read()), self._clustered()
        ratio = readings.weight_ratio * effect
        vars(readings).update({"bins": sums, "weight_ratio": ratio})
        found = self._intervals(readings, level)
        for name in found:
            ends = self._mean(name, level)
            if isinstance(QUANTITIES[name], Rank):
                ends = self._of_replicates(name, level)
            found[name] = ends or found[name]
        return found

    def _clustered(self) -> tuple[BinSums, float]:
        """Bin sums for a sum over the bins, and their mean design effect."""
        sums, by_bin = super().bins(), self._units.by_bin(self._stage)
        found = clustered(sums, by_bin, together=True)
        squares = [x.squared_weight.sum() for x in (found, sums)]
        return found, float(safe_divide(*squares))

    def _mean(self, name: str, level: float) -> tuple[float, float] | None:
        """Interval of a mean; None for what is none, or does not vary."""
        if name not in self._units.means:
            return None
        moments: Moments = self._units.moments(name, self._stage)
        low, high = map(float, mean_interval(moments, level=level))
        least, most = {"confidence_gap": (-1.0, 1.0), "nll": (0.0, np.inf)}.get(
            name, (0.0, 2.0 if name == "brier_score" else 1.0)
        )
        if not low < high:
            return None
        return max(low, least), min(high, most)

    def _of_replicates(
        self, name: str, level: float
    ) -> tuple[float, float] | None:
        """Interval of a ranking metric; None if no replicate differs."""
        quantity = QUANTITIES[name]
        value = float(quantity.value(self._read(), self))
        drawn = [
            float(quantity.value(x[self._stage], self))
            for x in self._units.replicates()
        ]
        error = float(np.std(drawn, ddof=1))
        if not error > 0.0:
            return None
        degrees = max(1, self._units.num_groups - 1)
        reach = float(t.isf((1.0 - level) / 2.0, degrees)) * error
        # Normalised, the area of a ranking below chance is above 1.
        most = np.inf if name == "naurc" else 1.0
        return max(0.0, value - reach), min(most, value + reach)


class UnitJackknife:
    """The interval of any streaming metric, by units that it leaves out.

    Units go to at most 64 groups, each with a metric of its own. With the
    values v_g of all groups but one, the variance is (G - 1) / G sum_g (v_g -
    mean)^2, and the interval that of Student.

    Reference:
        Shao and Tu, The Jackknife and Bootstrap, 1995, chapter 2
    """

    def __init__(self, metric: StreamingMetric):
        self._metric = metric
        self._parts: dict[int, StreamingMetric] = {}

    def add(self, rows: tuple, unit: np.ndarray) -> None:
        """Adds labels, outputs and weights, and the unit of each row."""
        group = group_of(unit) % _PARTS
        for k in np.unique(group).tolist():
            if k not in self._parts:
                config = self._metric.get_config()
                self._parts[k] = type(self._metric).from_config(config)
            own = np.flatnonzero(group == k)
            self._parts[k].update_state(
                *(None if x is None else np.asarray(x)[own] for x in rows)
            )

    def interval(self, level: float = 0.95) -> dict[str, tuple]:
        """Intervals by the names of `reported_names`, or of the metric."""
        names = getattr(self._metric, "reported_names", [self._metric.name])
        flags = keras.ops.convert_to_numpy(self._metric.flags)
        sums = [
            exact_sums.to_float(keras.ops.convert_to_numpy(x.sums))
            for x in self._parts.values()
        ]
        total, count = np.sum(sums, axis=0), len(sums)
        if count < 2:
            return dict.fromkeys(names, (np.nan, np.nan))
        whole, *left = (
            np.array(self._metric._values_of(exact_sums.of_floats(x), flags))
            for x in (total, *(total - x for x in sums))
        )
        error = np.sqrt((count - 1) * np.var(left, axis=0))
        # What no unit changes has no interval.
        error = np.where(error > 0.0, error, np.nan)
        reach = t.isf((1.0 - level) / 2.0, count - 1) * error
        ends = np.stack([whole - reach, whole + reach], axis=-1).tolist()
        return dict(zip(names, map(tuple, ends), strict=True))
