"""Confidence and correctness of whole data sets, exact."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.inputs.batch import standardize_arrays
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.softmax import is_wrong
from keras_calib.numerics.softmax import top1

__all__ = [
    "TopLabel",
    "hard_labels",
    "top_label",
]


class TopLabel(NamedTuple):
    """Exact inputs of the calibration and selection functions, NumPy `(n,)`.

    Attributes:
        confidence: Probability of the predicted class.
        score: Ranks as the confidence does and saturates later: the
            confidence itself of probabilities, the log-odds of logits.
        correct: 1.0 where the prediction is right.
        weight: Sample weights, or None.
    """

    confidence: np.ndarray
    score: np.ndarray
    correct: np.ndarray
    weight: np.ndarray | None


def top_label(
    labels: Any,
    probs: Any,
    *,
    from_logits: bool = False,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> TopLabel:
    """Confidence and correctness of every prediction, read and checked."""
    read = standardize_arrays(
        labels,
        probs,
        from_logits=from_logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
    )
    top = top1(read.outputs, from_logits=from_logits)
    wrong = is_wrong(read.outputs, hard_labels(read.labels))
    correct = 1.0 - wrong.astype("float64")
    score = top.log_odds if from_logits else top.confidence
    return TopLabel(top.confidence, score, correct, read.weight)


def hard_labels(labels: Any) -> Any:
    """Class ids `(n,)` of ids or of soft labels (array-agnostic)."""
    if len(labels.shape) == 1:
        return labels
    return array_namespace(labels).argmax(labels, axis=-1)
