"""Checks of rows of predictions: a distribution, logits, or neither.

While a graph is traced there are no values, and the checks pass.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error, warn
from keras_calib.backend.traced import made_by
from keras_calib.inputs import config
from keras_calib.inputs.checks import SEVERAL_LABELS, located
from keras_calib.inputs.values import (
    PROBABILITY_TOLERANCE,
    SUM_TOLERANCE,
    Rule,
    as_check,
    has_values,
    in_unit_interval,
    is_made_up,
    told_by_extremes,
)
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    cast,
    to_numpy,
)
from keras_calib.numerics.row_blocks import RowFacts
from keras_calib.numerics.softmax import is_ruled_out

# Largest distance from 1 of the sum of a row. A softmax in half precision is
# off by up to 0.011 (bfloat16) for 2 to 20,000 classes.
_ROW_TOLERANCE = 3e-2

# Logits of one output that all lie in [0, 1] give every sample to the second
# class. So many that spread so far are hardly ever logits.
_ONE_OUTPUT = 100, 0.5

_FLOAT32 = float(np.finfo("float32").max)

# A logit, and a share of a tolerance, far enough from where doubt begins.
_LARGE, _SURE = 1e30, 0.99

# Entries that tell logits from probabilities.
_FEW_ENTRIES = 10**5

_LOOKS_LIKE = (
    "looks like probabilities (one output in [0, 1], or rows that sum to 1)"
)
_AS_LOGITS = "is read as logits: pass `from_logits=False`, or the logits"


def is_sound(
    facts: RowFacts, from_logits: bool, tolerance: float = _ROW_TOLERANCE
) -> bool:
    """Whether rows are valid for sure; if not, the checks below can tell."""
    largest = facts.largest.max()
    if from_logits:
        # So far from infinity that no sum of logits gets there.
        return bool(np.isfinite(facts.largest).all() and largest < _LARGE)
    # Rounding must not decide.
    outside = _SURE * PROBABILITY_TOLERANCE
    return bool(
        facts.lowest >= -outside
        and largest <= 1.0 + outside
        and facts.distance <= _SURE * tolerance
    )


@as_check
def check_sound(
    outputs: np.ndarray,
    facts: RowFacts,
    from_logits: bool,
    name: str,
    counts: np.ndarray | None = None,
) -> Rule:
    """Rows must be valid: for sure by their facts, or looked at one by one."""

    def fail():
        check_no_nan(outputs, from_logits, name)
        if not from_logits:
            check_probabilities(outputs, name)
            check_row_sums(outputs, name, counts)

    return Rule(is_sound(facts, from_logits), fail)


def check_no_nan(outputs: np.ndarray, from_logits: bool, name: str) -> None:
    """Raise ValueError if a row has a NaN, or a logit that float32 has not."""
    bad = np.isnan(outputs)
    if from_logits:
        # Layers and metrics compute in float32.
        bad |= outputs > _FLOAT32
    bad = bad.any(axis=-1).reshape(-1)
    if bad.any():
        infinity = " or infinity" if from_logits else ""
        if np.isfinite(outputs).all():
            infinity += " in float32"
        raise value_error(
            f"`{name}` must not contain NaN{infinity}", **located(bad)
        )
    bad = is_ruled_out(outputs.max(axis=-1)).reshape(-1)
    if bad.any() and outputs.shape[-1] > 1:
        raise value_error(
            f"`{name}` must not rule out all classes of a row", **located(bad)
        )


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
    return told_by_extremes(rule, right, probs, mask)


@as_check
def check_row_sums(probs: Any, name: str, mask: Any = None) -> Rule:
    """Rows of probabilities in the mask must sum to 1; NaN passes."""
    xp = array_namespace(probs)
    if probs.shape[-1] == 1:
        return Rule(xp.ones((), dtype="bool"), lambda: None)
    far = _distance_from_1(probs) > _ROW_TOLERANCE
    if mask is not None:
        far = xp.logical_and(far, xp.reshape(mask, far.shape))

    def fail():
        if is_made_up(probs):
            return
        bad = to_numpy(far).reshape(-1)
        rows = to_numpy(probs).reshape(-1, probs.shape[-1])[bad]
        check_probabilities(rows, name)
        raise value_error(
            f"`{name}` must sum to 1 over the classes; logits need "
            "`from_logits=True`, and rounded rows must be divided by their "
            f"sum; {SEVERAL_LABELS}",
            **located(bad),
            sum=round(float(rows[0].astype("float64").sum()), 6),
        )

    return Rule(xp.logical_not(xp.any(far)), fail)


def sums_to_1(probs: Any) -> Any:
    """Mask of rows that sum to 1, or of one class (array-agnostic)."""
    if probs.shape[-1] == 1:
        xp = array_namespace(probs)
        return xp.ones_like(probs[..., 0], dtype="bool")
    return _distance_from_1(probs) <= _ROW_TOLERANCE


def usable_outputs(outputs: Any, from_logits: bool) -> Any:
    """Mask of valid rows; a logit may be -inf, not NaN (array-agnostic)."""
    xp = array_namespace(outputs)
    if not from_logits:
        inside = xp.all(in_unit_interval(outputs), axis=-1)
        return xp.logical_and(inside, sums_to_1(outputs))
    largest = xp.max(outputs, axis=-1)
    finite = xp.logical_and(largest < float("inf"), largest > -float("inf"))
    # A maximum may drop NaN. A sum keeps it, and costs less than a test of
    # every entry. NumPy would warn of large logits.
    with np.errstate(over="ignore", invalid="ignore"):
        total = xp.sum(outputs, axis=-1)
    return xp.logical_and(finite, xp.logical_not(xp.isnan(total)))


def resembles_probabilities(logits: Any) -> Any:
    """Whether logits `(n, num_classes)` are probabilities (array-agnostic)."""
    xp, columns = array_namespace(logits), logits.shape[-1]
    if columns == 1:
        return _resembles_one_output(logits)
    rows = cast(few_rows(logits), "float32")
    if rows.shape[0] in (0, 1):
        return xp.zeros((), dtype="bool")
    inside = xp.all(xp.logical_and(rows >= 0.0, rows <= 1.0))
    near = xp.all(_distance_from_1(rows) <= SUM_TOLERANCE)
    broken = xp.any(xp.logical_and(rows > 0.0, rows < 1.0))
    several = xp.sum(xp.ones_like(rows[:, 0])) > 1.0
    found = xp.logical_and(
        xp.logical_and(inside, near), xp.logical_and(broken, several)
    )
    if columns > 2:
        return found
    # Rows [0, z] stand for one output.
    of_one = _resembles_one_output(logits[:, 1:])
    first = logits[:, 0]
    return xp.where(xp.any(first != 0.0), found, of_one)


def _resembles_one_output(logits: Any) -> Any:
    """Whether logits `(n, 1)` are probabilities (array-agnostic)."""
    xp = array_namespace(logits)
    count, spread = _ONE_OUTPUT
    if logits.shape[0] is not None and logits.shape[0] < count:
        return xp.zeros((), dtype="bool")
    low, high = xp.min(logits), xp.max(logits)
    inside = xp.logical_and(low >= 0.0, high <= 1.0)
    # Whole numbers may be logits, as above.
    broken = xp.any(xp.logical_and(logits > 0.0, logits < 1.0))
    enough = xp.shape(logits)[0] >= count
    return xp.logical_and(
        xp.logical_and(inside, high >= low + spread),
        xp.logical_and(broken, enough),
    )


def check_no_probabilities(logits: np.ndarray, name: str) -> None:
    """Raise if logits look like probabilities, which a fit would not show.

    For one output, whose logits may look so too, it warns.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    if not resembles_probabilities(rows):
        return
    if _is_one_output(rows):
        warn(as_logits_message(name))
        return
    raise value_error(
        f"`{name}` must be logits, not probabilities: pass "
        "`from_logits=False`, which takes their logs, or "
        "`Predictions(labels, probs)`",
        **{f"{name}[0]": np.round(rows[0], 4).tolist()[:10]},
    )


