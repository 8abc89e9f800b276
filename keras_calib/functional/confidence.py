"""How sure predictions are, in one sense or another, exact in float64."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas import binned_errors
from keras_calib.functional.binned import equal_width_bins
from keras_calib.inputs.top_label import top_label
from keras_calib.inputs.values import check_objectness
from keras_calib.numerics.arrays import as_array

__all__ = [
    "mean_confidence",
    "objectness_deviation",
    "overconfidence",
    "overconfidence_error",
    "underconfidence",
]


def mean_confidence(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Mean probability of the predicted class, in float64.

    Less the accuracy, it is the gap of all predictions in one bin.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `ece`.
        ignore_class: Class id that does not count.

    Returns:
        Confidence in [0, 1].

    Raises:
        ValueError: As `ece`.

    Example:

    >>> round(mean_confidence([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.7

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        figure 1, https://arxiv.org/abs/1706.04599
    """
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    confidence = top.confidence.astype("float64")
    return float(np.average(confidence, weights=top.weight))


def overconfidence(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Mean confidence of the wrong predictions, in float64.

    Not the overconfidence error, which is of bins: `overconfidence_error`.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `ece`.
        ignore_class: Class id that does not count.

    Returns:
        Confidence in [0, 1]; 0 when no prediction is wrong.

    Raises:
        ValueError: As `ece`.

    Example:

    >>> round(overconfidence([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.6

    Reference:
        Wenger et al., Non-Parametric Calibration for Classification,
        AISTATS 2020, https://arxiv.org/abs/1906.04933
    """
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    return _mean_where(top.correct == 0, top.confidence, top.weight)


def underconfidence(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Mean of 1 - confidence of the right predictions, in float64.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `ece`.
        ignore_class: Class id that does not count.

    Returns:
        Doubt in [0, 1]; 0 when no prediction is right.

    Raises:
        ValueError: As `ece`.

    Example:

    >>> round(underconfidence([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.2

    Reference:
        Wenger et al., Non-Parametric Calibration for Classification,
        AISTATS 2020, https://arxiv.org/abs/1906.04933
    """
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    return _mean_where(top.correct > 0, 1.0 - top.confidence, top.weight)


def overconfidence_error(
    labels: Any,
    probs: Any,
    *,
    num_bins: int = 15,
    closed: str = "right",
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Overconfidence error of a whole data set, in float64.

    OE = sum_b (n_b / N) confidence_b max(confidence_b - accuracy_b, 0): only
    bins that promise too much count, sure ones more.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        num_bins: Number of bins, at least 1.
        closed: `"right"` for bins (lo, hi], `"left"` for [lo, hi).
        from_logits: Whether `probs` are logits.
        sample_weight: As in `ece`.
        ignore_class: Class id that does not count.

    Returns:
        Error in [0, 1].

    Raises:
        ValueError: As `ece`.

    Example:

    >>> round(overconfidence_error([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.18

    Reference:
        Thulasidasan et al., On Mixup Training: Improved Calibration and
        Predictive Uncertainty for Deep Neural Networks, NeurIPS 2019,
        https://arxiv.org/abs/1905.11001
    """
    reading = from_logits, sample_weight, ignore_class
    sums = equal_width_bins(labels, probs, num_bins, closed, *reading)
    return float(binned_errors.overconfidence_error(sums))


def objectness_deviation(
    labels: Any,
    probs: Any,
    objectness: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> float:
    """Mean |confidence - objectness|, in float64.

    How far the confidence is from the share of the image that the object
    covers, which adaptive label smoothing teaches it.

    Args:
        labels: As in `ece`, shape `(n, ...)`.
        probs: As in `ece`, shape `(n, ..., num_classes)`.
        objectness: Share of the image that the object covers, in [0, 1], of
            the shape of the class ids. Anything where the class is ignored.
        from_logits: Whether `probs` are logits.
        sample_weight: As in `ece`.
        ignore_class: Class id that does not count.

    Returns:
        Deviation in [0, 1].

    Raises:
        ValueError: As `ece`.

    Example:

    >>> probs = [[0.8, 0.2], [0.6, 0.4]]
    >>> round(objectness_deviation([0, 1], probs, [0.5, 0.6]), 4)
    0.15

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020,
        https://arxiv.org/abs/2009.06432
    """
    labels, probs = as_array(labels, "labels"), as_array(probs, "probs")
    objectness = as_array(objectness, "objectness", "float64")
    if objectness.shape != probs.shape[:-1]:
        raise value_error(
            "`objectness` must have the shape of `probs` without the classes",
            **{
                "objectness.shape": objectness.shape,
                "probs.shape": probs.shape,
            },
        )
    top = top_label(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    objectness = objectness.reshape(-1)
    if ignore_class is not None and labels.size == objectness.size:
        objectness = objectness[labels.reshape(-1) != ignore_class]
    check_objectness(objectness)
    distance = np.abs(top.confidence - objectness)
    return float(np.average(distance, weights=top.weight))


def _mean_where(
    where: np.ndarray, values: np.ndarray, weight: np.ndarray | None
) -> float:
    """Weighted mean of the values where True; 0 where there are none."""
    weight = where.astype("float64") if weight is None else where * weight
    total = weight.sum()
    return float((weight * values).sum() / total) if total > 0 else 0.0
