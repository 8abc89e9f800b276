"""Thresholds of detectors by class, with a promise for all classes at once."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import first_rank_by_betting
from keras_calib.formulas.detection import DetectionRecords
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.detection_thresholds import ThresholdTests
from keras_calib.selection.detection_thresholds import check_target
from keras_calib.selection.detection_thresholds import most_boxes
from keras_calib.selection.detection_thresholds import read_thresholds
from keras_calib.selection.detection_thresholds import starts_of
from keras_calib.selection.detection_thresholds import threshold_tests
from keras_calib.selection.group_walks import completion_levels
from keras_calib.selection.group_walks import shared_level
from keras_calib.selection.guarantees import walk

__all__ = ["DetectionClassThresholds", "choose_detection_class_thresholds"]

# Most classes that a repr or an error lists.
_SHOWN = 12


class DetectionClassThresholds(NamedTuple):
    """A threshold of confidence for the boxes of each class.

    Attributes:
        threshold: Least confidence of a box of each class `(num_classes,)`.
            It is inf for a class without a certified threshold, whose boxes
            are left out.
        precision: Precision of the kept boxes on these images, NaN for inf.
        boxes_per_image: Mean number of kept boxes of the class in an image.
        num_images: Number of images with a box of the class.
        advice: What to do for each class without a threshold; "" for others.
        target: Precision that is certified `(num_classes,)`.
        delta: Probability that the guarantee fails for any class.
        average: `"boxes"` or `"images"`: which precision it is.
        max_boxes: Most boxes of a class that an image keeps, the surest ones.
        level: Share of `delta` with which each class was tested.
    """

    threshold: np.ndarray
    precision: np.ndarray
    boxes_per_image: np.ndarray
    num_images: np.ndarray
    advice: tuple[str, ...]
    target: np.ndarray
    delta: float
    average: str
    max_boxes: int
    level: float

    def __repr__(self) -> str:
        good = int(np.isfinite(self.threshold).sum())
        lines = [
            f"DetectionClassThresholds: {good} of {len(self.threshold)} "
            "classes have a threshold",
            f"with probability {1.0 - self.delta:.4g} each has the precision "
            "that it is for",
            "  class  target  threshold  precision  boxes/image  images",
        ]
        for k in range(min(len(self.threshold), _SHOWN)):
            row = f"  {k:5d}  {self.target[k]:6.4g}  {self.threshold[k]:9.4g}"
            row += (
                f"  {self.precision[k]:9.4g}  {self.boxes_per_image[k]:11.4g}"
            )
            lines.append(f"{row}  {self.num_images[k]:6d}  {self.advice[k]}")
        if len(self.threshold) > _SHOWN:
            lines.append(f"  and {len(self.threshold) - _SHOWN} more classes")
        return "\n".join(line.rstrip() for line in lines)


def choose_detection_class_thresholds(
    records: DetectionRecords,
    *,
    num_classes: int,
    precision: Any,
    delta: float = 0.05,
    average: str = "boxes",
    max_boxes: int | None = None,
    thresholds: Any = None,
    seed: int = 0,
) -> DetectionClassThresholds:
    """Choose a threshold for the boxes of each class, all with a guarantee.

    Use it where each class must be precise enough, and not only all boxes
    together. With W_k wrong ones of the K_k kept boxes of class k,

    P(any class with a threshold misses its precision) <= `delta`

    The precision is that of `choose_detection_threshold`, of the boxes of one
    class. Classes share `delta` as in Holm's procedure, which holds however
    they depend on each other. A class without a certified threshold keeps no
    box, and `advice` says what it takes.
    Derivation: docs/derivations.md, 'Detections'.

    Args:
        records: What `match_detections` returns on images that neither
            trained nor calibrated the detector.
        num_classes: Number of classes, at least 1. Each has its share of
            `delta`, also if these images have none of its boxes.
        precision: Least precision in (0, 1), of all classes or one for each
            `(num_classes,)`.
        delta: Probability that the guarantee may fail for any class, in
            (0, 1).
        average: `"boxes"`, or `"images"` for the mean precision of an image
            that keeps a box of the class.
        max_boxes: Most boxes of one class that an image keeps, the surest
            ones. Defaults to what the detector can return. A small number
            needs far fewer images with `"boxes"`.
        thresholds: Confidences to try, in (0, 1]. Fix them without these
            images. Defaults to 0.99, 0.98, ..., 0.01.
        seed: Seed of the order of the images.

    Returns:
        DetectionClassThresholds, with the most lenient certified thresholds.

    Raises:
        TypeError: If `records` are not from `match_detections`.
        ValueError: If no class has a certified threshold, `max_boxes` is
            unknown, or a value is out of range.

    Example:

    >>> from keras_calib import match_detections
    >>> truth = [{"boxes": [[0, 0, 9, 9]], "labels": [0]}] * 300
    >>> found = [{"boxes": [[0, 0, 9, 8], [20, 0, 30, 9]], "labels": [0, 1],
    ...           "confidence": [0.9, 0.3]}] * 300
    >>> found = choose_detection_class_thresholds(
    ...     match_detections(truth, found), num_classes=2, precision=0.9,
    ...     max_boxes=1)
    >>> found.threshold.tolist(), found.precision.tolist()
    ([0.01, inf], [1.0, nan])

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; shares of classes: Holm, A Simple
        Sequentially Rejective Multiple Test Procedure, Scandinavian Journal
        of Statistics 6, 1979, https://www.jstor.org/stable/4615733
    """
    check_integer("num_classes", num_classes, 1)
    target = as_array(precision, "precision", "float64")
    if target.shape not in ((), (num_classes,)):
        raise value_error(
            "`precision` must be a number, or have one for each class",
            shape=target.shape,
            num_classes=num_classes,
        )
    target = np.broadcast_to(target, num_classes)
    for one in target.tolist():
        check_target(records, one, delta, average)
    largest = int(records.label.max(initial=0))
    if largest >= num_classes:
        raise value_error(
            "class ids of detections must be < `num_classes`",
            largest=largest,
            num_classes=num_classes,
        )
    most = most_boxes(records, max_boxes)
    tried = read_thresholds(thresholds)
    parts = [_of_class(records, k) for k in range(num_classes)]
    tests = [
        threshold_tests(
            part,
            tried,
            most,
            precision=one,
            average=average,
            delta=delta / num_classes,
            seed=seed,
        )
        for part, one in zip(parts, target.tolist(), strict=True)
    ]
    p_values = np.stack([one.p_value for one in tests])
    first, shares = starts_of(len(tried))
    completed = completion_levels(p_values, first, shares)
    level = float(shared_level(completed, delta))
    valid = walk(p_values, first, level * shares)
    facts = np.full((3, num_classes), [[np.inf], [np.nan], [0.0]])
    advice = []
    for k in range(num_classes):
        if valid[k].any():
            at = int(np.flatnonzero(valid[k])[-1])
            kept = tests[k].kept[at] / records.num_images
            facts[:, k] = tried[at], tests[k].precision[at], kept
            advice.append("")
            continue
        limit = 1.0 - float(target[k])
        advice.append(_advice(parts[k], tests[k], limit, level, average, most))
    found = DetectionClassThresholds(
        facts[0],
        facts[1],
        facts[2],
        np.array([part.num_images for part in parts]),
        tuple(advice),
        target.copy(),
        float(delta),
        average,
        most,
        level,
    )
    if not valid.any():
        raise value_error(
            "No class has a threshold that is certified to have this "
            "`precision`: "
            + "; ".join(
                f"class {k}: {x}" for k, x in enumerate(advice[:_SHOWN])
            ),
            delta=delta,
            images=records.num_images,
            max_boxes=most,
        )
    return found


def _of_class(records: DetectionRecords, label: int) -> DetectionRecords:
    """Records of one class, of the images that have a box of it.

    Others neither win nor lose a bet, so that their number says nothing.
    """
    own = records.label == label
    images, image = np.unique(records.image[own], return_inverse=True)
    return records._replace(
        confidence=records.confidence[own],
        correct=records.correct[own],
        image=image,
        num_images=len(images),
    )


def _advice(
    part: DetectionRecords,
    tests: ThresholdTests,
    limit: float,
    level: float,
    average: str,
    most: int,
) -> str:
    """What to do for a class that has no certified threshold."""
    if not part.num_images:
        return "no box: take more images, or count the class out"
    loss = 0.0
    if average == "boxes":
        # Of an image that keeps as many boxes as these, all of them right.
        mean = min(tests.kept[-1] / part.num_images, most)
        loss = limit * (1.0 - max(mean, 1.0) / most)
    fewest = first_rank_by_betting(limit, level, loss)
    if part.num_images < fewest:
        more = f"take at least {fewest} images with its boxes"
        if average == "boxes" and most > 1:
            more += ', or a smaller `max_boxes`, or average="images"'
        return f"too few boxes: {more}"
    value = tests.precision[tests.nearest()]
    return (
        f"a precision of {value:.3g} at best: ask for less, improve the "
        "detector, or take more images"
    )
