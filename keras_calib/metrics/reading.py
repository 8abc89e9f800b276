"""How a streaming metric reads a batch, and what in it cannot count."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.inputs.checks import class_axis
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.readers import Predictions
from keras_calib.inputs.readers import split_objectness
from keras_calib.inputs.readers import standardize_labels
from keras_calib.inputs.readers import standardize_predictions
from keras_calib.inputs.readers import valid_labels_mask
from keras_calib.inputs.rows import LOOSE_TOLERANCE
from keras_calib.inputs.rows import check_row_sums
from keras_calib.inputs.rows import resembles_probabilities
from keras_calib.inputs.rows import sum_tolerance
from keras_calib.inputs.rows import usable_outputs
from keras_calib.inputs.values import check_weight_scale
from keras_calib.inputs.values import in_unit_interval
from keras_calib.inputs.values import is_made_up
from keras_calib.inputs.values import located
from keras_calib.inputs.weights import broadcast_weight
from keras_calib.inputs.weights import standardize_weights
from keras_calib.metrics.states.records import Records
from keras_calib.numerics.arrays import as_numbers
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import value_if_eager
from keras_calib.numerics.hashing import sample_pixels
from keras_calib.numerics.softmax import log_odds_of
from keras_calib.numerics.softmax import to_logits

__all__ = [
    "all_flags",
    "is_empty",
    "read_as_logits",
    "read_batch",
    "read_scores",
    "score_input",
]


def read_batch(
    y_true: Any, y_pred: Any, sample_weight: Any, options: ReadOptions
) -> tuple[Predictions, Any]:
    """One batch as flat tensors, and how many predictions cannot count.

    Returns:
        `(batch, num_invalid)`: float32 Predictions whose `valid` is never
        None, and int32, a scalar.

    Raises:
        ValueError: If shapes do not fit; in eager use, if a prediction
            cannot count.
    """
    y_pred = ops.convert_to_tensor(as_numbers(y_pred, "y_pred"))
    objectness = None
    if options.objectness:
        y_true, objectness, _ = split_objectness(y_true, options.ignore_class)
    mask = counts = keras_mask(y_pred, class_axis(y_pred, options.axis))
    weight = sample_weight
    if weight is not None:
        weight = broadcast_weight(weight, y_pred, options.axis)
        # What is wrong with a weight is for others to say.
        counts = _both(counts, ops.not_equal(weight, 0))
    labels, valid = standardize_labels(
        y_true,
        y_pred,
        axis=options.axis,
        ignore_class=options.ignore_class,
        counts=counts,
    )
    outputs = standardize_predictions(
        y_pred,
        from_logits=options.from_logits,
        axis=options.axis,
        counts=_both(valid, counts),
    )
    valid = _both(valid, mask)
    is_soft = len(labels.shape) == len(outputs.shape)
    batch = Predictions(
        labels=ops.cast(labels, "float32") if is_soft else labels,
        outputs=ops.cast(outputs, "float32"),
        from_logits=options.from_logits,
        weight=None if weight is None else ops.cast(weight, "float32"),
        valid=valid,
        objectness=None
        if objectness is None
        else ops.cast(objectness, "float32"),
    )
    if options.pixels_per_image is not None:
        batch = _some_pixels(batch, options)
    batch = _flat(batch)
    outputs = batch.outputs
    if is_empty(batch):
        return batch, ops.zeros((), dtype="int32")
    valid, weight, num_invalid = _resolve_mask(
        batch.valid,
        batch.weight,
        usable_outputs(
            outputs, options.from_logits, _tolerance(y_pred.dtype, outputs)
        ),
        valid_labels_mask(batch.labels, outputs.shape[-1]),
        outputs=outputs,
        from_logits=options.from_logits,
    )
    return batch._replace(valid=valid, weight=weight), num_invalid


def read_scores(
    confidence: Any, correct: Any, sample_weight: Any, *, is_confidence: bool
) -> tuple[Records, Any]:
    """Top-1 records as flat tensors, and how many cannot count.

    Raises:
        ValueError: If shapes differ; in eager use, if a record cannot count.
    """
    score = ops.cast(as_numbers(confidence, "confidence"), "float32")
    correct = ops.cast(as_numbers(correct, "correct"), "float32")
    if shape_of(score) != shape_of(correct):
        raise ValueError(
            invalid(
                "`correct` must have the shape of `confidence`",
                **{
                    "correct.shape": shape_of(correct),
                    "confidence.shape": shape_of(score),
                },
            )
        )
    weight = sample_weight
    if weight is not None:
        weight = standardize_weights(weight, shape_of(score))
        weight = ops.broadcast_to(weight, ops.shape(score))
        weight = ops.reshape(ops.cast(weight, "float32"), (-1,))
    score, correct = ops.reshape(score, (-1,)), ops.reshape(correct, (-1,))
    usable = ops.logical_or(correct == 0.0, correct == 1.0)
    if is_confidence:
        usable = ops.logical_and(usable, in_unit_interval(score))
    else:
        usable = ops.logical_and(usable, ops.isfinite(score))
    counted, weight, num_invalid = _resolve_mask(
        None, weight, usable, None, what="`confidence` or `correct`"
    )
    score = ops.where(counted, score, ops.zeros_like(score))
    confidence = ops.clip(score, 0.0, 1.0) if is_confidence else None
    records = Records(
        confidence=confidence,
        score=log_odds_of(confidence) if is_confidence else score,
        wrong=ops.cast(correct == 0.0, "int32"),
        counted=counted,
        weight=weight,
        rows=None,
    )
    return records, num_invalid


def read_as_logits(batch: Predictions | None, like: Any) -> Any:
    """1 if these are probabilities that are read as logits, else 0."""
    if batch is None or not batch.from_logits:
        return ops.zeros_like(like)
    return ops.cast(resembles_probabilities(batch.outputs), like.dtype)


def is_empty(batch: Predictions) -> bool:
    """Whether there is known to be no row."""
    return batch.outputs.shape[0] == 0


def all_flags(flags: Any) -> np.ndarray:
    """Flags of a state; the first versions had one less."""
    flags = np.asarray(flags)
    return np.append(flags, 0) if flags.shape == (3,) else flags


def score_input(rows: Predictions) -> Any:
    """Logits that score functions take, `(n, num_classes)`.

    0 where a row does not count: a NaN could leave it by way of a sort.
    """
    outputs = rows.outputs
    logits = outputs if rows.from_logits else to_logits(outputs)
    counted = ops.expand_dims(rows.valid, -1)
    return ops.where(counted, logits, ops.zeros_like(logits))


def _both(one: Any, other: Any) -> Any:
    """Where both hold; None holds everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return ops.logical_and(one, other)


