"""Calibration errors of detections, from their records."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_calib.formulas.bins import CLOSED
from keras_calib.formulas.detection import DetectionRecords
from keras_calib.formulas.detection import DetectionSums
from keras_calib.formulas.detection import bins_of
from keras_calib.formulas.detection import cells_of
from keras_calib.formulas.detection import check_records
from keras_calib.formulas.detection import columns_of
from keras_calib.formulas.detection import error_of
from keras_calib.formulas.detection import errors_by_class
from keras_calib.formulas.detection import interval_of
from keras_calib.formulas.detection import sums_of_cells
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer

__all__ = [
    "DetectionCalibrationError",
    "adaptive_localization_error",
    "detection_ece",
    "localization_aware_ece",
]

_AVERAGES = ("pooled", "macro")


class DetectionCalibrationError(NamedTuple):
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
    records: DetectionRecords,
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
        records: What `match_detections` returns.
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
        TypeError: If `records` are not from `match_detections`.
        ValueError: If there is no detection, or features have no image size.

    Example:

    >>> from keras_calib import match_detections
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> records = match_detections(truth, found)
    >>> round(detection_ece(records).value, 4)
    0.2

    Reference:
        Kueppers et al., Multivariate Confidence Calibration for Object
        Detection, CVPR Workshops 2020, https://arxiv.org/abs/2004.13546
    """
    check_records(records)
    counts = bins_of(num_bins, features)
    columns = columns_of(records, features)
    target = records.correct.astype("float64")
    return _error(records, target, columns, counts, average, min_count, closed)


def localization_aware_ece(
    records: DetectionRecords,
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
        records: What `match_detections` returns.
        num_bins: Number of bins of the confidence. Defaults to `25`.
        average: `"macro"` for the mean over the classes that have detections,
            as in the papers, or `"pooled"` over all detections.
        closed: `"right"` for bins (lo, hi], `"left"` for [lo, hi). The code of
            LaECE has `"left"`, that of LaECE_0 `"right"`.

    Returns:
        DetectionCalibrationError.

    Raises:
        TypeError: If `records` are not from `match_detections`.
        ValueError: If there is no detection.

    Example:

    >>> from keras_calib import match_detections
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> records = match_detections(truth, found, min_overlap=0.1)
    >>> round(localization_aware_ece(records).value, 4)
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
    check_records(records)
    counts, columns = bins_of(num_bins, ()), columns_of(records, ())
    return _error(records, records.overlap, columns, counts, average, 1, closed)


def adaptive_localization_error(
    records: DetectionRecords, *, average: str = "macro"
) -> DetectionCalibrationError:
    """Localization-aware adaptive calibration error (LaACE).

    Use it beside `localization_aware_ece`, which bins can hide errors from:
    here each detection is a bin of its own.

    LaACE = mean over classes of the mean of |confidence - overlap|

    Match with `min_overlap=0.0` for LaACE_0 of the paper. The error is 0 only
    if the confidence of each detection is its overlap.

    Args:
        records: What `match_detections` returns.
        average: As in `localization_aware_ece`.

    Returns:
        DetectionCalibrationError, without an interval.

    Raises:
        TypeError: If `records` are not from `match_detections`.
        ValueError: If there is no detection.

    Example:

    >>> from keras_calib import match_detections
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> records = match_detections(truth, found, min_overlap=0.0)
    >>> round(adaptive_localization_error(records).value, 4)
    0.2

    Reference:
        Kuzucu et al., On Calibration of Object Detectors: Pitfalls,
        Evaluation and Baselines, ECCV 2024, https://arxiv.org/abs/2405.20459

    Differs:
        The released code counts detections in crowds as overlaps of 0. This
        function leaves them out.
    """
    check_records(records)
    check_in("average", average, _AVERAGES)
    classes, group = np.unique(records.label, return_inverse=True)
    error = np.abs(records.confidence - records.overlap)
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
    kept = sums.count >= min_count
    return sums._replace(
        confidence=kept * sums.confidence, target=kept * sums.target
    )


def _error(
    records: DetectionRecords,
    target: np.ndarray,
    columns: list[np.ndarray],
    counts: tuple[int, ...],
    average: str,
    min_count: int,
    closed: str,
) -> DetectionCalibrationError:
    check_in("average", average, _AVERAGES)
    check_in("closed", closed, CLOSED)
    check_integer("min_count", min_count, 1)
    # Few of the cells of several features have detections.
    cells, cell = np.unique(
        cells_of(columns, counts, closed), return_inverse=True
    )
    classes, group = np.unique(records.label, return_inverse=True)
    given = records.confidence, target, records.image
    shape = len(classes), len(cells)
    sums = sums_of_cells(*given, group, cell, shape)
    values = errors_by_class(_enough(sums, min_count)).tolist()
    if average == "pooled":
        sums = sums_of_cells(*given, 0 * group, cell, (1, shape[1]))
    low, high = interval_of(sums, average)
    value = error_of(_enough(sums, min_count), average)
    return DetectionCalibrationError(
        value,
        low,
        high,
        dict(zip(classes.tolist(), values, strict=True)),
        len(target),
    )
