"""Thresholds of detectors that keep a precision, with images as units."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.detection.errors import DetectionRecords, check_records
from keras_calib.formulas.bounded_means import (
    betting_p_value,
    first_rank_by_betting,
)
from keras_calib.formulas.intervals import check_inside
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.selection.group_walks import completion_levels, shared_level
from keras_calib.selection.guarantees import walk

__all__ = [
    "DetectionClassThresholds",
    "DetectionThreshold",
    "ThresholdTests",
    "check_target",
    "choose_detection_class_thresholds",
    "choose_detection_threshold",
    "most_boxes",
    "read_thresholds",
    "starts_of",
    "threshold_tests",
]

# Walks start at so many thresholds, and share delta equally.
_STARTS = 8


class DetectionThreshold(NamedTuple):
    """A threshold of confidence for boxes, and all thresholds tried.

    Attributes:
        threshold: Least confidence of a box to keep.
        precision: Precision of the kept boxes on these images.
        recall: Share of the true boxes that kept boxes found.
        boxes_per_image: Mean number of kept boxes.
        target: Precision that is certified.
        delta: Probability that the guarantee fails.
        average: `"boxes"` or `"images"`: which precision it is.
        max_boxes: Most boxes that an image keeps, the surest ones.
        num_images: Number of images.
        thresholds: All thresholds `(num_thresholds,)`, strictest first.
        valid: True where the precision is certified `(num_thresholds,)`.
        p_values: P-values of the thresholds `(num_thresholds,)`.
    """

    threshold: float
    precision: float
    recall: float
    boxes_per_image: float
    target: float
    delta: float
    average: str
    max_boxes: int
    num_images: int
    thresholds: np.ndarray
    valid: np.ndarray
    p_values: np.ndarray


class ThresholdTests(NamedTuple):
    """What each threshold gives on the images, arrays `(num_thresholds,)`.

    Attributes:
        p_value: P-value that the precision is missed.
        precision: Precision of the kept boxes; 1 where none is kept.
        kept: Number of kept boxes.
        wrong: Number of wrong ones among them.
    """

    p_value: np.ndarray
    precision: np.ndarray
    kept: np.ndarray
    wrong: np.ndarray

    def nearest(self) -> int:
        """The place that came nearest to a guarantee and keeps a box."""
        order = np.lexsort((-self.precision, self.p_value, self.kept == 0))
        return int(order[0])


class _Kept(NamedTuple):
    """Kept and wrong boxes of each image `(num_thresholds, images)`."""

    kept: np.ndarray
    wrong: np.ndarray


def choose_detection_threshold(
    records: DetectionRecords,
    *,
    precision: float,
    delta: float = 0.05,
    average: str = "boxes",
    max_boxes: int | None = None,
    thresholds: Any = None,
    seed: int = 0,
) -> DetectionThreshold:
    """Choose the confidence from which a detector is precise enough.

    Use it to show only boxes that are right in a share of `precision`. With
    probability 1 - `delta`, the precision on new images is at least that.
    Images are the samples of this guarantee, because the boxes of one image
    depend on each other.

    With W wrong of K kept boxes in an image and q = 1 - `precision`, it tests

    "boxes":  E[W] <= q E[K], the share of right boxes among all kept ones
    "images": E[W / K | K > 0] <= q, the mean precision of an image

    by betting on losses in [0, 1]. The thresholds are fixed beforehand and
    walked from strict to lenient.
    Derivation: docs/derivations.md, 'Detections'.

    Args:
        records: What `match_detections` returns on images that neither
            trained nor calibrated the detector.
        precision: Least precision, in (0, 1).
        delta: Probability that the guarantee may fail, in (0, 1).
        average: `"boxes"` or `"images"`, as above.
        max_boxes: Most boxes that an image keeps, the surest ones. Defaults
            to what the detector can return. Few need fewer images with
            `"boxes"`: about in proportion. When you serve, keep no more.
        thresholds: Confidences to try, in (0, 1]. Fix them without these
            images. Defaults to 0.99, 0.98, ..., 0.01.
        seed: Seed of the order of the images.

    Returns:
        DetectionThreshold, with the most lenient threshold that is certified.

    Raises:
        TypeError: If `records` are not from `match_detections`.
        ValueError: If no threshold is certified, `max_boxes` is unknown, or
            a value is out of range.

    Example:

    >>> from keras_calib import match_detections
    >>> truth = [{"boxes": [[0, 0, 9, 9]], "labels": [0]}] * 300
    >>> found = [{"boxes": [[0, 0, 9, 8], [20, 0, 30, 9]], "labels": [0, 0],
    ...           "confidence": [0.9, 0.3]}] * 300
    >>> found = choose_detection_threshold(
    ...     match_detections(truth, found), precision=0.9, max_boxes=2)
    >>> found.threshold, found.precision, found.recall
    (0.31, 1.0, 1.0)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; Waudby-Smith and Ramdas, Estimating
        Means of Bounded Random Variables by Betting, Journal of the Royal
        Statistical Society B 86, 2024, https://arxiv.org/abs/2010.09686
    """
    check_target(records, precision, delta, average)
    most = most_boxes(records, max_boxes)
    tried = read_thresholds(thresholds)
    tests = threshold_tests(
        records,
        tried,
        most,
        precision=precision,
        average=average,
        delta=delta,
        seed=seed,
    )
    first, shares = starts_of(len(tried))
    valid = walk(tests.p_value, first, delta * shares)
    if not valid.any():
        raise _out_of_reach(tests, precision, delta, records.num_images, most)
    index = int(np.flatnonzero(valid)[-1])
    kept, wrong = float(tests.kept[index]), float(tests.wrong[index])
    return DetectionThreshold(
        float(tried[index]),
        float(tests.precision[index]),
        (kept - wrong) / max(records.num_true, 1),
        kept / records.num_images,
        float(precision),
        float(delta),
        average,
        most,
        records.num_images,
        tried,
        valid,
        tests.p_value,
    )


def check_target(
    records: Any, precision: Any, delta: Any, average: Any
) -> None:
    """Raise unless these are records of images, and a possible target."""
    check_records(records)
    for name, value in {"precision": precision, "delta": delta}.items():
        check_inside(name, value)
    check_in("average", average, ("boxes", "images"))


def threshold_tests(
    records: DetectionRecords,
    thresholds: np.ndarray,
    most: int,
    *,
    precision: float,
    average: str,
    delta: float,
    seed: int,
) -> ThresholdTests:
    """Tests by betting of all thresholds, strictest first."""
    found = _kept(records, thresholds, most)
    limit = 1.0 - precision
    losses = _losses(found, limit, average, most)
    p_value = np.array(
        [betting_p_value(x, limit, delta=delta, seed=seed) for x in losses]
    )
    kept, wrong = found.kept.sum(axis=1), found.wrong.sum(axis=1)
    value = 1.0 - safe_divide(wrong, kept)
    if average == "images":
        shares = safe_divide(found.wrong, found.kept)
        value = 1.0 - safe_divide(
            shares.sum(axis=1), (found.kept > 0).sum(axis=1)
        )
    return ThresholdTests(p_value, value, kept, wrong)


def starts_of(num_thresholds: int) -> tuple[np.ndarray, np.ndarray]:
    """Where walks through thresholds start, and their shares of delta."""
    first = np.unique(
        np.linspace(0, num_thresholds, _STARTS, endpoint=False).astype(int)
    )
    return first, np.full(len(first), 1.0 / len(first))


def most_boxes(records: DetectionRecords, max_boxes: int | None) -> int:
    """The most boxes that an image can keep."""
    if max_boxes is None:
        max_boxes = records.max_detections
    if max_boxes is None:
        raise value_error(
            "`max_boxes` must be given for detections in a list: the most "
            "boxes that the detector returns for an image",
            max_boxes=max_boxes,
        )
    check_integer("max_boxes", max_boxes, 1)
    return int(max_boxes)


def read_thresholds(thresholds: Any) -> np.ndarray:
    """Distinct thresholds, strictest first."""
    if thresholds is None:
        return np.arange(99, 0, -1) / 100.0
    tried = as_array(thresholds, "thresholds", "float64")
    if tried.ndim != 1 or not len(tried):
        raise value_error(
            "`thresholds` must have shape (num_thresholds,)",
            shape=tried.shape,
        )
    if not np.all((tried > 0.0) & (tried <= 1.0)):
        raise value_error(
            "`thresholds` must lie in (0, 1]",
            smallest=tried.min(),
            largest=tried.max(),
        )
    return np.unique(tried)[::-1]


def _kept(
    records: DetectionRecords, thresholds: np.ndarray, most: int
) -> _Kept:
    """Boxes kept by each threshold, by image."""
    order = np.lexsort((-records.confidence, records.image))
    image = records.image[order]
    # Ranks within an image count from its first box.
    first = np.searchsorted(image, image)
    order = order[np.arange(len(image)) - first < most]
    image = records.image[order]
    # The strictest threshold that keeps a box; len(thresholds) if none does.
    step = np.searchsorted(-thresholds, -records.confidence[order])
    shape = len(thresholds) + 1, records.num_images

    def summed(values: np.ndarray | None) -> np.ndarray:
        keys = step * shape[1] + image
        size = shape[0] * shape[1]
        counts = np.bincount(keys, values, size).reshape(shape)
        return np.cumsum(counts[:-1], axis=0, dtype="float64")

    return _Kept(summed(None), summed(~records.correct[order] * 1.0))


def _losses(found: _Kept, limit: float, average: str, most: int) -> np.ndarray:
    """Losses in [0, 1] whose mean is at most `limit` if the precision holds."""
    excess = found.wrong - limit * found.kept
    if average == "boxes":
        scale: Any = float(most)
    else:
        scale = np.maximum(found.kept, 1.0)
    # Rounding must not leave the range.
    return np.clip(limit + excess / scale, 0.0, 1.0)


def _out_of_reach(
    tests: ThresholdTests,
    precision: float,
    delta: float,
    num_images: int,
    most: int,
) -> ValueError:
    """The error that says how near the images came."""
    best = tests.nearest()
    return value_error(
        "No threshold is certified to have this `precision`: take more "
        "images, ask for less, or let an image keep fewer boxes by "
        "`max_boxes`",
        precision=precision,
        delta=delta,
        images=num_images,
        max_boxes=most,
        **{
            "least p-value": float(tests.p_value[best]),
            "its precision": float(tests.precision[best]),
            "its kept boxes": int(tests.kept[best]),
        },
    )


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
