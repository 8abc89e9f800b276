"""Logs of a model in use: answers, and the labels that came for them."""

import contextlib
import datetime
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import each_once, path_of
from keras_calib.reporting.prediction_files.columns import (
    ColumnFile,
    check_one_role,
    check_present,
    plain,
)

__all__ = ["AnswerLog", "Answers", "correctness_of"]

# Names that columns have by default, the first that is there.
_NAMES = {
    "ids": ("id", "ids", "request_id"),
    "confidence": ("confidence",),
    "score": ("score",),
    "accepted": ("accepted", "accept"),
    "correct": ("correct",),
    "label": ("label", "labels"),
    "predicted": ("predicted", "prediction", "pred"),
    "time": ("time", "timestamp"),
    # Only where it is asked for.
    "group": (),
}
_NUMBERS = ("confidence", "score")
_VERDICTS = ("accepted", "correct", "label", "predicted")
_LINES = 4096
# Of a file's columns, those that errors name.
_MOST_NAMES = 20
# What to do with grades between wrong and right.
_GRADES = (
    ". An answer is right or wrong here: turn a grade between 0 and 1 into "
    "one of them first, for example by grade >= 0.5"
)
_FLAGS = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}
_WITHOUT = ("", "nan", "none", "null")


class Answers(NamedTuple):
    """Answers of a log, in its order; None for columns that it has not.

    Attributes:
        labels: 1 for a right and 0 for a wrong answer `(n,)`, NaN without a
            label.
        accepted: Whether each answer was accepted, or None.
        confidence: Confidence `(n,)`, or None.
        ids: Ids as texts `(n,)`, or None.
        score: Scores `(n,)`, or None.
        group: Names of groups `(n,)`, or None.
    """

    labels: np.ndarray
    accepted: np.ndarray | None
    confidence: np.ndarray | None
    ids: list[str] | None
    score: np.ndarray | None = None
    group: np.ndarray | None = None


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
        self.path = path_of(path)
        is_lines = self.path.suffix.lower() in (".jsonl", ".ndjson")
        self._file: Any = _JsonLines(path) if is_lines else ColumnFile(path)
        self.num_rows = self._file.num_rows
        self.names = [*self._file.names][:_MOST_NAMES]
        self.is_empty = is_lines and not self.num_rows
        if self.is_empty:
            columns = {}
        self._threshold = threshold
        columns = {what: columns.get(what) for what in _NAMES}
        asked = [x for x in columns.values() if x is not None]
        check_present(self.path.name, self._file.names, asked)
        # What an option gives is not found by its own name too.
        given = {columns[x] for x in _VERDICTS}
        free = [x for x in self._file.names if x not in given]
        self._columns = {
            what: columns[what] or next((x for x in names if x in free), None)
            for what, names in _NAMES.items()
        }
        if columns["label"] or columns["predicted"]:
            # As asked for, whatever a column of another name says.
            if columns["correct"]:
                rule = "--correct excludes --label and --predicted"
                raise value_error(rule, correct=columns["correct"])
            self._columns["correct"] = None
        # A confidence may be the score too.
        used = [(f"--{x}", self._columns[x]) for x in (*_NUMBERS, *_VERDICTS)]
        check_one_role(used[used[0][1] == used[1][1] :])
        self.has = {k for k, name in self._columns.items() if name is not None}
        self.last: tuple[int, Any] | None = None

    def require(self, *options: Sequence[str]) -> None:
        """Raises ValueError unless the file has one of each of the options."""
        for option in options:
            if not {*option} & self.has:
                names = " or ".join(f"`{_NAMES[x][0]}`" for x in option)
                raise value_error(
                    f"{self.path.name} must have a column {names}; other "
                    "names are given by --ids, --confidence, --accepted, "
                    "--correct and so on",
                    columns=self.names,
                )

    def parts(self) -> Iterator[Answers]:
        """The answers, piece by piece."""
        wanted = {k: x for k, x in self._columns.items() if x is not None}
        if "correct" in wanted:
            wanted.pop("label", None)
            wanted.pop("predicted", None)
        # One column may be both, and is read once.
        numbers = [*{wanted[x]: None for x in _NUMBERS if x in wanted}]
        gaps = [x for k, x in wanted.items() if k in ("correct", "label")]
        others = {*wanted.values()} - {*numbers, *gaps}
        parts = self._file.parts([*others], numbers, [], gaps=gaps)
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
        correct = np.full(num, np.nan)
        if "correct" in read:
            correct = self._flags("correct", read["correct"], start, gaps=True)
        elif {"label", "predicted"} <= read.keys():
            pairs = zip(read["label"], read["predicted"], strict=True)
            correct = np.array([_same(*pair) for pair in pairs])
        accepted = None
        if callable(self._threshold):
            column = self._threshold.column
            self.require((column,))
            read = {**read, **self._threshold(read[column])}
            accepted = read["accept"]
        if "accepted" in read:
            accepted = self._flags("accepted", read["accepted"], start)
        elif accepted is None and self._threshold is not None:
            column = "score" if "score" in read else "confidence"
            if (wrong := np.isnan(read[column])).any():
                row = start + int(wrong.argmax())
                name = self._columns[column]
                raise self._file.bad_value(name, "must not be NaN", row)
            accepted = read[column] >= self._threshold
        ids = None
        if "ids" in read:
            ids = [x if type(x) is str else plain(x) for x in read["ids"]]
            for i, text in enumerate(ids):
                if not text.strip():
                    raise self._file.bad_value(
                        self._columns["ids"],
                        "must have a value in every row",
                        start + i,
                        value=text,
                    )
        others = read.get("score"), read.get("group")
        return Answers(correct, accepted, read.get("confidence"), ids, *others)

    def _flags(
        self, what: str, values: np.ndarray, start: int, gaps: bool = False
    ) -> np.ndarray:
        """Numbers 0 and 1, NaN for what is missing."""
        found = np.empty(len(values))
        for i, value in enumerate(values):
            text = plain(value).lower()
            if gaps and text in _WITHOUT:
                found[i] = np.nan
            elif text in _FLAGS:
                found[i] = _FLAGS[text]
            else:
                rule = ", or nothing without a label" if gaps else ""
                rule += _GRADES if _is_grade(text) else ""
                raise self._file.bad_value(
                    self._columns[what],
                    f"must be 1 or 0, or true or false{rule}",
                    start + i,
                    value=str(value),
                )
        return found

    def _check_times(self, texts: np.ndarray, start: int) -> None:
        for i, text in enumerate(texts):
            row, now = start + i, _time(str(text))
            if now is None:
                raise self._file.bad_value(
                    self._columns["time"],
                    "must be a number or a time as 2026-01-31T12:30:00",
                    row,
                    value=str(text),
                )
            if self.last is not None and now < self.last[1]:
                raise self._file.bad_value(
                    self._columns["time"],
                    "must not go back: sort the log by it, as alarms are for "
                    "answers in their order",
                    row,
                    value=str(text),
                )
            self.last = row, now


