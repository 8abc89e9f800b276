"""How a streaming metric reads a batch.

A batch in the memory of the host that has no fault is read by NumPy, which is
faster. All others are read as tensors, where what is wrong with them is found.
"""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import backend, ops

from keras_calib.backend.compiled import run_by_xla
from keras_calib.backend.errors import value_error
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.backend.locks import STATES, unbroken
from keras_calib.backend.replicas import assign_sum, num_replicas
from keras_calib.backend.traced import host_array, is_traced
from keras_calib.inputs import config
from keras_calib.inputs.batch import Batch, read_arrays, standardize
from keras_calib.inputs.checks import located
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import (
    check_row_sums,
    resembles_probabilities,
    usable_outputs,
)
from keras_calib.inputs.values import (
    Rule,
    Rules,
    both,
    enforce,
    has_values,
    in_unit_interval,
    is_made_up,
)
from keras_calib.inputs.weights import check_weight_scale, standardize_weights
from keras_calib.metrics.states.records import split_rows
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import as_numbers, on_host, shape_of, to_numpy
from keras_calib.numerics.hashing import sample_pixels
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import log_odds_of


def add_on_host(
    metric: Any, y_true: Any, y_pred: Any, sample_weight: Any
) -> bool:
    """Add a batch to the state of a metric by NumPy; False if it cannot."""
    found = read_on_host(metric, metric.summary, y_true, y_pred, sample_weight)
    return found is not None and _add_records(metric, *found)


def add_rows(metric: Any, batch: Batch) -> bool:
    """Add what `read_without_faults` read, as `add_on_host` does.

    So several metrics, or a metric and others, read a batch once.
    """
    if not _takes_arrays(metric, metric.summary):
        return False
    found = _records_of(metric.summary, batch)
    return found is not None and _add_records(metric, *found)


def read_on_host(
    metric: Any, summary: Any, y_true: Any, y_pred: Any, sample_weight: Any
) -> tuple[Outcomes, np.ndarray] | None:
    """Records and flags that a metric adds for a batch; None if it cannot.

    The summary may be that of another metric, as in `PerImage`. It says what it
    reads in `on_host`: `"records"`, or `"tensors"` or `"arrays"` if it needs
    the outputs of all classes too.
    """
    if not _takes_arrays(metric, summary):
        return None
    batch = read_without_faults(
        y_true, y_pred, sample_weight, metric.options, dtype="float32"
    )
    return None if batch is None else _records_of(summary, batch)


def _takes_arrays(metric: Any, summary: Any) -> bool:
    """Whether the state is in the memory of the host, and one."""
    if getattr(summary, "on_host", None) is None or num_replicas() > 1:
        return False
    # None where it is traced, or on another device.
    return host_array(ops.convert_to_tensor(metric.flags)) is not None


def _records_of(
    summary: Any, batch: Batch
) -> tuple[Outcomes, np.ndarray] | None:
    """Records and flags of rows without faults; None if weights have one."""
    outputs, weight = batch.outputs, batch.weight
    if summary.on_host != "records" and len(outputs) > max_rows(summary):
        return None
    if weight is not None:
        with np.errstate(over="ignore"):
            weight = weight.astype("float32")
        if batch.mask is not None:
            weight = np.where(batch.mask, weight, np.float32(0.0))
        rules = Rules()
        check_weight_scale(weight, rules=rules)
        if not rules.hold:
            return None
        batch = batch._replace(weight=weight)
    fractional = weight is not None and (weight != np.floor(weight)).any()
    looks_wrong = batch.from_logits and resembles_probabilities(outputs)
    # In the order of the flags in `base`.
    flags = np.array([0, fractional, 0, looks_wrong], "int32")
    return outcomes_of_rows(batch, summary.on_host), flags


def _add_records(metric: Any, records: Outcomes, flags: np.ndarray) -> bool:
    """Add records to the state of a metric; True."""
    summary = metric.summary
    with np.errstate(all="ignore"):
        added = [
            on_host(summary.update(part))
            for part in split_rows(records, max_rows(summary))
        ]
    add_limbs(metric, added, flags)
    return True


