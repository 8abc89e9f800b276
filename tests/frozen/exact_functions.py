"""Exact functions of whole arrays: each on every data set that it takes."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.data_sets import ALL_PIXELS, CLASSES, PIXELS, Classes
from frozen.results import read, tried
from frozen.stored import Tolerance

# Sums in float64, of logarithms that another machine rounds otherwise.
TOLERANCE = Tolerance(relative=1e-11, absolute=1e-12)

PARTS = {"calibration": "calibration", "refinement": "refinement"}
MURPHY = {
    "reliability": "reliability",
    "resolution": "resolution",
    "uncertainty": "uncertainty",
    "variance within bins": "within_bin_variance",
    "covariance within bins": "within_bin_covariance",
}
DIFFERENCES = {
    "share": "share",
    "difference": "difference",
    "deviation": "deviation",
}
CURVE = {"coverage": "coverage", "risk": "risk", "threshold": "threshold"}
COST = {
    "value": "value",
    "low": "low",
    "high": "high",
    "coverage": "coverage",
    "of the accepted": "accepted",
    "if all are accepted": "accept_all",
    "if all are rejected": "reject_all",
}
TEST = {"statistic": "statistic", "p value": "p_value"}

# Quantity: the function, and options beside those of the data.
FUNCTIONS = {
    "confidence less accuracy by bin": (kc.ece, {}),
    "by bin, squared": (kc.ece, {"norm": "l2", "num_bins": 10}),
    "by bin, closed left": (kc.ece, {"closed": "left", "num_bins": 10}),
    "by bin, as another library": (kc.ece, {"bin_confidence": "pycalib"}),
    "largest of a bin": (kc.functional.mce, {}),
    "root mean square of bins": (kc.functional.rmsce, {}),
    "debiased of bins": (kc.functional.debiased_calibration_error, {}),
    "mean of bins": (kc.functional.average_calibration_error, {}),
    "overconfidence of bins": (kc.functional.overconfidence_error, {}),
    "bins of equal mass": (kc.functional.aece, {}),
    "bins of equal mass, tied by order": (
        kc.functional.aece,
        {"ties": "order", "num_bins": 7},
    ),
    "bins of equal mass, interpolated": (
        kc.functional.aece,
        {"edges": "interp"},
    ),
    "range of cumulative differences": (kc.functional.ecce, {}),
    "largest cumulative difference": (kc.functional.ecce, {"kind": "maximum"}),
    "mean error by class": (kc.functional.classwise_ece, {}),
    "mean error by class, of equal mass": (
        kc.functional.classwise_ece,
        {"edges": "mass", "num_bins": 8},
    ),
    "mean error by class, above a threshold": (
        kc.functional.classwise_ece,
        {"threshold": 0.05, "classes": "to_largest_label"},
    ),
    "negative log-likelihood": (kc.nll, {}),
    "negative log-likelihood, clipped": (kc.nll, {"clip": 1e-3}),
    "squared error": (kc.brier_score, {}),
    "intersection over union": (kc.functional.mean_iou, {}),
    "mean confidence": (kc.functional.mean_confidence, {}),
    "confidence less accuracy": (kc.functional.confidence_gap, {}),
    "confidence of the wrong": (kc.functional.overconfidence, {}),
    "doubt of the right": (kc.functional.underconfidence, {}),
    "area under risk and coverage": (kc.aurc, {}),
    "area under risk and coverage, tied by order": (
        kc.aurc,
        {"ties": "order"},
    ),
    "area under risk and coverage, by entropy": (
        kc.aurc,
        {"score": "neg_entropy"},
    ),
    "excess area": (kc.functional.eaurc, {}),
    "excess area, of the limit": (kc.functional.eaurc, {"optimum": "analytic"}),
    "normalized area": (kc.functional.naurc, {}),
    "area of the generalised risk": (kc.functional.augrc, {}),
    "excess area of the generalised risk": (kc.functional.eaugrc, {}),
    "ranking of errors": (kc.functional.failure_auroc, {}),
    "ranking of errors, false positives": (kc.functional.failure_fpr95, {}),
    "ranking of errors, precision": (
        kc.functional.failure_average_precision,
        {},
    ),
    "ranking of right ones, precision": (
        kc.functional.failure_average_precision,
        {"positive": "success"},
    ),
    "coverage at a risk": (kc.functional.coverage_at_risk, {"risk": 0.1}),
    "coverage at an accuracy": (
        kc.functional.coverage_at_accuracy,
        {"accuracy": 0.8},
    ),
    "risk at a coverage": (kc.functional.risk_at_coverage, {"coverage": 0.6}),
}
# Each call smooths at a row of widths, of which one is the result.
SMOOTH = "ten classes", "weights", "votes", "pixels"
# Those that have a form for the probability of the second class.
OF_SECOND = {
    "by bin": (kc.ece, {}),
    "squared by bin": (kc.functional.rmsce, {}),
    "largest of a bin": (kc.functional.mce, {}),
    "mean of bins": (kc.functional.average_calibration_error, {}),
    "debiased of bins": (kc.functional.debiased_calibration_error, {}),
    "bins of equal mass": (kc.functional.aece, {}),
    "smooth error": (kc.functional.smooth_ece, {}),
    "range of cumulative differences": (kc.functional.ecce, {}),
}


def _structured(data: Classes) -> Iterator[tuple[str, Any]]:
    """Results of several numbers."""
    args, options = (data.labels, data.probs), data.options
    for score in ("brier_score", "nll"):
        # Its word among the frozen results.
        word = score.removesuffix("_score")
        yield (
            f"parts of a proper score of bins, {word}",
            _read(
                PARTS,
                kc.functional.calibration_decomposition,
                args,
                options,
                score,
            ),
        )
    yield (
        "parts of the squared error",
        _read(MURPHY, kc.functional.brier_decomposition, args, options),
    )
    yield (
        "cumulative differences",
        _read(DIFFERENCES, kc.functional.cumulative_differences, args, options),
    )
    yield (
        "curve of risk and coverage",
        _read(CURVE, kc.functional.risk_coverage_curve, args, options),
    )
    costs = _costs(data.num_classes)
    for price in (None, 0.3):
        call = functools.partial(
            kc.functional.mean_cost, costs=costs, reject_cost=price
        )
        yield (
            f"mean cost, rejected at {price}",
            _read(COST, call, args, options),
        )


def _costs(size: int) -> np.ndarray:
    """Costs under which no two answers tie, whatever rows there are."""
    place = np.arange(size * size).reshape(size, size)
    return (1.0 + place**2 % 37 / 16) * (1.0 - np.eye(size))


def _read(fields, call, args, options, score=None):
    if score is not None:
        options = {**options, "score": score}
    found = tried(call, *args, **options)
    return found if isinstance(found, dict) else read(found, fields)


def _tests() -> Iterator[tuple[str, Any]]:
    for name in ("two classes", "ten classes", "votes", "frequency weights"):
        data = CLASSES[name]
        for kind in (
            "ece",
            "chi2",
            "spiegelhalter",
            "ecce_range",
            "ecce_maximum",
        ):
            found = tried(
                kc.functional.calibration_test,
                data.labels,
                data.probs,
                statistic=kind,
                num_draws=60,
                seed=3,
                **data.options,
            )
            found = found if isinstance(found, dict) else read(found, TEST)
            yield f"test of calibration by {kind}/{name}", found


def _images() -> Iterator[tuple[str, Any]]:
    for name, data in {"pixels": PIXELS, "all pixels": ALL_PIXELS}.items():
        for quantity, function in {
            "by bin": kc.ece,
            "negative log-likelihood": kc.nll,
            "squared error": kc.brier_score,
        }.items():
            for background in (None, 0):
                yield (
                    f"mean of images, {quantity}/{name}/{background}",
                    tried(
                        kc.functional.per_image,
                        function,
                        data.labels,
                        data.probs,
                        background=background,
                        **data.options,
                    ),
                )


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    for name, data in CLASSES.items():
        args, options = (data.labels, data.probs), data.options
        for quantity, (function, given) in FUNCTIONS.items():
            value = tried(function, *args, **given, **options)
            yield f"{quantity}/{name}", value
        for quantity, value in _structured(data):
            yield f"{quantity}/{name}", value
        if data.num_classes == 2:
            for quantity, (function, given) in OF_SECOND.items():
                yield (
                    f"of the second class, {quantity}/{name}",
                    tried(function, *args, mode="binary", **given, **options),
                )
    for name in SMOOTH:
        data = CLASSES[name]
        found = tried(
            kc.functional.smooth_ece, data.labels, data.probs, **data.options
        )
        yield f"smooth error/{name}", found
    # Logits, whose confidences do not saturate.
    for name in ("ten classes", "overconfident", "binary column", "pixels"):
        data = CLASSES[name]
        for quantity in (
            "confidence less accuracy by bin",
            "negative log-likelihood",
            "squared error",
            "area under risk and coverage",
            "mean error by class",
        ):
            function, given = FUNCTIONS[quantity]
            yield (
                f"{quantity}, of logits/{name}",
                tried(
                    function,
                    data.labels,
                    data.logits,
                    from_logits=True,
                    **given,
                    **data.options,
                ),
            )
    yield from _tests()
    yield from _images()
    data = CLASSES["weights"]
    share = np.random.default_rng(1).integers(0, 17, len(data.labels)) / 16
    yield (
        "confidence against objectness/weights",
        kc.functional.objectness_deviation(
            data.labels, data.probs, objectness=share, **data.options
        ),
    )
