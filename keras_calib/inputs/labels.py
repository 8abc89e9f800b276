"""Labels of every form that users have, and the rules of their values.

They are class ids, one-hot or soft rows, rows of votes, or pairs of class id
and objectness. Votes of annotators are counts or shares, read as shares.
"""

from typing import Any

import numpy as np
from keras import backend, ops

from keras_calib.backend.compiled import take_at
from keras_calib.backend.errors import value_error
from keras_calib.backend.traced import host_array
from keras_calib.inputs.checks import SEVERAL_LABELS, located
from keras_calib.inputs.rows import both_classes
from keras_calib.inputs.values import (
    SUM_TOLERANCE,
    Rule,
    Rules,
    as_check,
    both,
    in_unit_interval,
    is_integer,
    is_made_up,
    told_by_extremes,
)
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    as_numbers,
    at_least_float32,
    cast,
    fits,
    shape_of,
    to_numpy,
)
from keras_calib.numerics.softmax import allowed, is_ruled_out

# Stands for the objectness of an image with all objects painted out.
CONTEXT = -1


def standardize_labels(
    y_true: Any,
    y_pred: Any,
    *,
    axis: int = -1,
    ignore_class: int | None = None,
    votes: bool = False,
    names: tuple[str, str] = ("y_true", "y_pred"),
    mask: Any = None,
    rules: Rules | None = None,
) -> tuple[Any, Any]:
    """Read labels of any form, and mask those of the ignored class.

    Arguments are those of `standardize`. `y_pred` has the classes on `axis`,
    and `mask` is False for samples to leave out, whose ids become 0.

    Returns:
        Labels, and a mask that is False for the ignored class, or None. They
        are tensors, or NumPy arrays if `y_pred` is one. Ids are integers, -1
        for what is no id of a class; with binary outputs they are rows for
        both classes. Votes are shares, 0 in a row that is neither counts nor
        shares. The values of soft labels in arrays are left to `read_arrays`.
    """
    xp = array_namespace(y_pred)
    read = as_array if xp is np else as_numbers
    y_true = read(y_true, names[0])
    labels = _fitted(y_true, y_pred, axis, votes, names)
    soft = len(labels.shape) == len(y_pred.shape)
    counts, valid = mask, None
    if ignore_class is not None:
        if soft:
            kind = "one-hot or soft labels"
            if votes:
                kind = "votes: give the samples to leave out a weight of 0"
            raise value_error(
                f"`ignore_class` needs class ids as labels, not {kind}",
                ignore_class=ignore_class,
                **{f"{names[0]}.shape": shape_of(y_true)},
            )
        valid = xp.logical_not(is_ignored(labels, ignore_class))
        counts = both(mask, valid)
    if not soft and (num_classes := y_pred.shape[axis]) != 1:
        ids = _class_ids(labels, num_classes, xp, names[0], counts, rules)
        return ids, valid
    if votes and xp is np:
        labels = labels.astype("float64", copy=False)
    labels = at_least_float32(labels, names[0], xp)
    if votes:
        labels = both_classes(labels, False)
        shares, right = shares_of_rows(labels)
        _check_votes(labels, right, names[0], mask, rules=rules)
        right = xp.expand_dims(right, -1)
        return xp.where(right, shares, xp.zeros_like(shares)), None
    if soft:
        if xp is not np:
            check_soft_labels(labels, names[0], mask, rules=rules)
        return labels, None
    if counts is not None:
        labels = xp.where(counts, labels, xp.zeros_like(labels))
    _check_second_class(labels, names[0], rules=rules)
    return both_classes(xp.expand_dims(labels, -1), False), valid


def _fitted(
    y_true: Any, y_pred: Any, axis: int, votes: bool, names: tuple[str, str]
) -> Any:
    """Ids `(batch, ...)`, or rows with the classes last."""
    labels, xp, rank = y_true, array_namespace(y_true), len(y_pred.shape)
    lead = list(y_pred.shape)
    num_classes = lead.pop(axis)
    has_classes, widths = len(labels.shape) == rank, (num_classes,)
    if has_classes and axis % rank != rank - 1:
        labels = xp.moveaxis(labels, axis, -1)
    if votes and num_classes == 1:
        widths = (1, 2)
        labels = labels if has_classes else xp.expand_dims(labels, -1)
    elif not votes and has_classes and labels.shape[-1] == 1:
        labels, has_classes = xp.squeeze(labels, axis=-1), False
    ends = [(width,) for width in widths] if votes or has_classes else [()]
    if any(fits(tuple(labels.shape), (*lead, *end)) for end in ends):
        return labels
    rule = (
        f"be class ids or one-hot or soft labels that fit `{names[1]}`"
        f"{_pairs_hint(y_true)}"
    )
    if votes:
        rule = (
            f"be rows of votes that fit `{names[1]}`, one number per class; "
            "class ids need no option"
        )
    raise value_error(
        f"`{names[0]}` must {rule}",
        **{
            f"{names[0]}.shape": shape_of(y_true),
            f"{names[1]}.shape": shape_of(y_pred),
        },
    )


