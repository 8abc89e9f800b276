"""Which detections find which true boxes, as the COCO evaluation decides it.

In the order of confidence, each detection takes the free true box of its class
that it overlaps most. Images are matched side by side.
"""

from typing import Any, NamedTuple, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.detection.boxes import Boxes, read_boxes, relative_sizes
from keras_calib.inputs.checks import check_share
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import safe_divide
from keras_calib.predictions.columns import checked
from keras_calib.predictions.predictions import Predictions

# Overlaps held at once.
_LARGEST_BLOCK = 4_000_000


class BoxPredictions(Predictions):
    """Detections and what became of them: a log with a row for each box.

    `match` makes it. Functions that take a log of `confidence` and `correct`
    take it: a box is correct if it found a true box of its class. Its unit is
    the index of its image, as boxes of one image depend on each other, and its
    group `"class"` is the predicted class id.

    Some of the rows, `p[rows]`, are of the images that have a box there.

    Args:
        correct: Whether each of n boxes found a true one, `(n,)`.
        confidence: Confidence in [0, 1], `(n,)`.
        classes: Predicted class ids `(n,)`.
        images: Index of the image of each box `(n,)`.
        overlap: Intersection over union with the box that it found, 0 if it
            found none, `(n,)`.
        features: Center x, center y, width and height `(n, 4)`, relative to
            the image. None without the sizes of the images.
        true_boxes: Number of true boxes of each image, without crowds,
            `(num_images,)`.
        max_detections: Most detections that an image can have, or None.

    Raises:
        ValueError: If lengths differ, or a value is out of range.

    Example:

    >>> from keras_calib.detection import match
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> match(truth, found)
    BoxPredictions(2 boxes of 1 images with 1 true boxes)

    Reference:
        Lin et al., Microsoft COCO, ECCV 2014, https://arxiv.org/abs/1405.0312
    """

    # A detector may find nothing in a batch.
    may_be_empty = True

    def __init__(
        self,
        correct: Any,
        confidence: Any,
        *,
        classes: Any,
        images: Any,
        overlap: Any,
        features: Any = None,
        true_boxes: Any,
        max_detections: int | None = None,
    ):
        super().__init__(
            correct=correct,
            confidence=confidence,
            units=images,
            groups={"class": classes},
        )
        own = {"overlap": overlap, "features": features}
        self._arrays = checked({**self._columns(), **own}, True)
        self._facts["true_boxes"] = np.asarray(true_boxes)
        self._facts["images"] = np.arange(len(true_boxes))
        self._facts["max_detections"] = max_detections

    @property
    def overlap(self) -> np.ndarray:
        """Overlap with the true box that each found, `(n,)`."""
        return self._columns()["overlap"]

    @property
    def features(self) -> np.ndarray | None:
        """Center, width and height, relative to the image, or None."""
        return self._columns().get("features")

    @property
    def num_images(self) -> int:
        """Number of images, with those without a detection."""
        return len(self._facts["images"])

    @property
    def num_true(self) -> int:
        """Number of true boxes of the images, without crowds."""
        return int(self._facts["true_boxes"][self._facts["images"]].sum())

    @property
    def max_detections(self) -> int | None:
        """Most detections that an image can have, or None."""
        return self._facts["max_detections"]

    def boxes(self) -> Outcomes:
        """The boxes as rows, with the places of their images and classes."""
        images = self._columns()["units"]
        return Outcomes(
            score=self.outputs,
            correct=self.labels,
            confidence=self.outputs,
            unit=np.searchsorted(self._facts["images"], images),
            group=self.groups["class"],
        )

    def __getitem__(self, rows: Any) -> Self:
        made = super().__getitem__(rows)
        images = np.unique(made._columns()["units"])
        made._facts = {**self._facts, "images": images}
        return made

    def __repr__(self) -> str:
        return (
            f"BoxPredictions({len(self):,} boxes of {self.num_images:,} images "
            f"with {self.num_true:,} true boxes)"
        )


