"""A table of all metrics of the predicted class, from one state."""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Unpack

import keras

from keras_calib.backend.compiled import without_autograph
from keras_calib.backend.keras_internals import metrics_beside, show_values
from keras_calib.formulas.binned_errors import Decomposition, decompose
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.cumulative import CumulativeCurve
from keras_calib.formulas.proper import check_clip
from keras_calib.formulas.risk_coverage import (
    RiskCoveragePoints,
    aurc_of_groups,
)
from keras_calib.inputs.checks import check_share
from keras_calib.inputs.given_metrics import key_of
from keras_calib.inputs.options import taken
from keras_calib.metrics.base import MetricOptions, StreamingMetric
from keras_calib.metrics.gap_estimates import GapEstimate, gap_of
from keras_calib.metrics.proper import brier_of_records, nll_of_records
from keras_calib.metrics.registry import QUANTITIES, mode_of
from keras_calib.metrics.states.composite import CompositeSummary, Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import MomentSummary

_NAMES = tuple(name for name in QUANTITIES if name != "objectness_deviation")


class TableOptions(MetricOptions, total=False):
    """Options of `CalibrationMetrics` that few change."""

    clip: float | None
    resolution: Annotated[int, 8192]
    prefix: Annotated[str, ""]


@keras.saving.register_keras_serializable(package="keras_calib")
class CalibrationMetrics(StreamingMetric):
    """All metrics of the predicted class as a dict, from one pass.

    Use it in place of single metrics: one state serves them all. `fit` reports
    each by its name (`val_ece`, `val_aurc`, ...), so callbacks can monitor it.

    The names are:

    - Accuracy and confidence: `accuracy`, `mean_confidence`,
      `confidence_gap`, `overconfidence`, `underconfidence`.
    - Proper scores: `nll`, `brier_score`.
    - Calibration errors: `ece`, `mce`, `rmsce`, `debiased_calibration_error`,
      `average_calibration_error`, `overconfidence_error`, `aece`, `ecce`,
      `ecce_maximum` and, on request, `smooth_ece`.
    - Ranking: `aurc`, `eaurc`, `naurc`, `augrc`, `failure_auroc`,
      `failure_fpr95`.
    - Selection: `coverage_at_risk`, `coverage_at_accuracy`,
      `risk_at_coverage`.

    Each value equals that of a class of its own, such as `ECE` for `ece` and
    `NAURC` for `naurc`.

    Args:
        include: Names of the metrics, or their functions or classes, such as
            `ECE`. None for all but `smooth_ece`, which takes milliseconds to
            compute. Without `nll` and `brier_score`
            updates with dense predictions take half the time.
        num_bins: Number of bins of the calibration errors. Defaults to `15`.
        closed: As in `ECE`.
        clip: Lower bound on probabilities for `nll`, or None.
        risk: Allowed risk for `coverage_at_risk`. Defaults to `0.05`.
        accuracy: Wanted accuracy for `coverage_at_accuracy`. Defaults to
            `0.99`.
        coverage: Share to accept for `risk_at_coverage`. Defaults to `0.8`.
        resolution: Number of bins of the fine histogram. `8192`, the default,
            takes 394 kB; `2048` is enough for training. Defaults to `8192`.
        prefix: Text before each name. Give one if another metric reports under
            the same name, such as a second table for another output. Defaults
            to `""`.
        name: Name of the metric.
        **kwargs: Those of `StreamingMetric`, such as `from_logits`.

    Returns:
        `result()` returns a dict of scalars. `nll` and `brier_score` are NaN
        once `update_scores` added records without probabilities.

    Example:

    >>> metric = CalibrationMetrics(include=["ece", "aurc"], num_bins=10)
    >>> metric.update_state([0, 1], [[0.8, 0.2], [0.6, 0.4]])
    >>> {name: round(float(x), 4) for name, x in metric.result().items()}
    {'ece': 0.4, 'aurc': 0.25}

    Reference:
        Those of the functions of these names.
    """

    def __init__(
        self,
        include: Sequence[Any] | None = None,
        *,
        num_bins: int = 15,
        closed: str = "right",
        risk: float = 0.05,
        accuracy: float = 0.99,
        coverage: float = 0.8,
        **kwargs: Unpack[TableOptions],
    ):
        options, rest = taken(kwargs, TableOptions, MetricOptions)
        check_clip(options.clip)
        check_share("risk", risk)
        check_share("accuracy", accuracy)
        check_share("coverage", coverage, positive=True)
        given = _NAMES[:-1] if include is None else include
        include = tuple(key_of("include", x, _NAMES) for x in given)
        parts: dict[str, Any] = {
            "histogram": HistogramSummary(
                options.resolution, num_bins, closed=closed
            )
        }
        losses = {
            "nll": nll_of_records(options.clip),
            "brier_score": brier_of_records,
        }
        # They read the outputs of all classes, which takes about as long as
        # all else.
        wanted = [losses[name] for name in losses if name in include]
        if wanted:
            parts["losses"] = MomentSummary(*wanted, needs_rows=True)
        summary = CompositeSummary(**parts)
        super().__init__(summary, **{"name": "calibration", **rest})
        self._keep(
            include=include,
            num_bins=num_bins,
            closed=closed,
            clip=options.clip,
            risk=risk,
            accuracy=accuracy,
            coverage=coverage,
            resolution=options.resolution,
            prefix=options.prefix,
        )
        self._looked_beside = False

    @without_autograph
    def update_state(self, y_true, y_pred, sample_weight=None):
        """Add one batch, as `StreamingMetric.update_state`."""
        show_values(self, self.modes)
        if not self._looked_beside:
            # Again at each update, until it belongs to a compiled model.
            self._looked_beside = _warn_of_shared_names(
                self, self.reported_names, y_pred
            )
        super().update_state(y_true, y_pred, sample_weight)

    @property
    def reported_names(self) -> list[str]:
        """Keys of `result()`, under which Keras reports the values."""
        return [self.prefix + name for name in self.include]

    @property
    def modes(self) -> dict[str, str]:
        """Modes by the names of the values; those without one are left out."""
        modes = {self.prefix + name: mode_of(name) for name in self.include}
        return {name: mode for name, mode in modes.items() if mode}

    def bins(self) -> BinSums:
        """Return the sums of the equal-width bins, arrays `(num_bins,)`."""
        return self._read().bins

    def confidence_gap(self, level: float = 0.95) -> GapEstimate:
        """Return mean confidence minus accuracy, with an interval.

        Use it to decide whether the model is over- or underconfident.

        Args:
            level: Probability to cover, in (0, 1).

        Returns:
            A `GapEstimate`. With votes its interval is that of a mean over
            samples.
        """
        return gap_of(self._read(), level)

    def aurc(self) -> float:
        """Return the AURC so far, in float64."""
        return float(aurc_of_groups(self._read().groups))

    def curve(self) -> RiskCoveragePoints:
        """Return the risk-coverage curve, with thresholds in log-odds."""
        return self._read().curve

    def differences(self) -> CumulativeCurve:
        """Return the cumulative differences so far, by filled cell."""
        return self._read().differences

    def bounds(self) -> dict[str, tuple[float, float]]:
        """Return certified bounds of values from the histogram by name.

        The ranking metrics, `aece`, `ecce` and `ecce_maximum` have them.
        """
        readings = self._read()
        bounds = {
            self.prefix + name: QUANTITIES[name].bounds(readings, self)
            for name in self.include
        }
        return {name: ends for name, ends in bounds.items() if ends}

    def decomposition(self, score: str = "brier_score") -> Decomposition:
        """Split a score of the binned confidence into two parts.

        Args:
            score: `"brier_score"` or `"nll"`, of which these are the parts, as
                in `calibration_decomposition`.
        """
        return decompose(self.bins(), score)

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return confidence intervals of the values, by name.

        They are `(low, high)` at `level`. The ends are NaN for
        `overconfidence_error` and `smooth_ece`, which have no interval.
        """
        self._warn_of_pixels()
        return self._intervals(self._read(), level)

    def _intervals(
        self, readings: Readings, level: float
    ) -> dict[str, tuple[float, float]]:
        intervals = {
            self.prefix + name: QUANTITIES[name].interval(readings, self, level)
            for name in self.include
        }
        none = float("nan"), float("nan")
        return {
            name: none if ends is None else (float(ends[0]), float(ends[1]))
            for name, ends in intervals.items()
        }

    def get_config(self):
        return {**super().get_config(), "include": list(self.include)}

    def _value(self, readings):
        return [QUANTITIES[name].value(readings, self) for name in self.include]

    def _named(self, values):
        return dict(zip(self.reported_names, values, strict=True))


def _warn_of_shared_names(
    table: CalibrationMetrics, names: Sequence[str], y_pred: Any
) -> bool:
    """Warn if other metrics of a compiled model report under these names.

    Keras reports the values of a dict under their keys, whatever the output. If
    two metrics share a key, one value overwrites the other. Returns whether a
    compiled model makes this update, with the output `y_pred`.
    """
    beside = metrics_beside(table)
    weighted = any(w for metric, _, w in beside if metric is table)
    shared = set()
    for metric, output, sees_weights in beside:
        if metric is table:
            continue
        if type(metric) is type(table):
            others = metric.reported_names
        elif _is_same_accuracy(metric, table, y_pred):
            # Both have the same value, so nothing is lost.
            others = () if sees_weights == weighted else (metric.name,)
        else:
            others = (f"{output}_{metric.name}" if output else metric.name,)
        shared |= {*others} & {*names}
    if shared:
        warnings.warn(
            f"`{table.name}` and another metric of the model both report "
            f"{sorted(shared)}: Keras shows one of the values and drops the "
            'other. Give one of them other names: `prefix="..."` of '
            "`CalibrationMetrics`, `name` of another metric",
            RuntimeWarning,
            stacklevel=3,
        )
    return bool(beside)


def _is_same_accuracy(metric: Any, table: Any, y_pred: Any) -> bool:
    """Whether a metric of Keras has the value of the table's accuracy."""
    reading = table.options
    if reading.ignore_class is not None or (
        reading.objectness or reading.pixels_per_image
    ):
        return False
    if type(metric) is keras.metrics.BinaryAccuracy:
        # One output is the probability of the second class.
        one = tuple(getattr(y_pred, "shape", ()))[-1:] == (1,)
        return one and not reading.from_logits and metric.threshold == 0.5
    return type(metric) in (
        keras.metrics.CategoricalAccuracy,
        keras.metrics.SparseCategoricalAccuracy,
    )
