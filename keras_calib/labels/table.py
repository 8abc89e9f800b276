"""A table of what is known of each label, from one state."""

from typing import Any

import numpy as np

from keras_calib.formulas.binned_errors import calibration_error
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import failure_auroc_of_groups
from keras_calib.labels.example_sums import ExampleSums, ends_of
from keras_calib.labels.metric import MultiLabelMetric, pooled
from keras_calib.metrics.base import StreamingMetric
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.numerics.arrays import safe_divide

# Bins of the fine histogram of each label. 200 labels take 20 MB.
_RESOLUTION = 2048
# Values over labels and over entries, and those of the base rate.
_SHARES = ("accuracy", "precision", "recall")
VALUES = ("probability", "prevalence", "ece", "nll", "brier_score", "auroc")
VALUES += _SHARES
_BASE = ("base_nll", "base_brier_score")
_NAN = float("nan")


class LabelTable:
    """What each label is worth, from one pass, in memory that does not grow."""

    def __init__(self, num_bins: int, from_logits: bool):
        self._metric = MultiLabelMetric(
            _LabelState(num_bins, from_logits=from_logits)
        )
        self._examples = ExampleSums(num_bins)
        self._limbs: Any = None

    def add(self, labels: Any, outputs: Any, weight: Any, *rest: Any) -> None:
        """Adds labels, outputs and weights `(n, labels)`, or None of them.

        `rest` are logits, whether the answer is yes, and numbers of examples,
        as `ExampleSums.add` takes them.
        """
        self._metric.update_state(labels, outputs, weight)
        weight = np.ones(labels.shape) if weight is None else weight
        self._examples.add(labels, weight, *rest)
        self._limbs = None

    def results(self) -> tuple[list[dict[str, float]], dict[str, Any]]:
        """The facts of each label, and their means.

        `count` is the weight of the examples where a label is known, and
        `positives` of those that have it. `probability` is the mean of the
        label, `prevalence` the share of the examples that have it, and `ece`
        the error over bins of the probability. `base_nll` and
        `base_brier_score` are the scores of always stating the prevalence.
        What is not known, such as the `auroc` of a single outcome, is NaN.

        Means are over labels, `macro`, and over all answers, `micro`. Ends of
        95 % intervals have names such as `ece_low` and `ece_high`: those of
        `ExampleSums.means`, and exact ones of the shares of a label.
        """
        values, rows = self._examples.influences(), []
        for k in range(len(values["nll"][0])):
            readings = self.readings(k)
            row = _facts(readings)
            ratio = float(readings.weight_ratio) or 1.0
            for name, (value, size, _) in values.items():
                row.setdefault(name, float(value[k]) if size[k] else _NAN)
                if name in _SHARES:
                    count = size[k] / ratio
                    ends = clopper_pearson(min(value[k], 1.0) * count, count)
                    row |= zip(ends_of(name), map(float, ends), strict=True)
            rows.append(row)
        known = [k for k, row in enumerate(rows) if row["count"]]
        means = self._examples.means([self.bins(k) for k in known])
        weight = [rows[k]["count"] for k in known]
        whole = _facts(self.readings(None))
        for name in ("ece", "auroc", *_BASE):
            x = np.array([rows[k][name] for k in known])
            if name in _BASE:
                whole[name] = np.average(x, weights=weight)
            x = x[np.isfinite(x)]
            exact = x.mean() if len(x) else _NAN, whole[name]
            for own, value in zip(means.values(), exact, strict=True):
                # Sums of examples have coarser ranks.
                for end in ends_of(name) if name == "auroc" else ():
                    own[end] += float(value) - own[name]
                own[name] = float(value)
        return rows, means

    def bins(self, label: int) -> BinSums:
        """Sums of the bins of a label."""
        return self.readings(label).bins

    def readings(self, label: int | None) -> Readings:
        """What is computed from the state of a label, or of all entries."""
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
    """The state of one label: a histogram of its probability."""

    def __init__(
        self,
        num_bins: int = 15,
        *,
        mode: str = "binary",
        name: str = "label",
        **kwargs: Any,
    ):
        summary = HistogramSummary(_RESOLUTION, num_bins, mode=mode)
        super().__init__(summary, name=name, **kwargs)
        self._keep(num_bins=num_bins)

    def _value(self, readings):
        return calibration_error(readings.bins)


def _facts(readings: Readings) -> dict[str, float]:
    """What the histogram of a label, or of all together, tells."""
    cells = readings.cells
    count, wrong = float(cells.mass.sum()), float(cells.wrong.sum())
    positives = count - wrong
    p = float(safe_divide(positives, count))
    inside = np.clip(p, 1e-300, 1.0 - 1e-16)
    entropy = -p * np.log(inside) - (1.0 - p) * np.log1p(-inside)
    auroc = _NAN
    if wrong > 0 and positives > 0:
        auroc = float(failure_auroc_of_groups(readings.groups))
    return {
        "count": count,
        "positives": positives,
        "probability": float(safe_divide(cells.confidence.sum(), count)),
        "prevalence": p,
        "ece": float(calibration_error(readings.bins)),
        "auroc": auroc,
        "base_nll": max(float(entropy), 0.0),
        "base_brier_score": 2.0 * p * (1.0 - p),
    }