def check_boxes(
    predictions: Any, num_classes: int | None = None, *, empty: bool = False
) -> None:
    """Raise unless there are matched boxes, or with `empty` none.

    Class ids must be below `num_classes`, if it is given.
    """
    if not isinstance(predictions, BoxPredictions):
        raise type_error(
            "`predictions` must be what `keras_calib.detection.match` returns",
            type=type(predictions).__name__,
        )
    if not empty and not len(predictions):
        raise value_error(
            "`predictions` must have a detection: lower the threshold of the "
            "detector",
            images=predictions.num_images,
        )
    largest = int(predictions.groups["class"].max(initial=-1))
    if num_classes is not None and largest >= num_classes:
        raise value_error(
            "`labels` of detections must be < `num_classes`",
            largest=largest,
            num_classes=num_classes,
        )


class _Matches(NamedTuple):
    """What each detection found, arrays `(images, detections)`.

    Attributes:
        matched: Whether it found a true box.
        ignored: Whether it found a crowd, and is neither right nor wrong.
        overlap: Overlap with the box that it found, 0 without one.
    """

    matched: np.ndarray
    ignored: np.ndarray
    overlap: np.ndarray


def match(
    labels: Any,
    detections: Any,
    *,
    min_overlap: float = 0.5,
    box_format: str = "xyxy",
    image_shape: Any = None,
    min_confidence: float = 0.0,
) -> BoxPredictions:
    """Match detections with true boxes: which are right, and how well.

    Use it once on the detections of a data set. Errors, thresholds and
    calibrators take what it returns, and so does what takes a log of
    predictions.

    In each image, detections of falling confidence take the free true box of
    their class that they overlap most. A detection is right if this overlap,
    the intersection over union, is at least `min_overlap`. This is the rule of
    the COCO evaluation, for which no COCO library is needed.

    Args:
        labels: True boxes. A dict of padded arrays, or a list with a dict for
            each image. They hold `"boxes"` `(images, boxes, 4)` and `"labels"`
            (or `"classes"`) `(images, boxes)`, class ids, -1 for padding.
            `"crowd"` may mark regions of many objects: detections in them are
            left out.
        detections: Detections in the same two forms, with `"confidence"` (or
            `"scores"`) in [0, 1], as `predict` of KerasHub's object detectors
            returns them. `"num_detections"` `(images,)` may say how many are
            no padding.
        min_overlap: Least intersection over union of a match, in [0, 1].
            Defaults to `0.5`.
        box_format: `"xyxy"`, `"yxyx"`, `"xywh"` or `"center_xywh"`, or one of
            these after `"rel_"`, as in Keras. Defaults to `"xyxy"`.
        image_shape: Height and width of all images, or `(images, 2)`. Only
            the features of the boxes need it. Relative formats need none.
        min_confidence: Least confidence of a detection that counts, in
            [0, 1]. Pass the threshold at which the detector is used. Defaults
            to `0.0`.

    Returns:
        BoxPredictions.

    Raises:
        TypeError: If arguments are neither dicts nor lists of dicts.
        ValueError: If boxes lack labels or confidence, shapes do not fit, or
            values are out of range.

    Example:

    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> p = match(truth, found)
    >>> [round(float(x), 4) for x in p.overlap]
    [0.8, 0.0]

    Reference:
        Lin et al., Microsoft COCO, ECCV 2014, https://arxiv.org/abs/1405.0312,
        and its evaluation code, https://github.com/cocodataset/cocoapi

    Differs:
        COCOeval keeps the 100 surest detections of each class in an image.
        This function keeps all.
    """
    check_share("min_overlap", min_overlap)
    check_share("min_confidence", min_confidence)
    truth = read_boxes(labels, "labels", box_format, scored=False)
    found = read_boxes(detections, "detections", box_format, scored=True)
    num_images = len(found.valid)
    if len(truth.valid) != num_images:
        raise value_error(
            "`labels` and `detections` must have the same images",
            labels=len(truth.valid),
            detections=num_images,
        )
    sizes = relative_sizes(box_format, image_shape, num_images)
    valid = found.valid & (found.score >= min_confidence)
    matches = _match_boxes(found, valid, truth, min_overlap)
    kept = valid & ~matches.ignored
    features = None
    if sizes is not None:
        low, high = np.split(found.corners / sizes[:, None, :], 2, axis=-1)
        features = np.concatenate([0.5 * (low + high), high - low], axis=-1)
        features = features[kept]
    return BoxPredictions(
        matches.matched[kept],
        found.score[kept],
        classes=found.labels[kept].astype("int64"),
        images=np.nonzero(kept)[0],
        overlap=matches.overlap[kept],
        features=features,
        true_boxes=(truth.valid & ~truth.crowd).sum(axis=1),
        max_detections=found.most,
    )


