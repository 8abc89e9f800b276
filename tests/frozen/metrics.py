"""Streaming metrics, fed in three uneven batches: values, bounds, intervals."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.data_sets import ALL_PIXELS, CLASSES, PIXELS, Classes
from frozen.exact_functions import CURVE, DIFFERENCES, MURPHY, PARTS
from frozen.results import read, tried
from frozen.stored import Tolerance

# Confidences in float32; a log-odds at the edge of a cell may change cells.
TOLERANCE = Tolerance(relative=2e-6, absolute=2e-6)

# Quantity: the metric, and its options.
METRICS = {
    "accuracy": (kc.Accuracy, {}),
    "mean confidence": (kc.MeanConfidence, {}),
    "confidence less accuracy": (kc.ConfidenceGap, {}),
    "confidence of the wrong": (kc.Overconfidence, {}),
    "doubt of the right": (kc.Underconfidence, {}),
    "negative log-likelihood": (kc.NLL, {}),
    "negative log-likelihood, clipped": (kc.NLL, {"clip": 1e-3}),
    "squared error": (kc.BrierScore, {}),
    "by bin": (kc.ECE, {}),
    "by bin, squared, closed left": (
        kc.ECE,
        {"norm": "l2", "closed": "left", "num_bins": 10},
    ),
    "largest of a bin": (kc.MCE, {}),
    "root mean square of bins": (kc.RMSCE, {}),
    "debiased of bins": (kc.DebiasedCalibrationError, {}),
    "mean of bins": (kc.AverageCalibrationError, {}),
    "overconfidence of bins": (kc.OverconfidenceError, {}),
    "bins of equal mass": (kc.AECE, {"resolution": 512}),
    "range of cumulative differences": (kc.ECCE, {}),
    "largest cumulative difference": (kc.ECCE, {"kind": "maximum"}),
    "smooth error": (kc.SmoothECE, {"resolution": 512}),
    "area under risk and coverage": (kc.AURC, {}),
    "area under risk and coverage, by entropy": (
        kc.AURC,
        {"score": "neg_entropy", "resolution": 256},
    ),
    "excess area": (kc.EAURC, {}),
    "normalized area": (kc.NAURC, {}),
    "area of the generalised risk": (kc.AUGRC, {}),
    "ranking of errors": (kc.FailureAUROC, {}),
    "ranking of errors, false positives": (kc.FailureFPR95, {}),
    "coverage at a risk": (kc.CoverageAtRisk, {"risk": 0.1}),
    "coverage at an accuracy": (kc.CoverageAtAccuracy, {"accuracy": 0.8}),
    "risk at a coverage": (kc.RiskAtCoverage, {"coverage": 0.6}),
}
# Each metric on these; the table of all of them on every data set.
ALONE = "weights", "votes"
NO_BOUNDS = {
    *("accuracy", "mean confidence", "smooth error", "squared error"),
    *("confidence of the wrong", "doubt of the right"),
    "confidence less accuracy",
    *(name for name in METRICS if "of bins" in name or "by bin" in name),
    *(name for name in METRICS if "log-likelihood" in name),
    "largest of a bin",
}
# Their intervals draw 800 bootstraps each.
DRAWN = METRICS.keys() - NO_BOUNDS
# Where the test of that difference is tried.
WITH_GAP = "weights", "votes", "frequency weights", "few rows", "all right"
OF_SECOND = {
    "by bin": kc.ECE,
    "bins of equal mass": kc.AECE,
    "range of cumulative differences": kc.ECCE,
    "debiased of bins": kc.DebiasedCalibrationError,
}
# Today's names in the table.
TABLE = {
    "accuracy": "accuracy",
    "mean_confidence": "mean confidence",
    "confidence_gap": "confidence less accuracy",
    "overconfidence": "confidence of the wrong",
    "underconfidence": "doubt of the right",
    "nll": "negative log-likelihood",
    "brier_score": "squared error",
    "ece": "by bin",
    "mce": "largest of a bin",
    "rmsce": "root mean square of bins",
    "debiased_calibration_error": "debiased of bins",
    "average_calibration_error": "mean of bins",
    "overconfidence_error": "overconfidence of bins",
    "aece": "bins of equal mass",
    "ecce": "range of cumulative differences",
    "ecce_maximum": "largest cumulative difference",
    "aurc": "area under risk and coverage",
    "eaurc": "excess area",
    "naurc": "normalized area",
    "augrc": "area of the generalised risk",
    "failure_auroc": "ranking of errors",
    "failure_fpr95": "ranking of errors, false positives",
    "coverage_at_risk": "coverage at a risk",
    "coverage_at_accuracy": "coverage at an accuracy",
    "risk_at_coverage": "risk at a coverage",
}
BINS = {
    "weight": "weight",
    "confidence": "confidence",
    "right": "correct",
    "difference": "residual",
    "squared weight": "squared_weight",
}
GAP = {"value": "value", "low": "low", "high": "high", "lacks": "too_few"}


def fed(metric: Any, data: Classes, outputs: Any = None, labels: Any = None):
    """The metric after three batches of 40, 15 and 45 %."""
    outputs = data.probs if outputs is None else outputs
    labels = data.labels if labels is None else labels
    ends = [0, *(int(share * len(labels)) for share in (0.4, 0.55, 1.0))]
    for begin, end in zip(ends, ends[1:], strict=False):
        part = slice(begin, end)
        weight = None if data.weight is None else data.weight[part]
        metric.update_state(labels[part], outputs[part], weight)
    return metric


def reading(data: Classes) -> dict[str, Any]:
    """Options of the data as metrics take them."""
    options = {k: v for k, v in data.options.items() if k == "ignore_class"}
    return options | ({"labels": "votes"} if "votes" in data.options else {})


def _alone(name: str) -> Iterator[tuple[str, Any]]:
    data = CLASSES[name]
    for quantity, (cls, given) in METRICS.items():
        metric = fed(cls(**given, **reading(data)), data)
        yield quantity, metric.result()
        if quantity not in DRAWN | {"smooth error", "overconfidence of bins"}:
            yield f"{quantity}, interval", tried(metric.interval, 0.9)
        if quantity not in NO_BOUNDS:
            yield f"{quantity}, bounds", metric.bounds()


def _named(results: Any) -> Any:
    """Results of the table, under the names of the quantities."""
    return {TABLE[name]: value for name, value in results.items()}


def _table(name: str) -> Iterator[tuple[str, Any]]:
    """What one pass tells of all metrics."""
    data = CLASSES[name]
    table = fed(kc.CalibrationMetrics(**reading(data)), data)
    yield "table", _named(table.result())
    yield "table, bounds", _named(table.bounds())
    if name in WITH_GAP:
        yield (
            "difference, with an interval",
            read(table.confidence_gap(0.9), GAP),
        )
    yield "bins", read(table.bins(), BINS)
    for score in ("brier_score", "nll"):
        # Its word among the frozen results.
        word = score.removesuffix("_score")
        parts = read(table.decomposition(score), PARTS)
        yield f"parts of a proper score of bins, {word}", parts


def _logits(name: str) -> Iterator[tuple[str, Any]]:
    """Results of several numbers, from logits, some merged."""
    data = CLASSES[name]
    options = {"from_logits": True, **reading(data)}
    for i, (quantity, metric) in enumerate(
        {
            "by bin": kc.ECE(**options),
            "area under risk and coverage": kc.AURC(resolution=256, **options),
            "smooth error": kc.SmoothECE(resolution=512, **options),
        }.items()
    ):
        other = type(metric).from_config(metric.get_config())
        fed(metric, data, data.logits)
        fed(other, CLASSES["calibrated"], labels=None)
        yield f"{quantity}, of logits", metric.result()
        if i == 1:
            yield f"{quantity}, curve", read(metric.curve(), CURVE)
    one = kc.BrierScore(num_classes=data.num_classes, **options)
    fed(one, data, data.logits)
    yield "squared error with classes", one.result()
    yield "parts of the squared error", read(one.murphy(), MURPHY)
    yield "parts of bins", read(one.decomposition(), PARTS)
    one = fed(kc.ECCE(**options), data, data.logits)
    yield "cumulative differences", read(one.differences(), DIFFERENCES)
    for edges in ("width", "mass"):
        given = {"num_bins": 10, "edges": edges, **options}
        one = kc.ClasswiseECE(data.num_classes, **given)
        fed(one, data, data.logits)
        yield f"mean error by class, {edges}", one.result()
    merged = kc.NLL(**options)
    halves = [kc.NLL(**options), kc.NLL(**options)]
    half = len(data.labels) // 2
    for one, part in zip(halves, (slice(half), slice(half, None)), strict=True):
        weight = None if data.weight is None else data.weight[part]
        one.update_state(data.labels[part], data.logits[part], weight)
    merged.merge_state(halves)
    yield "negative log-likelihood, merged", merged.result()


def _intervals() -> Iterator[tuple[str, Any]]:
    """Of means, of bins, and of ranks, which draw bootstraps."""
    names = ["accuracy", "nll", "ece", "mce", "aece", "ecce"]
    table = fed(kc.CalibrationMetrics(names), CLASSES["weights"])
    yield "table, intervals/weights", _named(table.interval())
    ranking = fed(kc.FailureAUROC(), CLASSES["few rows"])
    yield "ranking of errors, interval/few rows", ranking.interval(0.9)


def _others() -> Iterator[tuple[str, Any]]:
    for name in ("two classes", "binary column"):
        for quantity, cls in OF_SECOND.items():
            found = fed(cls(mode="binary"), CLASSES[name])
            yield f"of the second class, {quantity}/{name}", found.result()
    for name, data in {"pixels": PIXELS, "all pixels": ALL_PIXELS}.items():
        for part in (kc.ECE, kc.AURC):
            inner = part(**reading(data))
            metric = kc.PerImage(inner, background=0)
            quantity = "by bin" if part is kc.ECE else "area"
            found = fed(metric, data).result()
            yield f"mean of images, {quantity}/{name}", found
        drawn = kc.ECE(pixels_per_image=20, seed=4, **reading(data))
        yield f"by bin, of drawn pixels/{name}", fed(drawn, data).result()
    name = "on edges of bins"
    metric = fed(kc.ECE(10, closed="left"), CLASSES[name])
    yield f"by bin, closed left/{name}", metric.result()
    data = CLASSES["weights"]
    share = np.random.default_rng(1).integers(0, 17, len(data.labels)) / 16
    pairs = np.stack([data.labels, share], axis=-1)
    found = fed(kc.ObjectnessDeviation(), data, labels=pairs)
    yield "confidence against objectness/weights", found.result()
    scored = kc.ECE()
    confidence, right = data.probs.max(-1), data.labels == data.probs.argmax(-1)
    scored.update_scores(confidence, right, data.weight)
    yield "by bin, of records/weights", scored.result()


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    for name in CLASSES:
        for quantity, value in _table(name):
            yield f"{quantity}/{name}", value
    for name in ALONE:
        for quantity, value in _alone(name):
            yield f"{quantity}/{name}", value
    for quantity, value in _logits("frequency weights"):
        yield f"{quantity}/frequency weights", value
    yield from _intervals()
    yield from _others()
