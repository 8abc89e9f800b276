"""Calibration errors of detections, from sums over cells of each class.

A cell is a bin of the confidence, and of features of the box. Boxes of one
image depend on each other, so sums over the boxes of each image measure how
much less they tell than as many independent ones.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm as normal

from keras_calib.backend.errors import type_error, value_error
from keras_calib.detection.matching import BoxPredictions, check_boxes
from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import CLOSED, BinSums, bin_index
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.results import Result

AVERAGES = ("pooled", "macro")
FEATURES = ("center_x", "center_y", "width", "height")
# Units of the sums of a streaming metric, in 1.
UNITS = 2.0**30


class DetectionSums(NamedTuple):
    """Sums over the detections of each cell.

    The target of a detection is 1 or 0, or its overlap. The detections of one
    image in a cell have the number n, the sum of confidences c and that of
    targets t.

    Attributes:
        own: Number of detections, and sums of confidences, of targets and of
            (confidence - target)^2, `(4, classes, cells)`.
        images: Sums over images of n^2, n c, n t and (c - t)^2, of that shape.
        whole: The same `(4,)` where n, c and t are of whole images.
    """

    own: Any
    images: Any
    whole: Any


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


def cells_of(
    predictions: BoxPredictions,
    num_bins: tuple[int, ...],
    features: Sequence[str],
    closed: str,
) -> np.ndarray:
    """Index of the cell of each detection.

    Values outside of [0, 1] go to the nearest bin.
    """
    columns = [predictions.confidence]
    for name in features:
        if predictions.features is None:
            raise value_error(
                "`features` need the sizes of the images: pass `image_shape` "
                "to `match`",
                features=tuple(features),
            )
        columns.append(predictions.features[:, FEATURES.index(name)])
    cells = np.zeros(len(predictions), "int64")
    for column, count in zip(columns, num_bins, strict=True):
        inside = np.clip(column, 0.0, 1.0)
        cells = cells * count + bin_index(inside, count, closed)
    return cells


def sums_of_cells(
    outcomes: Outcomes,
    target: np.ndarray,
    cell: np.ndarray,
    shape: tuple[int, int],
) -> DetectionSums:
    """Sums of detections `(n,)`, of groups (classes) and cells, in float64."""
    confidence, image = outcomes.confidence, outcomes.unit
    keys, size = outcomes.group * shape[1] + cell, shape[0] * shape[1]
    square = _rounded((confidence - target) ** 2)
    columns = np.ones_like(confidence), confidence, target, square

    def by_key(keys: np.ndarray, size: int, columns: Any) -> list[np.ndarray]:
        return [np.bincount(keys, x, size) for x in columns]

    def by_image(keys: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Distinct keys of images, and n^2, n c, n t and (c - t)^2 of each."""
        found, inverse = np.unique(keys, return_inverse=True)
        n, c, t = by_key(inverse.reshape(-1), len(found), columns[:3])
        return found, (n * n, n * c, n * t, _rounded((c - t) ** 2))

    found, products = by_image(image * size + keys)
    _, whole = by_image(image)
    return DetectionSums(
        np.reshape(by_key(keys, size, columns), (4, *shape)),
        np.reshape(by_key(found % size, size, products), (4, *shape)),
        np.array([x.sum() for x in whole]),
    )


def _rounded(squares: np.ndarray) -> np.ndarray:
    """Squares in units that float64 adds without rounding."""
    return np.round(squares * UNITS) / UNITS


def errors_by_class(sums: DetectionSums) -> np.ndarray:
    """Error of each class `(classes,)`; NaN without detections."""
    count, confidence, target, _ = sums.own
    gaps = np.abs(confidence - target).sum(axis=-1)
    total = count.sum(axis=-1)
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
    count, confidence, target, _ = sums.own
    gaps = np.abs((confidence - target).sum(axis=0)).sum()
    return float(safe_divide(gaps, count.sum()))


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
    count, confidence, target, square = sums.own
    residual = confidence - target
    gap = safe_divide(residual, count)
    # Variance of the sum of independent detections with the gap of their cell.
    alone = max(float((square - gap * residual).sum()), 0.0)
    of_cells = of_images = 1.0
    if alone > 0.0:
        variance = _image_variance(sums.images, gap).sum()
        of_cells = max(1.0, float(variance) / alone)
        mean = float(residual.sum() / count.sum())
        variance = _image_variance(sums.whole, mean)
        # Gaps that differ between cells spread the residuals too.
        spread = float(square.sum() - mean * residual.sum())
        of_images = max(1.0, float(variance) / max(spread, alone))
    largest = max(of_cells, of_images)
    low, _ = error_interval(_weighted(sums, average, largest), level=level)
    bins = _weighted(sums, average, of_cells)
    _, high = error_interval(bins, level=level)
    deviation = safe_divide(np.sqrt(alone), np.float64(count.sum()))
    more = np.sqrt(largest) - np.sqrt(of_cells)
    z = normal.isf((1.0 - level) / 2.0)
    return low, min(float(high + z * more * deviation), 1.0)