def correctness_of(
    file: ColumnFile, name: str, values: np.ndarray, start: int
) -> np.ndarray:
    """1 for right and 0 for wrong of a column with a value in every row."""
    if values.dtype.kind in "OU":
        found = [_FLAGS.get(plain(x).lower(), np.nan) for x in values]
        values = np.where(np.isnan(found), values, np.array(found, object))
    (wrong,) = np.nonzero(~np.isin(values, (0, 1)))
    if len(wrong):
        value = values[wrong[0]]
        raise file.bad_value(
            name,
            "must be 0, 1, true or false in every row"
            + _GRADES * _is_grade(str(value)),
            start + int(wrong[0]),
            value=value if isinstance(value, str) else value.item(),
        )
    return values.astype("int64")


def _is_grade(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return 0.0 < float(text) < 1.0
    return False


class _JsonLines:
    """Columns of a file with one JSON object in each line."""

    def __init__(self, path: Any):
        self.path = path_of(path)
        self.num_rows = 0
        names: dict[str, None] = {}
        # All lines: what few have, such as labels, may come late.
        for row, record in self._records():
            names.update(dict.fromkeys(record))
            self.num_rows = row + 1
        self.names = [*names]

    def parts(
        self,
        texts: Sequence[str],
        numbers: Sequence[str],
        others: Sequence[str],
        gaps: Sequence[str] = (),
    ) -> Iterator[dict[str, np.ndarray]]:
        """The columns, as `ColumnFile.parts` gives them."""
        names = [*texts, *numbers, *others, *gaps]
        found: dict[str, list] = {name: [] for name in names}
        count = 0
        for row, record in self._records():
            for name in names:
                value = record.get(name)
                is_gap = value is None or value != value
                if is_gap and name not in gaps:
                    raise self.bad_value(
                        name, "must have a value in every line", row, value=None
                    )
                if name in numbers and type(value) not in (int, float):
                    raise self.bad_value(
                        name, "must hold numbers", row, value=value
                    )
                found[name].append("" if is_gap else value)
            count += 1
            if count == _LINES:
                yield _columns(found, numbers)
                found, count = {name: [] for name in names}, 0
        if count:
            yield _columns(found, numbers)

    def bad_value(
        self, name: str, rule: str, row: int, **received: Any
    ) -> ValueError:
        """The error of a value that breaks a rule; `row` counts from 0."""
        return value_error(f"`{name}` {rule}", row=row + 1, **received)

    def _records(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with open(self.path, encoding="utf-8") as file:
                row = -1
                for row, line in enumerate(file):
                    record: Any = None
                    with contextlib.suppress(ValueError, RecursionError):
                        record = json.loads(line, object_pairs_hook=each_once)
                    if not isinstance(record, dict):
                        raise value_error(
                            f"{self.path.name} must have one JSON object in "
                            "each line, and each name once",
                            line=row + 1,
                        )
                    yield row, record
        except OSError as error:
            raise ValueError(f"{error.strerror}: {self.path}") from error
        except UnicodeDecodeError as error:
            raise value_error(
                f"{self.path.name} must be UTF-8 text", error=str(error)
            ) from error


def _columns(
    found: dict[str, list], numbers: Sequence[str]
) -> dict[str, np.ndarray]:
    return {
        name: np.array(x, "float64" if name in numbers else object)
        for name, x in found.items()
    }


def _same(label: Any, predicted: Any) -> float:
    label, predicted = plain(label), plain(predicted)
    # A class may be called None. Beside numbers `nan` is no class.
    is_gap = label.lower() == "nan" and _time(predicted) is not None
    return float(label == predicted) if label and not is_gap else np.nan


def _time(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        number = float(text)
        return None if number != number else number
    with contextlib.suppress(ValueError):
        # Ten digits: times with nanoseconds have more than Python reads.
        text = re.sub(r"(\.\d{6})\d+", r"\1", text)
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.timestamp()
    return None
