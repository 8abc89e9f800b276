"""How a streaming metric reads a batch in the memory of the host, by NumPy.

Only batches without any fault are read here. All others are left to
`reading`, which finds what is wrong with them.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.host import host_array
from keras_calib.backend.keras_internals import keras_mask
from keras_calib.backend.locks import STATES
from keras_calib.backend.replicas import assign_sum, num_replicas
from keras_calib.inputs.batch import Batch, both
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.readers import is_ignored
from keras_calib.inputs.rows import (
    both_classes,
    is_sound,
    resembles_probabilities,
    without_harm,
)
from keras_calib.inputs.top_label import hard_labels
from keras_calib.inputs.values import SUM_TOLERANCE, WEIGHT_SCALE, are_allowed
from keras_calib.inputs.votes import shares_of_rows
from keras_calib.metrics.states.records import split_rows
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import as_numbers, on_host
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import Top1

__all__ = ["add_limbs", "add_on_host", "read_on_host"]

_FLOATS = ("bfloat16", "float16", "float32", "float64")


def add_on_host(
    metric: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
) -> bool:
    """Add a batch to the state of a metric by NumPy; False if it cannot."""
    summary = metric.summary
    found = read_on_host(metric, summary, y_true, y_pred, sample_weight)
    if found is None:
        return False
    records, flags = found
    with np.errstate(all="ignore"):
        added = [
            on_host(summary.update(part))
            for part in split_rows(records, _max_rows(summary))
        ]
    add_limbs(metric, added, flags)
    return True


def read_on_host(
    metric: Any,
    summary: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any,
) -> tuple[Top1, np.ndarray] | None:
    """Records and flags that a metric adds for a batch; None if it cannot.

    The summary may be that of another metric, as in `PerImage`. It says what it
    reads in `on_host`: `"records"`, or `"tensors"` or `"arrays"` if it needs
    the outputs of all classes too.
    """
    form = getattr(summary, "on_host", None)
    if form is None or num_replicas() > 1:
        return None
    # None where it is traced, or on another device.
    if host_array(ops.convert_to_tensor(metric.flags)) is None:
        return None
    read = _read(y_true, y_pred, sample_weight, metric.options)
    if read is None:
        return None
    records, outputs = read
    if form != "records":
        if len(outputs) > _max_rows(summary):
            return None
        records = _with_rows(records, outputs, form)
    weight, looks_wrong = records.weight, False
    fractional = weight is not None and (weight != np.floor(weight)).any()
    if metric.options.from_logits:
        looks_wrong = resembles_probabilities(outputs)
    # In the order of the flags in `base`.
    return records, np.array([0, fractional, 0, looks_wrong], "int32")


def add_limbs(metric: Any, added: list[np.ndarray], found: np.ndarray) -> None:
    """Add limbs and flags to the state of a metric."""
    with STATES:
        sums, flags = (
            on_host(ops.convert_to_tensor(variable))
            for variable in (metric.sums, metric.flags)
        )
        for limbs in added:
            sums = exact_sums.add(sums, limbs)
        assign_sum(metric.flags, flags + found)
        assign_sum(metric.sums, sums)


def _max_rows(summary: Any) -> int:
    return getattr(summary, "max_rows", exact_sums.MAX_BATCH)


def _read(
    y_true: Any, y_pred: Any, sample_weight: Any, options: ReadOptions
) -> tuple[Top1, np.ndarray] | None:
    """Top-1 records of a batch without faults, and its rows; None for others.

    `rows` of the records is the `Batch` without outputs.
    """
    if options.objectness or options.pixels_per_image is not None:
        return None
    outputs = host_array(as_numbers(y_pred, "y_pred"))
    if outputs is None or outputs.dtype.name not in _FLOATS:
        return None
    rank, axis = outputs.ndim, options.axis
    if rank < 2 or not -rank <= axis < rank or 0 in outputs.shape:
        return None
    if keras_mask(y_pred, rank - 1) is not None:
        return None
    outputs = np.moveaxis(outputs, axis, -1)
    weight = counts = None
    if sample_weight is not None:
        weight = _weights(sample_weight, outputs.shape[:-1])
        if weight is None:
            return None
        counts = weight != 0
    labels = host_array(as_numbers(y_true, "y_true"))
    if labels is not None and labels.ndim == rank:
        labels = np.moveaxis(labels, axis, -1)
    if options.votes:
        found = _votes(labels, outputs.shape, counts)
    else:
        found = _labels(labels, outputs.shape, counts, options.ignore_class)
    outputs = _rows(outputs, options.from_logits)
    if found is None or outputs is None:
        return None
    labels, ids, mask = found
    reading: dict[str, Any] = {
        "from_logits": options.from_logits,
        "dtype": "float32",
    }
    facts = read_rows(outputs, **reading)
    if not is_sound(facts, options.from_logits):
        counts = both(mask, counts)
        outputs = without_harm(outputs, counts, options.from_logits)
        facts = read_rows(outputs, **reading)
        if not is_sound(facts, options.from_logits):
            return None
    if options.from_logits and not are_allowed(labels, outputs).all():
        return None
    mask = np.ones(len(ids), "bool") if mask is None else mask
    if weight is not None:
        weight = np.where(mask, weight, 0.0).astype("float32")
        low, high = WEIGHT_SCALE
        if weight.max() > 0 and not low <= weight.max() <= high:
            return None
    zero = np.float32(0.0)
    correct, score = (facts.predicted == ids).astype("int32"), None
    if options.votes:
        share = labels[np.arange(len(ids)), facts.predicted]
        correct = np.where(mask, share, zero)
    if options.from_logits:
        score = np.where(mask, facts.log_odds, zero)
    records = Top1(
        confidence=np.where(mask, facts.confidence, zero),
        score=score,
        correct=correct,
        mask=mask,
        weight=weight,
        rows=Batch(
            labels,
            None,
            options.from_logits,
            weight,
            mask,
            votes=options.votes,
        ),
    )
    return records, outputs


def _weights(sample_weight: Any, lead: tuple) -> np.ndarray | None:
    """Weights `(n,)` that are valid; None for others."""
    weight = host_array(as_numbers(sample_weight, "sample_weight"))
    if weight is None or weight.size == 0 or weight.dtype.kind not in "biuf":
        return None
    if weight.ndim == len(lead) + 1 and weight.shape[-1] == 1:
        weight = weight[..., 0]
    missing = len(lead) - weight.ndim
    if missing < 0:
        return None
    weight = weight.reshape(weight.shape + (1,) * missing)
    sizes: list = [*zip(weight.shape, lead, strict=True)]
    if any(size not in (1, wanted) for size, wanted in sizes):
        return None
    if not (weight.min() >= 0 and np.isfinite(weight.max())):
        return None
    return np.broadcast_to(weight, lead).reshape(-1)


def _labels(
    labels: np.ndarray | None,
    shape: tuple,
    counts: np.ndarray | None,
    ignore_class: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Valid labels, their class ids, and the mask; None for other labels.

    `shape` is that of the outputs, classes last.
    """
    if labels is None:
        return None
    *lead, num_classes = shape
    if labels.ndim == len(shape) and labels.shape[-1] == 1:
        labels = labels[..., 0]
    if labels.shape == shape:
        if ignore_class is not None:
            return None
        labels = labels.reshape(-1, num_classes)
        facts = read_rows(labels, from_logits=False, dtype="float32")
        if not is_sound(facts, False, SUM_TOLERANCE):
            return None
        return labels, facts.predicted, None
    if labels.shape != tuple(lead):
        return None
    ids = labels.reshape(-1)
    mask = None if ignore_class is None else ~is_ignored(ids, ignore_class)
    counts = both(mask, counts)
    if counts is not None:
        # Samples to leave out may have any label.
        ids = np.where(counts, ids, 0)
    if not (ids.min() >= 0 and ids.max() < max(2, num_classes)):
        return None
    whole = ids.astype("int32", copy=False)
    if ids.dtype.kind not in "biu" and not (whole == ids).all():
        return None
    return whole, whole, mask


