"""Which detections find which true boxes, as the COCO evaluation decides it.

In the order of confidence, each detection takes the free true box of its class
that it overlaps most. Images are matched side by side.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.detection.boxes import Boxes, read_boxes, relative_sizes
from keras_calib.detection.predictions import BoxPredictions
from keras_calib.inputs.checks import check_share
from keras_calib.numerics.arrays import safe_divide

# Overlaps held at once.
_LARGEST_BLOCK = 4_000_000


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