def warn_of_probabilities(logits: np.ndarray, name: str) -> None:
    """Warn if logits look like probabilities."""
    rows = logits.reshape(-1, logits.shape[-1])
    if resembles_probabilities(rows):
        warn(as_logits_message(name))


def check_call(
    logits: Any, name: str, has_told: bool, several_labels: bool = False
) -> bool:
    """Warn if a layer of logits is called on probabilities.

    While a graph is traced it does so once; returns whether it has. Each of
    several labels is one output.
    """
    if not config.validates() or len(logits.shape) < 2:
        return has_told
    if not has_values(logits):
        return has_told or warn_by_operation(logits, name, from_logits=True)
    columns = 1 if several_labels else logits.shape[-1]
    rows = array_namespace(logits).reshape(logits, (-1, columns))
    warn_of_probabilities(to_numpy(few_rows(rows)), name)
    return has_told


@as_check
def check_logits(logits: Any, name: str, seen: Callable[[], None]) -> Rule:
    """Warn of probabilities; `seen` is called once values were conclusive."""
    xp = array_namespace(logits)
    rows = few_rows(xp.reshape(logits, (-1, logits.shape[-1])))
    # Whole numbers may be logits or one-hot rows.
    telling = xp.logical_and(xp.any(rows != xp.floor(rows)), rows.shape[0] != 1)

    def fail():
        values = to_numpy(rows)
        warn_of_probabilities(values, name)
        # A few values of one output between 0 and 1 may be either.
        few = _is_one_output(values) and len(values) < _ONE_OUTPUT[0]
        if not few or (values < 0).any() or (values > 1).any():
            seen()

    return Rule(xp.logical_not(telling), fail)


