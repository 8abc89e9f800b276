"""Predictions of a model on a data set, for the whole package.

Lives here: the pass over a data set or arrays, in which each example is
predicted once, in order, on one device or several. Not here: values computed
from predictions.
Floor: above `inputs`, beside `formulas`.
"""

from keras_calib.predictions.batches import (
    Examples,
    batches_of,
    predict_batches,
)

__all__ = ["Examples", "batches_of", "predict_batches"]
