"""Votes of annotators: rows of counts or of shares, read as shares."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import class_axis, located
from keras_calib.inputs.values import SUM_TOLERANCE, Rule, as_check, is_made_up
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    as_numbers,
    at_least_float32,
    fits,
    shape_of,
    to_numpy,
)

__all__ = [
    "check_votes",
    "flat_votes",
    "numbers_of_votes",
    "shares_of_rows",
    "standardize_votes",
]


def standardize_votes(
    votes: Any,
    y_pred: Any,
    *,
    axis: int = -1,
    ignore_class: int | None = None,
    names: tuple[str, str] = ("y_true", "y_pred"),
    mask: Any = None,
    rules: list[Rule] | None = None,
) -> Any:
    """Read rows of votes as shares `(batch, ..., num_classes)`.

    The arguments are those of `standardize_labels`. NumPy arrays stay such, in
    float64. The shares of a row that is neither counts nor shares are 0, which
    no label is.

    With binary outputs, a row holds the votes for both classes, or the share of
    the second.
    """
    if not isinstance(votes, np.ndarray):
        votes = ops.convert_to_tensor(as_numbers(votes, names[0]))
    xp, given_shape = array_namespace(votes), shape_of(votes)
    axis = class_axis(y_pred, axis, names[1])
    rank = len(y_pred.shape)
    lead = list(shape_of(y_pred))
    num_classes = lead.pop(axis)
    if ignore_class is not None:
        raise value_error(
            "`ignore_class` needs class ids as labels, not votes: give the "
            "samples to leave out a weight of 0",
            ignore_class=ignore_class,
        )
    if len(given_shape) == rank and axis != rank - 1:
        votes = xp.moveaxis(votes, axis, -1)
    if num_classes == 1 and len(votes.shape) == rank - 1:
        votes = xp.expand_dims(votes, -1)
    width = shape_of(votes)[-1] if len(votes.shape) == rank else None
    allowed = (1, 2) if num_classes == 1 else (num_classes,)
    if width not in allowed or not fits(shape_of(votes)[:-1], tuple(lead)):
        raise value_error(
            f"`{names[0]}` must be rows of votes that fit `{names[1]}`, one "
            "number per class; class ids need no option",
            **{
                f"{names[0]}.shape": given_shape,
                f"{names[1]}.shape": shape_of(y_pred),
            },
        )
    if xp is np:
        votes = votes.astype("float64", copy=False)
    else:
        votes = at_least_float32(votes)
    if width == 1:
        votes = xp.concatenate([1.0 - votes, votes], axis=-1)
    check_votes(votes, names[0], mask, rules=rules)
    shares, valid = shares_of_rows(votes)
    valid = xp.expand_dims(valid, -1)
    return xp.where(valid, shares, xp.zeros_like(shares))


def shares_of_rows(votes: Any) -> tuple[Any, Any]:
    """Rows divided by their sums, and which are votes (array-agnostic)."""
    xp = array_namespace(votes)
    total = xp.sum(votes, axis=-1)
    valid = _are_votes(votes, total)
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
    votes = votes.reshape(count, width)
    if width == 1:
        votes = np.concatenate([1.0 - votes, votes], axis=-1)
    return votes


def numbers_of_votes(
    votes: Any, num_samples: int, name: str = "labels"
) -> np.ndarray:
    """How many votes each sample has, `(num_samples,)`.

    Raises ValueError if rows are shares, which do not tell.
    """
    rows = as_array(votes, name).reshape(num_samples, -1).astype("float64")
    is_share = np.any(rows != np.floor(rows), axis=-1)
    if is_share.any():
        raise value_error(
            f"`{name}` must be counts of votes, whole numbers: shares do "
            "not tell how many there were. Give the counts, or use the "
            'interval of `ECE(labels="votes")`, which needs none',
            **located(is_share),
            row=np.round(rows[is_share][0], 4).tolist()[:10],
        )
    # One column is the share of the second class, here of one vote.
    votes = rows.sum(axis=-1) if rows.shape[1] > 1 else np.ones(num_samples)
    return votes.astype("int64")


@as_check
def check_votes(votes: Any, name: str, mask: Any = None) -> Rule:
    """Rows in the mask must be whole numbers, or shares that sum to 1."""
    xp = array_namespace(votes)
    right = _are_votes(votes, xp.sum(votes, axis=-1))
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


def _are_votes(votes: Any, total: Any) -> Any:
    """Mask of rows of counts or of shares (array-agnostic)."""
    xp = array_namespace(votes)
    with np.errstate(invalid="ignore"):
        whole = xp.all(xp.equal(votes, xp.floor(votes)), axis=-1)
        positive = xp.all(votes >= 0, axis=-1)
        is_share = xp.abs(total - 1.0) <= SUM_TOLERANCE
        inside = xp.logical_and(total > 0, total < float("inf"))
        inside = xp.logical_and(inside, positive)
    return xp.logical_and(inside, xp.logical_or(whole, is_share))
