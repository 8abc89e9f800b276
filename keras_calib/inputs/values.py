"""Checks of what arrays hold, made wherever values can be seen.

While a graph is traced there are no values; then these pass.
"""

import math
from typing import Any

import numpy as np
from keras import backend
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import value_if_eager

__all__ = [
    "PROBABILITY_TOLERANCE",
    "SUM_TOLERANCE",
    "check_ids",
    "check_objectness",
    "check_one_hot",
    "check_probabilities",
    "check_second_class",
    "check_soft_labels",
    "check_weight_scale",
    "check_weights",
    "in_unit_interval",
    "is_integer",
    "is_made_up",
    "located",
    "pairs_hint",
]

# How far a row of labels may be from summing to 1 (half precision).
SUM_TOLERANCE = 1e-2
# How far rounding (half precision) may put a probability outside [0, 1].
PROBABILITY_TOLERANCE = 1e-3
_WEIGHT_SCALE = (1e-3, 1e4)


def is_integer(x: Any) -> bool:
    """Whether the dtype counts, rather than measures."""
    name = str(x.dtype)
    return "int" in name or "bool" in name


def check_ids(ids: Any, num_classes: int | None, name: str) -> None:
    """Class ids must be whole and in `[0, num_classes)`."""
    bounds = _min_max(ids)
    if bounds is None or num_classes is None:
        return
    if not (bounds[0] >= 0 and bounds[1] < num_classes):
        raise ValueError(
            invalid(
                f"`{name}` must hold class ids in [0, {num_classes})",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )
    if is_integer(ids):
        return
    if not value_if_eager(ops.all(ops.equal(ids, ops.round(ids)))):
        raise ValueError(
            invalid(
                f"`{name}` of the shape of class ids must hold whole numbers",
                dtype=str(ids.dtype),
            )
        )


def check_second_class(labels: Any, name: str) -> None:
    """Labels of binary outputs must lie in [0, 1]."""
    bounds = _min_max(labels)
    if bounds is not None and not (bounds[0] >= 0 and bounds[1] <= 1):
        raise ValueError(
            invalid(
                f"`{name}` must lie in [0, 1] for binary outputs",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )


def check_soft_labels(labels: Any, name: str, counts: Any = None) -> None:
    """Labels must lie in [0, 1] and rows of them sum to 1.

    Args:
        labels: Shape `(..., num_classes)`.
        name: What the caller calls them.
        counts: Where they count, bool `(...)`, or None for everywhere.
    """
    bounds = _min_max(ops.abs(ops.sum(labels, axis=-1) - 1.0))
    if bounds is not None and not bounds[1] <= SUM_TOLERANCE:
        if is_made_up(labels):
            return
        if counts is not None:
            check_soft_labels(_counted(labels, counts), name)
            return
        raise ValueError(
            invalid(
                f"`{name}` must sum to 1 over the classes; multi-label "
                f"targets are not supported{pairs_hint(shape_of(labels))}",
                **{"largest difference from 1": bounds[1]},
            )
        )
    bounds = _min_max(labels)
    if _outside(bounds):
        if counts is not None:
            check_soft_labels(_counted(labels, counts), name)
            return
        raise ValueError(
            invalid(
                f"`{name}` of several classes must lie in [0, 1]",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )


def check_one_hot(distance: Any) -> None:
    """Rows of labels must be one-hot; `distance` is how far they are."""
    bounds = _min_max(distance)
    if bounds is not None and not bounds[1] <= SUM_TOLERANCE:
        raise ValueError(
            invalid(
                "`y_true` must be class ids or one-hot; this loss has no "
                "meaning for soft labels",
                **{"largest difference from one-hot": bounds[1]},
            )
        )


def pairs_hint(shape: tuple) -> str:
    """What to add to a rule that labels of this shape break."""
    if len(shape) < 2 or shape[-1] != 2:
        return ""
    return (
        "; pairs (class id, objectness) need the loss "
        "`AdaptiveLabelSmoothing` and metrics with `objectness=True`"
    )


def check_objectness(
    objectness: Any,
    rule: str = "`y_true` must hold an objectness in [0, 1] beside each "
    "class id",
) -> None:
    """Shares of an image must lie in [0, 1]."""
    bounds = _min_max(objectness)
    if _outside(bounds) or (bounds is not None and math.isnan(bounds[0])):
        raise ValueError(invalid(rule, minimum=bounds[0], maximum=bounds[1]))


def check_probabilities(probs: Any, name: str, counts: Any = None) -> None:
    """Probabilities must lie in [0, 1].

    Args:
        probs: Any shape.
        name: What the caller calls them.
        counts: Where rows `(..., num_classes)` of them count, bool `(...)`,
            or None for everywhere.
    """
    bounds = _min_max(probs)
    if _outside(bounds):
        if counts is not None:
            check_probabilities(_counted(probs, counts), name)
            return
        raise ValueError(
            invalid(
                f"`{name}` must be probabilities in [0, 1]; pass "
                "`from_logits=True` for logits",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )


def located(bad: np.ndarray) -> dict[str, Any]:
    """How many rows are bad, and the first of them, for errors."""
    rows = np.flatnonzero(bad)
    return {"rows": len(rows), "first": rows[:5].tolist()}


def is_made_up(x: Any) -> bool:
    """Whether this is a batch of ones, by which Keras builds on torch."""
    return backend.backend() == "torch" and _min_max(x) == (1.0, 1.0)


def check_weights(weight: Any) -> None:
    """Weights must be finite and at least 0."""
    bounds = _min_max(weight)
    if bounds is not None and not (bounds[0] >= 0 and math.isfinite(bounds[1])):
        raise ValueError(
            invalid(
                "`sample_weight` must be finite and >= 0",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )


def check_weight_scale(weight: Any) -> None:
    """The largest weight must be of a size that exact sums can hold."""
    bounds = _min_max(weight)
    low, high = _WEIGHT_SCALE
    if bounds is not None and bounds[1] > 0 and not low <= bounds[1] <= high:
        raise ValueError(
            invalid(
                "`sample_weight` must have its largest value between "
                f"{low:g} and {high:g}; only ratios matter, so divide by "
                "the mean",
                maximum=bounds[1],
            )
        )


def in_unit_interval(x: Any) -> Any:
    """Where x lies in [0, 1], rounding aside; not where NaN.

    Array-agnostic.
    """
    xp = array_namespace(x)
    return xp.logical_and(
        x >= -PROBABILITY_TOLERANCE, x <= 1.0 + PROBABILITY_TOLERANCE
    )


def _outside(bounds: tuple[float, float] | None) -> bool:
    """Whether some value is not in [0, 1], rounding aside; NaN is not."""
    low, high = bounds or (0.0, 1.0)
    return low < -PROBABILITY_TOLERANCE or high > 1 + PROBABILITY_TOLERANCE


def _counted(rows: Any, counts: Any) -> np.ndarray:
    """The rows that count: looked at where one of all is bad."""
    return value_if_eager(rows)[value_if_eager(counts)]


def _min_max(x: Any) -> tuple[float, float] | None:
    if 0 in shape_of(x):
        return None
    if isinstance(x, np.ndarray):
        return x.min().item(), x.max().item()
    low = value_if_eager(ops.min(x))
    if low is None:
        return None
    return low.item(), value_if_eager(ops.max(x)).item()
