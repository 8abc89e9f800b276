"""Outcomes of a batch, which are all that most metrics need."""

import operator
from collections.abc import Iterable
from typing import Any

from keras import ops

from keras_calib.backend.gradients import add_by_rows, is_wide
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import check_two_classes, hard_labels
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace, cast
from keras_calib.numerics.softmax import (
    is_wrong,
    predicted_class,
    sigmoid,
    top1,
)


def outcomes_of(batch: Batch) -> Outcomes:
    """Outcomes of a batch of tensors; the values of masked samples are 0."""
    confidence, log_odds = top1(batch.outputs, from_logits=batch.from_logits)
    mask = batch.mask
    zero = ops.zeros_like(confidence)
    if batch.votes:
        index = ops.expand_dims(predicted_class(batch.outputs), -1)
        share = ops.take_along_axis(batch.labels, index, axis=-1)
        correct = ops.where(mask, ops.squeeze(share, axis=-1), zero)
    else:
        labels = ops.cast(hard_labels(batch.labels), "int32")
        wrong = is_wrong(batch.outputs, labels)
        correct = 1 - ops.cast(wrong, "int32")
    return Outcomes(
        score=ops.where(mask, log_odds, zero),
        correct=correct,
        confidence=ops.where(mask, confidence, zero),
        weight=batch.weight,
        mask=mask,
        rows=batch,
    )


def split_rows(batch: Any, size: int) -> Iterable[Any]:
    """Split a Batch or Outcomes with a mask into parts of `size` rows."""
    count = batch.mask.shape[0]
    if count is None or count <= size:
        yield batch
        return
    fields = {k: x for k, x in batch._asdict().items() if hasattr(x, "shape")}
    rows = getattr(batch, "rows", None)
    for start in range(0, count, size):
        part = slice(start, start + size)
        fields_of_part = {k: x[part] for k, x in fields.items()}
        if rows is not None:
            fields_of_part["rows"] = rows.each(operator.itemgetter(part))
        yield batch._replace(**fields_of_part)


def limbs_of_batch(batch: Batch, summary: Any) -> Any:
    """Limbs that a summary adds for a batch.

    Rows as wide as a vocabulary are read in blocks, as copies of all of them
    would fill the memory.
    """
    if not is_wide(batch.outputs):
        return summary.update(outcomes_of(batch))
    fields = batch._asdict()
    names = [k for k, x in fields.items() if hasattr(x, "shape")]

    def of_block(arrays, is_new):
        part = batch._replace(**dict(zip(names, arrays, strict=True)))
        part = part._replace(mask=ops.logical_and(part.mask, is_new))
        if part.weight is not None:
            zero = ops.zeros_like(part.weight)
            part = part._replace(weight=ops.where(is_new, part.weight, zero))
        return summary.update(outcomes_of(part))

    zero = ops.zeros(summary.shape, dtype="int32")
    arrays = [fields[name] for name in names]
    return add_by_rows(of_block, exact_sums.add, zero, arrays)


def second_class(records: Outcomes) -> Outcomes:
    """Records of the event that the class is the second of two.

    Its probability is the confidence. Records without outputs are such.
    """
    rows, mask = records.rows, records.mask
    if rows is None:
        return records
    xp, outputs = array_namespace(mask), rows.outputs
    check_two_classes(outputs)
    forecast, score = outputs[:, 1], None
    zero = xp.zeros_like(forecast)
    if rows.from_logits:
        score = xp.where(mask, forecast - outputs[:, 0], zero)
        forecast = sigmoid(score)
    forecast = xp.where(mask, xp.clip(forecast, 0.0, 1.0), zero)
    if rows.votes:
        correct = xp.where(mask, rows.labels[:, 1], zero)
    else:
        correct = cast(hard_labels(rows.labels), "int32")
        correct = xp.where(mask, xp.clip(correct, 0, 1), 0)
    return records._replace(confidence=forecast, score=score, correct=correct)


def by_column(columns: int | None, *values: Any) -> list[Any]:
    """Values `(n columns,)` of entries as rows `(columns, n)`, or None.

    Without columns they stay as they are.
    """
    if columns is None:
        return [*values]
    found = []
    for x in values:
        if x is not None:
            xp = array_namespace(x)
            x = xp.moveaxis(xp.reshape(x, (-1, columns)), -1, 0)
        found.append(x)
    return found


def sums_by_key(
    weight: Any, values: Any, keys: Any, num_keys: int, **options: Any
) -> tuple[Any, Any]:
    """Limbs of weights, and of weights times values in [0, 1], by key.

    Weights of None are 1. Key `num_keys` is dropped.
    """
    if weight is None:
        counts = exact_sums.count_by_key(keys, num_keys)
        return (
            exact_sums.limbs_from_counts(counts),
            exact_sums.sum_by_key(values, keys, num_keys, **options),
        )
    scale = exact_sums.power_of_two_above(weight)
    return tuple(
        exact_sums.sum_by_key(x, keys, num_keys, scale=scale)
        for x in (weight, weight * values)
    )


def weights_by_key(
    weight: Any, keys: Any, num_keys: int, *, squared: bool = False
) -> Any:
    """Limbs of weights, or of their squares, by key; weights of None are 1."""
    if weight is None:
        counts = exact_sums.count_by_key(keys, num_keys)
        return exact_sums.limbs_from_counts(counts)
    scale = exact_sums.power_of_two_above(weight)
    if squared:
        weight, scale = map(array_namespace(weight).square, (weight, scale))
    return exact_sums.sum_by_key(weight, keys, num_keys, scale=scale)


def vote_sums_by_key(
    records: Outcomes,
    values: Any,
    center: Any,
    keys: Any,
    num_keys: int,
    columns: int | None = None,
) -> tuple[Any, Any, Any]:
    """Limbs by key of records whose correctness is a share of votes.

    The first two, `(3, num_keys, 2)`, are of the weights and of the weights
    times values in [0, 1], for the correct and for the wrong part. The parts
    add up exactly to the sums over whole samples. The third, `(3, num_keys)`,
    is of the weights times (center - share)^2. With columns there is an axis
    of them after the first.

    Derivation: docs/derivations.md, 'Votes'.
    """
    share, weight, values, center, keys = by_column(
        columns, records.correct, records.weight, values, center, keys
    )
    xp = array_namespace(share)
    distance = xp.square(center - share)
    mass, total = sums_by_key(weight, values, keys, num_keys)
    scale, parts = None, [share, share * values, distance]
    if weight is not None:
        scale = exact_sums.power_of_two_above(weight)
        right = weight * share
        parts = [right, right * values, weight * distance]
    right, right_total, distances = (
        exact_sums.sum_by_key(x, keys, num_keys, scale=scale) for x in parts
    )
    return (
        *(
            xp.stack([part, exact_sums.normalize_limbs(whole - part)], axis=-1)
            for whole, part in ((mass, right), (total, right_total))
        ),
        distances,
    )
