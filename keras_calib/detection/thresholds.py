"""Thresholds of detectors that keep a precision, with images as units.

Derivation: docs/derivations.md, 'Detections'.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.detection.matching import BoxPredictions, check_boxes
from keras_calib.formulas.bounded_means import (
    betting_p_value,
    first_rank_by_betting,
)
from keras_calib.formulas.intervals import check_inside
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.selection.choice import (
    Choice,
    chosen_alone,
    chosen_each,
    out_of_reach,
)
from keras_calib.selection.claims import Claim, even_starts
from keras_calib.selection.families import alone, holm
from keras_calib.selection.ladder import Ladder, counts_at

# Most classes that an error lists.
_SHOWN = 12


class _Tested(NamedTuple):
    """Thresholds with their precision on images, and the claim about it.

    The ladder accepts boxes, and its size is the number of images.
    """

    ladder: Ladder
    precision: np.ndarray
    claim: Claim

    def nearest(self) -> int:
        """The place that came nearest to a guarantee and keeps a box."""
        nothing = self.ladder.accepted == 0
        order = np.lexsort((-self.precision, self.claim.p_value, nothing))
        return int(order[0])


class PrecisionTarget(NamedTuple):
    """Target of thresholds for boxes: a precision, with a guarantee.

    `precision` is a number for all boxes together, or has one for each class.
    """

    precision: Any
    delta: float
    average: str
    max_boxes: Any
    thresholds: Any
    seed: int

    def check(
        self, predictions: Any, num_classes: int | None = None
    ) -> "PrecisionTarget":
        """The target for these boxes, or for each class of theirs.

        Fills in defaults. Raises for values that are not allowed.
        """
        check_boxes(predictions, num_classes)
        precision: Any = self.precision
        if num_classes is not None:
            given = as_array(precision, "precision", "float64")
            if given.shape not in ((), (num_classes,)):
                raise value_error(
                    "`precision` must be a number, or have one for each class",
                    shape=given.shape,
                    num_classes=num_classes,
                )
            precision = tuple(np.broadcast_to(given, num_classes).tolist())
        for one in (precision,) if num_classes is None else precision:
            check_inside("precision", one)
        check_inside("delta", self.delta)
        check_in("average", self.average, ("boxes", "images"))
        most = self.max_boxes
        most = predictions.max_detections if most is None else most
        if most is None:
            raise value_error(
                "`max_boxes` must be given for detections in a list: the most "
                "boxes that the detector returns for an image",
                max_boxes=None,
            )
        check_integer("max_boxes", most, 1)
        return self._replace(
            precision=precision,
            delta=float(self.delta),
            max_boxes=int(most),
            thresholds=_read_thresholds(self.thresholds),
        )

    def choose(self, predictions: BoxPredictions) -> Choice:
        """The best threshold; ValueError if none is certified."""
        wanted, size = float(self.precision), predictions.num_images
        one = self.tested(predictions.boxes(), size, wanted, self.delta)
        ladder, p_values = one.ladder, one.claim.p_value
        certified = alone(one.claim, len(self.thresholds))
        if not certified.any():
            best = one.nearest()
            near: dict[str, Any] = {
                "least p-value": float(p_values[best]),
                "its precision": float(one.precision[best]),
                "its kept boxes": int(ladder.accepted[best]),
            }
            raise out_of_reach(
                [ladder],
                "precision",
                wanted,
                self.delta,
                advice=(
                    "take more images, ask for less, or let an image keep "
                    "fewer boxes by `max_boxes`"
                ),
                images=size,
                max_boxes=self.max_boxes,
                **near,
            )
        place = int(np.flatnonzero(certified)[-1])
        kept, wrong = float(ladder.accepted[place]), float(ladder.loss[place])
        precision = float(one.precision[place])
        chosen = chosen_alone(
            ladder,
            certified,
            place,
            kind="boxes",
            limit=1.0 - wanted,
            delta=self.delta,
            method="betting",
            facts={
                "precision": precision,
                "target": wanted,
                "recall": (kept - wrong) / max(predictions.num_true, 1),
                "boxes_per_image": kept / size,
                "average": self.average,
                "max_boxes": self.max_boxes,
                "p_values": p_values,
            },
        )
        return replace(chosen, risk=1.0 - precision)

    def choose_each(self, predictions: BoxPredictions) -> Choice:
        """The best threshold of each class; ValueError if none is certified."""
        outcomes, count = predictions.boxes(), len(self.precision)
        tested = []
        for k, wanted in enumerate(self.precision):
            own = outcomes.part(outcomes.group == k)
            # Images without a box of the class neither win nor lose a bet.
            images, unit = np.unique(own.unit, return_inverse=True)
            own = own._replace(unit=unit)
            tested.append(
                self.tested(own, len(images), wanted, self.delta / count)
            )
        masks, level = holm([one.claim for one in tested], self.delta)
        places, advice, precision, kept = [], [], [], []
        for wanted, one, mask in zip(
            self.precision, tested, masks, strict=True
        ):
            place = int(np.flatnonzero(mask)[-1]) if mask.any() else None
            places.append(place)
            if place is None:
                advice.append(self.advice(one, wanted, level))
                precision.append(np.nan)
                kept.append(0.0)
            else:
                advice.append("")
                precision.append(float(one.precision[place]))
                kept.append(float(one.ladder.accepted[place]))
        ladders = [one.ladder for one in tested]
        if all(advice):
            told = [f"class {k}: {x}" for k, x in enumerate(advice[:_SHOWN])]
            raise out_of_reach(
                ladders,
                "precision",
                min(self.precision),
                self.delta,
                noun="class",
                advice="; ".join(told),
                images=predictions.num_images,
                max_boxes=self.max_boxes,
            )
        chosen = chosen_each(
            range(count),
            ladders,
            masks,
            places,
            kind="classes",
            limit=1.0 - min(self.precision),
            delta=self.delta,
            method="betting",
            facts={
                "precision": tuple(precision),
                "target": self.precision,
                "boxes_per_image": tuple(
                    x / predictions.num_images for x in kept
                ),
                "average": self.average,
                "max_boxes": self.max_boxes,
                "advice": tuple(advice),
                "level": level,
            },
        )
        risk = np.nan_to_num(1.0 - np.array(precision))
        return replace(chosen, group_risk=tuple(risk.tolist()))

    def tested(
        self, outcomes: Outcomes, num_images: int, wanted: float, level: float
    ) -> _Tested:
        """Tests by betting of all thresholds for the boxes of images."""
        order = np.lexsort((-outcomes.score, outcomes.unit))
        image = outcomes.unit[order]
        # Ranks within an image count from its first box.
        rank = np.arange(len(image)) - np.searchsorted(image, image)
        shown = outcomes.part(order[rank < self.max_boxes])
        where = shown.score, shown.unit, num_images, self.thresholds
        # Of each threshold and image.
        kept = counts_at(*where).astype("float64")
        wrong = counts_at(*where, shown.loss)
        limit, scale = 1.0 - wanted, np.array(float(self.max_boxes))
        if self.average == "images":
            scale = np.maximum(kept, 1.0)
        # Their mean is at most the limit if the precision holds. Rounding must
        # not leave the range.
        losses = np.clip(limit + (wrong - limit * kept) / scale, 0.0, 1.0)
        p_value = np.array(
            [
                betting_p_value(x, limit, delta=level, seed=self.seed)
                for x in losses
            ]
        )
        accepted, lost = kept.sum(axis=1), wrong.sum(axis=1)
        ladder = Ladder(
            self.thresholds,
            accepted,
            lost,
            num_images,
            False,
            never=(float(len(image)) - accepted[-1], 0.0),
        )
        risk = ladder.risk
        if self.average == "images":
            shares = safe_divide(wrong, kept).sum(axis=1)
            risk = safe_divide(shares, (kept > 0).sum(axis=1))
        claim = Claim(p_value, *even_starts(len(p_value), level))
        return _Tested(ladder, 1.0 - risk, claim)

    def advice(self, tested: _Tested, wanted: float, level: float) -> str:
        """What to do for a class that has no certified threshold."""
        num_images, limit = tested.ladder.size, 1.0 - wanted
        if not num_images:
            return "no box: take more images, or count the class out"
        loss, by_boxes = 0.0, self.average == "boxes"
        if by_boxes:
            # Of an image that keeps as many boxes as these, all of them right.
            mean = tested.ladder.accepted[-1] / num_images
            mean = max(min(mean, self.max_boxes), 1.0)
            loss = limit * (1.0 - mean / self.max_boxes)
        fewest = first_rank_by_betting(limit, level, loss)
        if num_images < fewest:
            more = f"take at least {fewest} images with its boxes"
            if by_boxes and self.max_boxes > 1:
                more += ', or a smaller `max_boxes`, or average="images"'
            return f"too few boxes: {more}"
        value = tested.precision[tested.nearest()]
        return (
            f"a precision of {value:.3g} at best: ask for less, improve the "
            "detector, or take more images"
        )


def choose_detection_threshold(
    predictions: BoxPredictions,
    *,
    precision: Any,
    delta: float = 0.05,
    num_classes: int | None = None,
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

    With `num_classes` the boxes of each class have a threshold of their own:

    P(any class with a threshold misses its precision) <= `delta`

    Classes share `delta` as in Holm's procedure, which holds however they
    depend on each other. A class without a certified threshold keeps no box.
    Derivation: docs/derivations.md, 'Detections'.

    Args:
        predictions: What `match` returns on images that neither
            trained nor calibrated the detector.
        precision: Least precision, in (0, 1); of all classes, or one for each
            `(num_classes,)`.
        delta: Probability that the guarantee may fail, for any class, in
            (0, 1).
        num_classes: Number of classes, at least 1, for a threshold of each.
            Each has its share of `delta`, also if these images have none of
            its boxes. None for one threshold of all boxes.
        average: `"boxes"` or `"images"`, as above.
        max_boxes: Most boxes that an image keeps, the surest ones; by class,
            most of each. Defaults to what the detector can return. Few need
            fewer images with `"boxes"`: about in proportion. When you serve,
            keep no more.
        thresholds: Confidences to try, in (0, 1]. Fix them without these
            images. Defaults to 0.99, 0.98, ..., 0.01.
        seed: Seed of the order of the images.

    Returns:
        A `Choice` of the most lenient threshold that is certified. Its risk is
        1 - precision, and its coverage the share of boxes that are kept. By
        class it has a row for each, and `facts["advice"]` says what a class
        without a threshold takes.

    Raises:
        TypeError: If `predictions` are not from `match`.
        ValueError: If no threshold is certified, `max_boxes` is unknown, or
            a value is out of range.

    Example:

    >>> from keras_calib.detection import match
    >>> truth = [{"boxes": [[0, 0, 9, 9]], "labels": [0]}] * 300
    >>> found = [{"boxes": [[0, 0, 9, 8], [20, 0, 30, 9]], "labels": [0, 1],
    ...           "confidence": [0.9, 0.3]}] * 300
    >>> p = match(truth, found)
    >>> found = choose_detection_threshold(p, precision=0.9, max_boxes=2)
    >>> found.threshold, found.risk, found.facts["recall"]
    (0.31, 0.0, 1.0)
    >>> choose_detection_threshold(
    ...     p, precision=0.9, max_boxes=1, num_classes=2).threshold
    (0.01, inf)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; Waudby-Smith and Ramdas, Estimating
        Means of Bounded Random Variables by Betting, Journal of the Royal
        Statistical Society B 86, 2024, https://arxiv.org/abs/2010.09686;
        shares of classes: Holm, A Simple Sequentially Rejective Multiple Test
        Procedure, Scandinavian Journal of Statistics 6, 1979,
        https://www.jstor.org/stable/4615733
    """
    target = PrecisionTarget(
        precision, delta, average, max_boxes, thresholds, seed
    )
    if num_classes is None:
        return target.check(predictions).choose(predictions)
    check_integer("num_classes", num_classes, 1)
    return target.check(predictions, num_classes).choose_each(predictions)


def _read_thresholds(thresholds: Any) -> np.ndarray:
    """Distinct thresholds, strictest first."""
    if thresholds is None:
        return np.arange(99, 0, -1) / 100.0
    tried = as_array(thresholds, "thresholds", "float64")
    if tried.ndim != 1 or not len(tried):
        raise value_error(
            "`thresholds` must have shape (num_thresholds,)", shape=tried.shape
        )
    if not np.all((tried > 0.0) & (tried <= 1.0)):
        raise value_error(
            "`thresholds` must lie in (0, 1]",
            smallest=tried.min(),
            largest=tried.max(),
        )
    return np.unique(tried)[::-1]
