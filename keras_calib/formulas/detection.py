"""Calibration errors of detections, from sums over cells of each class.

A cell is a bin of the confidence, and of features of the box. Boxes of one
image depend on each other, so sums over the boxes of each image measure how
much less they tell than as many independent ones.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy.stats import norm as normal

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import VoteBinSums
from keras_calib.formulas.bins import bin_index
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import safe_divide

__all__ = [
    "DetectionRecords",
    "DetectionSums",
    "FEATURES",
    "UNITS",
    "bins_of",
    "cells_of",
    "check_records",
    "columns_of",
    "error_of",
    "errors_by_class",
    "interval_of",
    "sums_of_cells",
]


FEATURES = ("center_x", "center_y", "width", "height")
# Units of the sums of a streaming metric, in 1.
UNITS = 2.0**30


class DetectionRecords(NamedTuple):
    """Detections and what became of them, arrays `(n,)`.

    Attributes:
        confidence: Confidence in [0, 1].
        correct: Whether the detection found a true box of its class.
        overlap: Intersection over union with the box that it found, 0 if it
            found none.
        label: Predicted class id.
        image: Index of the image.
        features: Center x, center y, width and height `(n, 4)`, relative to
            the image. None without the sizes of the images.
        num_images: Number of images, with those without a detection.
        num_true: Number of true boxes, without crowds.
        max_detections: Most detections that an image can have, or None.
    """

    confidence: np.ndarray
    correct: np.ndarray
    overlap: np.ndarray
    label: np.ndarray
    image: np.ndarray
    features: np.ndarray | None
    num_images: int
    num_true: int
    max_detections: int | None


class DetectionSums(NamedTuple):
    """Sums over the detections of each cell, arrays `(classes, cells)`.

    The target of a detection is 1 or 0, or its overlap. The detections of one
    image in a cell have the number n, the sum of confidences c and that of
    targets t.

    Attributes:
        count: Number of detections.
        confidence: Sum of the confidences.
        target: Sum of the targets.
        square: Sum of (confidence - target)^2.
        image_count: Sum over images of n^2.
        image_confidence: Sum over images of n c.
        image_target: Sum over images of n t.
        image_square: Sum over images of (c - t)^2.
        whole: The last four `(4,)` where n, c and t are of whole images.
    """

    count: Any
    confidence: Any
    target: Any
    square: Any
    image_count: Any
    image_confidence: Any
    image_target: Any
    image_square: Any
    whole: Any


def check_records(records: Any) -> None:
    """Raise unless there are records of detections."""
    if not isinstance(records, DetectionRecords):
        raise type_error(
            "`records` must be what `match_detections` returns",
            type=type(records).__name__,
        )
    if not len(records.confidence):
        raise value_error(
            "`records` must have a detection: lower the threshold of the "
            "detector",
            images=records.num_images,
        )


def bins_of(
    num_bins: int | Sequence[int], features: Sequence[str]
) -> tuple[int, ...]:
    """Number of bins of the confidence and of each feature."""
    if isinstance(features, str):
        raise type_error(
            "`features` must be a list of names", features=features
        )
    size = 1 + len(features)
    for name in features:
        check_in("features", name, FEATURES)
    given: Any = num_bins
    if not isinstance(given, Sequence) or isinstance(given, str):
        given = (given,) * size
    counts = tuple(given)
    for count in counts:
        check_integer("num_bins", count, 1)
    if len(counts) != size:
        raise value_error(
            "`num_bins` must have a number for the confidence and each of "
            "`features`",
            num_bins=num_bins,
            expected=size,
        )
    return counts


def columns_of(
    records: DetectionRecords, features: Sequence[str]
) -> list[np.ndarray]:
    """Confidence and features, which are binned."""
    columns = [records.confidence]
    for name in features:
        if records.features is None:
            raise value_error(
                "`features` need the sizes of the images: pass `image_shape` "
                "to `match_detections`",
                features=tuple(features),
            )
        columns.append(records.features[:, FEATURES.index(name)])
    return columns


def cells_of(
    columns: list[np.ndarray], num_bins: tuple[int, ...], closed: str
) -> np.ndarray:
    """Index of the cell of each detection, from columns in [0, 1].

    The first column is the confidence. Values outside go to the nearest bin.
    """
    cells = np.zeros(len(columns[0]), "int64")
    for column, count in zip(columns, num_bins, strict=True):
        inside = np.clip(column, 0.0, 1.0)
        cells = cells * count + bin_index(inside, count, closed)
    return cells


def sums_of_cells(
    confidence: np.ndarray,
    target: np.ndarray,
    image: np.ndarray,
    group: np.ndarray,
    cell: np.ndarray,
    shape: tuple[int, int],
) -> DetectionSums:
    """Sums of detections `(n,)`, of groups (classes) and cells, in float64."""
    keys, size = group * shape[1] + cell, shape[0] * shape[1]

    def total(values: np.ndarray | None, keys: np.ndarray = keys) -> np.ndarray:
        return np.bincount(keys, values, size).astype("float64").reshape(shape)

    parts = _of_images(confidence, target, image * size + keys)
    at = parts[0] % size
    whole = _of_images(confidence, target, image)
    n, c, t, square = (total(x, at) for x in _products(*parts[1:]))
    return DetectionSums(
        total(None),
        total(confidence),
        total(target),
        total(_rounded((confidence - target) ** 2)),
        n,
        c,
        t,
        square,
        np.array([x.sum() for x in _products(*whole[1:])]),
    )


def _of_images(
    confidence: np.ndarray, target: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Distinct keys, and number, confidence and targets of each."""
    found, inverse = np.unique(keys, return_inverse=True)
    inverse = inverse.reshape(-1)
    return (
        found,
        np.bincount(inverse, minlength=len(found)).astype("float64"),
        np.bincount(inverse, confidence, len(found)),
        np.bincount(inverse, target, len(found)),
    )


