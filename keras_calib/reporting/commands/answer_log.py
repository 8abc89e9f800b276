"""Logs of a model in use: answers, and the labels that came for them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.predictions.correctness import (
    flags_of,
    same_labels,
    time_of,
)
from keras_calib.predictions.roles import (
    ROLES,
    check_one_role,
    check_present,
    column_of,
)
from keras_calib.predictions.tables import Table, plain
from keras_calib.reporting.commands.terminal import Progress

_VERDICTS = "accepted", "correct", "labels", "predicted"
_READ = "ids", "confidence", "score", *_VERDICTS, "time", "groups"
_NUMBERS = "confidence", "score"
# Of a file's columns, those that errors name.
_MOST_NAMES = 20


class Answers(NamedTuple):
    """Answers of a log, in its order; None for columns that it has not.

    Attributes:
        outcomes: Scores and confidences, with ids as units; `correct` is
            NaN without a label.
        accepted: Whether each answer was accepted, or None.
        group: Names of groups `(n,)`, or None.
    """

    outcomes: Outcomes
    accepted: np.ndarray | None
    group: np.ndarray | None

    @property
    def labels(self) -> np.ndarray:
        """1 for a right and 0 for a wrong answer `(n,)`, NaN if unknown."""
        return self.outcomes.correct


class AnswerLog:
    """A file of answers or labels, read in pieces.

    Values may be missing in `correct` and `label`, which says that there is
    no label yet. Rows of errors count from 1.

    Args:
        path: A `.npz`, `.csv`, `.tsv`, `.parquet` or `.jsonl` file. The last
            has one JSON object in each line.
        columns: Names of columns by what they hold, None for the default.
        threshold: Least score to accept, of the score or else of the
            confidence, where the log does not say what was accepted. Or an
            `AnswerThreshold`, which always calibrates the confidence.

    Raises:
        ImportError: If a table needs pyarrow.
        ValueError: If the file cannot be read or columns are absent.

    Attributes:
        num_rows: Number of rows, None if only reading tells.
        has: What the file holds.
        names: Names of its columns.
        is_empty: Whether it has neither a row nor columns, as a `.jsonl` file
            of a time without answers.
    """

    def __init__(
        self,
        path: Any,
        columns: dict[str, str | None],
        *,
        threshold: Any = None,
    ):
        form = columns.get("separator"), columns.get("decimal") or "."
        self._file = Table(path, *form)
        self.path, self.num_rows = self._file.path, self._file.num_rows
        self.names = self._file.names[:_MOST_NAMES]
        self.is_empty = self.num_rows == 0 and not self.names
        if self.is_empty:
            columns = {}
        self._threshold = threshold
        columns = {what: columns.get(what) for what in _READ}
        asked = [x for x in columns.values() if x is not None]
        check_present(self.path.name, self._file.names, asked)
        # What an option gives is not found by its own name too.
        given = {columns[x] for x in _VERDICTS}
        free = [x for x in self._file.names if x not in given]
        found = {x: column_of(x, columns[x], free) for x in _READ}
        if columns["labels"] or columns["predicted"]:
            # As asked for, whatever a column of another name says.
            if columns["correct"]:
                rule = "`correct=` excludes `labels=` and `predicted=`"
                raise value_error(rule, correct=columns["correct"])
            found["correct"] = None
        # A confidence may be the score too.
        used = [(x, found[x]) for x in (*_NUMBERS, *_VERDICTS)]
        check_one_role(used[used[0][1] == used[1][1] :])
        self._columns = {k: x for k, x in found.items() if x is not None}
        self.has = {*self._columns}
        self.last: tuple[int, Any] | None = None

    def require(self, *options: Sequence[str]) -> None:
        """Raises ValueError unless the file has one of each of the options."""
        for option in options:
            if not {*option} & self.has:
                names = " or ".join(f"`{ROLES[x].names[0]}`" for x in option)
                raise value_error(
                    f"{self.path.name} must have a column {names}; other "
                    "names are given by `ids=`, `confidence=`, `accepted=`, "
                    "`correct=` and so on",
                    columns=self.names,
                )

    def require_labels(self) -> None:
        """Raises ValueError unless the file says what was right."""
        self.require(("correct", "labels"))
        if "correct" not in self.has:
            self.require(("predicted",))

    def watched(
        self, progress: Progress, what: str = "Reading"
    ) -> Iterator[Answers]:
        """The answers, piece by piece, with a line of progress."""
        told = f"{what} {self.path.name}"
        return progress.rows(self.parts(), told, self.num_rows)

    def parts(self) -> Iterator[Answers]:
        """The answers, piece by piece."""
        wanted = {**self._columns}
        if "correct" in wanted:
            wanted.pop("labels", None)
            wanted.pop("predicted", None)
        # One column may be both, and is read once.
        numbers = [*{wanted[x]: None for x in _NUMBERS if x in wanted}]
        gaps = [x for k, x in wanted.items() if ROLES[k].kind == "gaps"]
        others = {*wanted.values()} - {*numbers, *gaps}
        parts = self._file.parts([*others], numbers, gaps=gaps)
        start = 0
        for part in parts:
            read = {k: np.atleast_1d(part[x]) for k, x in wanted.items()}
            yield self._answers(read, start)
            start += len(next(iter(read.values())))

    def _answers(self, read: dict[str, np.ndarray], start: int) -> Answers:
        num = len(next(iter(read.values())))
        if any(x.shape != (num,) for x in read.values()):
            raise value_error(
                f"{self.path.name} must have one value in each row and column",
                shapes={self._columns[k]: x.shape for k, x in read.items()},
            )
        if "time" in read:
            self._check_times(read["time"], start)
        accepted, changed = self._accepted(read, start)
        outcomes = Outcomes(
            score=changed.get("score"),
            correct=self._correct(read, start),
            confidence=changed.get("confidence"),
            unit=self._ids(read["ids"], start) if "ids" in read else None,
        )
        return Answers(outcomes, accepted, read.get("groups"))

    def _correct(self, read: dict[str, np.ndarray], start: int) -> np.ndarray:
        if "correct" in read:
            name = self._columns["correct"]
            return flags_of(self._file, name, read["correct"], start, gaps=True)
        if {"labels", "predicted"} <= read.keys():
            return same_labels(read["labels"], read["predicted"], gaps=True)
        return np.full(len(next(iter(read.values()))), np.nan)

    def _accepted(
        self, read: dict[str, np.ndarray], start: int
    ) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
        """What was accepted, and the columns with calibrated confidences."""
        accepted = None
        if callable(self._threshold):
            column = self._threshold.column
            self.require((column,))
            read = {**read, **self._threshold(read[column])}
            accepted = read["accept"]
        if "accepted" in read:
            name = self._columns["accepted"]
            accepted = flags_of(self._file, name, read["accepted"], start)
        elif accepted is None and self._threshold is not None:
            column = "score" if "score" in read else "confidence"
            values, name = read[column], self._columns[column]
            good = ~np.isnan(values)
            self._file.check(name, good, "must not be NaN", start, values)
            accepted = values >= self._threshold
        return accepted, read

    def _ids(self, values: np.ndarray, start: int) -> np.ndarray:
        ids = np.array([*map(plain, values)], object)
        name, rule = self._columns["ids"], "must have a value in every row"
        self._file.check(name, ids != "", rule, start, ids)
        return ids

    def _check_times(self, texts: np.ndarray, start: int) -> None:
        for i, text in enumerate(texts):
            row, now, rule = start + i, time_of(str(text)), None
            if now is None:
                rule = "must be a number or a time as 2026-01-31T12:30:00"
            elif self.last is not None and now < self.last[1]:
                rule = (
                    "must not go back: sort the log by it, as alarms are for "
                    "answers in their order"
                )
            if rule:
                name = self._columns["time"]
                raise self._file.bad_value(name, rule, row, value=str(text))
            self.last = row, now


def labelled_answers(
    path: str,
    columns: dict[str, str | None],
    progress: Progress,
    of_confidence: bool = True,
) -> tuple[Outcomes, int]:
    """The answers of a log that have a label, and how many have none.

    The score is what the log has: a score or, with `of_confidence` or where
    it has no score, the confidence.
    """
    log = AnswerLog(path, columns)
    empty = value_error("the log must have answers", rows=0)
    if log.is_empty:
        raise empty
    needed: tuple[str, ...] = ("score", "confidence")
    if of_confidence or (columns["confidence"] and not columns["score"]):
        needed = ("confidence",)
    log.require(needed)
    log.require_labels()
    column = next(name for name in needed if name in log.has)
    kept: list[tuple] = []
    start = 0
    for part in log.watched(progress):
        values = np.asarray(getattr(part.outcomes, column))
        _check_values(log, column, values, start)
        start += len(values)
        others = part.labels, part.outcomes.unit, part.group
        read = values.astype("float64"), *others
        kept.append(tuple(() if x is None else x for x in read))
    if not start:
        raise empty
    score, correct, ids, groups = map(np.concatenate, zip(*kept, strict=True))
    here = correct == correct
    if not here.any():
        raise value_error("the log must have labels", rows=start)
    rows = Outcomes(score[here], correct[here])
    if column == "confidence":
        rows = rows._replace(confidence=rows.score)
    if "ids" in log.has:
        _check_once(ids)
        rows = rows._replace(unit=ids[here])
    if columns["groups"]:
        own = groups[here].astype(str)
        names, places = read_groups(own, own.shape)
        rows = rows._replace(group=places, names=names)
    return rows, int((~here).sum())


def _check_once(ids: np.ndarray) -> None:
    """Raises ValueError for an id that two rows have."""
    names, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if len(names) < len(ids):
        place = np.argmax(counts > 1)
        raise value_error(
            "every `id` must be there once, as the guarantee is for answers "
            "that are independent; `ids=` gives another column",
            row=int(first[place]) + 1,
            id=str(names[place]),
            times=int(counts[place]),
        )


def _check_values(
    log: AnswerLog, column: str, values: np.ndarray, start: int
) -> None:
    good, rule = ~np.isnan(values), "must not be NaN"
    if column == "confidence":
        good = (values >= 0.0) & (values <= 1.0)
        rule = (
            "must be in [0, 1] in every row; give a log-probability or "
            "another number by `score=`"
        )
    log._file.check(column, good, rule, start, values)
