"""Predictions that users made batch by batch, written to disk as they come."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.weights import read_masked, weight_of_rows
from keras_calib.numerics.arrays import as_array
from keras_calib.predictions.spool import Spool


def spooled(batches: Any, by_label: bool) -> tuple[Spool, dict[str, Any]]:
    """Labels, outputs and weights, in a folder; and the arrays that read it."""
    if not isinstance(batches, Iterable) or hasattr(batches, "shape"):
        raise type_error(
            "`batches` must be an iterable of (labels, outputs) or (labels, "
            "outputs, sample_weight)",
            batches=type(batches).__name__,
        )
    spool, kinds, leads, weighs = Spool(), set(), set(), False
    for batch in batches:
        labels, outputs, weight = _parts(batch, by_label)
        if not len(labels):
            continue
        kinds.add((labels.ndim, outputs.ndim, outputs.shape[-1:]))
        if len(kinds) > 1:
            raise value_error(
                "batches must all have the same kind of labels, number of "
                "classes and axes",
                different=sorted(kinds),
            )
        lead = outputs.shape[: outputs.ndim - (not by_label)]
        leads.add(lead[1:])
        weighs |= weight is not None
        each = np.ones(lead, "float32")
        if weight is not None:
            each = weight_of_rows(weight, lead).reshape(lead)
        spool.add({"labels": labels, "outputs": outputs, "sample_weight": each})
    if not kinds:
        raise value_error("`batches` must hold a row", n=0)
    columns: dict[str, Any] = spool.arrays()
    if not weighs and len(leads) == 1:
        columns["sample_weight"] = None
    return spool, columns


def _parts(batch: Any, by_label: bool) -> tuple[Any, Any, Any]:
    """Labels, outputs and weights of a batch, as arrays."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        raise value_error(
            "each batch must be (labels, outputs) or (labels, outputs, "
            "sample_weight)",
            batch=type(batch).__name__,
        )
    labels, outputs, *weight = batch
    outputs, given = read_masked(
        outputs, "outputs", *(weight or [None]), by_label=by_label
    )
    if outputs.ndim == 1:
        outputs = outputs[:, None]
    labels = as_array(labels, "labels")
    if len(labels) != len(outputs):
        raise value_error(
            "`labels` and `outputs` of a batch must have one length",
            labels=len(labels),
            outputs=len(outputs),
        )
    return labels, outputs, given
