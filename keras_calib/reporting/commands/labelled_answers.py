"""Answers of a log that have a label, as a threshold is chosen on them."""

from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.exporting.answer_threshold import rows_sha256
from keras_calib.reporting.commands.terminal import Progress
from keras_calib.reporting.prediction_files.answer_log import AnswerLog
from keras_calib.selection import (
    ChosenThreshold,
    GroupThresholds,
    choose_group_thresholds,
    choose_threshold,
)

__all__ = ["LabelledAnswers", "chosen_for", "data_facts", "labelled_answers"]


class LabelledAnswers(NamedTuple):
    """Answers with a label: their values `(n,)`, and how many have none."""

    score: np.ndarray
    correct: np.ndarray
    ids: np.ndarray | None
    group: np.ndarray | None
    column: str
    unlabelled: int


def labelled_answers(
    path: str, given: Namespace, progress: Progress, of_confidence: bool
) -> LabelledAnswers:
    """The answers of a log that have a label."""
    log = AnswerLog(path, vars(given))
    empty = value_error("the log must have answers", rows=0)
    if log.is_empty:
        raise empty
    named = given.confidence is not None and given.score is None
    needed: tuple[str, ...] = ("score", "confidence")
    if of_confidence or named:
        needed = ("confidence",)
    log.require(needed, ("correct", "label"))
    if "correct" not in log.has:
        log.require(("predicted",))
    column = next(name for name in needed if name in log.has)
    kept: list[tuple] = []
    start = 0
    what = f"Reading {log.path.name}"
    for part in progress.rows(log.parts(), what, log.num_rows):
        values = np.asarray(getattr(part, column))
        _check_values(column, values, start)
        start += len(part.labels)
        ids = np.asarray(part.ids or [], object)
        group = [] if part.group is None else part.group
        kept.append((values.astype("float64"), part.labels, ids, group))
    if not start:
        raise empty
    scores, right, ids, groups = map(np.concatenate, zip(*kept, strict=True))
    here = right == right
    if not here.any():
        raise value_error("the log must have labels", rows=len(right))
    if "ids" in log.has:
        _check_once(ids)
    return LabelledAnswers(
        scores[here],
        right[here],
        ids[here] if "ids" in log.has else None,
        groups.astype(str)[here] if given.group else None,
        column,
        int((~here).sum()),
    )


def _check_once(ids: np.ndarray) -> None:
    """Raises ValueError for an id that two rows have."""
    names, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if len(names) < len(ids):
        place = np.argmax(counts > 1)
        raise value_error(
            "every `id` must be there once, as the guarantee is for answers "
            "that are independent; --ids gives another column",
            row=int(first[place]) + 1,
            id=str(names[place]),
            times=int(counts[place]),
        )


def _check_values(column: str, values: np.ndarray, start: int) -> None:
    """Raises ValueError for the first value that is no confidence or score."""
    if column == "score":
        wrong, rule = np.isnan(values), "must not be NaN"
    else:
        wrong = ~((values >= 0.0) & (values <= 1.0))
        rule = (
            "must be in [0, 1] in every row; give a log-probability or "
            "another number by --score"
        )
    if wrong.any():
        row = int(np.argmax(wrong))
        raise value_error(
            f"`{column}` {rule}", row=start + row + 1, value=float(values[row])
        )


def chosen_for(
    score: np.ndarray, rows: LabelledAnswers, target: dict[str, Any]
) -> ChosenThreshold | GroupThresholds:
    """The threshold of these scores for a target, or that of each group."""
    target = {name: x for name, x in target.items() if x is not None}
    if rows.group is not None:
        return choose_group_thresholds(
            score, rows.correct, rows.group, **target
        )
    return choose_threshold(score, rows.correct, **target)


def data_facts(rows: LabelledAnswers, group: str | None) -> dict[str, Any]:
    """What a file of a threshold says of its log."""
    return {
        "group": group,
        "wrong": int((rows.correct == 0.0).sum()),
        "rows_sha256": rows_sha256(rows.score, rows.correct, rows.group),
    }
