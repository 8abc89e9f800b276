"""The door: labels, predictions and weights in every form users have them.

Losses, metrics, calibrators and exact functions all read their arguments
here, so that each of them takes integer, `(n, 1)`, one-hot and soft labels,
logits or probabilities, one output for two classes, any leading shape, an
ignored class, and raises the same errors.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_calib.checks import check_not_empty
from keras_calib.checks import check_rank
from keras_calib.checks import invalid
from keras_calib.checks import shape_of
from keras_calib.numerics import at_least_float32
from keras_calib.numerics import concrete
from keras_calib.numerics import logsumexp
from keras_calib.numerics import namespace
from keras_calib.numerics import to_numpy

__all__ = [
    "PROBABILITY_FLOOR",
    "Predictions",
    "TopOne",
    "read_arrays",
    "read_labels",
    "read_predictions",
    "read_weight",
    "soft_labels",
    "to_logits",
    "top1",
]

# log and 1/p stay finite in float32.
PROBABILITY_FLOOR = 1e-37
_SUM_TOLERANCE = 1e-2


class Predictions(NamedTuple):
    """One batch, read: what metrics and exact functions work on.

    Attributes:
        labels: Class ids `(n,)`, int32, or soft labels `(n, num_classes)`.
        outputs: Logits or probabilities `(n, num_classes)`.
        from_logits: Which of the two `outputs` are.
        weight: `(n,)`, or None where every sample counts 1.
        valid: `(n,)` bool, or None where every sample counts.
    """

    labels: Any
    outputs: Any
    from_logits: bool
    weight: Any
    valid: Any


class TopOne(NamedTuple):
    """The predicted class of each sample.

    Attributes:
        predicted: Class ids `(n,)`; the first of tied classes.
        confidence: Probability of that class `(n,)`, in [0, 1].
        log_odds: log(confidence / (1 - confidence)) `(n,)`; from logits it
            does not saturate where the confidence rounds to 1.
    """

    predicted: Any
    confidence: Any
    log_odds: Any


def to_logits(probs: Any) -> Any:
    """Probabilities as logits: softmax(log p) = p. Floored at 1e-37."""
    return ops.log(ops.maximum(probs, PROBABILITY_FLOOR))


def read_predictions(y_pred: Any, *, from_logits: bool, axis: int = -1) -> Any:
    """Model outputs with classes last and at least two of them.

    Args:
        y_pred: Logits or probabilities `(batch, ..., num_classes)`, or
            `(batch, ..., 1)` for the second of two classes.
        from_logits: Whether these are logits.
        axis: The axis of the classes.

    Returns:
        Float tensor `(batch, ..., num_classes)`: logits or probabilities as
        given. Binary logits z become `[0, z]`, probabilities `[1 - p, p]`.
    """
    y_pred = at_least_float32(y_pred)
    check_rank("y_pred", y_pred, 2, "(batch, ..., num_classes)")
    _check_axis(axis, len(y_pred.shape))
    y_pred = ops.moveaxis(y_pred, axis, -1) if axis != -1 else y_pred
    if not from_logits:
        _check_probabilities(y_pred)
    if y_pred.shape[-1] == 1:
        other = ops.zeros_like(y_pred) if from_logits else 1.0 - y_pred
        y_pred = ops.concatenate([other, y_pred], axis=-1)
    return y_pred


def read_labels(
    y_true: Any, y_pred: Any, *, axis: int = -1, ignore_class: int | None = None
) -> tuple[Any, Any]:
    """Labels of any form, told apart by shape alone.

    Args:
        y_true: Class ids `(batch, ...)` or with a 1 on the class axis, or
            one-hot or soft labels of the shape of `y_pred`. With binary
            outputs: the probability of the second class, 0 or 1 or between.
        y_pred: The model's outputs, as given by the user.
        axis: The axis of the classes in `y_pred`.
        ignore_class: Class id that does not count.

    Returns:
        `(labels, valid)`: int32 ids `(batch, ...)` or float soft labels
        `(batch, ..., num_classes)`; and where they count, bool
        `(batch, ...)`, None if everywhere. Ignored ids are replaced by 0.

    Raises:
        ValueError: If shapes do not fit; and, where values can be seen
            (eager use), if ids are out of range or rows do not sum to 1.
    """
    y_true = ops.convert_to_tensor(y_true)
    pred_shape = shape_of(y_pred)
    rank, true_rank = len(pred_shape), len(y_true.shape)
    check_rank("y_pred", y_pred, 2, "(batch, ..., num_classes)")
    _check_axis(axis, rank)
    num_classes = pred_shape[axis]
    binary = num_classes == 1
    if true_rank == rank and axis != -1:
        y_true = ops.moveaxis(y_true, axis, -1)
    lead = list(pred_shape)
    del lead[axis]
    if true_rank == rank and y_true.shape[-1] == 1:
        y_true = ops.squeeze(y_true, axis=-1)
    is_ids = len(y_true.shape) == rank - 1
    expected = tuple(lead) if is_ids else (*lead, num_classes)
    if true_rank not in (rank, rank - 1):
        expected = tuple(lead)
    _check_label_shape(y_true, y_pred, expected)
    if not is_ids:
        if ignore_class is not None:
            raise ValueError(
                invalid(
                    "`ignore_class` needs class ids as labels, not one-hot "
                    "or soft labels",
                    ignore_class=ignore_class,
                    **{"y_true.shape": shape_of(y_true)},
                )
            )
        y_true = at_least_float32(y_true)
        _check_soft_labels(y_true)
        return y_true, None
    valid = None
    if ignore_class is not None:
        valid = ops.not_equal(y_true, ops.cast(ignore_class, y_true.dtype))
        y_true = ops.where(valid, y_true, ops.zeros_like(y_true))
    if binary:
        return _two_classes(y_true), valid
    _check_ids(y_true, num_classes)
    return ops.cast(y_true, "int32"), valid


def soft_labels(
    labels: Any, num_classes: int, dtype: Any, *, hard: bool = False
) -> Any:
    """Ids as one-hot rows; soft labels as they are; NaN where impossible.

    In compiled code values cannot raise. There an id out of range, or a row
    that does not sum to 1, gives a loss of NaN rather than a wrong number.

    Args:
        labels: int32 ids `(batch, ...)` or soft `(batch, ..., num_classes)`.
        num_classes: Number of classes.
        dtype: Float dtype of the result.
        hard: Whether rows must be one-hot.

    Returns:
        `(labels, possible)`: soft labels, and bool `(batch, ...)`.

    Raises:
        ValueError: If `hard` and, in eager use, a row is not one-hot.
    """
    if "int" in str(labels.dtype):
        possible = ops.logical_and(labels >= 0, labels < num_classes)
        return ops.one_hot(labels, num_classes, dtype=dtype), possible
    labels = ops.cast(labels, dtype)
    off = ops.abs(ops.sum(labels, axis=-1) - 1.0)
    if hard:
        off = ops.maximum(off, 1.0 - ops.max(labels, axis=-1))
        largest = _min_max(off)
        if largest is not None and not largest[1] <= _SUM_TOLERANCE:
            raise ValueError(
                invalid(
                    "`y_true` must be class ids or one-hot; this loss has no "
                    "meaning for soft labels",
                    **{"largest difference from one-hot": largest[1]},
                )
            )
    return labels, off <= _SUM_TOLERANCE


def read_weight(sample_weight: Any, lead_shape: Any) -> Any:
    """Weights in the shape of the labels.

    Args:
        sample_weight: `(batch,)`, or the shape of the labels, or that shape
            with a last 1; at least 0.
        lead_shape: Shape of the labels `(batch, ...)`, a tensor or tuple.

    Returns:
        Float tensor that broadcasts to the labels.
    """
    weight = at_least_float32(sample_weight)
    rank = len(lead_shape)
    if len(weight.shape) == rank + 1 and weight.shape[-1] == 1:
        weight = ops.squeeze(weight, axis=-1)
    fits = len(weight.shape) <= rank and all(
        w is None or n is None or w in (n, 1)
        for w, n in zip(shape_of(weight), tuple(lead_shape), strict=False)
    )
    if not fits:
        raise ValueError(
            invalid(
                "`sample_weight` must have the shape of the labels, or one "
                "weight per sample",
                **{
                    "sample_weight.shape": shape_of(sample_weight),
                    "labels.shape": tuple(lead_shape),
                },
            )
        )
    for _ in range(rank - len(weight.shape)):
        weight = ops.expand_dims(weight, -1)
    lowest = concrete(ops.min(weight)) if 0 not in shape_of(weight) else None
    if lowest is not None and not lowest >= 0:
        raise ValueError(
            invalid("`sample_weight` must be >= 0", minimum=float(lowest))
        )
    return weight


def top1(outputs: Any, *, from_logits: bool) -> TopOne:
    """Predicted class, confidence and log-odds (NumPy or backend tensors).

    Args:
        outputs: Logits or probabilities `(n, num_classes)`.
        from_logits: Which of the two.
    """
    xp = namespace(outputs)
    predicted = xp.argmax(outputs, axis=-1)
    if not from_logits:
        # Of the largest probability alone, so that samples tie as given.
        confidence = xp.clip(xp.max(outputs, axis=-1), 0.0, 1.0)
        one = confidence == 1.0
        inside = xp.where(one, xp.full_like(confidence, 0.5), confidence)
        log_odds = _log(inside) - xp.log1p(-inside)
        log_odds = xp.where(one, xp.full_like(log_odds, np.inf), log_odds)
        return TopOne(predicted, confidence, log_odds)
    classes = xp.arange(outputs.shape[-1])
    at_top = classes == xp.expand_dims(predicted, -1)
    others = xp.where(at_top, xp.full_like(outputs, -np.inf), outputs)
    log_odds = xp.max(outputs, axis=-1) - logsumexp(others)
    # The argument of exp is never positive here: log_odds >= -log(K - 1).
    e = xp.exp(-xp.abs(log_odds))
    confidence = xp.where(log_odds >= 0, 1.0 / (1.0 + e), e / (1.0 + e))
    return TopOne(predicted, confidence, log_odds)


def _log(p: Any) -> Any:
    """log(p), floored (either)."""
    xp = namespace(p)
    return xp.log(xp.maximum(p, PROBABILITY_FLOOR))


def read_arrays(
    labels: Any,
    outputs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    name: str = "probs",
) -> Predictions:
    """Whole data sets as NumPy arrays in the precision they have.

    Half precision becomes float32. Rows of the ignored class are dropped.

    Args:
        labels: Labels as in `read_labels`.
        outputs: `(batch, ..., num_classes)` or `(batch, ..., 1)`.
        from_logits: Whether `outputs` are logits.
        sample_weight: As in `read_weight`, or None.
        ignore_class: Class id that does not count, or None.
        name: What the caller calls `outputs`, for errors.

    Returns:
        Predictions of NumPy arrays, `valid` None, labels int64 ids or
        float soft labels.

    Raises:
        ValueError: Also if there is no sample, or a prediction is NaN.
    """
    labels, outputs = to_numpy(labels), to_numpy(outputs)
    check_rank(name, outputs, 2, "(batch, ..., num_classes)")
    if outputs.dtype not in (np.float32, np.float64):
        outputs = outputs.astype("float32")
    check_not_empty(name, outputs)
    if np.isnan(np.sum(outputs)) and np.isnan(outputs).any():
        raise ValueError(
            invalid(
                f"`{name}` must not contain NaN",
                **{"NaN rows": int(np.isnan(outputs).any(-1).sum())},
            )
        )
    lead = outputs.shape[:-1]
    ids_or_soft, valid = _read_numpy_labels(labels, outputs, ignore_class)
    if not from_logits:
        _check_probabilities(outputs, name)
    if outputs.shape[-1] == 1:
        other = np.zeros_like(outputs) if from_logits else 1 - outputs
        outputs = np.concatenate([other, outputs], axis=-1)
    if sample_weight is not None:
        weight = to_numpy(sample_weight, "float64")
        # Checked as any weight, but kept in float64 on every backend.
        shape = shape_of(read_weight(weight, lead))
        sample_weight = np.broadcast_to(weight.reshape(shape), lead)
        sample_weight = sample_weight.reshape(-1)
    outputs = outputs.reshape(-1, outputs.shape[-1])
    if valid is not None:
        keep = valid.reshape(-1)
        outputs, ids_or_soft = outputs[keep], ids_or_soft[keep]
        if sample_weight is not None:
            sample_weight = sample_weight[keep]
        check_not_empty(f"{name} of valid samples", outputs)
    return Predictions(ids_or_soft, outputs, from_logits, sample_weight, None)


def _read_numpy_labels(labels, outputs, ignore_class):
    """The checks of `read_labels`, then flat float64-safe NumPy labels."""
    read, valid = read_labels(labels, outputs, ignore_class=ignore_class)
    valid = None if valid is None else to_numpy(valid)
    if len(read.shape) == outputs.ndim - 1:
        return to_numpy(read, "int64").reshape(-1), valid
    num_classes = max(outputs.shape[-1], 2)
    soft = to_numpy(read)
    if labels.dtype == np.float64 and labels.shape == soft.shape:
        soft = labels
    return soft.reshape(-1, num_classes), valid


def _two_classes(second: Any) -> Any:
    second = at_least_float32(second)
    bounds = _min_max(second)
    if bounds is not None and not (bounds[0] >= 0 and bounds[1] <= 1):
        raise ValueError(
            invalid(
                "`y_true` must lie in [0, 1] for binary outputs",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )
    return ops.stack([1.0 - second, second], axis=-1)


def _check_axis(axis: int, rank: int) -> None:
    if not -rank <= axis < rank:
        raise ValueError(
            invalid(
                "`axis` must be an axis of `y_pred`",
                axis=axis,
                **{"y_pred rank": rank},
            )
        )


def _check_label_shape(y_true, y_pred, expected):
    got = shape_of(y_true)
    if len(got) != len(expected) or any(
        a is not None and b is not None and a != b
        for a, b in zip(got, expected, strict=True)
    ):
        raise ValueError(
            invalid(
                "`y_true` must be class ids or one-hot or soft labels that "
                "fit `y_pred`",
                **{
                    "y_true.shape": got,
                    "y_pred.shape": shape_of(y_pred),
                },
            )
        )


def _min_max(x: Any) -> tuple[float, float] | None:
    if 0 in shape_of(x):
        return None
    low = concrete(ops.min(x))
    if low is None:
        return None
    return low.item(), concrete(ops.max(x)).item()


def _check_ids(ids: Any, num_classes: int | None) -> None:
    bounds = _min_max(ids)
    if bounds is None or num_classes is None:
        return
    if not (bounds[0] >= 0 and bounds[1] < num_classes):
        raise ValueError(
            invalid(
                f"`y_true` must hold class ids in [0, {num_classes})",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )
    if "int" in str(ids.dtype) or "bool" in str(ids.dtype):
        return
    if not concrete(ops.all(ops.equal(ids, ops.round(ids)))):
        raise ValueError(
            invalid(
                "`y_true` of the shape of class ids must hold whole numbers",
                dtype=str(ids.dtype),
            )
        )


def _check_soft_labels(labels: Any) -> None:
    if 0 in shape_of(labels):
        return
    off = concrete(ops.max(ops.abs(ops.sum(labels, axis=-1) - 1.0)))
    if off is not None and not off <= _SUM_TOLERANCE:
        raise ValueError(
            invalid(
                "`y_true` must sum to 1 over the classes; multi-label "
                "targets are not supported",
                **{"largest difference from 1": float(off)},
            )
        )


def _check_probabilities(probs: Any, name: str = "y_pred") -> None:
    bounds = _min_max(probs)
    tolerance = 1e-3
    if bounds is not None and (
        bounds[0] < -tolerance or bounds[1] > 1 + tolerance
    ):
        raise ValueError(
            invalid(
                f"`{name}` must be probabilities in [0, 1]; pass "
                "`from_logits=True` for logits",
                minimum=bounds[0],
                maximum=bounds[1],
            )
        )
