"""Thresholds of detectors that keep a precision, with images as units."""

from dataclasses import replace
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
from keras_calib.selection.choice import (
    Choice,
    chosen_alone,
    chosen_each,
    out_of_reach,
)
from keras_calib.selection.claims import Claim, even_starts
from keras_calib.selection.families import alone, holm
from keras_calib.selection.ladder import Ladder

__all__ = ["choose_detection_class_thresholds", "choose_detection_threshold"]

# Most classes that an error lists.
_SHOWN = 12


def choose_detection_threshold(
    records: DetectionRecords,
    *,
    precision: float,
    delta: float = 0.05,
    average: str = "boxes",
    max_boxes: int | None = None,
    thresholds: Any = None,
    seed: int = 0,
) -> Choice:
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
        A `Choice` of the most lenient threshold that is certified. Its risk is
        1 - precision, and its coverage the share of boxes that are kept.

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
    >>> found.threshold, found.risk, found.facts["recall"]
    (0.31, 0.0, 1.0)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; Waudby-Smith and Ramdas, Estimating
        Means of Bounded Random Variables by Betting, Journal of the Royal
        Statistical Society B 86, 2024, https://arxiv.org/abs/2010.09686
    """
    target = _Target.of(records, average, max_boxes, thresholds, delta, seed)
    check_inside("precision", precision)
    tests = target.tests(records, precision, delta)
    valid = alone(tests.claim, len(target.thresholds))
    ladder, size = tests.ladder, records.num_images
    if not valid.any():
        best = tests.nearest()
        near: dict[str, Any] = {
            "least p-value": float(tests.claim.p_value[best]),
            "its precision": float(tests.precision[best]),
            "its kept boxes": int(ladder.accepted[best]),
        }
        raise out_of_reach(
            [ladder],
            "precision",
            precision,
            delta,
            advice=(
                "take more images, ask for less, or let an image keep fewer "
                "boxes by `max_boxes`"
            ),
            images=size,
            max_boxes=target.max_boxes,
            **near,
        )
    place = int(np.flatnonzero(valid)[-1])
    kept, wrong = float(ladder.accepted[place]), float(ladder.loss[place])
    right = float(tests.precision[place])
    chosen = chosen_alone(
        ladder,
        valid,
        place,
        kind="boxes",
        limit=1.0 - precision,
        delta=float(delta),
        method="betting",
        facts={
            "precision": right,
            "target": float(precision),
            "recall": (kept - wrong) / max(records.num_true, 1),
            "boxes_per_image": kept / size,
            "average": average,
            "max_boxes": target.max_boxes,
            "p_values": tests.claim.p_value,
        },
    )
    return replace(chosen, risk=1.0 - right)


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
) -> Choice:
    """Choose a threshold for the boxes of each class, all with a guarantee.

    Use it where each class must be precise enough, and not only all boxes
    together. With W_k wrong ones of the K_k kept boxes of class k,

    P(any class with a threshold misses its precision) <= `delta`

    The precision is that of `choose_detection_threshold`, of the boxes of one
    class. Classes share `delta` as in Holm's procedure, which holds however
    they depend on each other. A class without a certified threshold keeps no
    box.
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
        A `Choice` of the most lenient certified thresholds, with a row for
        each class. `facts["advice"]` says what a class without one takes.

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
    >>> found.threshold, found.group_samples
    ((0.01, inf), (300, 300))

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; shares of classes: Holm, A Simple
        Sequentially Rejective Multiple Test Procedure, Scandinavian Journal
        of Statistics 6, 1979, https://www.jstor.org/stable/4615733
    """
    check_integer("num_classes", num_classes, 1)
    wanted = as_array(precision, "precision", "float64")
    if wanted.shape not in ((), (num_classes,)):
        raise value_error(
            "`precision` must be a number, or have one for each class",
            shape=wanted.shape,
            num_classes=num_classes,
        )
    wanted = np.broadcast_to(wanted, num_classes)
    for one in wanted.tolist():
        check_inside("precision", one)
    target = _Target.of(records, average, max_boxes, thresholds, delta, seed)
    largest = int(records.label.max(initial=0))
    if largest >= num_classes:
        raise value_error(
            "class ids of detections must be < `num_classes`",
            largest=largest,
            num_classes=num_classes,
        )
    parts = [_of_class(records, k) for k in range(num_classes)]
    tests = [
        target.tests(part, one, delta / num_classes)
        for part, one in zip(parts, wanted.tolist(), strict=True)
    ]
    valid, level = holm([one.claim for one in tests], delta)
    places, right, kept, advice = [], [], [], []
    for k, (one, mask) in enumerate(zip(tests, valid, strict=True)):
        place = int(np.flatnonzero(mask)[-1]) if mask.any() else None
        places.append(place)
        if place is None:
            right.append(np.nan)
            kept.append(0.0)
            limit = 1.0 - float(wanted[k])
            advice.append(target.advice(parts[k], one, limit, level))
            continue
        right.append(float(one.precision[place]))
        kept.append(float(one.ladder.accepted[place]) / records.num_images)
        advice.append("")
    if all(place is None for place in places):
        raise value_error(
            "No class has a threshold that is certified to have this "
            "`precision`: "
            + "; ".join(
                f"class {k}: {x}" for k, x in enumerate(advice[:_SHOWN])
            ),
            delta=delta,
            images=records.num_images,
            max_boxes=target.max_boxes,
        )
    chosen = chosen_each(
        range(num_classes),
        [one.ladder for one in tests],
        valid,
        places,
        kind="classes",
        limit=float(1.0 - wanted.min()),
        delta=float(delta),
        method="betting",
        facts={
            "precision": tuple(right),
            "target": tuple(wanted.tolist()),
            "boxes_per_image": tuple(kept),
            "average": average,
            "max_boxes": target.max_boxes,
            "advice": tuple(advice),
            "level": level,
        },
    )
    risk = np.where(np.isnan(right), 0.0, 1.0 - np.array(right))
    return replace(chosen, group_risk=tuple(risk.tolist()))


class _Tests(NamedTuple):
    """What each threshold gives on images, and the claim on its precision.

    The ladder accepts boxes, and its size is the number of images.
    """

    ladder: Ladder
    precision: np.ndarray
    claim: Claim

    def nearest(self) -> int:
        """The place that came nearest to a guarantee and keeps a box."""
        kept = self.ladder.accepted
        order = np.lexsort((-self.precision, self.claim.p_value, kept == 0))
        return int(order[0])


class _Target(NamedTuple):
    """What is tested of the boxes of images."""

    average: str
    max_boxes: int
    thresholds: np.ndarray
    seed: int

    @classmethod
    def of(
        cls,
        records: Any,
        average: Any,
        max_boxes: Any,
        thresholds: Any,
        delta: Any,
        seed: int,
    ) -> "_Target":
        """Reads the arguments; raises for values that are not allowed."""
        check_records(records)
        check_inside("delta", delta)
        check_in("average", average, ("boxes", "images"))
        if max_boxes is None:
            max_boxes = records.max_detections
        if max_boxes is None:
            raise value_error(
                "`max_boxes` must be given for detections in a list: the most "
                "boxes that the detector returns for an image",
                max_boxes=max_boxes,
            )
        check_integer("max_boxes", max_boxes, 1)
        return cls(average, int(max_boxes), _read_thresholds(thresholds), seed)

    def tests(
        self, records: DetectionRecords, precision: float, level: float
    ) -> _Tests:
        """Tests by betting of all thresholds."""
        kept, wrong = self._boxes(records)
        limit = 1.0 - precision
        excess = wrong - limit * kept
        scale: Any = float(self.max_boxes)
        if self.average == "images":
            scale = np.maximum(kept, 1.0)
        # Their mean is at most the limit if the precision holds. Rounding must
        # not leave the range.
        losses = np.clip(limit + excess / scale, 0.0, 1.0)
        p_value = np.array(
            [
                betting_p_value(x, limit, delta=level, seed=self.seed)
                for x in losses
            ]
        )
        accepted, lost = kept.sum(axis=1), wrong.sum(axis=1)
        value = 1.0 - safe_divide(lost, accepted)
        if self.average == "images":
            shares = safe_divide(wrong, kept)
            value = 1.0 - safe_divide(
                shares.sum(axis=1), (kept > 0).sum(axis=1)
            )
        never = float(len(records.confidence)) - accepted[-1], 0.0
        ladder = Ladder(
            self.thresholds,
            accepted,
            lost,
            records.num_images,
            False,
            never=never,
        )
        claim = Claim(p_value, *even_starts(len(p_value), level))
        return _Tests(ladder, value, claim)

    def _boxes(self, records: DetectionRecords) -> tuple[Any, Any]:
        """Kept and wrong boxes of each image `(num_thresholds, images)`."""
        order = np.lexsort((-records.confidence, records.image))
        image = records.image[order]
        # Ranks within an image count from its first box.
        first = np.searchsorted(image, image)
        order = order[np.arange(len(image)) - first < self.max_boxes]
        image = records.image[order]
        # The strictest threshold that keeps a box; beyond the last if none.
        step = np.searchsorted(-self.thresholds, -records.confidence[order])
        shape = len(self.thresholds) + 1, records.num_images

        def summed(values: np.ndarray | None) -> np.ndarray:
            keys = step * shape[1] + image
            size = shape[0] * shape[1]
            counts = np.bincount(keys, values, size).reshape(shape)
            return np.cumsum(counts[:-1], axis=0, dtype="float64")

        return summed(None), summed(~records.correct[order] * 1.0)

    def advice(
        self, part: DetectionRecords, tests: _Tests, limit: float, level: float
    ) -> str:
        """What to do for a class that has no certified threshold."""
        if not part.num_images:
            return "no box: take more images, or count the class out"
        loss, by_boxes = 0.0, self.average == "boxes"
        if by_boxes:
            # Of an image that keeps as many boxes as these, all of them right.
            mean = tests.ladder.accepted[-1] / part.num_images
            mean = max(min(mean, self.max_boxes), 1.0)
            loss = limit * (1.0 - mean / self.max_boxes)
        fewest = first_rank_by_betting(limit, level, loss)
        if part.num_images < fewest:
            more = f"take at least {fewest} images with its boxes"
            if by_boxes and self.max_boxes > 1:
                more += ', or a smaller `max_boxes`, or average="images"'
            return f"too few boxes: {more}"
        value = tests.precision[tests.nearest()]
        return (
            f"a precision of {value:.3g} at best: ask for less, improve the "
            "detector, or take more images"
        )


def _read_thresholds(thresholds: Any) -> np.ndarray:
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
