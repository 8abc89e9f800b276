"""What a model predicts on a data set: the one reader.

Whoever needs a model's predictions reads them here: each example is
predicted once, in order, on one device or several.
"""

from keras_calib.predictions.batches import Batch
from keras_calib.predictions.batches import batches_of
from keras_calib.predictions.batches import predict_batches

__all__ = ["Batch", "batches_of", "predict_batches"]
