"""A table of what is known of each label, from one state."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.risk_coverage import failure_auroc_of_groups
from keras_calib.labels.metric import MultiLabelMetric, pooled
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.mean_gap import MeanGap, mean_gap
from keras_calib.metrics.proper import brier_of_records, nll_of_records
from keras_calib.metrics.states.composite import CompositeSummary, Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import MomentSummary
from keras_calib.numerics.arrays import safe_divide

__all__ = ["LabelFacts", "LabelTable", "VALUES"]

# Bins of the fine histogram of each label. 200 labels take 20 MB.
_RESOLUTION = 2048
# The values of `LabelFacts`, over labels and over entries.
VALUES = ("probability", "prevalence", "ece", "nll", "brier", "auroc")


class LabelFacts(NamedTuple):
    """What is known of a label, or of all together.

    Attributes:
        mass: Weight of the examples where the label is known.
        positives: Weight of those that have it.
        probability: Mean probability of the label.
        prevalence: Share of the examples that have it.
        ece: Error over bins of equal width of the probability.
        nll: Log loss, in nats.
        brier: Squared error, summed over yes and no.
        auroc: P(an example with the label has the higher probability), NaN
            without both outcomes.
        bins: Sums of the bins.
    """

    mass: float
    positives: float
    probability: float
    prevalence: float
    ece: float
    nll: float
    brier: float
    auroc: float
    bins: BinSums

    @property
    def base_nll(self) -> float:
        """NLL of always stating the prevalence."""
        p = self.prevalence
        inside = np.clip(p, 1e-300, 1.0 - 1e-16)
        entropy = -p * np.log(inside) - (1.0 - p) * np.log1p(-inside)
        return float(np.maximum(entropy, 0.0))

    @property
    def base_brier(self) -> float:
        """Brier score of always stating the prevalence."""
        return 2.0 * self.prevalence * (1.0 - self.prevalence)


class LabelTable:
    """What each label is worth, from one pass, in memory that does not grow.

    Args:
        num_bins: Number of bins of the calibration errors.
        from_logits: Whether outputs are logits.
    """

    def __init__(self, num_bins: int, from_logits: bool):
        self._metric = MultiLabelMetric(
            _LabelState(num_bins, from_logits=from_logits)
        )
        self._limbs: Any = None

    def add(self, labels: Any, outputs: Any, weight: Any) -> None:
        """Adds labels, outputs and weights `(n, labels)`, or None of them."""
        self._metric.update_state(labels, outputs, weight)
        self._limbs = None

    def facts(self, label: int | None = None) -> LabelFacts:
        """The facts of a label, or of all entries together."""
        readings = self._readings(label)
        cells, bins = readings.cells, readings.bins
        mass, wrong = float(cells.mass.sum()), float(cells.wrong.sum())
        probability = safe_divide(float(cells.confidence.sum()), mass)
        positives = mass - wrong
        auroc = np.nan
        if wrong > 0 and positives > 0:
            auroc = float(failure_auroc_of_groups(readings.groups))
        return LabelFacts(
            mass=mass,
            positives=positives,
            probability=float(probability),
            prevalence=float(safe_divide(positives, mass)),
            ece=float(calibration_error(bins)),
            nll=float(readings.moments(0).mean),
            brier=float(readings.moments(1).mean),
            auroc=auroc,
            bins=bins,
        )

    def summary(self, labels: list[LabelFacts]) -> dict[str, dict[str, float]]:
        """Means over labels, of their facts, and over all entries.

        Beside them are the scores of always stating the prevalence of a label.
        """
        some = [x for x in labels if x.mass > 0]
        macro = {}
        for name in VALUES:
            values = np.array([getattr(x, name) for x in some], "float64")
            values = values[np.isfinite(values)]
            macro[name] = float(values.mean()) if len(values) else float("nan")
        entries = self.facts()
        micro = {name: getattr(entries, name) for name in VALUES}
        counts = np.array([x.mass for x in some])
        for name in ("base_nll", "base_brier"):
            values = np.array([getattr(x, name) for x in some])
            macro[name] = float(values.mean())
            micro[name] = float(np.average(values, weights=counts))
        return {"macro": macro, "micro": micro}

    def gap(self, label: int, level: float) -> MeanGap:
        """Mean probability less prevalence, with its interval."""
        readings = self._readings(label)
        cells = readings.cells
        return mean_gap(
            cells.mass,
            cells.wrong,
            1.0 - safe_divide(cells.confidence, cells.mass),
            weight_ratio=float(readings.weight_ratio) or 1.0,
            level=level,
        )

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
