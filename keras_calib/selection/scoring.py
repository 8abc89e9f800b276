"""Held-out data as the served layer will see them: float32, by blocks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid
from keras_calib.formulas.risk_coverage import aurc_of_groups
from keras_calib.functional.ranking import rank
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.top_label import TopLabel
from keras_calib.inputs.top_label import hard_labels
from keras_calib.numerics.arrays import shape_of
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import is_wrong
from keras_calib.numerics.softmax import top1

__all__ = [
    "apply_score",
    "area",
    "calibrate",
    "scored",
]

# Numbers in work at a time.
_BLOCK = 2**24


def apply_score(function: Any, logits: Any) -> Any:
    """Scores `(...)` of logits; of `"msp"` log-odds, which do not saturate."""
    if shape_of(logits)[-1] == 1:
        raise ValueError(
            invalid(
                "`logits` must be of every class: make one output z into "
                "[0, z] before it is calibrated",
                **{"logits.shape": shape_of(logits)},
            )
        )
    if function == "msp":
        return top1(logits, from_logits=True).log_odds
    return function(logits)


def calibrate(
    labels: Any,
    logits: np.ndarray,
    weight: np.ndarray | None,
    *,
    calibrator: Callable[[Any], Any] | None,
    ignore_class: int | None,
) -> Batch:
    """Calibrated logits, labels and weights, read and checked."""
    logits = logits.astype("float32", copy=False)
    read = standardize_arrays(
        labels,
        logits,
        from_logits=True,
        sample_weight=weight,
        ignore_class=ignore_class,
        name="logits",
        drop=calibrator is None,
        refuse_probabilities=True,
    )
    if calibrator is None:
        return read
    # Of every class, as served; in the shape of the logits, for layers that
    # look at neighbours.
    every = read.outputs.reshape(*logits.shape[:-1], -1)
    outputs = _by_blocks(calibrator, every).reshape(read.outputs.shape)
    rows = slice(None) if read.mask is None else read.mask
    return standardize_arrays(
        read.labels[rows],
        outputs[rows],
        from_logits=True,
        sample_weight=None if read.weight is None else read.weight[rows],
        name="logits",
    )


def scored(read: Batch, function: Any) -> TopLabel:
    """Score and correctness of every prediction."""
    score = _by_blocks(lambda z: apply_score(function, z), read.outputs)
    if score.shape != read.outputs.shape[:1]:
        raise ValueError(
            invalid(
                "`score` must return one value per sample",
                **{"score.shape": score.shape, "samples": len(read.outputs)},
            )
        )
    wrong = is_wrong(read.outputs, hard_labels(read.labels))
    return TopLabel(score, score, 1.0 - wrong.astype("float64"), read.weight)


def area(top: TopLabel) -> float:
    """AURC, exact, the mean over orders of tied samples."""
    return float(aurc_of_groups(rank(top)))


def _by_blocks(function: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    rows = max(1, _BLOCK // max(1, x[:1].size))
    parts = [
        to_numpy(function(ops.convert_to_tensor(x[i : i + rows])), "float32")
        for i in range(0, len(x), rows)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
