"""Confidence and correctness of whole data sets, exact."""

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.batch import Batch, standardize_arrays
from keras_calib.inputs.checks import MODES, check_any_weight, check_in
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.options import ArrayOptions, GivenTogether, is_log, told
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import of_one_output
from keras_calib.inputs.weights import are_binary, weight_of_rows
from keras_calib.numerics.arrays import array_namespace, as_array
from keras_calib.numerics.row_blocks import read_rows
from keras_calib.numerics.softmax import sigmoid


def top_label(
    labels: Any,
    outputs: Any = None,
    *,
    drop: bool = True,
    **options: Unpack[ArrayOptions],
) -> Outcomes:
    """Read arrays, and return confidence and correctness of predictions.

    A log keeps rows of weight 0. Others drop or mask those of an ignored class.
    """
    if not is_log(labels):
        read = standardize_arrays(labels, outputs, drop=drop, **options)
        return top_of_arrays(read)
    labels.arguments(outputs, options)
    sure, weight = labels.confidence, labels.sample_weight
    if weight is not None:
        weight = weight_of_rows(weight, sure.shape)
        check_any_weight(weight)
    return Outcomes(sure, labels.correct, weight=weight, confidence=sure)


def lead_of(labels: Any, outputs: Any = None) -> tuple[int, ...]:
    """The shape of the samples of arrays, or of `Predictions`."""
    if isinstance(labels, GivenTogether):
        outputs = labels.outputs
    shape = as_array(outputs, "outputs").shape
    return shape if is_log(labels) else shape[:-1]


def units_of(labels: Any, outputs: Any = None) -> np.ndarray | None:
    """Numbers `(n,)` of what depends on each other; None for single rows.

    It is what `Predictions` have as units, and else the example of several
    samples, such as the image of pixels.
    """
    lead, code = lead_of(labels, outputs), None
    if isinstance(labels, GivenTogether) and labels.units is not None:
        code = read_groups(labels.units, lead[:1], "units")[1]
    elif len(lead) > 1:
        code = np.arange(lead[0])
    if code is None or (len(lead) == 1 and len(np.unique(code)) == lead[0]):
        return None
    return np.repeat(code, math.prod(lead[1:]))


def has_shares(labels: Any, options: Mapping[str, Any]) -> bool:
    """Whether correctness is a share of votes, and not 0 or 1."""
    if is_log(labels):
        return not are_binary(labels.correct)
    return bool(told(labels, options).get("votes"))


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
    return Outcomes(
        score,
        correct,
        weight=read.weight,
        confidence=confidence,
        mask=read.mask,
    )


def event_of(
    labels: Any, outputs: Any, mode: str, **options: Unpack[ArrayOptions]
) -> Outcomes:
    """Read arrays, and return the forecasts of an event and whether it is.

    In the mode `"top_label"` it is that the prediction is correct, in
    `"binary"` that the class is the second of two.
    """
    check_in("mode", mode, MODES)
    if is_log(labels):
        if mode == "binary":
            raise value_error(
                '`mode` must be "top_label" for a log, which has no classes',
                mode=mode,
            )
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