def _class_ids(
    labels: Any,
    num_classes: int | None,
    xp: Any,
    name: str,
    counts: Any,
    rules: Rules | None,
) -> Any:
    """Ids; 0 where a sample does not count, else -1 if impossible."""
    ids = known = labels
    if xp is not np and (rules is None or rules.active):
        # None where it is traced, or on another device.
        known = host_array(labels)
    is_sure = False
    if isinstance(known, np.ndarray) and known.size and is_integer(known):
        if xp is np and counts is not None:
            ids = known = np.where(counts, known, 0)
        # Most arrays need no closer look.
        limit = 2**31 if num_classes is None else num_classes
        is_sure = known.min() >= 0 and known.max() < limit
    if not is_sure:
        ids = narrowed_ids(labels, num_classes, name, counts, rules)
    if xp is np:
        ids = ids.astype("int64", copy=False)
    else:
        ids = ops.convert_to_tensor(ids, dtype="int32")
    return ids if counts is None else xp.where(counts, ids, xp.zeros_like(ids))


def narrowed_ids(
    ids: Any,
    num_classes: int | None,
    name: str | None = None,
    counts: Any = None,
    rules: Rules | None = None,
) -> Any:
    """Ids as int32, and -1 where they are no ids of a class (array-agnostic).

    Compiled code cannot raise, and a cast would make another id of one that
    int32 cannot hold, or of a fraction. Those that have a name are checked.
    """
    ids = _signed(ids)
    right = _are_ids(ids, num_classes)
    if name is not None and num_classes is not None:
        check_ids(ids, num_classes, name, counts, right, rules=rules)
    xp = array_namespace(right)
    ids = cast(xp.where(right, ids, xp.zeros_like(ids)), "int32")
    return xp.where(right, ids, -xp.ones_like(ids))


def _signed(ids: Any) -> Any:
    """Integer tensors as int32, or int64 if int32 cannot hold them."""
    if isinstance(ids, np.ndarray) or not is_integer(ids):
        return ids
    dtype = backend.standardize_dtype(ids.dtype)
    wide = dtype in ("uint32", "int64", "uint64")
    # JAX has no int64; its uint32 becomes negative, which no id is.
    return ops.cast(ids, "int64" if wide else "int32")


