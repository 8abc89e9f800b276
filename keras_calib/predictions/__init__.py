"""What a model said: `Predictions`, the noun that every function takes.

Lives here: the pass over data, in which each example is predicted once, in
order; what was said, in memory or on disk; files of it, and their columns.
Not here: values computed from predictions, and logs that grow (`reporting`).
Floor: above `inputs`, beside `formulas`.

Files are read in this order:

- `tables`: columns of any form.
- `roles`: what a column holds; `correctness`: what was right.
- `reader`: `Predictions` of a file, and `writer` the other way round.
"""

from typing import TYPE_CHECKING

from keras_calib.backend.late import late_names

if TYPE_CHECKING:
    from keras_calib.predictions.predictions import Predictions

__all__ = ["Predictions"]

__getattr__ = late_names(__name__, {"predictions": "Predictions"})
