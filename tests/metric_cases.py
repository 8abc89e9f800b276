"""Every metric, with what its laws need to know."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from keras import ops

import keras_calib as kc


@dataclass(frozen=True)
class MetricCase:
    """A streaming metric and the exact function that it must follow."""

    name: str
    cls: type
    exact: Callable
    kwargs: dict = field(default_factory=dict)
    # The streamed value equals the exact one up to this: a number, or an
    # array where there are several values. Relative, but for values < 0.1.
    tolerance: Any = 1e-6
    # Or `bounds()` contain the exact one.
    has_bounds: bool = False
    # The exact function takes `ties="order"`.
    has_ties: bool = False
    # Its values before any sample.
    empty: Any = 0.0
    # The state holds the weight of all predictions, right or wrong.
    holds_all: bool = True
    # The same predictions give the same integers, however they are split: no
    # logarithm is taken, and no loss is rounded to the scale of its batch.
    has_exact_sums: bool = False
    needs_num_classes: bool = False
    # Its name in the table, where it is not that of the class.
    named: str = ""

    def __str__(self):
        return self.name

    def make(self, num_classes=4, **kwargs):
        if self.needs_num_classes:
            kwargs["num_classes"] = num_classes
        return self.cls(**{**self.kwargs, **kwargs})

    def is_close(self, value, exact):
        return abs(value - exact) <= self.tolerance * np.maximum(exact, 0.1)

    def value(self, metric):
        """The result as float64 `(number of values,)`."""
        return _flat_values(metric.result())

    def values(self, metric):
        """That, and the same as compiled code computes it, in float32."""
        return self.value(metric), _flat_values(
            metric._named(
                metric._values_of(
                    *map(ops.convert_to_tensor, (metric.sums, metric.flags))
                )
            )
        )

    def bounds(self, metric):
        """Lower and upper bounds of them, infinite where there are none."""
        bounds = metric.bounds() if self.has_bounds else {}
        if not isinstance(bounds, dict):
            return np.transpose([bounds])
        names = metric.include if self.cls is kc.CalibrationMetrics else [""]
        none = (-np.inf, np.inf)
        return np.transpose([bounds.get(name, none) for name in names])


def _flat_values(result):
    values = result.values() if isinstance(result, dict) else [result]
    return np.array([float(x) for x in values])


def accuracy(labels, outputs, *, sample_weight=None, from_logits=False):
    """Share of right predictions, in float64."""
    if sample_weight is not None and not np.any(sample_weight):
        raise ValueError("`sample_weight` must not be 0 everywhere")
    if outputs.shape[-1] == 1:
        predicted = outputs[:, 0] > (0.0 if from_logits else 0.5)
    else:
        predicted = outputs.argmax(axis=-1)
    return float(np.average(predicted == labels, weights=sample_weight))


def cumulative_error(
    labels,
    outputs,
    *,
    kind="range",
    sample_weight=None,
    from_logits=False,
    votes=False,
):
    """The ECCE by its thresholds t: mean of (c <= t) (c - correct)."""
    if outputs.shape[-1] == 1:
        rest = np.zeros_like(outputs) if from_logits else 1.0 - outputs
        outputs = np.concatenate([rest, outputs], axis=-1)
    weight = np.ones(len(labels)) if sample_weight is None else sample_weight
    if not np.any(weight):
        raise ValueError("`sample_weight` must not be 0 everywhere")
    confidence = outputs.max(axis=-1).astype("float64")
    if from_logits:
        gaps = outputs.astype("float64") - confidence[:, None]
        confidence = 1.0 / np.exp(gaps).sum(axis=-1)
    # Rows may sum to a little more than 1.
    confidence = np.minimum(confidence, 1.0)
    predicted = outputs.argmax(axis=-1)
    if votes:
        share = labels / labels.sum(axis=-1, keepdims=True)
        correct = share[np.arange(len(share)), predicted]
    else:
        correct = predicted == labels
    residual = weight * (confidence - correct)
    below = [
        residual[confidence <= t].sum() / np.sum(weight)
        for t in np.unique(confidence)
    ]
    walk = [0.0, *below]
    return np.ptp(walk) if kind == "range" else np.abs(walk).max()


def _rank_case(name, exact, tolerance=1e-3, **kwargs):
    return MetricCase(
        name,
        getattr(kc.metrics, name.partition("-")[0]),
        functools.partial(exact, **kwargs),
        kwargs,
        tolerance=tolerance,
        has_bounds=True,
        has_ties="ties" in inspect.signature(exact).parameters,
        empty=0.5 if name == "FailureAUROC" else 0.0,
        named="ecce_maximum" if name == "ECCE-maximum" else "",
    )


def _bin_case(name, exact, **kwargs):
    return MetricCase(
        name,
        getattr(kc.metrics, name.partition("-")[0]),
        functools.partial(exact, **kwargs),
        kwargs,
        has_exact_sums=True,
    )


def _part_case(name, exact):
    return MetricCase(name, getattr(kc.metrics, name), exact, holds_all=False)


_SINGLE = [
    MetricCase("Accuracy", kc.Accuracy, accuracy, has_exact_sums=True),
    MetricCase(
        "MeanConfidence", kc.MeanConfidence, kc.functional.mean_confidence
    ),
    MetricCase("ConfidenceGap", kc.ConfidenceGap, kc.functional.confidence_gap),
    _part_case("Overconfidence", kc.functional.overconfidence),
    _part_case("Underconfidence", kc.functional.underconfidence),
    MetricCase("NLL", kc.NLL, kc.nll),
    MetricCase("BrierScore", kc.BrierScore, kc.brier_score),
    _bin_case("ECE", kc.ece),
    _bin_case("MCE", kc.functional.mce),
    _bin_case("RMSCE", kc.functional.rmsce),
    _bin_case(
        "DebiasedCalibrationError", kc.functional.debiased_calibration_error
    ),
    _bin_case(
        "AverageCalibrationError", kc.functional.average_calibration_error
    ),
    _bin_case("OverconfidenceError", kc.functional.overconfidence_error),
    _rank_case("AECE", kc.functional.aece, 1e-5),
    _rank_case("ECCE", cumulative_error, 1e-3),
    _rank_case("ECCE-maximum", cumulative_error, 1e-3, kind="maximum"),
    _rank_case("AURC", kc.aurc),
    _rank_case("EAURC", kc.functional.eaurc),
    _rank_case("NAURC", kc.functional.naurc),
    _rank_case("AUGRC", kc.functional.augrc),
    _rank_case("FailureAUROC", kc.functional.failure_auroc),
    # Steps of one sample, which an order inside a cell may move.
    _rank_case("FailureFPR95", kc.functional.failure_fpr95, 1e-3),
    _rank_case(
        "CoverageAtRisk", kc.functional.coverage_at_risk, 0.02, risk=0.05
    ),
    _rank_case(
        "CoverageAtAccuracy",
        kc.functional.coverage_at_accuracy,
        0.02,
        accuracy=0.99,
    ),
    _rank_case("RiskAtCoverage", kc.functional.risk_at_coverage, coverage=0.8),
    # Its grid is coarser than what the cells leave undecided.
    MetricCase(
        "SmoothECE", kc.SmoothECE, kc.functional.smooth_ece, tolerance=1e-4
    ),
]
# In the order of the values of `CalibrationMetrics`.
TABLE = {case.named or case.cls._quantity: case for case in _SINGLE}


def table(labels, outputs, **kwargs):
    """The exact values of all of them."""
    return np.array([case.exact(labels, outputs, **kwargs) for case in _SINGLE])


METRICS = [
    *_SINGLE,
    _bin_case("ECE-left", kc.ece, norm="l2", closed="left", num_bins=10),
    MetricCase(
        "ClasswiseECE",
        kc.ClasswiseECE,
        kc.functional.classwise_ece,
        has_exact_sums=True,
        needs_num_classes=True,
    ),
    MetricCase(
        "ClasswiseECE-positive",
        kc.ClasswiseECE,
        functools.partial(kc.functional.classwise_ece, threshold=1e-37),
        {"threshold": 1e-37},
        has_exact_sums=True,
        needs_num_classes=True,
    ),
    MetricCase(
        "ClasswiseECE-mass",
        kc.ClasswiseECE,
        functools.partial(kc.functional.classwise_ece, edges="mass"),
        {"edges": "mass", "resolution": 2048},
        tolerance=0.03,
        needs_num_classes=True,
    ),
    MetricCase(
        "BrierScore-classes",
        kc.BrierScore,
        kc.brier_score,
        needs_num_classes=True,
    ),
    _rank_case("AURC-gini", kc.aurc, 3e-3, score="gini"),
    # Logarithms of probabilities near 1 are almost tied.
    _rank_case("AURC-max_logit", kc.aurc, 0.1, score="max_logit"),
    MetricCase(
        "CalibrationMetrics",
        kc.CalibrationMetrics,
        table,
        {"include": list(TABLE)},
        tolerance=np.array([case.tolerance for case in _SINGLE]),
        has_bounds=True,
        empty=np.array([case.empty for case in _SINGLE]),
    ),
]
# One of each kind of state: what all read alike is tried on these alone where
# every operation is compiled anew.
KINDS = [
    case
    for case in METRICS
    if case.name in ("ECE", "NLL", "AURC", "ClasswiseECE", "CalibrationMetrics")
]
# What takes no plain predictions, or weights, has tests of its own.
OTHER_METRICS = [kc.ObjectnessDeviation, kc.PerImage]
OTHER_METRICS += [kc.detection.DetectionECE, kc.detection.LocalizationAwareECE]
OTHER_METRICS += [kc.labels.MultiLabelMetric]