def _votes(
    votes: np.ndarray | None, shape: tuple, counts: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, None] | None:
    """Shares of votes, their largest classes, and no mask; None for others."""
    if votes is None or votes.shape != shape or shape[-1] == 1:
        return None
    votes = votes.reshape(-1, shape[-1]).astype("float32", copy=False)
    shares, valid = shares_of_rows(votes)
    if counts is not None:
        shares = np.where(valid[:, None], shares, np.float32(0.0))
        valid = valid | ~counts
    if not valid.all():
        return None
    return shares, hard_labels(shares), None


def _rows(outputs: np.ndarray, from_logits: bool) -> np.ndarray | None:
    """Rows `(n, num_classes)`; of one output, of both classes."""
    rows = outputs.reshape(-1, outputs.shape[-1])
    if rows.shape[-1] == 1:
        if rows.dtype == "float64":
            # The difference from 1 is rounded as the backend does.
            return None
        rows = rows.astype("float32", copy=False)
    return both_classes(rows, from_logits)


def _with_rows(records: Top1, outputs: np.ndarray, form: str) -> Top1:
    """Records with the `Batch` of float32 labels and outputs."""
    batch = records.rows
    labels = batch.labels
    if labels.ndim > 1:
        labels = labels.astype("float32", copy=False)
    outputs = outputs.astype("float32", copy=False)
    fields = {"labels": labels, "outputs": outputs, "mask": batch.mask}
    if form == "tensors":
        fields = {k: ops.convert_to_tensor(x) for k, x in fields.items()}
    return records._replace(rows=batch._replace(**fields))
