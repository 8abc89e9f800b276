"""Sample weights in the shape of the labels."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.inputs.values import Rule, Rules, as_check, told_by_extremes
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    at_least_float32,
    shape_of,
    to_numpy,
)


def standardize_weights(
    sample_weight: Any,
    lead_shape: Any,
    rules: Rules | None = None,
    xp: Any = ops,
) -> Any:
    """Read weights that broadcast to the labels, from `(batch,)` or more.

    Arrays become float64.
    """
    if xp is np:
        weight = as_array(sample_weight, "sample_weight", "float64")
    else:
        weight = at_least_float32(sample_weight, "sample_weight")
    lead_shape = tuple(lead_shape)
    rank = len(lead_shape)
    if len(weight.shape) == rank + 1 and weight.shape[-1] == 1:
        weight = xp.squeeze(weight, axis=-1)
    got = shape_of(weight)
    missing = rank - len(got)
    fits = missing >= 0 and all(
        w is None or n is None or w in (n, 1)
        for w, n in zip(got + (1,) * missing, lead_shape, strict=True)
    )
    if not fits:
        raise value_error(
            "`sample_weight` must have the shape of the labels, or one "
            "weight per sample",
            **{"sample_weight.shape": got, "labels.shape": lead_shape},
        )
    _check_weights(weight, rules=rules)
    for _ in range(missing):
        weight = xp.expand_dims(weight, -1)
    return weight


def broadcast_weight(
    sample_weight: Any, y_pred: Any, axis: int = -1, rules: Rules | None = None
) -> Any:
    """Read weights and broadcast them to the labels `(batch, ...)`."""
    lead, sizes = list(y_pred.shape), list(ops.shape(y_pred))
    del lead[axis], sizes[axis]
    weight = standardize_weights(sample_weight, lead, rules)
    return ops.broadcast_to(weight, sizes)


def weight_of_rows(
    sample_weight: Any, lead_shape: tuple, rules: Rules | None = None
) -> np.ndarray:
    """Read one weight per row of a whole data set, float64 `(n,)`."""
    weight = standardize_weights(sample_weight, lead_shape, rules, np)
    _check_range(weight, rules=rules)
    if weight.shape != lead_shape:
        weight = np.broadcast_to(weight, lead_shape)
    return weight.reshape(-1)


@as_check
def _check_weights(weight: Any) -> Rule:
    """Weights must be finite and at least 0."""
    if isinstance(weight, np.ndarray):
        right = weight.min() >= 0 and weight.max() < float("inf")
    else:
        right = ops.logical_and(weight >= 0, weight < float("inf"))
    rule = "`sample_weight` must be finite and >= 0"
    return told_by_extremes(rule, right, weight)


@as_check
def check_weight_scale(weight: Any) -> Rule:
    """The largest weight must fit into exact sums."""
    xp, low, high = array_namespace(weight), 1e-3, 1e4
    largest = xp.max(weight)
    right = xp.logical_and(largest >= low, largest <= high)
    right = xp.logical_or(right, xp.logical_not(largest > 0))
    rule = (
        f"`sample_weight` must have its largest value between {low:g} and "
        f"{high:g}; only ratios matter, so divide by the mean"
    )
    return told_by_extremes(rule, right, weight)


@as_check
def _check_range(weight: np.ndarray) -> Rule:
    """Sums of weights and of their squares must be numbers above 0."""
    largest = float(weight.max())

    def fail():
        rule = "`sample_weight` must have its largest in [1e-290, 1e290]"
        raise value_error(f"{rule}: only ratios matter", largest=largest)

    return Rule(largest == 0.0 or 1e-290 <= largest <= 1e290, fail)


def masked_weight(sample_weight: Any, mask: Any, lead_shape: tuple) -> Any:
    """Weights of arrays, 0 where Keras' mask is False; None for no weights.

    `mask` is that of `keras_mask`, with the axes of `lead_shape`, or None.
    Weights may have an axis more, that of several labels. Those who read the
    weights check them.
    """
    if mask is None:
        return sample_weight
    mask = np.broadcast_to(to_numpy(mask), lead_shape)
    if sample_weight is None:
        return mask.astype("float32")
    weight = as_array(sample_weight, "sample_weight")
    rank = max(mask.ndim, weight.ndim)
    mask, weight = (
        x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in (mask, weight)
    )
    try:
        return np.where(mask, weight, np.zeros_like(weight))
    except ValueError:
        return sample_weight


def read_masked(
    outputs: Any, name: str, sample_weight: Any, *, by_label: bool = False
) -> tuple[np.ndarray, Any]:
    """Outputs as an array, and weights that are 0 where Keras masks them.

    An array has no mask, so this comes before `as_array`. With `by_label` the
    last axis is that of labels, not of classes.
    """
    rank = len(getattr(outputs, "shape", ())) - (not by_label)
    mask = keras_mask(outputs, rank)
    array = as_array(outputs, name)
    return array, masked_weight(sample_weight, mask, array.shape[:rank])


def are_binary(values: np.ndarray | None) -> bool:
    """Whether all are 0 or 1, as of a mask; None is a mask of nothing."""
    return values is None or bool(np.isin(values, (0, 1)).all())


def are_frequency_weights(weight: np.ndarray | None) -> bool:
    """Whether weights are whole numbers, and so numbers of repeats."""
    return weight is None or bool(np.all(weight == np.floor(weight)))