def _are_ids(ids: Any, num_classes: int | None) -> Any:
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

    `right` is their mask, if it is known.
    """
    right = _are_ids(ids, num_classes) if right is None else right
    rule = f"`{name}` must hold class ids in [0, {num_classes})"
    if not is_integer(ids):
        rule += ", and ids must hold whole numbers"
    return told_by_extremes(rule, right, ids, mask)


def is_ignored(ids: Any, ignore_class: int) -> Any:
    """Mask of ids of the ignored class (array-agnostic).

    No id is of a class that its dtype cannot hold: 2049 would be 2048 in half
    precision, and -1 the largest of unsigned integers.
    """
    dtype = np.dtype(backend.standardize_dtype(ids.dtype))
    try:
        with np.errstate(over="ignore"):
            held = int(np.array(ignore_class).astype(dtype)) == ignore_class
    except OverflowError:
        held = False
    if not held:
        return array_namespace(ids).zeros_like(ids, dtype="bool")
    return _signed(ids) == ignore_class


def nothing_counts(
    labels: Any, sample_weight: Any, ignore_class: int | None
) -> bool:
    """Whether every label of a batch has weight 0 or the ignored class."""
    if sample_weight is not None and not to_numpy(sample_weight).any():
        return True
    return ignore_class is not None and bool(
        is_ignored(to_numpy(labels), ignore_class).all()
    )


@as_check
def _check_second_class(labels: Any, name: str) -> Rule:
    """Labels of binary outputs must lie in [0, 1]."""
    right = array_namespace(labels).logical_and(labels >= 0, labels <= 1)
    rule = (
        f"`{name}` must lie in [0, 1] for binary outputs; a class of missing "
        "labels must be named in `ignore_class`"
    )
    return told_by_extremes(rule, right, labels)


def soft_labels(labels: Any, num_classes: int, dtype: Any) -> Any:
    """Turn ids into one-hot rows `(..., num_classes)`; keep soft labels."""
    if is_integer(labels):
        if backend.backend() == "torch":
            # torch raises for impossible ids; other backends return zeros.
            labels = ops.clip(labels, 0, num_classes - 1)
        return ops.one_hot(labels, num_classes, dtype=dtype)
    return ops.cast(labels, dtype)


@as_check
def check_soft_labels(labels: Any, name: str, mask: Any = None) -> Rule:
    """Rows of labels in the mask must lie in [0, 1] and sum to 1."""
    xp = array_namespace(labels)
    near = xp.abs(xp.sum(labels, axis=-1) - 1.0) <= SUM_TOLERANCE
    right = xp.logical_and(near, xp.all(in_unit_interval(labels), axis=-1))
    rule = told_by_extremes(
        f"`{name}` must sum to 1 over the classes and must lie in [0, 1]; "
        "rows of votes must be divided by their sum, or given with "
        '`labels="votes"` to metrics and `votes=True` to functions; '
        f"{SEVERAL_LABELS}{_pairs_hint(labels)}",
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
            "`ignore_class`. Wrong answers of a service count in a log, "
            "`Predictions(correct=..., confidence=...)`",
            **located(to_numpy(xp.logical_not(allowed)).reshape(-1)),
        )

    return Rule(xp.all(allowed), fail)


def split_objectness(
    y_true: Any, ignore_class: int | None = None, rules: Rules | None = None
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


@as_check
def check_objectness(
    objectness: Any,
    rule: str = "`y_true` must hold an objectness in [0, 1] beside each "
    "class id",
) -> Rule:
    """Shares of an image must lie in [0, 1]."""
    return told_by_extremes(rule, in_unit_interval(objectness), objectness)


def _pairs_hint(labels: Any) -> str:
    """Hint for labels whose shape is that of pairs with objectness, or ""."""
    if len(labels.shape) < 2 or labels.shape[-1] != 2:
        return ""
    return (
        "; pairs (class id, objectness) need the loss "
        "`AdaptiveLabelSmoothing` and metrics with `objectness=True`"
    )


def shares_of_rows(votes: Any) -> tuple[Any, Any]:
    """Rows divided by their sums, and which are votes (array-agnostic)."""
    xp = array_namespace(votes)
    total = xp.sum(votes, axis=-1)
    with np.errstate(invalid="ignore"):
        whole = xp.all(xp.equal(votes, xp.floor(votes)), axis=-1)
        positive = xp.all(votes >= 0, axis=-1)
        is_share = xp.abs(total - 1.0) <= SUM_TOLERANCE
        inside = xp.logical_and(total > 0, total < float("inf"))
        inside = xp.logical_and(inside, positive)
    valid = xp.logical_and(inside, xp.logical_or(whole, is_share))
    total = xp.where(valid, total, xp.ones_like(total))
    return votes / xp.expand_dims(total, -1), valid


def flat_votes(votes: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Votes as rows `(n, num_classes)`, with both of two classes.

    Args:
        votes: Votes of any form, or NaN for those of a sample that lacks them.
        outputs: Predictions `(..., num_classes)`, or `(..., 1)`.
    """
    num_classes = (outputs.shape or (1,))[-1]
    count = outputs.size // num_classes
    if votes.ndim == 0 and num_classes > 1 and np.isnan(votes):
        votes = np.full((count, num_classes), votes)
    width = votes.size // max(1, count) if num_classes == 1 else num_classes
    width = width if count else max(2, num_classes)
    if width not in (num_classes, 2) or votes.size != count * width:
        raise value_error(
            "`label` must hold votes, one number for each class of `outputs`",
            label=votes.shape,
            outputs=outputs.shape,
        )
    return both_classes(votes.reshape(count, width), False)


def numbers_of_votes(votes: Any, num_samples: int) -> np.ndarray:
    """How many votes each sample has, `(num_samples,)`.

    Raises ValueError if rows are shares, which do not tell.
    """
    rows = as_array(votes, "labels").reshape(num_samples, -1).astype("float64")
    is_share = np.any(rows != np.floor(rows), axis=-1)
    if is_share.any():
        raise value_error(
            "`labels` must be counts of votes, whole numbers: shares do "
            "not tell how many there were. Give the counts, or use the "
            'interval of `ECE(labels="votes")`, which needs none',
            **located(is_share),
            row=np.round(rows[is_share][0], 4).tolist()[:10],
        )
    # One column is the share of the second class, here of one vote.
    votes = rows.sum(axis=-1) if rows.shape[1] > 1 else np.ones(num_samples)
    return votes.astype("int64")


@as_check
def _check_votes(votes: Any, right: Any, name: str, mask: Any = None) -> Rule:
    """Rows in the mask must be whole numbers, or shares that sum to 1."""
    xp = array_namespace(votes)
    if mask is not None:
        right = xp.logical_or(right, xp.logical_not(mask))

    def fail():
        if is_made_up(votes):
            return
        bad = ~to_numpy(right).reshape(-1)
        row = to_numpy(votes).reshape(-1, votes.shape[-1])[bad][0]
        rule = "must be >= 0 and finite"
        if np.isfinite(row).all() and row.min() >= 0:
            rule = "must have a vote; give rows without a weight of 0"
            if row.any():
                rule = (
                    "must be counts, which are whole numbers, or shares that "
                    "sum to 1"
                )
        raise value_error(
            f"`{name}` holds rows of votes, and each {rule}",
            **located(bad),
            row=np.round(row, 4).tolist()[:10],
        )

    return Rule(xp.all(right), fail)
