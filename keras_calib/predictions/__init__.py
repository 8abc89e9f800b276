"""What a model predicts on a data set: the one reader.

Lives here: the pass over a data set or arrays, in which each example is
predicted once, in order, on one device or several. Not here: what is computed
of the predictions.
Floor: above `inputs`, beside `formulas`.
"""

from keras_calib.predictions.batches import Batch
from keras_calib.predictions.batches import batches_of
from keras_calib.predictions.batches import predict_batches

__all__ = ["Batch", "batches_of", "predict_batches"]
