"""Pilots of `keras-calib plan`: scores and correctness of files."""

import argparse

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.functional.ranking import top_scored
from keras_calib.numerics.softmax import Top1
from keras_calib.reporting.commands.terminal import Progress
from keras_calib.reporting.prediction_files.reader import PredictionFile
from keras_calib.reporting.prediction_files.roles import Columns

__all__ = ["pilot_of_files"]

_COLUMNS = "labels", "logits", "probs", "confidence", "correct", "predicted"


def pilot_of_files(
    given: argparse.Namespace, progress: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """What `plan` takes as a pilot, from one file or from two."""
    columns = Columns(**{x: getattr(given, x) for x in _COLUMNS})
    tops, labels = [], []
    for path in given.pilot:
        progress.say(f"Reading {path} ...")
        try:
            file = PredictionFile(path, columns)
            if file.pixels:
                raise value_error(
                    "`pilot` must have one prediction for each sample",
                    file=path,
                )
            rows = file.read()
            weight = rows.sample_weight
            if weight is not None and not np.all(weight == 1.0):
                raise ValueError(
                    "a plan counts samples, so weights must be 1 everywhere: "
                    "leave the column `sample_weight` out"
                )
        except (ValueError, OSError) as error:
            raise ValueError(f"--pilot={path}: {error}") from error
        labels.append(None if file.top1 else rows.labels)
        if file.top1:
            top = Top1(rows.outputs, rows.outputs, rows.labels)
        else:
            top = top_scored(
                rows.labels, rows.outputs, "msp", from_logits=file.from_logits
            )
        tops.append(top)
    if given.compare is not None:
        return _both(tops, labels)
    top = tops[0]
    if given.ece is not None:
        return top.confidence, top.correct
    return top.score, top.correct


def _both(
    tops: list[Top1], labels: list[np.ndarray | None]
) -> tuple[np.ndarray, np.ndarray]:
    one, two = tops
    same = len(one.correct) == len(two.correct)
    known = [x for x in labels if x is not None]
    if not same or (len(known) == 2 and not np.array_equal(known[0], known[1])):
        raise ValueError(
            "both --pilot must have the same labels in the same order"
        )
    return one.correct, two.correct