def _products(n: Any, c: Any, t: Any) -> tuple[Any, ...]:
    return n * n, n * c, n * t, _rounded((c - t) ** 2)


def _rounded(squares: np.ndarray) -> np.ndarray:
    """Squares in units that float64 adds without rounding."""
    return np.round(squares * UNITS) / UNITS


def errors_by_class(sums: DetectionSums) -> np.ndarray:
    """Error of each class `(classes,)`; NaN without detections."""
    gaps = np.abs(sums.confidence - sums.target).sum(axis=-1)
    total = sums.count.sum(axis=-1)
    empty = total == 0
    return np.where(empty, np.nan, gaps / np.where(empty, 1.0, total))


def error_of(sums: DetectionSums, average: str) -> float:
    """Error of all detections, or the mean over classes that have some.

    0 without detections.
    """
    if average == "macro":
        values = errors_by_class(sums)
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else 0.0
    gaps = np.abs((sums.confidence - sums.target).sum(axis=0)).sum()
    return float(safe_divide(gaps, sums.count.sum()))


def interval_of(
    sums: DetectionSums, average: str, level: float = 0.95
) -> tuple[float, float]:
    """Confidence interval of the error, with images as units.

    Sums of an image vary more than those of as many independent detections, in
    each cell and even more over all. The lower end lets the noise of each cell
    grow by the larger factor. For the upper end that would remove too much
    bias, so the noise grows by the factor of the cells, and the difference in
    standard deviations is added.

    Derivation: docs/derivations.md, 'Detections'.
    """
    effect = _design_effect(sums)
    largest = max(effect)
    low, _ = error_interval(_weighted(sums, average, largest), level=level)
    bins = _weighted(sums, average, effect[0])
    _, high = error_interval(bins, level=level)
    gap = safe_divide(sums.confidence - sums.target, sums.count)
    alone = sums.square - gap * (sums.confidence - sums.target)
    deviation = np.sqrt(max(float(alone.sum()), 0.0))
    deviation = safe_divide(deviation, np.float64(sums.count.sum()))
    more = np.sqrt(largest) - np.sqrt(effect[0])
    z = normal.isf((1.0 - level) / 2.0)
    return low, min(float(high + z * more * deviation), 1.0)


def _weighted(sums: DetectionSums, average: str, effect: float) -> VoteBinSums:
    """Sums of bins, one for each cell of each class.

    With `average="macro"` detections are weighted so that each class has the
    same weight: the error of the bins is then the mean over classes. Squared
    weights grow by `effect`, as do those of fewer samples.
    """
    total = sums.count.sum(axis=-1, keepdims=True)
    weight = np.ones_like(total)
    if average == "macro":
        weight = safe_divide(total.sum() / max((total > 0).sum(), 1), total)
    count, confidence, target, square = (
        weight * x
        for x in (sums.count, sums.confidence, sums.target, sums.square)
    )
    columns = (count, confidence, target, confidence - target)
    squared = weight * count * effect
    return VoteBinSums(
        *(np.ravel(x) for x in (*columns, squared)),
        squared_residual=np.ravel(square),
    )


def _design_effect(sums: DetectionSums) -> tuple[float, float]:
    """Variance of sums over images, of that of independent detections.

    It is that of the sums of cells, and that of whole images; at least 1.
    """
    residual = sums.confidence - sums.target
    gap = safe_divide(residual, sums.count)
    alone = float((sums.square - gap * residual).sum())
    if alone <= 0.0:
        return 1.0, 1.0
    products = (
        sums.image_count,
        sums.image_confidence,
        sums.image_target,
        sums.image_square,
    )
    cells = float(_image_variance(products, gap).sum())
    mean = float(residual.sum() / sums.count.sum())
    whole = float(_image_variance(sums.whole, mean))
    # Gaps that differ between cells spread the residuals too.
    spread = float(sums.square.sum() - mean * residual.sum())
    return max(1.0, cells / alone), max(1.0, whole / max(spread, alone))


def _image_variance(products: Any, gap: Any) -> Any:
    """Sum over images of (c - t - n gap)^2, from sums of products."""
    count, confidence, target, square = products
    return square - 2.0 * gap * (confidence - target) + gap * gap * count
