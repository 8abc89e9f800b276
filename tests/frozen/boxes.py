"""Detections: matches, errors, scalings, thresholds and kept boxes."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.results import read, tried
from frozen.stored import Tolerance

# Overlaps in float32; scalings by a solver.
TOLERANCE = Tolerance(relative=1e-6, absolute=1e-6)

SIZE = 64, 96
RECORDS = {
    "confidence": "confidence",
    "right": "correct",
    "overlap": "overlap",
    "class": "groups.class",
    "image": "units",
    "places": "features",
    "images": "num_images",
    "true boxes": "num_true",
    "most in an image": "max_detections",
}
ERROR = {
    "value": "value",
    "low": "low",
    "high": "high",
    "number": "num_detections",
}
THRESHOLD = {
    "threshold": "threshold",
    "precision": "facts.precision",
    "recall": "facts.recall",
    "boxes of an image": "facts.boxes_per_image",
    "target": "facts.target",
    "delta": "delta",
    "average": "facts.average",
    "most boxes": "facts.max_boxes",
    "images": "num_samples",
    "p values": "facts.p_values",
}
BY_CLASS = {
    "thresholds": "threshold",
    "precisions": "facts.precision",
    "boxes of an image": "facts.boxes_per_image",
    "images": "group_samples",
    "targets": "facts.target",
    "delta": "delta",
    "average": "facts.average",
    "most boxes": "facts.max_boxes",
    "level": "facts.level",
}
MOST = 7


@functools.cache
def images(seed: int = 70, n: int = 60):
    """True and found boxes of images, padded by labels of -1."""
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 40, (n, 5, 2)).astype("float32")
    boxes = np.concatenate(
        [corner, corner + rng.integers(6, 24, (n, 5, 2))], -1
    )
    labels = rng.integers(0, 3, (n, 5))
    labels[rng.random((n, 5)) < 0.35] = -1
    # Each found box is near a true one, or anywhere, and some are twice.
    near = boxes[:, [0, 1, 2, 3, 4, 0, 1]]
    moved = rng.integers(-3, 4, near.shape) * (rng.random((n, MOST, 1)) < 0.7)
    found = near + moved
    found[..., 2:] = np.maximum(found[..., 2:], found[..., :2] + 2)
    found_labels = labels[:, [0, 1, 2, 3, 4, 0, 1]].copy()
    other = rng.random((n, MOST)) < 0.15
    found_labels[other] = rng.integers(0, 3, other.sum())
    confidence = np.round(rng.random((n, MOST)) ** 0.6, 4)
    confidence = np.where(found_labels < 0, -1.0, confidence)
    return (
        {"boxes": boxes.astype("float32"), "labels": labels},
        {
            "boxes": found.astype("float32"),
            "labels": found_labels,
            "confidence": confidence.astype("float32"),
        },
    )


def _matched(overlap: float = 0.5, **given: Any) -> Any:
    true, found = images()
    return kc.detection.match(
        true, found, min_overlap=overlap, image_shape=SIZE, **given
    )


def _error(found: Any) -> Any:
    if isinstance(found, dict):
        return found
    by_class = {str(k): x for k, x in sorted(found.by_class.items())}
    return read(found, ERROR) | {"by class": by_class}


def _errors() -> Iterator[tuple[str, Any]]:
    for overlap in (0.5, 0.1):
        records = _matched(overlap)
        yield f"matches at {overlap}/boxes", read(records, RECORDS)
        for quantity, function, given in (
            ("by bin", kc.detection.detection_ece, {}),
            (
                "by bin and class",
                kc.detection.detection_ece,
                {"average": "macro"},
            ),
            (
                "by bin and place",
                kc.detection.detection_ece,
                {"num_bins": (4, 3), "features": ("center_x",), "min_count": 3},
            ),
            (
                "against overlap",
                kc.detection.localization_aware_ece,
                {"num_bins": 10},
            ),
            (
                "against overlap, pooled",
                kc.detection.localization_aware_ece,
                {"average": "pooled", "closed": "left"},
            ),
            (
                "by rank, against overlap",
                kc.detection.adaptive_localization_error,
                {},
            ),
            (
                "by rank, against overlap, pooled",
                kc.detection.adaptive_localization_error,
                {"average": "pooled"},
            ),
        ):
            found = function(records, **given)
            yield f"{quantity}, matched at {overlap}/boxes", _error(found)
    corners = _matched(0.3, min_confidence=0.4)
    yield "matches of sure ones/boxes", read(corners, RECORDS)


def _metrics() -> Iterator[tuple[str, Any]]:
    true, found = images()
    for quantity, metric in {
        "by bin": kc.detection.DetectionECE(),
        "by bin and class": kc.detection.DetectionECE(
            num_classes=3, average="macro"
        ),
        "by place": kc.detection.DetectionECE(
            (4, 3), features=("center_x",), image_shape=SIZE
        ),
        "against overlap": kc.detection.LocalizationAwareECE(3, num_bins=10),
        "against overlap, pooled": kc.detection.LocalizationAwareECE(
            None, average="pooled"
        ),
    }.items():
        for part in (slice(25), slice(25, 33), slice(33, 60)):
            metric.update_state(
                {k: x[part] for k, x in true.items()},
                {k: x[part] for k, x in found.items()},
            )
        yield f"streaming, {quantity}/boxes", metric.result()
        interval = tried(metric.interval, 0.9)
        yield f"streaming, {quantity}, interval/boxes", interval


def _scalings() -> Iterator[tuple[str, Any]]:
    records = _matched()
    _, found = images()
    for method in ("platt", "temperature"):
        for target in ("correct", "overlap"):
            for by_class in (True, False):
                made = kc.detection.DetectionScaling(
                    3,
                    method=method,
                    target=target,
                    by_class=by_class,
                    min_count=40,
                ).fit(records)
                key = f"scaled, {method}, {target}, {by_class}/boxes"
                yield key, made(found)["confidence"][:8]
    made = kc.detection.DetectionScaling(3, min_count=40).fit(records)
    for threshold in (0.4, [0.2, np.inf, 0.5]):
        selector = kc.detection.DetectionSelector(made, threshold, max_boxes=2)
        kept = selector(found)
        told = {
            "boxes": kept["boxes"][:10],
            "classes": kept["labels"][:10],
            "confidence": kept["confidence"][:10],
        }
        yield f"kept boxes at {threshold}/boxes", told


def _thresholds() -> Iterator[tuple[str, Any]]:
    records = _matched(0.3)
    steps = np.linspace(0.1, 0.9, 9)
    for average in ("boxes", "images"):
        for precision in (0.5, 0.6, 0.99):
            found = tried(
                kc.detection.choose_detection_threshold,
                records,
                precision=precision,
                delta=0.1,
                average=average,
                max_boxes=3,
                thresholds=steps,
            )
            if not isinstance(found, dict):
                kept = found.table().certified
                found = read(found, THRESHOLD) | {"kept": kept}
            yield f"threshold, {average}, {precision}/boxes", found
            found = tried(
                kc.detection.choose_detection_threshold,
                records,
                num_classes=4,
                precision=min(precision, 0.7) - 0.1,
                delta=0.5,
                average=average,
                max_boxes=2,
                thresholds=None if precision == 0.5 else steps,
                seed=1,
            )
            if not isinstance(found, dict):
                advice = [bool(x) for x in found.facts["advice"]]
                found = read(found, BY_CLASS) | {"advised": advice}
            yield f"thresholds by class, {average}, {precision}/boxes", found


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    yield from _errors()
    yield from _metrics()
    yield from _scalings()
    yield from _thresholds()