def add_limbs(metric: Any, added: list[Any], found: Any) -> None:
    """Add limbs and flags, arrays or tensors, to the state of a metric."""
    by_numpy = isinstance(found, np.ndarray)
    # Replicas have a state each.
    alone = not by_numpy and (
        num_replicas() > 1 or is_traced(ops.convert_to_tensor(metric.flags))
    )
    with contextlib.nullcontext() if alone else STATES:
        sums, flags = map(ops.convert_to_tensor, (metric.sums, metric.flags))
        if by_numpy:
            sums, flags = on_host(sums), on_host(flags)
        for limbs in added:
            sums = exact_sums.add(sums, limbs)
        # Both are computed before either is stored.
        flags = flags + found
        with contextlib.nullcontext() if alone else unbroken():
            assign_sum(metric.flags, flags)
            assign_sum(metric.sums, sums)


def max_rows(summary: Any) -> int:
    """Number of rows that a summary adds at once."""
    return getattr(summary, "max_rows", exact_sums.MAX_BATCH)


def read_without_faults(
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
    options: ReadOptions,
    dtype: str | None = None,
) -> Batch | None:
    """Rows of a batch in the memory of the host; None if it may have a fault.

    The facts of its rows are in `dtype`, or in that of the rows.
    """
    if options.objectness or options.pixels_per_image is not None:
        return None
    arrays: list[Any] = [
        host_array(as_numbers(y_pred, options.names[1])),
        host_array(as_numbers(y_true, options.names[0])),
    ]
    if sample_weight is not None:
        arrays.append(host_array(as_numbers(sample_weight, "sample_weight")))
    if any(x is None or 0 in x.shape for x in arrays):
        return None
    outputs, labels, *weight = arrays
    # Of float64, backends round the difference from 1 in ways of their own.
    if outputs.dtype == np.float64 and 1 in outputs.shape[1:]:
        return None
    if keras_mask(y_pred, outputs.ndim - 1) is not None:
        return None
    rules = Rules()
    batch = read_arrays(
        labels,
        outputs,
        weight[0] if weight else None,
        options,
        rules=rules,
        dtype=dtype,
    )
    return batch if rules.hold else None


def outcomes_of_rows(batch: Batch, form: str) -> Outcomes:
    """Outcomes of rows on the host, with their `Batch` as `form` says.

    That of `"records"` lacks outputs. Others are float32 arrays or tensors.
    """
    facts: Any = batch.facts
    if facts.largest.dtype != np.float32:
        facts = read_rows(
            batch.outputs, from_logits=batch.from_logits, dtype="float32"
        )
    labels, weight, mask = batch.labels, batch.weight, batch.mask
    zero, score = np.float32(0.0), None
    if mask is None:
        mask = np.ones(len(labels), "bool")
    if batch.votes:
        share = labels[np.arange(len(labels)), facts.predicted]
        correct = np.where(mask, share, zero).astype("float32")
    else:
        known: Any = batch.label_facts
        ids = labels if known is None else known.predicted
        correct = (facts.predicted == ids).astype("int32")
    if batch.from_logits:
        score = np.where(mask, facts.log_odds, zero)
    rows = batch._replace(outputs=None, facts=None, label_facts=None, mask=mask)
    if form != "records":
        if labels.ndim > 1:
            labels = labels.astype("float32", copy=False)
        outputs = batch.outputs.astype("float32", copy=False)
        fields = {"labels": labels, "outputs": outputs, "mask": mask}
        if form == "tensors":
            fields = {k: ops.convert_to_tensor(x) for k, x in fields.items()}
        rows = rows._replace(**fields)
    return Outcomes(
        score=score,
        correct=correct,
        weight=weight,
        confidence=np.where(mask, facts.confidence, zero),
        mask=mask,
        rows=rows,
    )