def _match_boxes(
    found: Boxes, valid: np.ndarray, truth: Boxes, least: float
) -> _Matches:
    """Match valid detections with true boxes, image by image.

    A true box is found once, a crowd as often as detections lie in it. A
    detection that overlaps no free box takes a crowd. The later of two true
    boxes that it overlaps equally is taken, as COCOeval does.
    """
    shape, num_true = valid.shape, truth.valid.shape[1]
    result = _Matches(
        np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape)
    )
    if num_true == 0:
        return result
    # The order of detections, surest first.
    sure = np.where(valid, found.score, -1.0)
    rank = np.argsort(-sure, axis=1, kind="stable")
    labels = np.where(valid, found.labels, -1)
    true_labels = np.where(truth.valid, truth.labels, -1)
    step = max(_LARGEST_BLOCK // max(shape[1] * num_true, 1), 1)
    for start in range(0, shape[0], step):
        part = slice(start, start + step)
        crowd = truth.crowd[part]
        overlaps = _overlaps(found.corners[part], truth.corners[part], crowd)
        same = labels[part][:, :, None] == true_labels[part][:, None, :]
        same &= labels[part][:, :, None] >= 0
        overlaps[~same] = -1.0
        block = _Matches(*(x[part] for x in result))
        _match_block(overlaps, rank[part], crowd, least, block)
    return result


def _overlaps(
    found: np.ndarray, truth: np.ndarray, crowd: np.ndarray
) -> np.ndarray:
    """Intersection over union `(images, detections, boxes)`.

    For a crowd it is the intersection over the area of the detection.
    """
    a, b = found[:, :, None, :], truth[:, None, :, :]
    low = np.maximum(a[..., :2], b[..., :2])
    high = np.minimum(a[..., 2:], b[..., 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=-1)
    area = np.prod(a[..., 2:] - a[..., :2], axis=-1)
    union = area + np.prod(b[..., 2:] - b[..., :2], axis=-1) - shared
    union = np.where(crowd[:, None, :], area, union)
    return safe_divide(shared, union)


def _match_block(
    overlaps: np.ndarray,
    rank: np.ndarray,
    crowd: np.ndarray,
    least: float,
    result: _Matches,
) -> None:
    """Match a block of images, detection by detection, into `result`."""
    least = min(least, 1.0 - 1e-10)
    rows = np.arange(len(overlaps))
    free = ~crowd
    for place in range(rank.shape[1]):
        which = rank[:, place]
        overlap = overlaps[rows, which]
        best, index = _last_best(np.where(free, overlap, -1.0))
        of_crowd, _ = _last_best(np.where(crowd, overlap, -1.0))
        found = best >= least
        ignored = ~found & (of_crowd >= least)
        free[rows[found], index[found]] = False
        result.matched[rows, which] = found
        result.ignored[rows, which] = ignored
        result.overlap[rows, which] = np.where(found, best, 0.0)


def _last_best(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximum of each row, and where it stands last."""
    index = values.shape[1] - 1 - np.argmax(values[:, ::-1], axis=1)
    return values[np.arange(len(values)), index], index
