"""Logs of a model in use: answers, and the labels that came for them."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_independent
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.predictions.correctness import (
    flags_of,
    same_labels,
    time_of,
    warn_of_gaps,
)
from keras_calib.predictions.reader import Reader
from keras_calib.predictions.roles import (
    ROLES,
    check_one_role,
    check_present,
    check_told,
    column_of,
    group_column,
    has_outputs,
)
from keras_calib.predictions.tables import Table, plain
from keras_calib.reporting.commands.arguments import opened
from keras_calib.reporting.commands.terminal import Progress, load_keras

_VERDICTS = "accepted", "correct", "labels", "predicted"
_NUMBERS = "confidence", "score"
# These are read where they are asked for.
_ASKED = "groups", "units"
_READ = "ids", "confidence", "score", *_VERDICTS, "time", *_ASKED
_OUTPUTS = "logits", "probs"
# Of a file's columns, those that errors name.
_MOST_NAMES = 20


class AnswerLog:
    """A file of answers or labels, read in pieces.

    Values may be missing in `correct` and `label`, which says that there is
    no label yet. Rows of errors count from 1. A file may have outputs of all
    classes and labels: its confidence is the largest probability.

    Args:
        path: A `.npz`, `.csv`, `.tsv`, `.parquet` or `.jsonl` file. The last
            has one JSON object in each line.
        columns: Names of columns by what they hold, None for the default.
        may_lack: What of these may have its names in another file alone.

    Raises:
        ImportError: If a table needs pyarrow.
        ValueError: If the file cannot be read or columns are absent.

    Attributes:
        num_rows: Number of rows, None if only reading tells.
        has: What the file holds.
        names: Names of its columns.
        is_empty: Whether it has neither a row nor columns, as a `.jsonl` file
            of a time without answers.
        threshold: Least score to accept, of the score or else of the
            confidence, where the log does not say what was accepted. Or an
            `AnswerThreshold`, which always calibrates the confidence.
    """

    def __init__(
        self,
        path: Any,
        columns: dict[str, Any],
        may_lack: Sequence[str] = (),
    ):
        form = columns.get("separator"), columns.get("decimal") or "."
        self._file = Table(path, *form)
        self.path, self.num_rows = self._file.path, self._file.num_rows
        self.names = self._file.names[:_MOST_NAMES]
        self.is_empty = self.num_rows == 0 and not self.names
        if self.is_empty:
            columns = {}
        self.last: tuple[int, Any] | None = None
        self.threshold: Any = None
        self._reader: Reader | None = None
        name, names, options = self.path.name, self._file.names, columns
        columns = {what: columns.get(what) for what in _READ}
        for what in may_lack:
            columns[what] = columns[what] if columns[what] in names else None
        if columns["groups"]:
            columns["groups"] = group_column(columns["groups"], names)
        asked = [x for x in columns.values() if x is not None]
        check_present(name, names, asked)
        # What an option gives is not found by its own name too.
        given = {columns[x] for x in _VERDICTS}
        free = [x for x in names if x not in given]
        found = {
            x: column_of(x, columns[x], () if x in _ASKED else free)
            for x in _READ
        }
        check_told(columns)
        if columns["labels"] or columns["predicted"]:
            # As asked for, whatever a column of another name says.
            found["correct"] = None
        # A confidence may be the score too.
        used = [(x, found[x]) for x in (*_NUMBERS, *_VERDICTS)]
        check_one_role(used[used[0][1] == used[1][1] :])
        self._columns = {k: x for k, x in found.items() if x is not None}
        self.has = {*self._columns}
        is_asked = any(options.get(x) for x in _OUTPUTS)
        is_log = self.has & {*_NUMBERS, *_VERDICTS} - {"labels"}
        if (is_asked or not is_log) and has_outputs(name, names, options):
            self._reader = opened(path, options)
            self.has = {"confidence", "correct"}
            self.has |= {"ids"} if self._reader.roles.ids else set()
            self._columns = {x: x for x in self.has}

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
        if not {"correct", "predicted"} & self.has:
            raise value_error(
                f"{self.path.name} must have `correct`, or the answers as "
                "`predicted` beside `label`, which alone does not say what was "
                "right",
                columns=self.names,
            )

    def watched(
        self, progress: Progress, what: str = "Reading"
    ) -> Iterator[dict[str, np.ndarray]]:
        """The answers, piece by piece, with a line of progress."""
        told = f"{what} {self.path.name}"
        if self._reader is not None:
            load_keras(progress)
        return progress.rows(self.parts(), told, self.num_rows)

    def parts(self) -> Iterator[dict[str, np.ndarray]]:
        """The columns, piece by piece: `correct`, and what else there is.

        It is 1 for a right and 0 for a wrong answer, NaN without a label.
        """
        if self._reader is not None:
            yield self._accepted(_confidences(self._reader), 0)
            return
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

    def _answers(
        self, read: dict[str, np.ndarray], start: int
    ) -> dict[str, np.ndarray]:
        num = len(next(iter(read.values())))
        if any(x.shape != (num,) for x in read.values()):
            raise value_error(
                f"{self.path.name} must have one value in each row and column",
                shapes={self._columns[k]: x.shape for k, x in read.items()},
            )
        if "time" in read:
            self._check_times(read["time"], start)
        if "ids" in read:
            ids = read["ids"] = np.array([*map(plain, read["ids"])], object)
            rule = "must have a value in every row"
            self._file.check(self._columns["ids"], ids != "", rule, start, ids)
        read["correct"] = self._correct(read, start)
        return self._accepted(read, start)

    def _correct(self, read: dict[str, np.ndarray], start: int) -> np.ndarray:
        if "correct" in read:
            name = self._columns["correct"]
            return flags_of(self._file, name, read["correct"], start, gaps=True)
        if {"labels", "predicted"} <= read.keys():
            return same_labels(read["labels"], read["predicted"], gaps=True)
        return np.full(len(next(iter(read.values()))), np.nan)

    def _accepted(
        self, read: dict[str, np.ndarray], start: int
    ) -> dict[str, np.ndarray]:
        """The columns, with what was accepted and calibrated confidences."""
        accepted = None
        if callable(self.threshold):
            column = self.threshold.column
            self.require((column,))
            read |= self.threshold(read[column])
            accepted = read.pop("accept")
        if "accepted" in read:
            name = self._columns["accepted"]
            accepted = flags_of(self._file, name, read["accepted"], start)
        elif accepted is None and self.threshold is not None:
            column = "score" if "score" in read else "confidence"
            self.check_score(read[column], column, start)
            accepted = read[column] >= self.threshold
        return read if accepted is None else {**read, "accepted": accepted}

    def check_score(self, values: np.ndarray, role: str, start: int) -> None:
        """Raises ValueError for a score that is NaN."""
        name, rule = self._columns[role], "must not be NaN"
        self._file.check(name, ~np.isnan(values), rule, start, values)

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


class LabelledLog:
    """The answers of a file that have a label.

    Files are logs, or predictions of all classes, whose confidence is the
    largest probability. The score is what the file has: a score or, with
    `of_confidence` or where it has no score, the confidence. A `risk` among the
    columns needs rows of different units.

    Raises ValueError if the file cannot be read or columns are absent.

    Attributes:
        is_top1: Whether the file has no outputs of all classes.
    """

    def __init__(
        self, path: Any, columns: dict[str, Any], of_confidence: bool = False
    ):
        form = columns["separator"], columns["decimal"] or "."
        has_score = "score" in Table(path, *form).names
        by_score = columns["score"] or has_score and not columns["confidence"]
        self._risk = columns.get("risk")
        self._group = columns.get("groups") or ""
        self._log: Any = None
        self._told, self.is_top1 = f"Reading {path}", True
        if by_score and not of_confidence:
            self._log = AnswerLog(path, columns)
            self._log.require(("score",))
            self._log.require_labels()
        else:
            groups = (self._group,) if self._group else ()
            self._reader = opened(path, columns, groups)
            self.is_top1 = self._reader.roles.kind == "records"

    def read(self, progress: Progress) -> tuple[Outcomes, np.ndarray | None]:
        """The answers, and their ids or None."""
        if self._log is not None:
            found = _scores(self._log, progress)
        else:
            if not self.is_top1:
                load_keras(progress)
            watched = functools.partial(progress.rows, what=self._told)
            found = _confidences(self._reader, watched, self._group)
        correct = found["correct"]
        if not len(correct):
            raise value_error("the log must have answers", rows=0)
        here = ~np.isnan(correct)
        if not here.any():
            raise value_error("the log must have labels", rows=len(correct))
        if "ids" in found:
            ids, first, times = np.unique(
                found["ids"], return_index=True, return_counts=True
            )
            if len(ids) < len(found["ids"]):
                place = np.argmax(times > 1)
                raise value_error(
                    "every `id` must be there once, as the guarantee is for "
                    "answers that are independent; `ids=` gives another column",
                    row=int(first[place]) + 1,
                    id=str(ids[place]),
                    times=int(times[place]),
                )
        found = {name: x[here] for name, x in found.items()}
        if self._risk:
            check_independent("--risk", correct.shape, found.get("units"))
        confidence = found.get("confidence")
        score = found["score"] if confidence is None else confidence
        rows = Outcomes(
            score.astype("float64"), found["correct"], confidence=confidence
        )
        if "groups" in found:
            own = found["groups"].astype(str)
            known, places = read_groups(own, own.shape)
            rows = rows._replace(group=places, names=known)
        return rows, found.get("ids")


def _scores(log: AnswerLog, progress: Progress) -> dict[str, np.ndarray]:
    """Columns of a log of scores; correctness is NaN without a label."""
    kept: dict[str, list] = {"correct": []}
    start = 0
    for part in log.watched(progress):
        log.check_score(part["score"], "score", start)
        start += len(part["score"])
        for name in ("score", "correct", "ids", *_ASKED):
            if name in part:
                kept.setdefault(name, []).append(part[name])
    found = {
        k: np.concatenate(x) if x else np.zeros(0) for k, x in kept.items()
    }
    warn_of_gaps(log.path.name, np.isnan(found["correct"]))
    return found


def _confidences(
    reader: Reader, watched: Any = None, group: str = ""
) -> dict[str, np.ndarray]:
    """Columns of predictions; correctness is NaN where a row counts nowhere."""
    p = reader.read(watched)
    check_independent("A threshold", p.shape)
    rows = p.outcomes(every=True)
    weight = np.ones(len(p)) if rows.weight is None else rows.weight
    if np.any((weight != 0.0) & (weight != 1.0)):
        raise value_error(
            "weights must be 1, or 0 for rows to leave out, as a threshold is "
            "chosen on answers that count alike: leave the column out",
            weight=float(weight.max()),
        )
    found = {
        "confidence": np.asarray(rows.confidence),
        "correct": np.where(weight > 0, rows.correct, np.nan),
    }
    others = {"ids": p.ids, "units": p.units, "groups": p.groups.get(group)}
    return found | {k: x for k, x in others.items() if x is not None}
