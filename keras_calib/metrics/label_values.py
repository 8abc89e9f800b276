"""Values of several labels as one, and which metrics have them."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import backend
from keras import ops

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.metrics.base import StreamingMetric
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.arrays import cast
from keras_calib.numerics.arrays import safe_divide

__all__ = [
    "check_metric_of_examples",
    "check_metric_of_labels",
    "index_of_label",
    "labels_of_states",
    "mean_over_labels",
    "pooled",
    "values_by_label",
]


def mean_over_labels(
    values: Any, mass: Any, positive: Any, average: Any
) -> Any:
    """Means `(values,)` of the values by label `(labels, values)`.

    It is array-agnostic. Labels without mass are left out, and before any
    sample all count. The mean of no label is NaN.

    Args:
        values: Values by label `(labels, values)`.
        mass: Weight of the samples of each label.
        positive: Weight of those where the label is 1.
        average: `"macro"`, `"weighted"` by `positive`, or weights.
    """
    xp, dtype = array_namespace(values), backend.standardize_dtype(values.dtype)
    weight = cast(mass > 0, dtype)
    if isinstance(average, tuple):
        weight = weight * xp.array(average, dtype=dtype)
    elif average == "weighted":
        weight = cast(positive, dtype)
    nothing = xp.logical_not(xp.any(mass > 0))
    weight = xp.where(nothing, xp.ones_like(weight), weight)
    total, weight = xp.sum(weight), xp.expand_dims(weight, -1)
    shown = xp.where(weight > 0, values, xp.zeros_like(values))
    mean = safe_divide(xp.sum(weight * shown, axis=0), total)
    return xp.where(total > 0, mean, xp.full_like(mean, float("nan")))


def index_of_label(label: Any, names: Sequence[str]) -> int:
    """Number of a label, of its name or number."""
    if label in names:
        return list(names).index(label)
    is_number = isinstance(label, int) and not isinstance(label, bool)
    if not is_number or not 0 <= label < len(names):
        raise value_error(
            "`label` must be the number or the name of a label",
            label=label,
            labels=list(names[:10]),
        )
    return label


def pooled(limbs: Any) -> Any:
    """Limbs `(3, m)` of all labels together, of `(3, labels, m)`."""
    if array_namespace(limbs) is np:
        return exact_sums.normalize_limbs(limbs.sum(axis=1, dtype="int64"))
    while limbs.shape[1] > 1:
        half = limbs.shape[1] // 2
        both = exact_sums.add(limbs[:, :half], limbs[:, half : 2 * half])
        limbs = ops.concatenate([both, limbs[:, 2 * half :]], axis=1)
    return limbs[:, 0]


def labels_of_states(
    states: Sequence[dict[str, Any]],
    num_labels: int | None,
    names: Sequence[str] | None,
) -> int | None:
    """Number of labels of a metric and states that it adds, or None.

    Raises ValueError if they differ, or have other names: sums of other labels
    must not be added.
    """
    for config in (state["config"] for state in states):
        labels, listed = config.get("num_labels"), config.get("label_names")
        if None not in (labels, num_labels) and labels != num_labels:
            raise value_error(
                "`metrics` must have as many labels as this metric",
                num_labels=num_labels,
                other=labels,
            )
        if None not in (listed, names) and list(listed) != list(names or ()):
            raise value_error(
                "`metrics` must have the labels of this metric, in this order",
                label_names=names,
                other=listed,
            )
        num_labels, names = num_labels or labels, names or listed
    return num_labels


def check_metric_of_labels(metric: Any, refused: tuple) -> None:
    """Raise unless a metric can be one of the two classes of a label."""
    plain = isinstance(metric, StreamingMetric)
    if not plain or isinstance(metric, refused):
        raise type_error(
            "`metric` must be a metric of keras_calib for two classes, such "
            "as `ECE`",
            type=type(metric).__name__,
        )
    options = metric.options
    if options.objectness or options.pixels_per_image or options.axis != -1:
        raise value_error(
            "`metric` must have `objectness=False`, `pixels_per_image=None` "
            "and `axis=-1`: labels are on the last axis",
            objectness=options.objectness,
            pixels_per_image=options.pixels_per_image,
            axis=options.axis,
        )


def check_metric_of_examples(metric: StreamingMetric, average: Any) -> None:
    """Raise unless a metric needs no more than confidences."""
    alone = getattr(metric, "score", "msp") == "msp"
    if metric.summary.needs_rows or not alone or metric.options.votes:
        raise type_error(
            '`metric` must need the confidence alone with `by="example"`, '
            'which `NLL`, `BrierScore` and others do not: with `by="label"` '
            'and `average="micro"` they are means over examples and labels',
            type=type(metric).__name__,
        )
    if average != "macro":
        raise value_error(
            '`average` needs `by="label"`: an example is one prediction',
            average=average,
        )


def values_by_label(
    values_of: Callable[[Any, Any], list[Any]],
    limbs: Any,
    mass: Any,
    odd: Any,
) -> Any:
    """Values `(labels, values)`, NaN for labels that lack samples.

    Args:
        values_of: Values of the limbs of one label, and of whether its
            weights are whole numbers.
        limbs: Limbs by label.
        mass: Weight of each label.
        odd: Above 0 where a weight of the label was no whole number.
    """
    xp = array_namespace(limbs)
    if xp is np:
        labels = range(limbs.shape[1])
        rows = [values_of(limbs[:, i], odd[i] == 0) for i in labels]
        values = np.array(rows, "float64")
    else:
        values = ops.map(
            lambda x: ops.stack(
                [ops.cast(y, "float32") for y in values_of(x[0], x[1] == 0)]
            ),
            (ops.moveaxis(limbs, 1, 0), odd),
        )
    missing = xp.expand_dims(xp.logical_and(mass == 0, xp.any(mass > 0)), -1)
    return xp.where(missing, xp.full_like(values, float("nan")), values)