def read_batch(
    y_true: Any, y_pred: Any, sample_weight: Any, options: ReadOptions
) -> tuple[Batch, Any]:
    """Read one batch as flat tensors, and count its invalid samples.

    The float32 Batch has a mask, never None. In eager mode an invalid sample
    raises an error.
    """
    rules = Rules(config.validates())
    batch = standardize(y_true, y_pred, sample_weight, options, rules=rules)
    if options.pixels_per_image is not None:
        batch = _some_pixels(batch, options.pixels_per_image, options)
    # All but class ids and masks in float32.
    batch = batch.flat().each(_measured)
    if is_empty(batch):
        return batch, ops.zeros((), dtype="int32")
    usable = run_by_xla(
        lambda rows: usable_outputs(rows, options.from_logits),
        batch.outputs,
        only_if=options.jit_compile,
    )
    mask, weight, num_invalid = _resolve_mask(
        batch.mask,
        batch.weight,
        usable,
        batch.possible_labels(rules, name=options.names[1]),
        rules,
        lambda invalid_mask: _judge(invalid_mask, batch, options.names[1]),
    )
    if options.columns > 1:
        mask, weight = _whole_examples(batch, mask, weight, options.columns)
    return batch._replace(mask=mask, weight=weight), num_invalid


def read_scores(
    confidence: Any,
    correct: Any,
    sample_weight: Any,
    *,
    is_confidence: bool,
    votes: bool = False,
) -> tuple[Outcomes, Any]:
    """Read outcomes of logs as flat tensors, and count the invalid ones.

    With `votes`, correctness is a share of votes.
    """
    score = ops.cast(as_numbers(confidence, "confidence"), "float32")
    correct = ops.cast(as_numbers(correct, "correct"), "float32")
    if shape_of(score) != shape_of(correct):
        raise value_error(
            "`correct` must have the shape of `confidence`",
            **{
                "correct.shape": shape_of(correct),
                "confidence.shape": shape_of(score),
            },
        )
    weight: Any = sample_weight
    rules = Rules(config.validates())
    if weight is not None:
        weight = standardize_weights(weight, shape_of(score), rules)
        weight = ops.broadcast_to(weight, ops.shape(score))
        weight = ops.reshape(ops.cast(weight, "float32"), (-1,))
    score, correct = ops.reshape(score, (-1,)), ops.reshape(correct, (-1,))
    if votes:
        is_flag = ops.logical_and(correct >= 0.0, correct <= 1.0)
    else:
        is_flag = ops.logical_or(correct == 0.0, correct == 1.0)
    inside = in_unit_interval(score) if is_confidence else ops.isfinite(score)
    mask, weight, num_invalid = _resolve_mask(
        None,
        weight,
        ops.logical_and(is_flag, inside),
        None,
        rules,
        lambda found: _raise_invalid(found, "`confidence` or `correct`"),
    )
    score = ops.where(mask, score, ops.zeros_like(score))
    confidence = ops.clip(score, 0.0, 1.0) if is_confidence else None
    if votes:
        correct = ops.where(mask, correct, ops.zeros_like(correct))
    else:
        correct = ops.cast(correct != 0.0, "int32")
    records = Outcomes(
        score=log_odds_of(confidence) if is_confidence else score,
        correct=correct,
        weight=weight,
        confidence=confidence,
        mask=mask,
    )
    return records, num_invalid


def is_empty(batch: Batch) -> bool:
    """Whether the batch is known to have no rows."""
    return batch.outputs.shape[0] == 0


