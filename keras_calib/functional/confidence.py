"""Confidence of all, of correct and of wrong predictions, in float64."""

from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas import binned_errors
from keras_calib.functional.calibration_errors import equal_width_bins
from keras_calib.inputs.labels import CONTEXT, check_objectness
from keras_calib.inputs.options import ArrayOptions
from keras_calib.inputs.rows import of_one_output
from keras_calib.inputs.top_label import lead_of, top_label
from keras_calib.numerics.arrays import as_array


def accuracy(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Accuracy: the share of correct predictions, in float64.

    Use it beside a calibration error, which says nothing about how often the
    model is right. `Accuracy` streams the same value.

    Args:
        labels, outputs, **options: As in `ece`. Outputs may be `(n,)`, of the
            second of two classes.

    Returns:
        Accuracy in [0, 1]. With `votes=True`, the mean share of votes for the
        prediction.

    Reference:
        Keras, SparseCategoricalAccuracy,
        https://keras.io/api/metrics/accuracy_metrics/
    """
    top = top_label(labels, of_one_output(outputs, "outputs"), **options)
    return float(np.average(top.correct, weights=top.weight))


def mean_confidence(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Mean probability of the predicted class, in float64.

    Use it beside the accuracy: a mean confidence above it means that the model
    is overconfident.

    Args:
        labels, outputs, **options: As in `ece`.

    Returns:
        Confidence in [0, 1].

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """
    top = top_label(labels, outputs, **options)
    confidence = top.confidence.astype("float64")
    return float(np.average(confidence, weights=top.weight))


def confidence_gap(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Mean confidence less accuracy, in float64.

    Use it to see whether a model is overconfident, above 0, or underconfident.
    Gaps of both signs cancel, so read it beside `ece`.

    Args:
        labels, outputs, **options: As in `ece`.

    Returns:
        Gap in [-1, 1].

    Reference:
        That of `mean_confidence`.
    """
    top = top_label(labels, outputs, **options)
    gap = top.confidence.astype("float64") - top.correct
    return float(np.average(gap, weights=top.weight))


def overconfidence(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Mean confidence of the wrong predictions, in float64.

    Use it to see how confident a model is when it is wrong. The error over bins
    is `overconfidence_error`.

    Args:
        labels, outputs, **options: As in `ece`.

    Returns:
        Confidence in [0, 1], 0 if no prediction is wrong.

    Reference:
        Wenger et al., Non-Parametric Calibration for Classification,
        AISTATS 2020, https://arxiv.org/abs/1906.04933
    """
    top = top_label(labels, outputs, **options)
    return _mean_of(1.0 - top.correct, top.confidence, top.weight)


def underconfidence(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> float:
    """Mean of 1 - confidence of the correct predictions, in float64.

    Use it to see how much a model doubts its correct predictions.

    Args:
        labels, outputs, **options: As in `ece`.

    Returns:
        Mean in [0, 1], 0 if no prediction is correct.

    Reference:
        That of `overconfidence`.
    """
    top = top_label(labels, outputs, **options)
    return _mean_of(top.correct, 1.0 - top.confidence, top.weight)


def overconfidence_error(
    labels: Any,
    outputs: Any = None,
    *,
    num_bins: int = 15,
    closed: str = "right",
    **options: Unpack[ArrayOptions],
) -> float:
    """Overconfidence error (OE) of a whole data set, in float64.

    Use it when only overconfidence does harm: underconfident bins add nothing,
    and confident bins add more.

    OE = sum_b (n_b / N) confidence_b max(confidence_b - accuracy_b, 0)

    Args:
        labels, outputs, num_bins, closed, **options: As in `ece`.

    Returns:
        Error in [0, 1].

    Reference:
        Thulasidasan et al., On Mixup Training: Improved Calibration and
        Predictive Uncertainty for Deep Neural Networks, NeurIPS 2019,
        https://arxiv.org/abs/1905.11001
    """
    sums = equal_width_bins(labels, outputs, num_bins, closed, **options)
    return float(binned_errors.overconfidence_error(sums))


def objectness_deviation(
    labels: Any,
    outputs: Any = None,
    *,
    objectness: Any,
    **options: Unpack[ArrayOptions],
) -> float:
    """Mean |confidence - objectness|, in float64.

    Use it to see how far the confidence is from the share of the image that
    the object covers.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        objectness: Share of the image that the object covers, in [0, 1], of
            the shape of the class ids; -1 where all objects are painted out,
            which is 0. Its value does not matter where the class is ignored.
        **options: As in `ece`.

    Returns:
        Deviation in [0, 1].

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020,
        https://arxiv.org/abs/2009.06432
    """
    objectness = as_array(objectness, "objectness", "float64")
    top = top_label(labels, outputs, drop=False, **options)
    lead = lead_of(labels, outputs)
    if objectness.shape != lead:
        raise value_error(
            "`objectness` must have the shape of `outputs` without the classes",
            **{"objectness.shape": objectness.shape, "samples": lead},
        )
    objectness = objectness.reshape(-1)
    if top.mask is not None:
        top, objectness = top.part(top.mask), objectness[top.mask]
    objectness = np.where(objectness == CONTEXT, 0.0, objectness)
    check_objectness(objectness)
    distance = np.abs(top.confidence - objectness)
    return float(np.average(distance, weights=top.weight))


def _mean_of(
    share: np.ndarray, values: np.ndarray, weight: np.ndarray | None
) -> float:
    """Mean of the values by shares of samples, 0 without any."""
    weight = share if weight is None else share * weight
    total = weight.sum()
    return float((weight * values).sum() / total) if total > 0 else 0.0
