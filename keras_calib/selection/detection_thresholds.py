"""Thresholds of detectors that keep a precision, with images as units."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import betting_p_value
from keras_calib.formulas.detection import DetectionRecords
from keras_calib.formulas.detection import check_records
from keras_calib.formulas.intervals import check_inside
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.arrays import safe_divide
from keras_calib.selection.guarantees import walk

__all__ = [
    "DetectionThreshold",
    "ThresholdTests",
    "check_target",
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
