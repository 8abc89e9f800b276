"""What a model said: `Predictions`, the noun that every function takes.

Lives here: the pass over data, in which each example is predicted once, in
order; what was said, in memory or on disk; tables of what was logged.
Not here: values computed from predictions.
Floor: above `inputs`, beside `formulas`.
"""

from keras_calib.predictions.predictions import Predictions

__all__ = ["Predictions"]
