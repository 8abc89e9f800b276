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
from keras_calib.checks import warn
from keras_calib.numerics import concrete
from keras_calib.numerics import namespace

__all__ = [
    "LOOSE_TOLERANCE",
    "PROBABILITY_TOLERANCE",
    "ROW_TOLERANCE",
    "SUM_TOLERANCE",
    "as_logits_message",
    "check_ids",
    "check_no_probabilities",
    "check_objectness",
    "check_one_hot",
    "check_probabilities",
    "check_row_sums",
    "check_second_class",
    "check_soft_labels",
    "check_weight_scale",
    "check_weights",
    "in_unit_interval",
    "is_integer",
    "is_made_up",
    "located",
    "pairs_hint",
    "resembles_probabilities",
    "sum_tolerance",
    "sums_to_1",
    "usable_outputs",
    "warn_of_probabilities",
]

# How far a row of labels may be from summing to 1 (half precision).
SUM_TOLERANCE = 1e-2
# How far rounding (half precision) may put a probability outside [0, 1].
PROBABILITY_TOLERANCE = 1e-3
# How far a row of probabilities may be from summing to 1.
ROW_TOLERANCE = 1e-3
_HALF_TOLERANCE = {"float16": 5e-3, "bfloat16": 3e-2}
# Where the dtype that probabilities were computed in is not known.
LOOSE_TOLERANCE = max(_HALF_TOLERANCE.values())
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
    """Labels must lie in [0, 1] and rows of them sum to 1."""
    bounds = _min_max(ops.abs(ops.sum(labels, axis=-1) - 1.0))
    if bounds is not None and not bounds[1] <= SUM_TOLERANCE:
        if is_made_up(labels):
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


def check_row_sums(
    probs: Any,
    name: str,
    counts: Any = None,
    tolerance: float = ROW_TOLERANCE,
) -> None:
    """Rows of probabilities must sum to 1 where they count.

    Args:
        probs: Shape `(..., num_classes)`; of one class nothing is asked.
        name: What the caller calls them.
        counts: Where they count, bool `(...)`, or None for everywhere.
        tolerance: As `sum_tolerance` says for their dtype.
    """
    if probs.shape[-1] == 1 or 0 in shape_of(probs):
        return
    largest = concrete(namespace(probs).max(_distance_from_1(probs)))
    # NaN passes: it is for others to judge.
    if largest is None or not largest > tolerance or is_made_up(probs):
        return
    rows = concrete(probs)
    rows = rows.reshape(-1, rows.shape[-1])
    tolerance = max(tolerance, _tolerance_of(rows))
    far = _distance_from_1(rows.astype("float64")) > tolerance
    if counts is not None:
        far &= concrete(counts).reshape(-1)
    if not far.any():
        return
    check_probabilities(rows[far], name)
    raise ValueError(
        invalid(
            f"`{name}` must sum to 1 over the classes; sigmoid outputs of a "
            "multi-label model are not supported, logits need "
            "`from_logits=True`, and rounded rows must be divided by their sum",
            **located(far),
            sum=round(float(rows[far][0].astype("float64").sum()), 6),
        )
    )


def located(bad: np.ndarray) -> dict[str, Any]:
    """How many rows are bad, and the first of them, for errors."""
    rows = np.flatnonzero(bad)
    return {"rows": len(rows), "first": rows[:5].tolist()}


def sum_tolerance(dtype: Any) -> float:
    """How far probabilities of a dtype may be from summing to 1.

    A softmax that is computed in half precision is off by up to 0.0016
    (float16) and 0.011 (bfloat16) for 2 to 20,000 classes.
    """
    return _HALF_TOLERANCE.get(backend.standardize_dtype(dtype), ROW_TOLERANCE)


def sums_to_1(probs: Any, tolerance: float) -> Any:
    """Where rows sum to 1, bool `(...)`; everywhere for one class (either)."""
    xp = namespace(probs)
    if probs.shape[-1] == 1:
        return xp.ones_like(probs[..., 0], dtype="bool")
    return _distance_from_1(probs) <= tolerance


def is_made_up(x: Any) -> bool:
    """Whether this is a batch of ones, by which Keras builds on torch."""
    return backend.backend() == "torch" and _min_max(x) == (1.0, 1.0)


