"""What a model said: `Predictions`, the noun that every function takes.

Lives here: the pass over data, in which each example is predicted once, in
order; what was said, in memory or on disk; files of it, and their columns.
Not here: values computed from predictions, and logs that grow (`reporting`).
Floor: above `inputs`, beside `formulas`.

Files, in this order: `tables` reads columns of any form, `roles` says what a
column holds, `correctness` reads right and wrong, `reader` and `writer` make
`Predictions` of a file and a file of `Predictions`.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.predictions.predictions import Predictions

__all__ = ["Predictions"]

__getattr__ = late_names(__name__, {"predictions": "Predictions"})
