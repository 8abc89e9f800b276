"""Losses and confidences whose gradients are written by hand.

A closed form takes fewer passes over the logits than automatic
differentiation, and keeps the digits that a saturated softmax would lose.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_calib.backend.gradients import (
    is_wide,
    with_gradient,
    with_gradient_by_rows,
)
from keras_calib.inputs.values import Rules
from keras_calib.inputs.weights import broadcast_weight
from keras_calib.losses.targets import ClassIds, Targets, shown
from keras_calib.numerics.arrays import at_least_float32, labels_like
from keras_calib.numerics.softmax import SoftmaxParts, softmax_parts

__all__ = [
    "correctness",
    "first_true",
    "flat_rows",
    "mark_first",
    "mask_of",
    "of_softmax",
    "through_true_class",
    "top_probability",
]

_MANY = 100


def of_softmax(
    labels: Any,
    logits: Any,
    closed_form: Callable,
    alpha: Any = None,
    *beside: Any,
) -> Any:
    """Compute losses `(...)` with their gradient, in float32 or wider.

    `closed_form` maps `Targets` and `SoftmaxParts` to the losses and to a
    function that returns their derivative `(..., num_classes)`. `alpha` is the
    share of the labels to spread over the classes, a number or `(..., 1)`.
    Further tensors `(...)` are passed on. Rows as wide as a vocabulary are
    computed in blocks, so a closed form must take nothing else of the rows.
    """
    logits = at_least_float32(logits)
    mask = mask_of(labels)
    if not is_wide(logits):
        logits = shown(logits, mask)
        targets = Targets(labels, logits, alpha)
        values = with_gradient(
            lambda z: closed_form(targets, softmax_parts(z), *beside), logits
        )
        return values + targets.fault()
    lead = ops.shape(logits)[:-1]
    rows, by_id = labels, isinstance(labels, ClassIds)
    rows = labels.ids if by_id else labels_like(labels, logits)
    share = alpha
    by_row = alpha if len(getattr(alpha, "shape", ())) > 0 else None
    flat = [_flat(x, lead) for x in (rows, mask, by_row, *beside)]

    def forward(logits, labels, mask, alpha, *beside):
        logits = shown(logits, mask)
        labels = ClassIds(labels) if by_id else labels
        targets = Targets(labels, logits, share if alpha is None else alpha)
        values, gradient = closed_form(targets, softmax_parts(logits), *beside)
        return values + targets.fault(), gradient

    values = with_gradient_by_rows(forward, _flat(logits, lead), *flat)
    return ops.reshape(values, lead)


def _flat(x: Any, lead: tuple) -> Any:
    """Rows `(n, ...)` of a tensor with these leading axes."""
    if x is None:
        return None
    return ops.reshape(x, (-1, *x.shape[len(lead) :]))


def through_true_class(
    targets: Targets, parts: SoftmaxParts, slope: Any
) -> Any:
    """Turn `slope`, the derivative by log p_y, into that by the logits."""
    return targets.subtract_from(parts.probs) * ops.expand_dims(-slope, -1)


def flat_rows(labels: Any, logits: Any, sample_weight: Any) -> tuple:
    """Flatten labels, logits and weights to rows; no weights become ones.

    Ids keep their mask, which `top_probability` takes, and `shown`.
    """
    rows = at_least_float32(logits)
    if isinstance(labels, ClassIds):
        parts = (x if x is None else ops.reshape(x, (-1,)) for x in labels)
        labels = ClassIds(*parts)
    else:
        labels = labels_like(labels, rows)
        labels = ops.reshape(labels, (-1, rows.shape[-1]))
    logits = ops.reshape(rows, (-1, rows.shape[-1]))
    # A label that is ruled out makes the whole term NaN.
    fault = Targets(labels, logits).fault()
    if sample_weight is None:
        return labels, logits, ops.ones_like(logits[:, 0]) + fault
    # Not looked at, as those of a loss were before; NaN where it is none.
    weight = broadcast_weight(sample_weight, rows, rules=Rules(False))
    weight = ops.cast(ops.reshape(weight, (-1,)), logits.dtype)
    weight = ops.where(weight >= 0.0, weight, float("nan"))
    return labels, logits, weight + fault


def correctness(labels: Any, logits: Any) -> Any:
    """Label of the predicted class `(...)`: 1 if correct, 0 if wrong."""
    first = first_true(ops.equal(logits, ops.max(logits, -1, keepdims=True)))
    if isinstance(labels, ClassIds):
        right = ops.equal(ops.squeeze(first, axis=-1), labels.ids)
        return ops.cast(right, logits.dtype)
    right = ops.take_along_axis(labels, first, axis=-1)
    return ops.stop_gradient(ops.squeeze(right, axis=-1))


def mask_of(labels: Any) -> Any:
    """False for logits to read as zeros, `(...)`, or None for none."""
    return labels.mask if isinstance(labels, ClassIds) else None


def top_probability(logits: Any, mask: Any = None) -> Any:
    """Largest probability of each row `(...)`, in (0, 1].

    Rows outside of `mask` are read as zeros.
    """

    def forward(logits, mask=None):
        logits = shown(logits, mask)
        parts = softmax_parts(logits)
        largest = ops.max(parts.probs, axis=-1, keepdims=True)

        def gradient():
            # 1 - p as a sum: it does not cancel where p is nearly 1.
            first = mark_first(ops.equal(parts.shifted, 0.0), largest.dtype)
            others = (1.0 - first) * parts.probs
            rest = ops.sum(others, axis=-1, keepdims=True)
            return largest * (first * rest - others)

        return ops.squeeze(largest, axis=-1), gradient

    logits = at_least_float32(logits)
    if not is_wide(logits):
        return with_gradient(forward, shown(logits, mask))
    lead = ops.shape(logits)[:-1]
    rows = _flat(logits, lead), _flat(mask, lead)
    values = with_gradient_by_rows(forward, *rows)
    return ops.reshape(values, lead)


def first_true(mask: Any) -> Any:
    """Index of the first True of each row, `(..., 1)`, int32."""
    last = mask.shape[-1] - 1
    # XLA runs argmax and conditionals more slowly, and minima of integers if
    # there are many classes. float32 holds every index below 2^24.
    dtype = "float32" if last >= _MANY else "int32"
    places = ops.arange(last + 1, dtype=dtype)
    places = ops.where(mask, places, ops.full_like(places, last))
    return ops.cast(ops.min(places, axis=-1, keepdims=True), "int32")


def mark_first(mask: Any, dtype: Any) -> Any:
    """Rows that are 1 at the first True of each row of `mask`, else 0."""
    first = ops.squeeze(first_true(mask), axis=-1)
    return ops.one_hot(first, mask.shape[-1], dtype=dtype)
