"""Metrics of dense predictions, averaged over images."""

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_integer, check_not_empty, check_rank
from keras_calib.inputs.given_metrics import of_arrays, reading_for
from keras_calib.inputs.options import (
    ArrayOptions,
    GivenTogether,
    check_classes,
)
from keras_calib.inputs.top_label import hard_labels
from keras_calib.inputs.weights import are_binary, weight_of_rows
from keras_calib.numerics.arrays import as_array, safe_divide


def per_image(
    metric: Any,
    labels: Any,
    outputs: Any = None,
    *,
    background: int | None = None,
    ignore_class: int | None = None,
    average: bool = True,
    **options: Any,
) -> Any:
    """Mean of a metric over images, weighted by their valid pixels.

    Use it to compare with published tables of segmentation, which average over
    images, often without the background. Or for a number of each image, such
    as the `cost` of `choose_threshold`:
    `1 - per_image("mean_iou", predictions, average=False)`.

    sum_i n_i metric(image i) / sum_i n_i, with n_i > 0 valid pixels

    The metric of all pixels together is another number. It is never larger for
    errors that are means of absolute gaps over fixed bins.

    Args:
        metric: A metric of one value, as `keras_calib.metrics.get` takes it.
            A function of yours gets labels `(n_i,)`, predictions
            `(n_i, num_classes)` and `options`, and returns a number.
        labels: Labels of any form that `metric` takes: class ids
            `(batch, ...)`, or one-hot or soft labels, or rows of votes. Or
            `Predictions`, which tell the outputs and options too.
        outputs: Predictions for `metric`, `(batch, ..., num_classes)`.
        background: Class id whose pixels are left out, or None.
        ignore_class: Class id of further pixels to leave out, or None.
        average: False for the values of the images.
        **options: Further arguments of `metric`, such as
            `from_logits=True`, but no `sample_weight`.

    Returns:
        Mean, in the unit of `metric`. Or values `(batch,)`, NaN for images
        without a valid pixel.

    Raises:
        ValueError: If shapes do not fit or no pixel is valid.
        TypeError: If there are weights, but a mask in `Predictions`.

    Example:

    >>> from keras_calib import ece
    >>> labels = [[0, 255], [1, 1]]
    >>> probs = [[[0.8, 0.2], [0.5, 0.5]], [[0.6, 0.4], [0.1, 0.9]]]
    >>> round(per_image(ece, labels, probs, ignore_class=255), 4)
    0.3

    Reference:
        Liu et al., The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration, CVPR 2022, https://arxiv.org/abs/2111.15430,
        whose released code evaluates segmentation so.
    """
    values, counts = _by_image(
        metric, labels, outputs, background, ignore_class, options
    )
    if not average:
        return values
    return float(np.average(values[counts > 0], weights=counts[counts > 0]))


def mean_iou(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Mean intersection over union of the classes that are true or predicted.

    Use it by `per_image`; `keras.metrics.MeanIoU` is that of all images.

    mean over k of |label = k and predicted = k| / |label = k or predicted = k|

    Args:
        labels: Class ids `(n, ...)`, or one-hot or soft labels, or
            `Predictions`.
        outputs: Predictions `(n, ..., num_classes)`.
        **options: Those of `ArrayOptions`.

    Returns:
        Share in [0, 1].

    Raises:
        ValueError: If shapes do not fit or there are no pixels.

    Example:

    >>> mean_iou([0, 1], [[0.8, 0.2], [0.9, 0.1]])
    0.25

    Reference:
        Everingham et al., The Pascal Visual Object Classes (VOC) Challenge,
        International Journal of Computer Vision 88, 2010,
        https://doi.org/10.1007/s11263-009-0275-4
    """
    read = standardize_arrays(labels, outputs, **options)
    true, found = hard_labels(read.labels), read.outputs.argmax(axis=-1)
    size, weight = read.outputs.shape[-1], read.weight
    weight = np.ones(len(true)) if weight is None else weight
    both = np.bincount(true, weight * (true == found), size)
    either = np.bincount(true, weight, size) + np.bincount(found, weight, size)
    either -= both
    return float(np.mean(both[either > 0] / either[either > 0]))


def of_images(
    metric: Any, told: GivenTogether, options: dict[str, Any]
) -> Callable[[Any], float]:
    """A function `(sample_weight)`, of a `PerImage`: images are repeated."""
    values, counts = _by_image(
        metric.given, told, None, metric.background, None, options
    )
    sums = np.stack([counts, counts * np.nan_to_num(values)], axis=-1)

    def mean(weight: Any) -> float:
        repeats = np.ones(len(sums))
        if weight is not None:
            repeats = np.reshape(weight, (len(sums), -1)).max(axis=1)
        return float(safe_divide(*(repeats @ sums)[::-1]))

    return mean


def _by_image(
    metric: Any,
    labels: Any,
    outputs: Any,
    background: int | None,
    ignore_class: int | None,
    options: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """Values of images, NaN without valid pixels, and how many are valid."""
    mask = None
    if isinstance(labels, GivenTogether):
        check_classes(labels)
        given = {**options, "ignore_class": ignore_class}
        options = options | reading_for("metric", metric, labels)
        options.pop("ignore_class", None)
        ignore_class = labels.options["ignore_class"]
        labels, outputs, known = labels.arguments(outputs, given)
        mask = known["sample_weight"]
    if "sample_weight" in options or not are_binary(mask):
        raise type_error(
            "`sample_weight` must be left out, or a mask of 0 and 1 in "
            "`Predictions`: all pixels have equal weight",
            options=sorted(options),
        )
    # Before labels are read: who gives `metric` last gave it as one of them.
    value = of_arrays("metric", metric, options)
    labels, outputs = as_array(labels, "labels"), as_array(outputs, "outputs")
    check_rank("outputs", outputs, 3, "(batch, ..., num_classes)")
    check_not_empty("outputs", outputs)
    if labels.ndim == outputs.ndim and labels.shape[-1] == 1:
        labels = labels[..., 0]
    soft = labels.shape == outputs.shape
    if not soft and labels.shape != outputs.shape[:-1]:
        raise value_error(
            "`labels` must be class ids or one-hot or soft labels that fit "
            "`outputs`",
            **{"labels.shape": labels.shape, "outputs.shape": outputs.shape},
        )
    if soft and ignore_class is not None:
        raise value_error(
            "`ignore_class` needs class ids as labels, not one-hot or soft "
            "labels",
            ignore_class=ignore_class,
        )
    ids = labels.argmax(axis=-1) if soft else labels
    if outputs.shape[-1] == 1:
        # A share above a half is of the second class.
        ids = np.ceil(labels.astype("float64") - 0.5)
    valid = np.ones(ids.shape, "bool")
    if mask is not None:
        valid = weight_of_rows(mask, ids.shape).reshape(ids.shape) > 0
    dropped = {"background": background, "ignore_class": ignore_class}
    for name, index in dropped.items():
        if index is not None:
            check_integer(name, index)
            valid &= ids != index
    counts = valid.reshape(len(ids), -1).sum(axis=1)
    if not counts.any():
        raise value_error(
            "`labels` must hold a class that is neither ignored nor background",
            **dropped,
        )
    values = np.full(len(counts), np.nan)
    for i in np.flatnonzero(counts):
        values[i] = value(labels[i][valid[i]], outputs[i][valid[i]])
    return values, counts