def resembles_probabilities(logits: Any) -> Any:
    """Whether rows given as logits are probabilities (either).

    A few rows tell: no network returns logits that sum to 1. One row, and
    rows of whole numbers, tell nothing.

    Args:
        logits: Shape `(n, num_classes)`.

    Returns:
        bool, a scalar.
    """
    xp = namespace(logits)
    rows = logits[:100]
    if rows.shape[-1] == 1 or rows.shape[0] in (0, 1):
        return xp.zeros((), dtype="bool")
    inside = xp.all(xp.logical_and(rows >= 0.0, rows <= 1.0))
    near = xp.all(_distance_from_1(rows) <= SUM_TOLERANCE)
    broken = xp.any(xp.logical_and(rows > 0.0, rows < 1.0))
    several = xp.sum(xp.ones_like(rows[:, 0])) > 1.0
    return xp.logical_and(
        xp.logical_and(inside, near), xp.logical_and(broken, several)
    )


def check_no_probabilities(logits: np.ndarray, name: str) -> None:
    """Logits must not be rows of probabilities.

    What a fit made of probabilities would look like any other.
    """
    rows = logits.reshape(-1, logits.shape[-1])[:100].astype("float64")
    if resembles_probabilities(rows):
        raise ValueError(
            invalid(
                f"`{name}` must be logits, not probabilities: pass their logs; "
                "`fit_on` and `export` take these of a model that returns "
                "probabilities",
                **{f"{name}[0]": np.round(rows[0], 4).tolist()[:10]},
            )
        )


def warn_of_probabilities(logits: Any, name: str) -> bool:
    """Warns of rows of probabilities that are given as logits.

    Returns:
        Whether the values could tell what they are.
    """
    num_classes = logits.shape[-1]
    if num_classes == 1 or 0 in shape_of(logits):
        return False
    few = namespace(logits).reshape(logits, (-1, num_classes))[:100]
    rows = concrete(few)
    if rows is None:
        return False
    if resembles_probabilities(rows.astype("float32")):
        warn(as_logits_message(name))
        return True
    return len(rows) > 1 and bool((rows != np.floor(rows)).any())


def as_logits_message(name: str) -> str:
    """What to say of probabilities that are given as logits."""
    return (
        f"`{name}` looks like probabilities (rows in [0, 1] that sum to 1) and "
        "is read as logits: pass `from_logits=False`, or the logits"
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


def in_unit_interval(x: Any) -> Any:
    """Where x lies in [0, 1], rounding aside; not where NaN (either)."""
    xp = namespace(x)
    return xp.logical_and(
        x >= -PROBABILITY_TOLERANCE, x <= 1.0 + PROBABILITY_TOLERANCE
    )


def usable_outputs(
    outputs: Any, from_logits: bool, tolerance: float = ROW_TOLERANCE
) -> Any:
    """Where rows `(n, num_classes)` are predictions, bool `(n,)` (either).

    No entry is NaN; probabilities are in [0, 1] and sum to 1 within the
    tolerance; a logit may be -inf, which rules a class out, but not
    infinity, nor all of them -inf.
    """
    xp = namespace(outputs)
    if not from_logits:
        inside = xp.all(in_unit_interval(outputs), axis=-1)
        return xp.logical_and(inside, sums_to_1(outputs, tolerance))
    largest = xp.max(outputs, axis=-1)
    finite = xp.logical_and(largest < float("inf"), largest > -float("inf"))
    if xp is np:
        return finite & ~np.isnan(outputs).any(axis=-1)
    # A maximum may drop NaN; a sum keeps it, and costs less than a test of
    # every entry.
    return xp.logical_and(
        finite, xp.logical_not(xp.isnan(xp.sum(outputs, axis=-1)))
    )


def _distance_from_1(rows: Any) -> Any:
    xp = namespace(rows)
    return xp.abs(xp.sum(rows, axis=-1) - 1.0)


def _tolerance_of(rows: np.ndarray) -> float:
    """That of the narrowest dtype that holds these values."""
    tolerance = sum_tolerance(rows.dtype)
    for name, wider in _HALF_TOLERANCE.items():
        half = ops.convert_to_numpy(ops.cast(rows, name))
        if np.array_equal(half.astype(rows.dtype), rows):
            tolerance = max(tolerance, wider)
    return tolerance


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
