"""Rules of what labels and weights hold, enforced where values can be seen.

While a graph is traced there are no values; then the rules pass.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import numpy as np
from keras import backend
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.backend.traced import is_traced
from keras_calib.inputs import config
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import value_if_eager

__all__ = [
    "PROBABILITY_TOLERANCE",
    "Rule",
    "SUM_TOLERANCE",
    "check_ids",
    "check_objectness",
    "check_probabilities",
    "check_soft_labels",
    "enforce",
    "has_values",
    "ids_rule",
    "in_unit_interval",
    "is_integer",
    "is_made_up",
    "located",
    "min_max",
    "objectness_rule",
    "one_hot_rule",
    "pairs_hint",
    "probabilities_rule",
    "require",
    "second_class_rule",
    "soft_labels_rule",
    "weight_scale_rule",
    "weights_rule",
]

# How far a row of labels may be from summing to 1 (half precision).
SUM_TOLERANCE = 1e-2
# How far rounding (half precision) may put a probability outside [0, 1].
PROBABILITY_TOLERANCE = 1e-3
_WEIGHT_SCALE = (1e-3, 1e4)


class Rule(NamedTuple):
    """A rule of values.

    Attributes:
        holds: Whether it does, a bool scalar (array-agnostic).
        fail: What to do if it does not: looks closer, and raises or warns.
    """

    holds: Any
    fail: Callable[[], None]


def has_values(x: Any) -> bool:
    """Whether a loss or metric can and should look at the values."""
    return config.validates() and _has_values(x)


def enforce(rules: list[Rule]) -> None:
    """Looks at all rules at once, which takes one transfer from the device."""
    if not rules:
        return
    xp = array_namespace(rules[0].holds)
    kept = value_if_eager(xp.stack([rule.holds for rule in rules]))
    if kept is None or kept.all():
        return
    for rule, holds in zip(rules, kept, strict=True):
        if not holds:
            rule.fail()


def require(
    rule: Callable[..., Rule],
    x: Any,
    *args: Any,
    rules: list[Rule] | None = None,
) -> None:
    """Applies a rule to an array whose values can be looked at.

    Args:
        rule: Makes it of `x` and `args`.
        x: The array.
        *args: What else the rule takes.
        rules: Where to put it, for `enforce` with others; None to look now.
    """
    if rules is None and _has_values(x):
        enforce([rule(x, *args)])
    elif rules is not None and has_values(x):
        rules.append(rule(x, *args))


def is_integer(x: Any) -> bool:
    """Whether the dtype counts, rather than measures."""
    name = str(x.dtype)
    return "int" in name or "bool" in name


def ids_rule(ids: Any, num_classes: int, name: str) -> Rule:
    """Class ids must be whole and in `[0, num_classes)`."""
    xp = array_namespace(ids)
    right = xp.logical_and(ids >= 0, ids < num_classes)
    if not is_integer(ids):
        right = xp.logical_and(right, xp.equal(ids, xp.round(ids)))

    def fail():
        low, high = min_max(ids)
        if not (low >= 0 and high < num_classes):
            raise value_error(
                f"`{name}` must hold class ids in [0, {num_classes})",
                minimum=low,
                maximum=high,
            )
        raise value_error(
            f"`{name}` of the shape of class ids must hold whole numbers",
            dtype=str(ids.dtype),
        )

    return Rule(xp.all(right), fail)


def second_class_rule(labels: Any, name: str) -> Rule:
    """Labels of binary outputs must lie in [0, 1]."""

    def fail():
        low, high = min_max(labels)
        raise value_error(
            f"`{name}` must lie in [0, 1] for binary outputs",
            minimum=low,
            maximum=high,
        )

    return Rule(ops.all(ops.logical_and(labels >= 0, labels <= 1)), fail)


def soft_labels_rule(labels: Any, name: str, mask: Any = None) -> Rule:
    """Labels must lie in [0, 1] and rows of them sum to 1.

    Args:
        labels: Shape `(..., num_classes)`.
        name: What the caller calls them.
        mask: Where they count, bool `(...)`, or None for everywhere.
    """
    distance = ops.abs(ops.sum(labels, axis=-1) - 1.0)
    holds = _everywhere(distance <= SUM_TOLERANCE, mask)
    inside = ops.logical_not(_is_outside(labels))
    holds = ops.logical_and(holds, _everywhere(ops.all(inside, axis=-1), mask))

    def fail():
        if is_made_up(labels):
            return
        rows = _masked(labels, mask)
        off = np.abs(rows.sum(axis=-1) - 1.0).max()
        if not off <= SUM_TOLERANCE:
            raise value_error(
                f"`{name}` must sum to 1 over the classes; multi-label "
                f"targets are not supported{pairs_hint(shape_of(labels))}",
                **{"largest difference from 1": off.item()},
            )
        raise value_error(
            f"`{name}` of several classes must lie in [0, 1]",
            minimum=rows.min().item(),
            maximum=rows.max().item(),
        )

    return Rule(holds, fail)


def one_hot_rule(distance: Any) -> Rule:
    """Rows of labels must be one-hot; `distance` is how far they are."""

    def fail():
        raise value_error(
            "`y_true` must be class ids or one-hot; this loss has no "
            "meaning for soft labels",
            **{"largest difference from one-hot": min_max(distance)[1]},
        )

    return Rule(ops.all(distance <= SUM_TOLERANCE), fail)


def pairs_hint(shape: tuple) -> str:
    """What to add to a rule that labels of this shape break."""
    if len(shape) < 2 or shape[-1] != 2:
        return ""
    return (
        "; pairs (class id, objectness) need the loss "
        "`AdaptiveLabelSmoothing` and metrics with `objectness=True`"
    )


def objectness_rule(
    objectness: Any,
    text: str = "`y_true` must hold an objectness in [0, 1] beside each "
    "class id",
) -> Rule:
    """Shares of an image must lie in [0, 1]."""
    xp = array_namespace(objectness)

    def fail():
        low, high = min_max(objectness)
        raise value_error(text, minimum=low, maximum=high)

    return Rule(xp.all(in_unit_interval(objectness)), fail)


def probabilities_rule(probs: Any, name: str, mask: Any = None) -> Rule:
    """Probabilities must lie in [0, 1]; NaN is for others to judge.

    Args:
        probs: Any shape.
        name: What the caller calls them.
        mask: Where rows `(..., num_classes)` of them count, bool `(...)`,
            or None for everywhere.
    """
    xp = array_namespace(probs)
    inside = xp.logical_not(_is_outside(probs))
    if mask is not None:
        inside = xp.all(inside, axis=-1)

    def fail():
        rows = _masked(probs, mask)
        raise value_error(
            f"`{name}` must be probabilities in [0, 1]; pass "
            "`from_logits=True` for logits",
            minimum=rows.min().item(),
            maximum=rows.max().item(),
        )

    return Rule(_everywhere(inside, mask), fail)


def located(bad: np.ndarray) -> dict[str, Any]:
    """How many rows are bad, and the first of them, for errors."""
    rows = np.flatnonzero(bad)
    return {"rows": len(rows), "first": rows[:5].tolist()}


def is_made_up(x: Any) -> bool:
    """Whether this is a batch of ones, by which Keras builds on torch."""
    return backend.backend() == "torch" and min_max(x) == (1.0, 1.0)


def weights_rule(weight: Any) -> Rule:
    """Weights must be finite and at least 0."""

    def fail():
        low, high = min_max(weight)
        raise value_error(
            "`sample_weight` must be finite and >= 0", minimum=low, maximum=high
        )

    right = ops.logical_and(weight >= 0, weight < float("inf"))
    return Rule(ops.all(right), fail)


def weight_scale_rule(weight: Any) -> Rule:
    """The largest weight must be of a size that exact sums can hold."""
    low, high = _WEIGHT_SCALE
    largest = ops.max(weight)
    inside = ops.logical_and(largest >= low, largest <= high)

    def fail():
        raise value_error(
            "`sample_weight` must have its largest value between "
            f"{low:g} and {high:g}; only ratios matter, so divide by "
            "the mean",
            maximum=value_if_eager(largest).item(),
        )

    return Rule(ops.logical_or(inside, ops.logical_not(largest > 0)), fail)


def check_ids(ids: Any, num_classes: int | None, name: str) -> None:
    """Enforces `ids_rule`."""
    if num_classes is not None:
        require(ids_rule, ids, num_classes, name)


def check_objectness(objectness: Any, *text: str) -> None:
    """Enforces `objectness_rule`."""
    require(objectness_rule, objectness, *text)


def check_soft_labels(labels: Any, name: str) -> None:
    """Enforces `soft_labels_rule`."""
    require(soft_labels_rule, labels, name)


def check_probabilities(probs: Any, name: str, mask: Any = None) -> None:
    """Enforces `probabilities_rule`."""
    require(probabilities_rule, probs, name, mask)


def in_unit_interval(x: Any) -> Any:
    """Where x lies in [0, 1], rounding aside; not where NaN.

    Array-agnostic.
    """
    xp = array_namespace(x)
    return xp.logical_and(
        x >= -PROBABILITY_TOLERANCE, x <= 1.0 + PROBABILITY_TOLERANCE
    )


def _has_values(x: Any) -> bool:
    return not is_traced(x) and 0 not in shape_of(x)


def min_max(x: Any) -> tuple[float, float]:
    """The least and the largest value."""
    values = value_if_eager(x)
    return values.min().item(), values.max().item()


def _is_outside(x: Any) -> Any:
    """Where x is not in [0, 1], rounding aside; not where NaN."""
    return array_namespace(x).logical_or(
        x < -PROBABILITY_TOLERANCE, x > 1 + PROBABILITY_TOLERANCE
    )


def _everywhere(holds: Any, mask: Any) -> Any:
    xp = array_namespace(holds)
    if mask is not None:
        holds = xp.logical_or(holds, xp.logical_not(mask))
    return xp.all(holds)


def _masked(rows: Any, mask: Any) -> np.ndarray:
    """The rows that count: looked at where one of them is bad."""
    rows = value_if_eager(rows)
    return rows if mask is None else rows[value_if_eager(mask)]