def _resolve_mask(
    user_mask: Any,
    weight: Any,
    finite_mask: Any,
    label_mask: Any,
    rules: Rules,
    judge: Callable[[np.ndarray], None],
) -> tuple[Any, Any, Any]:
    """The mask of valid samples, weights that are 0 elsewhere, and a count.

    `finite_mask` marks valid outputs and `label_mask` valid labels. Labels with
    known values were checked before, except in the made-up batches of Keras.
    `judge` raises an error for invalid samples, or lets them pass.
    """
    counted_by_user = user_mask
    if weight is not None:
        # Weights with known values are checked below.
        good = ops.logical_and(ops.isfinite(weight), weight >= 0)
        finite_mask = ops.logical_and(finite_mask, good)
        has_weight = ops.logical_or(weight > 0, ops.logical_not(good))
        counted_by_user = both(user_mask, has_weight)
    is_eager = has_values(finite_mask)
    if label_mask is not None and not is_eager:
        finite_mask = ops.logical_and(finite_mask, label_mask)
    invalid_mask = both(ops.logical_not(finite_mask), counted_by_user)
    num_invalid = ops.sum(ops.cast(invalid_mask, "int32"))
    if is_eager:
        rules.append(
            Rule(
                ops.equal(num_invalid, 0), lambda: judge(to_numpy(invalid_mask))
            )
        )
        if weight is not None:
            shown = ops.where(both(counted_by_user, good), weight, 0.0)
            check_weight_scale(shown, rules=rules)
        enforce(rules)
        # What passed the judge is valid.
        finite_mask = ops.logical_or(finite_mask, invalid_mask)
        num_invalid = ops.zeros_like(num_invalid)
        if label_mask is not None:
            finite_mask = ops.logical_and(finite_mask, label_mask)
    mask = both(finite_mask, user_mask)
    if weight is not None:
        weight = ops.where(mask, weight, ops.zeros_like(weight))
    return mask, weight, num_invalid


def _whole_examples(
    batch: Batch, mask: Any, weight: Any, columns: int
) -> tuple[Any, Any]:
    """Mask and weights without examples that have an invalid label.

    `batch` has the mask and the weights that were given.
    """
    invalid = both(ops.logical_not(mask), batch.counted)
    invalid = ops.reshape(invalid, (-1, columns))
    lost = ops.broadcast_to(
        ops.any(invalid, axis=-1, keepdims=True), ops.shape(invalid)
    )
    mask = ops.logical_and(mask, ops.logical_not(ops.reshape(lost, (-1,))))
    if weight is not None:
        weight = ops.where(mask, weight, ops.zeros_like(weight))
    return mask, weight


def _judge(invalid_mask: np.ndarray, batch: Batch, name: str) -> None:
    """Raise an error, of row sums if nothing else is wrong with the rows."""
    if not batch.from_logits:
        if is_made_up(batch.outputs):
            return
        rows = to_numpy(batch.outputs)
        if in_unit_interval(rows[invalid_mask]).all():
            check_row_sums(rows, name, invalid_mask)
    _raise_invalid(invalid_mask, f"`{name}`")


def _raise_invalid(invalid_mask: np.ndarray, what: str) -> None:
    raise value_error(
        f"{what} must not contain NaN or infinity or values out of range, "
        "except in samples that are ignored or of weight 0",
        **located(invalid_mask),
    )


def _measured(x: Any) -> Any:
    """Numbers in float32; class ids and masks as they are."""
    is_rows = len(x.shape) > 1
    measures = is_rows or backend.is_float_dtype(x.dtype)
    return ops.cast(x, "float32") if measures else x


def _some_pixels(batch: Batch, count: int, options: ReadOptions) -> Batch:
    """Draw a few pixels of each image, `(batch, count)`."""
    lead = shape_of(batch.outputs)[:-1]
    if len(lead) < 2 or None in lead[1:]:
        raise value_error(
            "`pixels_per_image` needs predictions of shape "
            "(batch, ..., num_classes) with a known number of pixels",
            **{f"{options.names[1]}.shape": shape_of(batch.outputs)},
        )
    num_pixels = math.prod(lead[1:])

    def by_image(x):
        return ops.reshape(x, (-1, num_pixels, *x.shape[len(lead) :]))

    labels = by_image(batch.labels)
    ids = labels if len(labels.shape) == 2 else ops.argmax(labels, axis=-1)
    mask = None if batch.mask is None else by_image(batch.mask)
    places = sample_pixels(ops.cast(ids, "int32"), mask, count, options.seed)

    def chosen(x):
        x = by_image(x)
        axes = [1] * (len(x.shape) - 2)
        index = ops.reshape(places, (-1, places.shape[-1], *axes))
        return ops.take_along_axis(x, index, axis=1)

    return batch.each(chosen)
