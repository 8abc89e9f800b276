"""A table of what is known of each label, from one state."""

from typing import Any

import numpy as np

from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.risk_coverage import failure_auroc_of_groups
from keras_calib.labels.metric import MultiLabelMetric, pooled
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.gap_estimates import GapEstimate, gap_of
from keras_calib.metrics.proper import brier_of_records, nll_of_records
from keras_calib.metrics.states.composite import CompositeSummary, Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import MomentSummary
from keras_calib.numerics.arrays import safe_divide

# Bins of the fine histogram of each label. 200 labels take 20 MB.
_RESOLUTION = 2048
# Values over labels and over entries, and those of the base rate.
VALUES = ("probability", "prevalence", "ece", "nll", "brier_score", "auroc")
_BASE = ("base_nll", "base_brier_score")


class LabelTable:
    """What each label is worth, from one pass, in memory that does not grow."""

    def __init__(self, num_bins: int, from_logits: bool):
        self._metric = MultiLabelMetric(
            _LabelState(num_bins, from_logits=from_logits)
        )
        self._limbs: Any = None

    def add(self, labels: Any, outputs: Any, weight: Any) -> None:
        """Adds labels, outputs and weights `(n, labels)`, or None of them."""
        self._metric.update_state(labels, outputs, weight)
        self._limbs = None

    def facts(self, label: int | None = None) -> dict[str, float]:
        """The facts of a label, or of all entries together.

        `count` is the weight of the examples where the label is known, and
        `positives` of those that have it. `probability` is the mean of the
        label, `prevalence` the share of the examples that have it, and `ece`
        the error over bins of the probability. `auroc` is NaN without both
        outcomes. `base_nll` and `base_brier_score` are the scores of always
        stating the prevalence.
        """
        readings = self._readings(label)
        cells = readings.cells
        count, wrong = float(cells.mass.sum()), float(cells.wrong.sum())
        positives = count - wrong
        probability = safe_divide(float(cells.confidence.sum()), count)
        p = float(safe_divide(positives, count))
        inside = np.clip(p, 1e-300, 1.0 - 1e-16)
        entropy = -p * np.log(inside) - (1.0 - p) * np.log1p(-inside)
        auroc = float("nan")
        if wrong > 0 and positives > 0:
            auroc = float(failure_auroc_of_groups(readings.groups))
        return {
            "count": count,
            "positives": positives,
            "probability": float(probability),
            "prevalence": p,
            "ece": float(calibration_error(readings.bins)),
            "nll": float(readings.moments(0).mean),
            "brier_score": float(readings.moments(1).mean),
            "auroc": auroc,
            "base_nll": max(float(entropy), 0.0),
            "base_brier_score": 2.0 * p * (1.0 - p),
        }

    def summary(
        self, labels: list[dict[str, float]]
    ) -> dict[str, dict[str, float]]:
        """Means over labels, of their facts, and over all entries."""
        some = [x for x in labels if x["count"] > 0]
        macro = {}
        for name in (*VALUES, *_BASE):
            values = np.array([x[name] for x in some], "float64")
            values = values[np.isfinite(values)]
            macro[name] = float(values.mean()) if len(values) else float("nan")
        entries, weight = self.facts(), [x["count"] for x in some]
        micro = {name: entries[name] for name in VALUES}
        for name in _BASE:
            values = [x[name] for x in some]
            micro[name] = float(np.average(values, weights=weight))
        return {"macro": macro, "micro": micro}

    def bins(self, label: int) -> BinSums:
        """Sums of the bins of a label."""
        return self._readings(label).bins

    def confidence_gap(self, label: int, level: float) -> GapEstimate:
        """Mean probability less prevalence, with its interval."""
        return gap_of(self._readings(label), level)

    def ece_interval(self, label: int, level: float) -> tuple[float, float]:
        """Interval of the calibration error of a label."""
        low, high = error_interval(self._readings(label).bins, level=level)
        return float(low), float(high)

    def _readings(self, label: int | None) -> Readings:
        if self._limbs is None:
            sums = self._metric.state_dict()["sums"]
            limbs, _, _, self._odd = self._metric.summary.split(sums)
            self._limbs = limbs
        summary = self._metric.metric.summary
        if label is None:
            whole = not self._odd.any()
            return Readings(summary, pooled(self._limbs), whole)
        return Readings(
            summary, self._limbs[:, label], bool(self._odd[label] == 0)
        )


class _LabelState(StreamingMetric):
    """The state of one label: a histogram of its probability, and losses."""

    def __init__(
        self, num_bins: int = 15, *, name: str = "label", **kwargs: Any
    ):
        losses = nll_of_records(None), brier_of_records
        summary = CompositeSummary(
            histogram=HistogramSummary(_RESOLUTION, num_bins, mode="binary"),
            losses=MomentSummary(*losses, needs_rows=True),
        )
        summary.needs_rows = True
        super().__init__(summary, name=name, **kwargs)
        self._keep(num_bins=num_bins)

    def _value(self, readings):
        return calibration_error(readings.bins)
