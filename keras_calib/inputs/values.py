"""Rules of the values of arrays, enforced in eager mode.

While a graph is traced there are no values, and the rules pass.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from keras import backend, ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.traced import is_traced
from keras_calib.inputs import config
from keras_calib.inputs.checks import located
from keras_calib.numerics.arrays import (
    array_namespace,
    as_numbers,
    cast,
    shape_of,
    take_at,
    to_numpy,
    value_if_eager,
)
from keras_calib.numerics.softmax import allowed, is_ruled_out

__all__ = [
    "PROBABILITY_TOLERANCE",
    "Rule",
    "Rules",
    "SUM_TOLERANCE",
    "WEIGHT_SCALE",
    "are_allowed",
    "are_ids",
    "as_check",
    "both",
    "check_allowed",
    "check_ids",
    "check_objectness",
    "check_one_hot",
    "check_probabilities",
    "check_second_class",
    "check_soft_labels",
    "check_weight_scale",
    "check_weights",
    "enforce",
    "has_values",
    "in_unit_interval",
    "is_integer",
    "is_made_up",
    "pairs_hint",
    "read_mask",
]

# Largest distance from 1 of the sum of a row of labels (half precision).
SUM_TOLERANCE = 1e-2
# Largest distance of a rounded probability from [0, 1] (half precision).
PROBABILITY_TOLERANCE = 1e-3
# Smallest and largest value that the largest weight may have.
WEIGHT_SCALE = (1e-3, 1e4)


class Rule(NamedTuple):
    """A bool scalar that must hold, and a function that raises or warns."""

    holds: Any
    fail: Callable[[], None]


class Rules(list):
    """Rules that readers add, for their caller to enforce together.

    Those that are not `active` take none.
    """

    def __init__(self, active: bool = True):
        super().__init__()
        self.active = active

    @property
    def hold(self) -> bool:
        """Whether all rules of arrays hold."""
        return all(rule.holds for rule in self)


def has_values(x: Any) -> bool:
    """Whether values are known, and to be checked."""
    return config.validates() and _has_values(x)


def enforce(rules: list[Rule]) -> None:
    """Enforce all rules, with one transfer from the device."""
    if not rules:
        return
    on_host = all(array_namespace(rule.holds) is np for rule in rules)
    xp = np if on_host else ops
    kept = value_if_eager(xp.stack([rule.holds for rule in rules]))
    if kept is None or kept.all():
        return
    for rule, holds in zip(rules, kept, strict=True):
        if not holds:
            rule.fail()


def as_check(rule: Callable[..., Rule]) -> Callable[..., None]:
    """Turn a rule of arrays into `check(x, *args, rules=None)`.

    Without `rules` it is enforced at once.
    """

    @functools.wraps(rule)
    def check(x: Any, *args: Any, rules: Rules | None = None) -> None:
        if (rules is None or rules.active) and _has_values(x):
            found = rule(x, *args)
            enforce([found]) if rules is None else rules.append(found)

    return check


def are_ids(ids: Any, num_classes: int | None) -> Any:
    """Mask of whole numbers in `[0, num_classes)` (array-agnostic)."""
    xp = array_namespace(ids)
    limit = 2**31 if num_classes is None else num_classes
    right = xp.logical_and(ids >= 0, ids < limit)
    if is_integer(ids):
        return right
    return xp.logical_and(right, xp.equal(ids, xp.round(ids)))


@as_check
def check_ids(
    ids: Any, num_classes: int, name: str, mask: Any = None, right: Any = None
) -> Rule:
    """Class ids in the mask must be whole and in `[0, num_classes)`.

    `right` is their mask of `are_ids`, if it is known.
    """
    right = are_ids(ids, num_classes) if right is None else right
    rule = f"`{name}` must hold class ids in [0, {num_classes})"
    if not is_integer(ids):
        rule += ", and ids must hold whole numbers"
    return _told_by_extremes(rule, right, ids, mask)


@as_check
def check_second_class(labels: Any, name: str) -> Rule:
    """Labels of binary outputs must lie in [0, 1]."""
    right = array_namespace(labels).logical_and(labels >= 0, labels <= 1)
    rule = (
        f"`{name}` must lie in [0, 1] for binary outputs; a class of missing "
        "labels must be named in `ignore_class`"
    )
    return _told_by_extremes(rule, right, labels)


@as_check
def check_soft_labels(labels: Any, name: str, mask: Any = None) -> Rule:
    """Rows of labels in the mask must lie in [0, 1] and sum to 1."""
    xp = array_namespace(labels)
    near = xp.abs(xp.sum(labels, axis=-1) - 1.0) <= SUM_TOLERANCE
    right = xp.logical_and(near, xp.all(in_unit_interval(labels), axis=-1))
    rule = _told_by_extremes(
        f"`{name}` must sum to 1 over the classes and must lie in [0, 1]; "
        "multi-label targets need `MultiLabel`; rows of votes must be divided "
        'by their sum, or given with `labels="votes"` to metrics and '
        f"`votes=True` to functions{pairs_hint(shape_of(labels))}",
        right,
        labels,
        mask,
    )

    def fail():
        if not is_made_up(labels):
            rule.fail()

    return Rule(rule.holds, fail)


@as_check
def check_one_hot(distance: Any) -> Rule:
    """Rows of labels must be one-hot, at a `distance` of almost 0."""

    def fail():
        raise value_error(
            "`y_true` must be class ids or one-hot; this loss has no "
            "meaning for soft labels",
            **{"largest difference": to_numpy(distance).max().item()},
        )

    return Rule(ops.all(distance <= SUM_TOLERANCE), fail)


def are_allowed(labels: Any, logits: Any) -> Any:
    """Mask of rows whose labels no logit rules out (array-agnostic).

    Labels are ids, or soft rows, which may have a small share there.
    """
    xp = array_namespace(logits)
    if len(labels.shape) < len(logits.shape):
        places = xp.clip(labels, 0, logits.shape[-1] - 1)
        return xp.logical_not(is_ruled_out(take_at(logits, places)))
    kept = labels * cast(allowed(logits), labels.dtype)
    share = xp.sum(labels, axis=-1) - xp.sum(kept, axis=-1)
    return share <= SUM_TOLERANCE


@as_check
def check_allowed(allowed: Any, name: str, counts: Any = None) -> Rule:
    """Labels in the mask must be `allowed` by the logits."""
    xp = array_namespace(allowed)
    if counts is not None:
        allowed = xp.logical_or(allowed, xp.logical_not(counts))

    def fail():
        raise value_error(
            f"`{name}` must not rule out the class of a label, nor all "
            "classes, by logits of -inf; leave such samples out, as by "
            "`ignore_class`",
            **located(to_numpy(xp.logical_not(allowed)).reshape(-1)),
        )

    return Rule(xp.all(allowed), fail)


@as_check
def check_objectness(
    objectness: Any,
    rule: str = "`y_true` must hold an objectness in [0, 1] beside each "
    "class id",
) -> Rule:
    """Shares of an image must lie in [0, 1]."""
    return _told_by_extremes(rule, in_unit_interval(objectness), objectness)


@as_check
def check_probabilities(probs: Any, name: str, mask: Any = None) -> Rule:
    """Probabilities in the mask must lie in [0, 1]; NaN passes."""
    xp = array_namespace(probs)
    right = xp.logical_not(
        xp.logical_or(
            probs < -PROBABILITY_TOLERANCE, probs > 1 + PROBABILITY_TOLERANCE
        )
    )
    if mask is not None:
        right = xp.all(right, axis=-1)
    rule = (
        f"`{name}` must be probabilities in [0, 1]; pass `from_logits=True` "
        "for logits"
    )
    return _told_by_extremes(rule, right, probs, mask)


@as_check
def _check_mask(mask: Any) -> Rule:
    """Masks must hold 0 and 1."""
    rule = (
        "`mask` must be bool, or hold 0 and 1; an additive mask, with 0 where "
        "something counts and -1e9 elsewhere, is given as `mask == 0`"
    )
    right = ops.logical_or(mask == 0.0, mask == 1.0)
    return _told_by_extremes(rule, right, mask)


def read_mask(mask: Any) -> Any:
    """A mask as a bool tensor; in compiled code other values are False."""
    mask = ops.convert_to_tensor(as_numbers(mask, "mask"))
    if "bool" in str(mask.dtype):
        return mask
    mask = ops.cast(mask, "float32")
    _check_mask(mask)
    return mask == 1.0


@as_check
def check_weights(weight: Any) -> Rule:
    """Weights must be finite and at least 0."""
    if array_namespace(weight) is np:
        right = weight.min() >= 0 and weight.max() < float("inf")
    else:
        right = ops.logical_and(weight >= 0, weight < float("inf"))
    rule = "`sample_weight` must be finite and >= 0"
    return _told_by_extremes(rule, right, weight)


@as_check
def check_weight_scale(weight: Any) -> Rule:
    """The largest weight must fit into exact sums."""
    xp, (low, high) = array_namespace(weight), WEIGHT_SCALE
    largest = xp.max(weight)
    right = xp.logical_and(largest >= low, largest <= high)
    right = xp.logical_or(right, xp.logical_not(largest > 0))
    rule = (
        f"`sample_weight` must have its largest value between {low:g} and "
        f"{high:g}; only ratios matter, so divide by the mean"
    )
    return _told_by_extremes(rule, right, weight)


def _told_by_extremes(rule: str, right: Any, x: Any, mask: Any = None) -> Rule:
    """`right` must hold in the mask; errors state the extremes of `x`."""
    if mask is not None and array_namespace(mask) is not np:
        right = ops.convert_to_tensor(right)
    xp = array_namespace(right)

    def fail():
        values = to_numpy(x)
        if mask is not None:
            values = values[to_numpy(mask)]
        low, high = values.min().item(), values.max().item()
        raise value_error(rule, minimum=low, maximum=high)

    if mask is not None:
        right = xp.logical_or(right, xp.logical_not(mask))
    return Rule(xp.all(right), fail)


def both(one: Any, other: Any) -> Any:
    """Logical and of two masks, where None is True everywhere."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.logical_and(one, other)
    return ops.logical_and(one, other)


def is_integer(x: Any) -> bool:
    """Whether the dtype is integer or bool."""
    name = str(x.dtype)
    return "int" in name or "bool" in name


def in_unit_interval(x: Any) -> Any:
    """Mask of values in [0, 1] up to rounding, not NaN (array-agnostic)."""
    return array_namespace(x).logical_and(
        x >= -PROBABILITY_TOLERANCE, x <= 1.0 + PROBABILITY_TOLERANCE
    )


def is_made_up(x: Any) -> bool:
    """Whether this is a batch of ones, with which Keras builds on torch."""
    return backend.backend() == "torch" and bool((to_numpy(x) == 1).all())


def pairs_hint(shape: tuple) -> str:
    """Hint for labels whose shape is that of pairs with objectness, or ""."""
    if len(shape) < 2 or shape[-1] != 2:
        return ""
    return (
        "; pairs (class id, objectness) need the loss "
        "`AdaptiveLabelSmoothing` and metrics with `objectness=True`"
    )


def _has_values(x: Any) -> bool:
    return 0 not in x.shape and not is_traced(x)
