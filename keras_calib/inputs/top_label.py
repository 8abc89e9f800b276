"""Confidence and correctness of whole data sets, exact."""

from typing import Any
from typing import Unpack

import numpy as np

from keras_calib.inputs.batch import Batch
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.options import ArrayOptions
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import Top1

__all__ = [
    "hard_labels",
    "top_label",
    "top_of_arrays",
]


def top_label(labels: Any, probs: Any, **options: Unpack[ArrayOptions]) -> Top1:
    """Read arrays, and return confidence and correctness of predictions."""
    return top_of_arrays(standardize_arrays(labels, probs, **options))


def top_of_arrays(read: Batch) -> Top1:
    """Confidence and correctness of arrays that were read."""
    facts = read.facts
    if facts is None or read.from_logits:
        facts = read_rows(read.outputs, from_logits=read.from_logits)
    if read.votes:
        places = np.arange(len(read.labels)), facts.predicted
        correct = read.labels[places].astype("float64")
    else:
        wrong = facts.predicted != hard_labels(read.labels)
        correct = 1.0 - wrong.astype("float64")
    confidence = facts.confidence
    score = facts.log_odds if read.from_logits else confidence
    return Top1(confidence, score, correct, read.weight)


def hard_labels(labels: Any) -> Any:
    """Class ids `(n,)` of ids or of soft labels (array-agnostic)."""
    if len(labels.shape) == 1:
        return labels
    return array_namespace(labels).argmax(labels, axis=-1)
