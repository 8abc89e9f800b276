"""The pilot of `keras-calib plan`: scores and correctness of a file."""

import argparse

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.functional.ranking import top_scored
from keras_calib.reporting.commands.terminal import Progress
from keras_calib.reporting.prediction_files.reader import PredictionFile
from keras_calib.reporting.prediction_files.roles import Columns

__all__ = ["pilot_of_file"]

_COLUMNS = "labels", "logits", "probs", "confidence", "correct", "predicted"


def pilot_of_file(
    given: argparse.Namespace, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """What `plan` takes as a pilot, from a file."""
    columns = Columns(**{x: getattr(given, x) for x in _COLUMNS})
    progress.say(f"Reading {given.pilot} ...")
    try:
        file = PredictionFile(given.pilot, columns)
        if file.pixels:
            raise value_error(
                "`pilot` must have one prediction for each sample",
                file=given.pilot,
            )
        rows = file.read()
        weight = rows.sample_weight
        if weight is not None and not np.all(weight == 1.0):
            raise ValueError(
                "a plan counts samples, so weights must be 1 everywhere: "
                "leave the column `sample_weight` out"
            )
    except (ValueError, OSError) as error:
        raise ValueError(f"--pilot={given.pilot}: {error}") from error
    if file.top1:
        return rows.outputs, rows.labels
    top = top_scored(
        rows.labels, rows.outputs, "msp", from_logits=file.from_logits
    )
    return top.score, top.correct
