"""Readers of labels and predictions in every form that users have.

Losses, metrics, calibrators and exact functions all use them.
"""

from typing import Any

import numpy as np
from keras import backend, ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_not_empty, class_axis
from keras_calib.inputs.values import (
    SUM_TOLERANCE,
    Rule,
    are_allowed,
    check_allowed,
    check_ids,
    check_objectness,
    check_one_hot,
    check_probabilities,
    check_second_class,
    check_soft_labels,
    is_integer,
    pairs_hint,
)
from keras_calib.numerics.arrays import (
    array_namespace,
    as_numbers,
    at_least_float32,
    cast,
    fits,
    shape_of,
    to_numpy,
)

__all__ = [
    "CONTEXT",
    "is_ignored",
    "narrowed_ids",
    "nothing_counts",
    "possible_labels",
    "soft_labels",
    "split_objectness",
    "standardize_labels",
    "standardize_predictions",
    "valid_labels_mask",
]

# Stands for the objectness of an image with all objects painted out.
CONTEXT = -1


def split_objectness(
    y_true: Any,
    ignore_class: int | None = None,
    rules: list[Rule] | None = None,
) -> tuple[Any, Any, Any]:
    """Split pairs `(..., 2)` into ids, objectness, and a mask of `CONTEXT`."""
    y_true = as_numbers(y_true, "y_true")
    shape = shape_of(y_true)
    if len(shape) < 2 or shape[-1] != 2:
        raise value_error(
            "`y_true` must be pairs (class id, objectness) of shape "
            "(batch, ..., 2)",
            **{"y_true.shape": shape},
        )
    # Ids are judged in the dtype in which they came.
    ids, objectness = y_true[..., 0], at_least_float32(y_true[..., 1])
    context = ops.equal(objectness, CONTEXT)
    objectness = ops.where(context, ops.zeros_like(objectness), objectness)
    shown = objectness
    if ignore_class is not None:
        ignored = ops.convert_to_tensor(is_ignored(ids, ignore_class))
        shown = ops.where(ignored, ops.zeros_like(shown), shown)
    check_objectness(shown, rules=rules)
    return ids, objectness, context


def standardize_predictions(
    y_pred: Any,
    *,
    from_logits: bool,
    axis: int = -1,
    name: str = "y_pred",
    mask: Any = None,
    rules: list[Rule] | None = None,
) -> Any:
    """Read predictions as outputs `(batch, ..., num_classes)`.

    Binary logits z become `[0, z]`, and binary probabilities `[1 - p, p]`. The
    arguments are those of `standardize_labels`.
    """
    y_pred = at_least_float32(y_pred, name)
    axis = class_axis(y_pred, axis, name)
    if axis != len(y_pred.shape) - 1:
        y_pred = ops.moveaxis(y_pred, axis, -1)
    if 0 in shape_of(y_pred)[1:]:
        # A batch may be empty, but not the other axes.
        check_not_empty(name, y_pred)
    if not from_logits:
        check_probabilities(y_pred, name, mask, rules=rules)
    if y_pred.shape[-1] == 1:
        other = ops.zeros_like(y_pred) if from_logits else 1.0 - y_pred
        y_pred = ops.concatenate([other, y_pred], axis=-1)
    return y_pred


def standardize_labels(
    y_true: Any,
    y_pred: Any,
    *,
    axis: int = -1,
    ignore_class: int | None = None,
    names: tuple[str, str] = ("y_true", "y_pred"),
    mask: Any = None,
    rules: list[Rule] | None = None,
) -> tuple[Any, Any]:
    """Read labels of any form, and mask those of the ignored class.

    Args:
        y_true: Class ids `(batch, ...)` or with a 1 on the class axis, or
            one-hot or soft labels of the shape of `y_pred`. With binary
            outputs, the probability of the second class.
        y_pred: Outputs of the model, as given by the user.
        axis: Axis of the classes in `y_pred`.
        ignore_class: Class id of the labels to leave out.
        names: Names of labels and outputs in errors.
        mask: Bool `(batch, ...)`, False for samples to leave out, whose ids
            become 0. None for no such samples.
        rules: List to which the rules of values are appended, for the caller
            to `enforce` with others. None to check the values here.

    Returns:
        Labels, and a mask that is False for the ignored class, or None.
    """
    y_true = as_numbers(y_true, names[0])
    xp = array_namespace(y_true)
    axis = class_axis(y_pred, axis, names[1])
    rank, given_shape = len(y_pred.shape), shape_of(y_true)
    lead = list(shape_of(y_pred))
    num_classes = lead.pop(axis)
    if len(given_shape) == rank:
        if axis != rank - 1:
            y_true = xp.moveaxis(y_true, axis, -1)
        if y_true.shape[-1] == 1:
            y_true = xp.squeeze(y_true, axis=-1)
    soft = len(y_true.shape) == rank
    expected = (*lead, num_classes) if soft else tuple(lead)
    if not fits(shape_of(y_true), expected):
        raise value_error(
            f"`{names[0]}` must be class ids or one-hot or soft labels "
            f"that fit `{names[1]}`{pairs_hint(given_shape)}",
            **{
                f"{names[0]}.shape": given_shape,
                f"{names[1]}.shape": shape_of(y_pred),
            },
        )
    if soft:
        if ignore_class is not None:
            raise value_error(
                "`ignore_class` needs class ids as labels, not one-hot "
                "or soft labels",
                ignore_class=ignore_class,
                **{f"{names[0]}.shape": given_shape},
            )
        y_true = at_least_float32(y_true)
        check_soft_labels(y_true, names[0], mask, rules=rules)
        return y_true, None
    valid = None
    if ignore_class is not None:
        valid = ops.logical_not(is_ignored(y_true, ignore_class))
    if xp is not np:
        y_true = _signed(y_true)
    counts = mask if valid is None else valid
    if mask is not None and valid is not None:
        counts = ops.logical_and(valid, mask)
    if num_classes == 1:
        y_true = at_least_float32(y_true)
        if counts is not None:
            y_true = ops.where(counts, y_true, ops.zeros_like(y_true))
        check_second_class(y_true, names[0], rules=rules)
        return ops.stack([1.0 - y_true, y_true], axis=-1), valid
    if num_classes is not None:
        check_ids(y_true, num_classes, names[0], counts, rules=rules)
    ids = narrowed_ids(y_true, num_classes)
    if counts is not None:
        ids = ops.where(counts, ids, ops.zeros_like(ids))
    return ids, valid