def _image_variance(products: Any, gap: Any) -> Any:
    """Sum over images of (c - t - n gap)^2, from sums of products."""
    count, confidence, target, square = products
    return square - 2.0 * gap * (confidence - target) + gap * gap * count


def _weighted(sums: DetectionSums, average: str, effect: float) -> BinSums:
    """Sums of bins, one for each cell of each class.

    With `average="macro"` detections are weighted so that each class has the
    same weight: the error of the bins is then the mean over classes. Squared
    weights grow by `effect`, as do those of fewer samples.
    """
    total = sums.own[0].sum(axis=-1, keepdims=True)
    weight = np.ones_like(total)
    if average == "macro":
        weight = safe_divide(total.sum() / max((total > 0).sum(), 1), total)
    count, confidence, target, square = weight * sums.own
    squared = weight * count * effect
    columns = count, confidence, target, confidence - target, squared, square
    return BinSums(*map(np.ravel, columns))


class DetectionCalibrationError(Result):
    """A calibration error of detections.

    Attributes:
        value: The error, in [0, 1].
        low: Lower end of its 95 % interval, with images as units. NaN where
            the error has no interval.
        high: Upper end.
        by_class: Error of each class that has detections, by class id.
        num_detections: Number of detections.
    """

    value: float
    low: float
    high: float
    by_class: dict[int, float]
    num_detections: int


def detection_ece(
    predictions: BoxPredictions,
    *,
    num_bins: int | Sequence[int] = 10,
    features: Sequence[str] = (),
    average: str = "pooled",
    min_count: int = 1,
    closed: str = "right",
) -> DetectionCalibrationError:
    """Detection expected calibration error (D-ECE).

    Use it to see whether the confidence of detections is their precision,
    also by where boxes lie and how large they are.

    D-ECE = sum_b (n_b / N) |precision_b - mean confidence_b|

    The bins b split the confidence and each of `features`.

    Args:
        predictions: What `match` returns.
        num_bins: Number of bins of the confidence and of each feature, or of
            all. Defaults to `10`.
        features: Any of `"center_x"`, `"center_y"`, `"width"` and `"height"`,
            relative to the image. Defaults to none.
        average: `"pooled"` over all detections, or `"macro"` for the mean
            over the classes that have detections.
        min_count: Least number of detections of a bin that counts. Others add
            nothing to the sum. Defaults to `1`.
        closed: `"right"` for bins (lo, hi], `"left"` for [lo, hi), as in
            `ece`.

    Returns:
        DetectionCalibrationError. The interval assumes `min_count=1`.

    Raises:
        TypeError: If `predictions` are not from `match`.
        ValueError: If there is no detection, or features have no image size.

    Example:

    >>> from keras_calib.detection import match
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> p = match(truth, found)
    >>> round(detection_ece(p).value, 4)
    0.2

    Reference:
        Kueppers et al., Multivariate Confidence Calibration for Object
        Detection, CVPR Workshops 2020, https://arxiv.org/abs/2004.13546
    """
    check_boxes(predictions)
    target = predictions.correct
    options = average, min_count, closed
    return _error(predictions, target, num_bins, features, *options)


