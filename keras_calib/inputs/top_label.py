"""Confidence and correctness of whole data sets, exact."""

from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.batch import Batch, standardize_arrays
from keras_calib.inputs.checks import MODES, check_in
from keras_calib.inputs.options import ArrayOptions, GivenTogether
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import of_one_output
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import sigmoid

__all__ = [
    "check_two_classes",
    "event_of",
    "hard_labels",
    "top_label",
    "top_of_all",
    "top_of_arrays",
]


def top_label(
    labels: Any, outputs: Any = None, **options: Unpack[ArrayOptions]
) -> Outcomes:
    """Read arrays, and return confidence and correctness of predictions.

    A log has nothing else.
    """
    if isinstance(labels, GivenTogether) and labels.kind == "records":
        labels.arguments(outputs, dict(options))
        return labels.outcomes()
    return top_of_arrays(standardize_arrays(labels, outputs, **options))


def top_of_all(
    labels: Any, outputs: Any, **options: Unpack[ArrayOptions]
) -> Outcomes:
    """The same, with a mask of rows that are left out in `top_label`."""
    read = standardize_arrays(labels, outputs, drop=False, **options)
    return top_of_arrays(read)._replace(mask=read.mask)


def top_of_arrays(read: Batch) -> Outcomes:
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
    return Outcomes(score, correct, weight=read.weight, confidence=confidence)


def event_of(
    labels: Any, outputs: Any, mode: str, **options: Unpack[ArrayOptions]
) -> Outcomes:
    """Read arrays, and return the forecasts of an event and whether it is.

    In the mode `"top_label"` it is that the prediction is correct, in
    `"binary"` that the class is the second of two.
    """
    check_in("mode", mode, MODES)
    if isinstance(labels, GivenTogether) and labels.kind == "records":
        # The event is that the answer is right.
        check_in("mode", mode, ("top_label",))
        return top_label(labels, outputs, **options)
    if mode == "binary":
        outputs = of_one_output(outputs, "outputs")
    read = standardize_arrays(labels, outputs, **options)
    if mode == "top_label":
        return top_of_arrays(read)
    check_two_classes(read.outputs)
    forecast = read.outputs[:, 1]
    score = forecast
    if read.from_logits:
        score = forecast - read.outputs[:, 0]
        forecast = sigmoid(score)
    positive = read.labels[:, 1] if read.votes else hard_labels(read.labels)
    correct = positive.astype("float64")
    return Outcomes(score, correct, weight=read.weight, confidence=forecast)


def check_two_classes(outputs: Any) -> None:
    """Raise unless outputs `(n, num_classes)` are of two classes."""
    if outputs.shape[-1] != 2:
        raise value_error(
            '`mode="binary"` needs one output, or two classes; '
            '`mode="top_label"` takes any number',
            classes=outputs.shape[-1],
        )


def hard_labels(labels: Any) -> Any:
    """Class ids `(n,)` of ids or of soft labels (array-agnostic)."""
    if len(labels.shape) == 1:
        return labels
    return array_namespace(labels).argmax(labels, axis=-1)
