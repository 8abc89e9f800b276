"""Checks of arguments and shapes, which name argument, rule and value."""

import math
import numbers
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.numerics.arrays import fits, shape_of

# What calibration errors bin: confidences of the predicted class, or
# probabilities of the second of two.
MODES = ("top_label", "binary")
# What several labels at once need, wherever they came in.
SEVERAL_LABELS = (
    "several labels at once need `Predictions(labels, outputs, "
    "multi_label=True)` in a report, `MultiLabel` around a loss, metric, "
    "calibrator or selector, and elsewhere one label at a time: `labels[:, k]` "
    "with `outputs[:, k : k + 1]`"
)


def check_number(name: str, value: Any) -> None:
    """Raise unless `value` is a real, finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise type_error(f"`{name}` must be a number", **{name: value})
    try:
        finite = math.isfinite(value)
    except OverflowError:  # A whole number above all floats.
        finite = False
    if not finite:
        raise value_error(f"`{name}` must be finite", **{name: value})


def check_integer(name: str, value: Any, minimum: int | None = None) -> None:
    """Raise unless `value` is a whole number, of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise type_error(f"`{name}` must be an integer", **{name: value})
    kind = getattr(value, "dtype", np.dtype("int64"))
    if kind.name not in ("int32", "int64"):
        # Sums of it would wrap, or become floats.
        rule = f"`{name}` must be an int, an int32 or an int64: give"
        raise type_error(f"{rule} int({name})", **{name: value})
    if int(value) >= 2**63:
        raise value_error(f"`{name}` must be < 2^63", **{name: value})
    if minimum is not None:
        check_at_least(name, value, minimum)


def generator(seed: int) -> np.random.Generator:
    """Random numbers of a seed; raises unless it is a whole number >= 0."""
    check_integer("seed", seed, 0)
    return np.random.default_rng(seed)


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise type_error(f"`{name}` must be True or False", **{name: value})


def check_at_least(name: str, value: Any, minimum: float) -> None:
    """Raise unless `value` is a number >= `minimum`."""
    check_number(name, value)
    if value < minimum:
        raise value_error(f"`{name}` must be >= {minimum}", **{name: value})


def check_at_most(name: str, value: Any, maximum: float) -> None:
    """Raise unless `value` is a number <= `maximum`."""
    check_number(name, value)
    if value > maximum:
        raise value_error(f"`{name}` must be <= {maximum}", **{name: value})


def check_above(name: str, value: Any, bound: float) -> None:
    """Raise unless `value` is a number > `bound`."""
    check_number(name, value)
    if value <= bound:
        raise value_error(f"`{name}` must be > {bound}", **{name: value})
    if 0.0 < abs(value) < sys.float_info.min:
        rule = f"`{name}` must not be so near 0 that its half may be 0"
        raise value_error(rule, **{name: value})


def check_share(name: str, value: Any, *, positive: bool = False) -> None:
    """Raise unless `value` is a number in [0, 1], or in (0, 1]."""
    (check_above if positive else check_at_least)(name, value, 0.0)
    check_at_most(name, value, 1.0)


def check_in(name: str, value: Any, allowed: Sequence) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise value_error(f"`{name}` must be one of {allowed}", **{name: value})


def check_keys(
    name: str, given: Iterable, known: Iterable[str], needed: Iterable = ()
) -> None:
    """Raise ValueError if a dict has keys that nobody reads, or lacks some."""
    given, known = {*map(str, given)}, sorted(known)
    unknown, missing = sorted(given - {*known}), sorted({*needed} - given)
    if unknown or missing:
        raise value_error(
            f"`{name}` must have no other keys than {known}, and all it needs",
            unknown=unknown,
            missing=missing,
        )


def check_rank(name: str, x: Any, minimum: int, meaning: str) -> None:
    """Raise ValueError unless `x` has at least `minimum` axes."""
    if len(x.shape) < minimum:
        raise value_error(
            f"`{name}` must have shape {meaning}",
            **{f"{name}.shape": shape_of(x)},
        )


def check_not_empty(name: str, x: Any) -> None:
    """Raise ValueError if an array has no elements."""
    if 0 in x.shape:
        raise value_error(
            f"`{name}` must not be empty", **{f"{name}.shape": shape_of(x)}
        )


def check_any_weight(weight: Any) -> None:
    """Raise ValueError if all weights of an array are 0; None has none."""
    if weight is not None and not weight.any():
        raise value_error("`sample_weight` must not be 0 everywhere", sum=0.0)


def check_independent(
    what: str, shape: Sequence[int], units: Any = None
) -> None:
    """Raise ValueError unless rows `(n,)` are units that stand alone.

    `what` needs that. `units` are those of the rows that count, None for one
    each.
    """
    rows = math.prod(shape[:1]) if units is None else len(units)
    count = rows if units is None else len(np.unique(units))
    if len(shape) != 1 or count < rows:
        raise value_error(
            f"{what} needs independent rows, which pixels of an image, tokens "
            "of a text and other rows of one unit are not: promise the mean "
            "of each unit by `choose_threshold(..., units=True)`, or give one "
            "row of each unit, as the guide of `Predictions` shows",
            shape=tuple(shape),
            units=count,
        )


def check_rows(name: str, x: Any, logits: Any) -> None:
    """Raise ValueError unless `x` has one value per row of `logits`."""
    if not fits(shape_of(x), shape_of(logits)[:-1]):
        raise value_error(
            f"`{name}` must have the shape of `logits` without the classes",
            **{f"{name}.shape": shape_of(x), "logits.shape": shape_of(logits)},
        )


def class_axis(y_pred: Any, axis: int, name: str = "y_pred") -> int:
    """Check the axis of the classes, and return it as a number >= 0.

    A batch may be empty, but not the other axes.
    """
    rank = len(y_pred.shape)
    if rank < 2:
        meaning = "(batch, ..., num_classes)"
        if rank == 1:
            meaning += (
                f"; scores of the second of two classes need an axis more: "
                f'`{name}[:, None]`, or `mode="binary"` if it is an argument'
            )
        check_rank(name, y_pred, 2, meaning)
    if not -rank <= axis < rank:
        raise value_error(
            f"`axis` must be an axis of `{name}`",
            axis=axis,
            **{f"{name}.shape": shape_of(y_pred)},
        )
    axis %= rank
    sizes = list(y_pred.shape)
    del sizes[0 if axis else 1]
    if 0 in sizes:
        check_not_empty(name, y_pred)
    return axis


def check_two_classes(name: str, logits: Any, axis: int) -> None:
    """Refuse one output in place of the logits of two classes."""
    if logits.shape[axis] == 1:
        rule = f"`{name}` must have two classes or more; for one output z pass "
        shape = {f"{name}.shape": shape_of(logits)}
        raise value_error(rule + "[0, z]", **shape)


def located(bad: np.ndarray) -> dict[str, Any]:
    """Number of bad rows and the first of them, for errors."""
    rows = np.flatnonzero(bad)
    return {"rows": len(rows), "first": rows[:5].tolist()}
