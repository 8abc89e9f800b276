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
from keras_calib.numerics.arrays import (
    array_namespace,
    as_numbers,
    to_numpy,
    value_if_eager,
)

# Largest distance from 1 of the sum of a row of labels (half precision).
SUM_TOLERANCE = 1e-2
# Largest distance of a rounded probability from [0, 1] (half precision).
PROBABILITY_TOLERANCE = 1e-3


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
    return config.validates() and 0 not in x.shape and not is_traced(x)


def enforce(rules: list[Rule]) -> None:
    """Enforce all rules, with one transfer from the device."""
    if not rules:
        return
    known = [rule.holds for rule in rules]
    if not all(isinstance(x, bool | np.bool_ | np.ndarray) for x in known):
        known = value_if_eager(ops.stack(known))
    if known is None or np.all(known):
        return
    for rule, holds in zip(rules, known, strict=True):
        if not holds:
            rule.fail()


def as_check(rule: Callable[..., Rule]) -> Callable[..., None]:
    """Turn a rule of arrays into `check(x, *args, rules=None)`.

    Without `rules` it is enforced at once.
    """

    @functools.wraps(rule)
    def check(x: Any, *args: Any, rules: Rules | None = None) -> None:
        if rules is not None and not rules.active or 0 in x.shape:
            return
        if isinstance(x, np.ndarray) or not is_traced(x):
            found = rule(x, *args)
            enforce([found]) if rules is None else rules.append(found)

    return check


def told_by_extremes(rule: str, right: Any, x: Any, mask: Any = None) -> Rule:
    """`right` must hold in the mask; errors state the extremes of `x`."""

    def fail():
        values = to_numpy(x)
        if mask is not None:
            values = values[to_numpy(mask)]
        low, high = values.min().item(), values.max().item()
        raise value_error(rule, minimum=low, maximum=high)

    if mask is not None and not isinstance(mask, np.ndarray):
        right = ops.convert_to_tensor(right)
    xp = array_namespace(right)
    if mask is not None:
        right = xp.logical_or(right, xp.logical_not(mask))
    return Rule(xp.all(right), fail)


@as_check
def _check_mask(mask: Any) -> Rule:
    """Masks must hold 0 and 1."""
    rule = (
        "`mask` must be bool, or hold 0 and 1; an additive mask, with 0 where "
        "something counts and -1e9 elsewhere, is given as `mask == 0`"
    )
    right = ops.logical_or(mask == 0.0, mask == 1.0)
    return told_by_extremes(rule, right, mask)


def read_mask(mask: Any) -> Any:
    """A mask as a bool tensor; in compiled code other values are False."""
    mask = ops.convert_to_tensor(as_numbers(mask, "mask"))
    if "bool" in str(mask.dtype):
        return mask
    mask = ops.cast(mask, "float32")
    _check_mask(mask)
    return mask == 1.0


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