def as_logits_message(name: str) -> str:
    """The warning of probabilities that are given as logits."""
    return f"`{name}` {_LOOKS_LIKE} and {_AS_LOGITS}"


def _is_one_output(rows: np.ndarray) -> bool:
    """Whether rows are `(n, 1)`, or the rows [0, z] that stand for them."""
    return rows.shape[-1] == 1 or rows.shape[-1] == 2 and not rows[:, 0].any()


def warn_by_operation(outputs: Any, name: str, from_logits: bool) -> bool:
    """Warn and return True if a traced operation belies `from_logits`."""
    kind = made_by(outputs)
    if kind != ("softmax" if from_logits else "layer"):
        return False
    if from_logits:
        warn(f"`{name}` is the output of a softmax or sigmoid and {_AS_LOGITS}")
    else:
        warn(
            f"`{name}` is the output of a layer without a softmax and is read "
            "as probabilities: pass `from_logits=True`, or end the model in a "
            "softmax. A compiled loss is NaN where rows do not sum to 1"
        )
    return True


def without_harm(
    rows: np.ndarray, counts: np.ndarray | None, from_logits: bool
) -> np.ndarray:
    """Replace invalid rows to leave out, because NaN times 0 is NaN."""
    if counts is None or counts.all():
        return rows
    places = np.flatnonzero(~counts)
    usable = usable_outputs(rows[places], from_logits)
    if usable.all():
        return rows
    rows = rows.copy()
    rows[places[~usable]] = 0.0 if from_logits else 1 / max(2, rows.shape[-1])
    return rows


def both_classes(rows: Any, from_logits: bool) -> Any:
    """Rows, where `(..., 1)` of the second class get a first one.

    It is array-agnostic.
    """
    if rows.shape[-1] != 1:
        return rows
    xp = array_namespace(rows)
    other = xp.zeros_like(rows) if from_logits else 1.0 - rows
    return xp.concatenate([other, rows], axis=-1)


def of_one_output(outputs: Any, name: str) -> Any:
    """Outputs `(n,)` of the second of two classes as `(n, 1)`, or as they are.

    It is array-agnostic, and takes lists. None stays None.
    """
    if outputs is None:
        return None
    if not hasattr(outputs, "shape"):
        outputs = as_array(outputs, name)
    return outputs[..., None] if len(outputs.shape) == 1 else outputs


def few_rows(rows: Any) -> Any:
    """At most 100 rows from the whole batch, as edges of images may agree.

    Fewer rows tell as much if they are as wide as a vocabulary, and many are
    needed of one output.
    """
    wanted = min(100, max(10, _FEW_ENTRIES // rows.shape[-1]))
    if rows.shape[-1] <= 2:
        wanted = 10_000
    count = rows.shape[0]
    if count is None:
        count = ops.shape(rows)[0]
        return rows[:: ops.maximum(count // wanted, 1)][:wanted]
    return rows[:: max(count // wanted, 1)][:wanted]


def _distance_from_1(rows: Any) -> Any:
    xp = array_namespace(rows)
    # NumPy would warn of rows with infinities of both signs.
    with np.errstate(over="ignore", invalid="ignore"):
        return xp.abs(xp.sum(rows, axis=-1) - 1.0)