def localization_aware_ece(
    predictions: BoxPredictions,
    *,
    num_bins: int = 25,
    average: str = "macro",
    closed: str = "right",
) -> DetectionCalibrationError:
    """Localization-aware expected calibration error (LaECE).

    Use it where the confidence should also say how well a box fits: the target
    is the overlap with the true box, 0 without one.

    LaECE = mean over classes of
            sum_b (n_b / n) |mean confidence_b - precision_b mean overlap_b|

    The mean overlap is that of the right detections of the bin. Match with
    `min_overlap=0.1` for LaECE, and with `min_overlap=0.0` for LaECE_0.

    Args:
        predictions: What `match` returns.
        num_bins: Number of bins of the confidence. Defaults to `25`.
        average: `"macro"` for the mean over the classes that have detections,
            as in the papers, or `"pooled"` over all detections.
        closed: `"right"` for bins (lo, hi], `"left"` for [lo, hi). The code of
            LaECE has `"left"`, that of LaECE_0 `"right"`.

    Returns:
        DetectionCalibrationError.

    Raises:
        TypeError: If `predictions` are not from `match`.
        ValueError: If there is no detection.

    Example:

    >>> from keras_calib.detection import match
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> p = match(truth, found, min_overlap=0.1)
    >>> round(localization_aware_ece(p).value, 4)
    0.2

    Reference:
        Oksuz et al., Towards Building Self-Aware Object Detectors via
        Reliable Uncertainty Quantification and Calibration, CVPR 2023,
        https://arxiv.org/abs/2307.00934; LaECE_0: Kuzucu et al., On
        Calibration of Object Detectors, ECCV 2024,
        https://arxiv.org/abs/2405.20459

    Differs:
        The code of LaECE counts classes without detections or true boxes as
        errors of 0, and leaves out a confidence of 1. This function takes the
        mean over classes with detections, true boxes or not, of all of them.
    """
    check_boxes(predictions)
    options = average, 1, closed
    return _error(predictions, predictions.overlap, num_bins, (), *options)


def adaptive_localization_error(
    predictions: BoxPredictions, *, average: str = "macro"
) -> DetectionCalibrationError:
    """Localization-aware adaptive calibration error (LaACE).

    Use it beside `localization_aware_ece`, which bins can hide errors from:
    here each detection is a bin of its own.

    LaACE = mean over classes of the mean of |confidence - overlap|

    Match with `min_overlap=0.0` for LaACE_0 of the paper. The error is 0 only
    if the confidence of each detection is its overlap.

    Args:
        predictions: What `match` returns.
        average: As in `localization_aware_ece`.

    Returns:
        DetectionCalibrationError, without an interval. It is called as
        `localization_aware_ece`.

    Raises:
        TypeError: If `predictions` are not from `match`.
        ValueError: If there is no detection.

    Reference:
        Kuzucu et al., On Calibration of Object Detectors: Pitfalls,
        Evaluation and Baselines, ECCV 2024, https://arxiv.org/abs/2405.20459

    Differs:
        The released code counts detections in crowds as overlaps of 0. This
        function leaves them out.
    """
    check_boxes(predictions)
    check_in("average", average, AVERAGES)
    classes, group = np.unique(predictions.groups["class"], return_inverse=True)
    error = np.abs(predictions.confidence - predictions.overlap)
    of_class = np.bincount(group, error) / np.bincount(group)
    value = error.mean() if average == "pooled" else of_class.mean()
    return DetectionCalibrationError(
        float(value),
        np.nan,
        np.nan,
        dict(zip(classes.tolist(), of_class.tolist(), strict=True)),
        len(error),
    )


def _enough(sums: DetectionSums, min_count: int) -> DetectionSums:
    """Sums in which cells of few detections have no gap."""
    own = sums.own.copy()
    own[1:3] *= own[0] >= min_count
    return sums._replace(own=own)


def _error(
    predictions: BoxPredictions,
    target: np.ndarray,
    num_bins: int | Sequence[int],
    features: Sequence[str],
    average: str,
    min_count: int,
    closed: str,
) -> DetectionCalibrationError:
    counts = bins_of(num_bins, features)
    check_in("average", average, AVERAGES)
    check_in("closed", closed, CLOSED)
    check_integer("min_count", min_count, 1)
    cell = cells_of(predictions, counts, features, closed)
    # Few of the cells of several features have detections.
    cells, cell = np.unique(cell, return_inverse=True)
    classes, group = np.unique(predictions.groups["class"], return_inverse=True)
    outcomes = predictions.boxes()._replace(group=group)
    sums = sums_of_cells(outcomes, target, cell, (len(classes), len(cells)))
    values = errors_by_class(_enough(sums, min_count)).tolist()
    if average == "pooled":
        outcomes = outcomes._replace(group=0 * group)
        sums = sums_of_cells(outcomes, target, cell, (1, len(cells)))
    low, high = interval_of(sums, average)
    value = error_of(_enough(sums, min_count), average)
    return DetectionCalibrationError(
        value,
        low,
        high,
        dict(zip(classes.tolist(), values, strict=True)),
        len(target),
    )
