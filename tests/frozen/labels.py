"""Several labels at once: metrics, calibrators and selectors."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.calibrators import BESIDE
from frozen.data_sets import grid
from frozen.results import read, tried
from frozen.stored import Tolerance
from frozen.thresholds import chosen

# float32, and solvers.
TOLERANCE = Tolerance(relative=1e-5, absolute=1e-5)

OF_LABELS = {
    "labels": "group",
    "sizes": "group_samples",
    "thresholds": "threshold",
    "coverages": "group_coverage",
    "risks": "group_risk",
    "coverage": "coverage",
    "risk": "risk",
    "limit of the risk": "limit",
    "delta": "delta",
    "method": "method",
    "at once": "facts.at_once",
}
MISSING = -1


def _drawn(seed: int, missing: float):
    """Bits, logits that are too sure, and -1 where a label is not known."""
    rng = np.random.default_rng(seed)
    logits = grid(2.5 * rng.normal(size=(260, 4)) - [0, 0.5, 1, 2])
    bits = rng.random((260, 4)) < 1 / (1 + np.exp(-logits / 1.5))
    bits = np.where(rng.random((260, 4)) < missing, MISSING, bits)
    return bits.astype("int64"), logits.astype("float32")


# By name: labels, logits, and the mark of what is missing.
LABELS = {
    "labels": (*_drawn(60, 0.0), None),
    "missing labels": (*_drawn(61, 0.15), MISSING),
}
PARTS = {
    "by bin": kc.ECE,
    "negative log-likelihood": kc.NLL,
    "area under risk and coverage": kc.AURC,
    "squared error": kc.BrierScore,
}


def _metrics() -> Iterator[tuple[str, Any]]:
    for name, (labels, logits, mark) in LABELS.items():
        options = {"from_logits": True, "ignore_class": mark}
        for quantity, part in PARTS.items():
            for average in ("macro", "micro", "weighted", [1.0, 2.0, 0.0, 1.0]):
                metric = kc.labels.MultiLabelMetric(
                    part(**options), 4, average=average
                )
                for rows in (slice(100), slice(100, 260)):
                    metric.update_state(labels[rows], logits[rows])
                key = f"{quantity}, {average}/{name}"
                yield key, metric.result()
                if average == "macro":
                    yield f"{key}, each", metric.per_label()
        for example in ("worst", "mean"):
            for quantity in ("by bin", "area under risk and coverage"):
                metric = kc.labels.MultiLabelMetric(
                    PARTS[quantity](**options),
                    4,
                    by="example",
                    example=example,
                )
                metric.update_state(labels, logits)
                key = f"{quantity}, of examples, {example}/{name}"
                yield key, metric.result()


def _calibrators() -> Iterator[tuple[str, Any]]:
    for name, (labels, logits, mark) in LABELS.items():
        for quantity, part, shared in (
            ("temperature", kc.TemperatureScaling(), False),
            ("affine", kc.AffineScaling(), False),
            ("affine for all", kc.AffineScaling(), True),
            ("isotonic", kc.IsotonicCalibration(min_prob=1e-3), False),
            ("isotonic, with intervals", kc.VennAbers(), False),
        ):
            made = kc.labels.MultiLabelCalibrator(part, shared=shared)
            made.fit(labels, logits, ignore_class=mark, num_folds=0)
            yield f"{quantity}/{name}", made(logits[:6] * BESIDE)
            if isinstance(part, kc.VennAbers):
                low, high = made.interval(logits[:6] * BESIDE)
                yield f"{quantity}, interval/{name}", {"low": low, "high": high}
    labels, logits, _ = LABELS["labels"]
    made = kc.MultiLabel(kc.BetaCalibration())
    made.fit(labels, logits, num_folds=0)
    yield "beta/labels", made(logits[:6] * BESIDE)


def _told(made: Any, logits: Any) -> Any:
    if isinstance(made, dict):
        return made
    facts = made.chosen
    is_of_labels = facts.kind == "labels"
    answer = made(logits[:8])
    return {
        "facts": read(facts, OF_LABELS) if is_of_labels else chosen(facts),
        "accepted": answer["accept"],
        "confidence": answer["confidence"],
        "score": answer["score"],
        "calibrated": answer["logits"],
    }


def _selectors() -> Iterator[tuple[str, Any]]:
    known = kc.TemperatureScaling(temperature=1.5)
    targets = {
        "risk": {"risk": 0.1},
        "coverage": {"coverage": 0.7},
        "certified": {"risk": 0.2, "delta": 0.1},
        "certified one by one": {
            "risk": 0.2,
            "delta": 0.1,
            "at_once": False,
        },
    }
    for name, (labels, logits, mark) in LABELS.items():
        for by, example in (
            ("label", "worst"),
            ("example", "worst"),
            ("example", "mean"),
        ):
            for quantity, target in targets.items():
                part = kc.labels.MultiLabelCalibrator(known, shared=True)
                part.fit(labels, logits, ignore_class=mark, num_folds=0)
                made = kc.labels.MultiLabelSelector(
                    calibrator=part, by=by, example=example
                )
                made = tried(
                    made.fit, labels, logits, ignore_class=mark, **target
                )
                key = f"by {by}, {example}, {quantity}/{name}"
                yield key, _told(made, logits)


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    yield from _metrics()
    yield from _calibrators()
    yield from _selectors()