def _tolerance(dtype: Any, outputs: Any) -> float:
    """How far sums of rows `(n, num_classes)` may be off 1.

    Compiled code does not see whether values are half precision that was cast,
    and can neither raise nor warn.
    """
    if value_if_eager(outputs[:1]) is None:
        return LOOSE_TOLERANCE
    return sum_tolerance(dtype)


def _resolve_mask(
    valid: Any,
    weight: Any,
    usable: Any,
    possible: Any,
    what: str = "`y_pred`",
    outputs: Any = None,
    from_logits: bool = True,
) -> tuple[Any, Any, Any]:
    """What counts, weights with 0 elsewhere, and how many cannot count.

    Args:
        valid: Where samples should count, or None for everywhere.
        weight: Weights as given, or None.
        usable: Where outputs are predictions.
        possible: Where labels are, or None. Labels were checked where they
            can be seen; what is left there are made-up batches of Keras.
        what: The outputs' name, for the error.
        outputs: The outputs `(n, num_classes)`, for the error, or None.
        from_logits: Whether they are logits.
    """
    shown = valid
    if weight is not None:
        # Weights were checked where they can be seen.
        good = ops.logical_and(ops.isfinite(weight), weight >= 0)
        usable = ops.logical_and(usable, good)
        seen = ops.logical_or(weight > 0, ops.logical_not(good))
        shown = seen if valid is None else ops.logical_and(valid, seen)
    num_invalid = _count_outside(usable, shown)
    count = value_if_eager(num_invalid)
    is_eager = count is not None
    if is_eager and count:
        bad = _outside(usable, shown)
        _judge(value_if_eager(bad), outputs, from_logits, what)
        usable = ops.logical_or(usable, bad)
        num_invalid = ops.zeros_like(num_invalid)
    if possible is not None:
        usable = ops.logical_and(usable, possible)
        if not is_eager:
            num_invalid = _count_outside(usable, shown)
    counted = usable if valid is None else ops.logical_and(usable, valid)
    if weight is not None:
        weight = ops.where(counted, weight, ops.zeros_like(weight))
        check_weight_scale(weight)
    return counted, weight, num_invalid


