"""Held-out data as the served layer will see them: float32, by blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.functional.ranking import rank
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import Top1
from keras_calib.numerics.softmax import is_wrong
from keras_calib.numerics.softmax import top1

__all__ = [
    "apply_score",
    "area",
    "by_blocks",
    "scored",
]

# Numbers in work at a time.
_BLOCK = 2**24


def apply_score(function: Any, logits: Any) -> Any:
    """Scores `(...)` of logits; of `"msp"` log-odds, which do not saturate."""
    if shape_of(logits)[-1] == 1:
        raise value_error(
            "`logits` must be of every class: make one output z into "
            "[0, z] before it is calibrated",
            **{"logits.shape": shape_of(logits)},
        )
    if function == "msp":
        return top1(logits, from_logits=True).score
    return function(logits)


def scored(read: Batch, function: Any) -> Top1:
    """Score and correctness of every prediction."""
    score = by_blocks(lambda z: apply_score(function, z), read.outputs)
    if score.shape != read.outputs.shape[:1]:
        raise value_error(
            "`score` must return one value per sample",
            **{"score.shape": score.shape, "samples": len(read.outputs)},
        )
    wrong = is_wrong(read.outputs, hard_labels(read.labels))
    return Top1(score, score, 1.0 - wrong.astype("float64"), read.weight)


def area(top: Top1) -> float:
    """AURC, exact, the mean over orders of tied samples."""
    return float(aurc_of_groups(rank(top)))


def by_blocks(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    """What a function of rows returns, float32, of some rows at a time."""
    rows = max(1, _BLOCK // max(1, x[:1].size))
    parts = [
        to_numpy(function(ops.convert_to_tensor(x[i : i + rows])), "float32")
        for i in range(0, len(x), rows)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
