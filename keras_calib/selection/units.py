"""Units as a whole: images, texts or patients, each of which has many rows."""

from typing import Any

import numpy as np

from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.predictions.predictions import Predictions
from keras_calib.selection.ladder import read_outcomes


def of_units(
    scores: Any,
    correct: Any,
    cost: Any,
    sample_weight: Any,
    units: Any,
    largest_cost: float,
) -> Outcomes:
    """The mean score and the mean cost of each unit that has a row that counts.

    The rows are as in `read_outcomes`. `units` has that of each row. True takes
    those that `Predictions` tell, or else the first axis. The score of
    `Predictions` is the confidence of all rows, as in use nobody knows which of
    them the labels ignore. A cost may be of each unit of the first axis.
    """
    told = scores if isinstance(scores, Predictions) else None
    shape = as_array(scores, "scores").shape if told is None else told.shape
    if units is True:
        units = None if told is None else told.units
        units = np.arange(shape[0]) if units is None else units
    codes = read_groups(units, shape, "units")[1]
    if cost is not None:
        correct = as_array(cost, "cost", "float64")
        if correct.shape == shape[:1]:
            correct = correct.reshape(-1, *[1] * (len(shape) - 1))
            correct = np.broadcast_to(correct, shape)
    rows = every = read_outcomes(
        scores,
        correct,
        sample_weight,
        largest_cost=None if cost is None else largest_cost,
        units=codes,
    )
    if told is not None:
        if told.ignore_class is not None:
            labels = np.full(shape, int(told.ignore_class == 0))
            told = told.with_columns({"labels": labels})
        every = told.outcomes(every=True)
        every = every._replace(score=every.confidence, unit=codes.reshape(-1))
        every = every.counted()
    _, score = _means(every, every.score, codes)
    mass, cost = _means(rows, rows.loss, codes)
    cost, score = cost[mass > 0], score[mass > 0]
    # Means are rounded.
    cost = np.minimum(cost, largest_cost)
    return Outcomes(score, cost == 0.0, cost, np.ones(len(cost)))


def _means(
    rows: Outcomes, values: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weight of each unit `(num_units,)`, and the mean of its values."""
    weight = np.ones(len(values)) if rows.weight is None else rows.weight
    mass, total = (
        np.bincount(rows.unit, x, codes.max() + 1)
        for x in (weight, weight * values)
    )
    return mass, safe_divide(total, mass)