def _outside(usable: Any, shown: Any) -> Any:
    """Where samples are shown and not usable, bool `(n,)`."""
    bad = ops.logical_not(usable)
    return bad if shown is None else ops.logical_and(bad, shown)


def _count_outside(usable: Any, shown: Any) -> Any:
    """How many are, int32."""
    return ops.sum(ops.cast(_outside(usable, shown), "int32"))


def _judge(bad: np.ndarray, outputs: Any, from_logits: bool, what: str) -> None:
    """Raises, unless what is bad of rows is the precision of their sums."""
    if outputs is not None and not from_logits:
        if is_made_up(outputs):
            return
        rows = value_if_eager(outputs)
        inside = usable_outputs(rows, False, tolerance=np.inf)
        if inside[bad].all():
            check_row_sums(rows, "y_pred", bad)
            return
    raise ValueError(
        invalid(
            f"{what} must not contain NaN or infinity or values out of "
            "range where it counts",
            **located(bad),
        )
    )


def _flat(batch: Predictions) -> Predictions:
    num_classes = batch.outputs.shape[-1]

    def rows(x):
        return None if x is None else ops.reshape(x, (-1,))

    is_soft = len(batch.labels.shape) == len(batch.outputs.shape)
    return batch._replace(
        labels=ops.reshape(batch.labels, (-1, num_classes))
        if is_soft
        else rows(batch.labels),
        outputs=ops.reshape(batch.outputs, (-1, num_classes)),
        weight=rows(batch.weight),
        valid=rows(batch.valid),
        objectness=rows(batch.objectness),
    )


def _some_pixels(batch: Predictions, options: ReadOptions) -> Predictions:
    """A few pixels of each image, `(batch, count)`."""
    lead = shape_of(batch.outputs)[:-1]
    if len(lead) < 2 or None in lead[1:]:
        raise ValueError(
            invalid(
                "`pixels_per_image` needs predictions of shape "
                "(batch, ..., num_classes) with a known number of pixels",
                **{"y_pred.shape": shape_of(batch.outputs)},
            )
        )
    num_pixels = 1
    for size in lead[1:]:
        num_pixels *= size

    def by_image(x):
        return ops.reshape(x, (-1, num_pixels, *x.shape[len(lead) :]))

    labels = by_image(batch.labels)
    is_soft = len(batch.labels.shape) == len(batch.outputs.shape)
    ids = ops.argmax(labels, axis=-1) if is_soft else labels
    valid = None if batch.valid is None else by_image(batch.valid)
    places = sample_pixels(
        ops.cast(ids, "int32"), valid, options.pixels_per_image, options.seed
    )

    def chosen(x):
        if x is None:
            return None
        x = by_image(x)
        index = ops.reshape(places, (*places.shape, *[1] * (len(x.shape) - 2)))
        return ops.take_along_axis(x, index, axis=1)

    fields = {k: v for k, v in batch._asdict().items() if k != "from_logits"}
    return batch._replace(**{k: chosen(v) for k, v in fields.items()})
