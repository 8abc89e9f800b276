"""All metrics of the predicted class from one state, in one pass."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.formulas.binned_errors import Decomposition
from keras_calib.formulas.binned_errors import decompose
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.proper import check_clip
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.checks import check_at_most
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.mean_gap import MeanGap
from keras_calib.metrics.mean_gap import mean_gap
from keras_calib.metrics.proper import brier_of_records
from keras_calib.metrics.proper import nll_of_records
from keras_calib.metrics.proper import score_interval
from keras_calib.metrics.registry import BINNED
from keras_calib.metrics.registry import CONFIDENCE
from keras_calib.metrics.registry import RANK
from keras_calib.metrics.registry import confidence_by_cell
from keras_calib.metrics.registry import confidence_interval
from keras_calib.metrics.registry import confidence_moments
from keras_calib.metrics.registry import curve_of_groups
from keras_calib.metrics.registry import lost_order
from keras_calib.metrics.registry import mode_of
from keras_calib.metrics.registry import rank_bounds
from keras_calib.metrics.registry import rank_interval
from keras_calib.metrics.reported_names import warn_of_shared_names
from keras_calib.metrics.smooth import smooth_error_of_cells
from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.composite import TableReadings
from keras_calib.metrics.states.equal_mass import aece_of_cells
from keras_calib.metrics.states.equal_mass import equal_mass_bins
from keras_calib.metrics.states.equal_mass import histogram_aece_bounds
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.moments import MomentSummary
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.arrays import safe_divide

__all__ = ["CalibrationMetrics"]

_LOSSES = ("nll", "brier")
_NAMES = (*CONFIDENCE, *_LOSSES, *BINNED, "aece", *RANK, "smooth_ece")


@keras.saving.register_keras_serializable(package="keras_calib")
class CalibrationMetrics(StreamingMetric):
    """All metrics of the predicted class from one state, as a dict.

    One pass serves them all, and `fit` shows each by its name (`val_ece`,
    `val_aurc`, ...) for callbacks to monitor: `accuracy`,
    `mean_confidence`, `overconfidence`, `underconfidence`, `nll`, `brier`,
    `ece`, `mce`, `rmsce`, `debiased_calibration_error`,
    `average_calibration_error`, `overconfidence_error`, `aece`, `aurc`,
    `eaurc`, `naurc`, `augrc`, `failure_auroc`, `failure_fpr95`,
    `coverage_at_risk`, `coverage_at_accuracy`, `risk_at_coverage` and, if
    asked for, `smooth_ece`, as the metric class of that name gives each.

    Args:
        include: Names of the metrics, or None for all but `smooth_ece`,
            which takes milliseconds at each step.
        num_bins: Number of bins of the calibration errors. Defaults to `15`.
        closed: `"right"` for bins (lo, hi], the first with its lower edge;
            `"left"` for [lo, hi), the last with its upper edge.
        clip: Lower bound on probabilities of `nll`, or None.
        risk: Of `coverage_at_risk`. Defaults to `0.05`.
        accuracy: Of `coverage_at_accuracy`. Defaults to `0.99`.
        coverage: Of `risk_at_coverage`. Defaults to `0.8`.
        resolution: Number of bins of the fine histogram. `8192`, the
            default, takes 394 kB; `2048` is enough for training.
        refresh_every: At which steps of compiled training the values are
            computed anew, which costs more than the update: every one, the
            default, or every `refresh_every`-th, between which the progress
            bar shows the last ones. Outside compiled code, at the end of
            each epoch too, `result()` is always of all that was seen.
        prefix: Put before each name. Needed where another metric reports under
            the same name, as a second table does for another output.
        name: Name of the metric.
        **kwargs: `from_logits`, `axis`, `ignore_class`, `objectness`,
            `pixels_per_image`, `seed` and `dtype` of `StreamingMetric`.

    Returns:
        From `result()`: a dict of scalars. `nll` and `brier` are NaN once
        records without probabilities came in by `update_scores`.

    Raises:
        ValueError: If a name is unknown or a number out of range.

    Example:

    >>> metric = CalibrationMetrics(include=["ece", "aurc"], num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> {name: round(float(x), 4) for name, x in metric.result().items()}
    {'ece': 0.4, 'aurc': 0.25}

    Reference:
        Of each metric: see the class of that name.
    """

    def __init__(
        self,
        include: Sequence[str] | None = None,
        *,
        num_bins: int = 15,
        closed: str = "right",
        clip: float | None = None,
        risk: float = 0.05,
        accuracy: float = 0.99,
        coverage: float = 0.8,
        resolution: int = 8192,
        refresh_every: int = 1,
        prefix: str = "",
        name: str = "calibration",
        **kwargs: Any,
    ):
        for metric in () if include is None else include:
            check_in("include", metric, _NAMES)
        check_clip(clip)
        check_at_least("risk", risk, 0.0)
        check_at_most("risk", risk, 1.0)
        check_at_least("accuracy", accuracy, 0.0)
        check_at_most("accuracy", accuracy, 1.0)
        check_above("coverage", coverage, 0.0)
        check_at_most("coverage", coverage, 1.0)
        check_integer("refresh_every", refresh_every, 1)
        summary = CompositeSummary(
            histogram=HistogramSummary(resolution, num_bins, closed=closed),
            losses=MomentSummary(
                nll_of_records(clip), brier_of_records, needs_rows=True
            ),
        )
        super().__init__(summary, name=name, **kwargs)
        self.include = _NAMES[:-1] if include is None else tuple(include)
        self.num_bins = num_bins
        self.closed = closed
        self.clip = clip
        self.risk = risk
        self.accuracy = accuracy
        self.coverage = coverage
        self.resolution = resolution
        self.refresh_every = refresh_every
        self.prefix = prefix
        self._looked_beside = False
        if refresh_every > 1:
            self.num_updates = self._add_sums("num_updates", ())
            self.shown = self.add_variable(
                (len(self.include),), "zeros", "float32", name="shown"
            )

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds one batch; see `StreamingMetric.update_state`."""
        if not self._looked_beside:
            # Until it is a metric of a compiled model.
            self._looked_beside = warn_of_shared_names(
                self, self.reported_names, y_pred
            )
        super().update_state(y_true, y_pred, sample_weight)
        if self.refresh_every == 1 or not self._is_traced():
            return
        due = ops.equal(self.num_updates % self.refresh_every, 0)
        shown = ops.cond(
            due,
            lambda: ops.stack(list(self._from_tensors().values())),
            lambda: ops.convert_to_tensor(self.shown),
        )
        self.shown.assign(shown)
        self.num_updates.assign(self.num_updates + 1)

    def result(self):
        """The values so far, a dict of scalar tensors."""
        if self.refresh_every == 1 or not self._is_traced():
            return super().result()
        return {
            self.prefix + name: ops.cast(self.shown[i], self.dtype)
            for i, name in enumerate(self.include)
        }

    @property
    def reported_names(self) -> list[str]:
        """The keys of `result()`, under which Keras reports the values."""
        return [self.prefix + name for name in self.include]

    @property
    def modes(self) -> dict[str, str]:
        """The `mode` of callbacks that monitor a value, by its key.

        `"min"` where lower is better, `"max"` where higher is. Keras finds
        the direction of a metric with one value by itself, of a dict it needs
        to be told: `EarlyStopping("val_ece", mode=metric.modes["ece"])`.
        Mean confidence has no direction.
        """
        modes = {self.prefix + name: mode_of(name) for name in self.include}
        return {name: mode for name, mode in modes.items() if mode}

    def bins(self) -> BinSums:
        """What the equal-width bins hold: NumPy arrays `(num_bins,)`."""
        return self._readings().bins

    def mean_gap(self, level: float = 0.95) -> MeanGap:
        """Mean confidence less accuracy, with an interval.

        Args:
            level: Probability to cover, in (0, 1).

        Returns:
            `value`, `low`, `high` and `too_few`. 0 lies outside of the
            interval if an exact test of the number of errors says so, and
            `too_few` is `"errors"` or `"right predictions"` where there are
            too few of these to say.
        """
        readings = self._readings()
        cells = readings.cells
        return mean_gap(
            cells.mass,
            cells.wrong,
            1.0 - safe_divide(cells.confidence, cells.mass),
            weight_ratio=float(readings.weight_ratio) or 1.0,
            level=level,
        )

    def aurc(self) -> float:
        """The AURC so far, in float64."""
        return float(aurc_of_groups(self._readings().groups))

    def curve(self) -> RiskCoverageCurve:
        """The risk-coverage curve at the edges of the cells; log-odds."""
        readings = self._readings()
        edges = readings.histogram.lower_score()
        return curve_of_groups(readings.groups, edges)

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Certified bounds of the rank metrics and `aece`, by name."""
        readings, bounds = self._readings(), {}
        for name in self.include:
            if name == "aece":
                bounds[self.prefix + name] = histogram_aece_bounds(
                    readings.histogram,
                    readings.cells,
                    self.num_bins,
                    readings.frequency_weights,
                )
            elif name in RANK:
                bounds[self.prefix + name] = rank_bounds(
                    name, readings.groups, self
                )
        return bounds

    def decomposition(self, score: str = "brier") -> Decomposition:
        """Calibration and refinement of a score of the binned confidence.

        Args:
            score: `"brier"`, the squared error, or `"nll"`, the log score.

        Returns:
            Two floats, see `calibration_decomposition`.
        """
        return decompose(self.bins(), score)

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence intervals by name, of those that have one.

        Args:
            level: Probability to cover, in (0, 1).

        Returns:
            `(low, high)` by name, as the metric classes give them; without
            `overconfidence_error` and `smooth_ece`.
        """
        readings, intervals = self._readings(), {}
        for name in self.include:
            found = self._one_interval(name, readings, level)
            if found is not None:
                intervals[self.prefix + name] = tuple(map(float, found))
        return intervals

    def get_config(self):
        return {
            "include": list(self.include),
            "num_bins": self.num_bins,
            "closed": self.closed,
            "clip": self.clip,
            "risk": self.risk,
            "accuracy": self.accuracy,
            "coverage": self.coverage,
            "resolution": self.resolution,
            "refresh_every": self.refresh_every,
            "prefix": self.prefix,
            **super().get_config(),
        }

    def _comparable_config(self):
        config = super()._comparable_config()
        # What is shown meanwhile has no part in the sums.
        del config["refresh_every"]
        # States stored before there was a choice are those of the default.
        if self.closed == "right":
            del config["closed"]
        return config

    def _readings(self) -> TableReadings:
        return TableReadings(self.summary, *self._exact_sums())

    def _value(self, sums, frequency_weights):
        readings = TableReadings(self.summary, sums, frequency_weights)
        return {
            self.prefix + name: self._one(name, readings)
            for name in self.include
        }

    def _what_is_wrong(self, num_invalid, sums):
        yield from super()._what_is_wrong(num_invalid, sums)
        of_logits = self.options.from_logits and self._has_all_rows()
        if of_logits and any(name in RANK for name in self.include):
            limbs = self.summary.split(sums)["histogram"]
            histogram = self.summary.parts["histogram"]
            yield from lost_order(self.name, histogram, limbs)

    def _one(self, name, readings):
        xp = array_namespace(readings.limbs["histogram"])
        if name in RANK:
            return RANK[name].value(readings.groups, self)
        if name in BINNED:
            return BINNED[name].value(readings.bins, readings.frequency_weights)
        if name in CONFIDENCE:
            mass, total = confidence_by_cell(name, readings.cells)
            mass = xp.sum(mass)
            return self._nan_if_lost(safe_divide(xp.sum(total), mass), mass)
        if name == "aece":
            return aece_of_cells(
                readings.cells, self.num_bins, readings.frequency_weights
            )
        if name == "smooth_ece":
            return smooth_error_of_cells(readings.cells)
        mean = readings.moments(_LOSSES.index(name)).mean
        return xp.where(
            self._has_all_rows(), mean, xp.full_like(mean, float("nan"))
        )

    def _one_interval(self, name, readings, level):
        if name in RANK:
            return rank_interval(
                name,
                readings.groups,
                self,
                readings.weight_ratio,
                level,
            )
        if name in BINNED:
            norm = BINNED[name].norm
            if norm is None:
                return None
            return error_interval(readings.bins, norm=norm, level=level)
        if name in CONFIDENCE:
            ratio = readings.weight_ratio
            moments = confidence_moments(name, readings.cells, ratio)
            return confidence_interval(name, moments, level)
        if name == "aece":
            bins = equal_mass_bins(
                readings.cells,
                self.num_bins,
                readings.frequency_weights,
                readings.weight_ratio,
            )
            return error_interval(bins, level=level)
        if name == "smooth_ece":
            return None
        if not self._has_all_rows():
            return np.nan, np.nan
        i = _LOSSES.index(name)
        return score_interval(
            name,
            readings.moments(i),
            readings.bins,
            level,
            clip=self.clip,
            is_saturated=readings.saturated[i],
        )
