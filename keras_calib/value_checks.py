"""Checks of what arrays hold, made wherever values can be seen.

While a graph is traced there are no values; then these pass.
"""

import math
from typing import Any

import numpy as np
from keras import backend
from keras import ops

from keras_calib.checks import invalid
from keras_calib.checks import shape_of
from keras_calib.numerics import concrete
from keras_calib.numerics import namespace

__all__ = [
    "PROBABILITY_TOLERANCE",
    "SUM_TOLERANCE",
    "check_ids",
    "check_no_probabilities",
    "check_objectness",
    "check_one_hot",
    "check_probabilities",
    "check_second_class",
    "check_soft_labels",
    "check_some_weight",
    "check_weight_scale",
    "check_weights",
    "in_unit_interval",
    "is_integer",
    "pairs_hint",
    "usable_outputs",
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
    if not concrete(ops.all(ops.equal(ids, ops.round(ids)))):
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


def check_soft_labels(labels: Any, name: str) -> None:
    """Rows of labels must sum to 1."""
    bounds = _min_max(ops.abs(ops.sum(labels, axis=-1) - 1.0))
    if bounds is not None and not bounds[1] <= SUM_TOLERANCE:
        if backend.backend() == "torch" and _min_max(labels) == (1.0, 1.0):
            # Keras builds metrics on torch by a made-up batch of ones.
            return
        raise ValueError(
            invalid(
                f"`{name}` must sum to 1 over the classes; multi-label "
                f"targets are not supported{pairs_hint(shape_of(labels))}",
                **{"largest difference from 1": bounds[1]},
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


def check_objectness(objectness: Any) -> None:
    """Shares of an image must lie in [0, 1]."""
    bounds = _min_max(objectness)
    if _outside(bounds) or (bounds is not None and math.isnan(bounds[0])):
        raise ValueError(
            invalid(
                "`y_true` must hold an objectness in [0, 1] beside each "
                "class id",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )


def check_probabilities(probs: Any, name: str) -> None:
    """Probabilities must lie in [0, 1]."""
    bounds = _min_max(probs)
    if _outside(bounds):
        raise ValueError(
            invalid(
                f"`{name}` must be probabilities in [0, 1]; pass "
                "`from_logits=True` for logits",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )


def check_no_probabilities(logits: np.ndarray, name: str) -> None:
    """Logits must not be rows of probabilities.

    A few rows tell: no network returns logits that sum to 1. What a fit made
    of probabilities would look like any other.
    """
    rows = logits.reshape(-1, logits.shape[-1])[:100].astype("float64")
    if len(rows) < 2 or not (rows.min() >= 0 and rows.max() <= 1):
        return
    far = np.abs(rows.sum(axis=-1) - 1.0).max()
    if far <= SUM_TOLERANCE and (rows % 1 > 0).any():
        raise ValueError(
            invalid(
                f"`{name}` must be logits, not probabilities: pass their logs; "
                "`fit_on` and `export` take these of a model that returns "
                "probabilities",
                **{f"{name}[0]": np.round(rows[0], 4).tolist()[:10]},
            )
        )


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


def check_some_weight(weight: Any, counted: Any) -> None:
    """Weights must not all be 0, unless nothing counts anyway."""
    bounds = _min_max(weight)
    if bounds is None or bounds[1] > 0:
        return
    if concrete(ops.any(counted)):
        raise ValueError(
            invalid("`sample_weight` must not be 0 everywhere", maximum=0.0)
        )


def in_unit_interval(x: Any) -> Any:
    """Where x lies in [0, 1], rounding aside; not where NaN (either)."""
    xp = namespace(x)
    return xp.logical_and(
        x >= -PROBABILITY_TOLERANCE, x <= 1.0 + PROBABILITY_TOLERANCE
    )


def usable_outputs(outputs: Any, from_logits: bool) -> Any:
    """Where rows `(n, num_classes)` are predictions, bool `(n,)` (either).

    No entry is NaN; probabilities are in [0, 1]; a logit may be -inf, which
    rules a class out, but not infinity, nor all of them -inf.
    """
    xp = namespace(outputs)
    if not from_logits:
        return xp.all(in_unit_interval(outputs), axis=-1)
    largest = xp.max(outputs, axis=-1)
    finite = xp.logical_and(largest < float("inf"), largest > -float("inf"))
    if xp is np:
        return finite & ~np.isnan(outputs).any(axis=-1)
    # A maximum may drop NaN; a sum keeps it, and costs less than a test of
    # every entry.
    return xp.logical_and(
        finite, xp.logical_not(xp.isnan(xp.sum(outputs, axis=-1)))
    )


def _outside(bounds: tuple[float, float] | None) -> bool:
    """Whether some value is not in [0, 1], rounding aside; NaN is not."""
    low, high = bounds or (0.0, 1.0)
    return low < -PROBABILITY_TOLERANCE or high > 1 + PROBABILITY_TOLERANCE


def _min_max(x: Any) -> tuple[float, float] | None:
    if 0 in shape_of(x):
        return None
    if isinstance(x, np.ndarray):
        return x.min().item(), x.max().item()
    low = concrete(ops.min(x))
    if low is None:
        return None
    return low.item(), concrete(ops.max(x)).item()