def is_ignored(ids: Any, ignore_class: int) -> Any:
    """Mask of ids of the ignored class (array-agnostic).

    No id is of a class that its dtype cannot hold: 2049 would be 2048 in half
    precision, and -1 the largest of unsigned integers.
    """
    xp = array_namespace(ids)
    dtype = np.dtype(backend.standardize_dtype(ids.dtype))
    try:
        with np.errstate(over="ignore"):
            held = int(np.array(ignore_class).astype(dtype)) == ignore_class
    except OverflowError:
        held = False
    if not held:
        return xp.zeros_like(ids, dtype="bool")
    return (ids if xp is np else _signed(ids)) == ignore_class


def nothing_counts(
    labels: Any, sample_weight: Any, ignore_class: int | None
) -> bool:
    """Whether every label of a batch has weight 0 or the ignored class."""
    if sample_weight is not None and not to_numpy(sample_weight).any():
        return True
    return ignore_class is not None and bool(
        is_ignored(to_numpy(labels), ignore_class).all()
    )


def _signed(ids: Any) -> Any:
    """Integer tensors as int32, or int64 if int32 cannot hold them."""
    if not is_integer(ids):
        return ids
    dtype = backend.standardize_dtype(ids.dtype)
    wide = dtype in ("uint32", "int64", "uint64")
    # JAX has no int64; its uint32 becomes negative, which no id is.
    return ops.cast(ids, "int64" if wide else "int32")


def narrowed_ids(ids: Any, num_classes: int | None) -> Any:
    """Ids of arrays or tensors as int32, -1 for what is no id of a class.

    Compiled code cannot raise, and a cast would make another id of one that
    int32 cannot hold, or of a fraction.
    """
    xp = array_namespace(ids)
    if xp is not np:
        ids = _signed(ids)
    limit = 2**31 if num_classes is None else num_classes
    known = xp.logical_and(ids >= 0, ids < limit)
    if not is_integer(ids):
        known = xp.logical_and(known, xp.equal(ids, xp.round(ids)))
    ids = cast(xp.where(known, ids, xp.zeros_like(ids)), "int32")
    return ops.convert_to_tensor(xp.where(known, ids, -xp.ones_like(ids)))


def possible_labels(
    batch: Any, rules: list[Rule], *, counts: Any = None, hard: bool = False
) -> Any:
    """Mask of labels that can be, and that no logit of the batch rules out.

    `counts` is False for samples that need no rule.
    """
    labels, outputs = batch.labels, batch.outputs
    right = valid_labels_mask(labels, outputs.shape[-1], hard=hard, rules=rules)
    if not batch.from_logits:
        return right
    allowed = are_allowed(labels, outputs)
    check_allowed(allowed, "y_pred", counts, rules=rules)
    return ops.logical_and(right, allowed)


def valid_labels_mask(
    labels: Any,
    num_classes: int,
    *,
    hard: bool = False,
    rules: list[Rule] | None = None,
) -> Any:
    """Mask of possible labels: ids in range, and rows that sum to 1."""
    if is_integer(labels):
        return ops.logical_and(labels >= 0, labels < num_classes)
    distance = ops.abs(ops.sum(labels, axis=-1) - 1.0)
    distance = ops.maximum(distance, -ops.min(labels, axis=-1))
    if hard:
        largest = ops.abs(ops.max(labels, axis=-1) - 1.0)
        distance = ops.maximum(distance, largest)
        check_one_hot(distance, rules=rules)
    return distance <= SUM_TOLERANCE


def soft_labels(labels: Any, num_classes: int, dtype: Any) -> Any:
    """Turn ids into one-hot rows `(..., num_classes)`; keep soft labels."""
    if is_integer(labels):
        if backend.backend() == "torch":
            # torch raises for impossible ids; other backends return zeros.
            labels = ops.clip(labels, 0, num_classes - 1)
        return ops.one_hot(labels, num_classes, dtype=dtype)
    return ops.cast(labels, dtype)
