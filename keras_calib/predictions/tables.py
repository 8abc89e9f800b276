"""Tables of any form: `.npz`, `.csv`, `.tsv`, `.parquet` and `.jsonl` files.

A table gives its columns by name, piece by piece, and says of a value that
breaks a rule where it stands. Nothing here needs Keras.
"""

import contextlib
import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import (
    NpzFile,
    each_once,
    path_of,
    read_cell,
    reading_npz,
)
from keras_calib.backend.late import imported

ENDINGS = (".npz", ".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
_SEPARATORS = ",;\t|"
# A table is read by so many rows, and parquet through a buffer of so many
# bytes: by default pyarrow holds all rows that were written together.
_ROWS = 4096
_BYTES = {"buffer_size": 2**20, "pre_buffer": False}
_CHOICES = "; `keras_calib.text.choice_logits` makes lists of one length"


class Table:
    """A file whose columns have names, read piece by piece.

    Pickled arrays are refused. Rows of errors count from 1, without the line
    of a table that has the names.

    Raises ImportError if a table needs pyarrow, ValueError if the file cannot
    be read.

    Attributes:
        path: Path of the file.
        names: Names of its columns, in order. In a `.jsonl` file, which has
            one JSON object in each line, those of all lines.
        num_rows: Number of rows, None if only reading tells.
        is_arrays: Whether columns are arrays of any shape; else they have one
            value, or one list, for each row.
        is_typed: Whether the file says what kind of values a column has.
        is_text: Whether its numbers are digits, which do not say their dtype.
    """

    def __init__(
        self, path: Any, separator: str | None = None, decimal: str = "."
    ):
        self.path = path_of(path)
        self.num_rows: int | None = None
        self._kind = self.path.suffix.lower()
        self._separator = separator
        self._decimal = decimal
        self._arrays: dict[str, np.ndarray] = {}
        # Length of the lists in each column of lists.
        self._length: dict[str, int] = {}
        if self._kind not in ENDINGS:
            raise value_error(
                "a file must end in .npz, .csv, .tsv, .parquet or .jsonl",
                file=str(path),
            )
        self.is_arrays = self._kind == ".npz"
        self._is_lines = self._kind in (".jsonl", ".ndjson")
        self.is_typed = self._kind not in (".csv", ".tsv")
        self.is_text = self._is_lines or not self.is_typed
        with self._readable():
            self.names = self._open()
        if twice := {x for x in self.names if self.names.count(x) > 1}:
            raise value_error(
                f"{self.path.name} must have each column once",
                twice=sorted(twice)[:20],
            )

    def array(self, name: str) -> np.ndarray | None:
        """A whole array of an `.npz` file, or None."""
        if not self.is_arrays or name not in self.names:
            return None
        if name not in self._arrays:
            with self._readable(), self._npz() as file:
                self._arrays[name] = file.read(name)
        return self._arrays[name]

    def parts(
        self,
        texts: Sequence[str] = (),
        numbers: Sequence[str] = (),
        others: Sequence[str] = (),
        gaps: Sequence[str] = (),
    ) -> Iterator[dict[str, np.ndarray]]:
        """The columns asked for, piece by piece.

        Values of `texts` are strings and those of `numbers` numbers, or
        lists of them in every row; those of `others` are what the file says.
        Those of `gaps` are strings, empty where a value is missing.
        """
        texts = [*texts, *gaps]
        start, names = 0, [*texts, *numbers, *others]
        for part in self._parts(texts, numbers, names):
            read = {
                x: self._values(_filled(part[x], x in gaps), x, start)
                for x in names
            }
            for name in numbers:
                read[name] = self._numbers(read[name], name, start)
            for name in (*texts, *others):
                if name in others and {*map(type, read[name])} <= {int, float}:
                    # Class ids of JSON.
                    read[name] = np.array(read[name].tolist())
                if name in texts or read[name].dtype.kind in "OU":
                    read[name] = self._texts(read[name], name, start)
            yield read
            start += len(np.atleast_1d(read[names[0]]))

    def bad_value(
        self, name: str, rule: str, row: int | None = None, **received: Any
    ) -> ValueError:
        """The error of a value that breaks a rule; `row` counts from 0."""
        if row is not None:
            received = {"row": row + 1, **received}
        return value_error(f"`{name}` {rule}", **received)

    def check(
        self,
        name: str,
        good: np.ndarray,
        rule: str,
        start: int,
        values: np.ndarray,
    ) -> None:
        """Raises ValueError for the first value that is not good.

        `start` is the place of the first row, and `good` may lack last axes.
        """
        if good.all():
            return
        index = tuple(np.argwhere(~good)[0])
        value = values[index]
        if np.ndim(value):
            told = {"values": np.round(value[:10].astype("float64"), 4)}
        else:
            told = {"value": np.asarray(value)}
        told = {k: x.tolist() for k, x in told.items()}
        raise self.bad_value(name, rule, start + int(index[0]), **told)

    @contextlib.contextmanager
    def _readable(self, numbers: Sequence[str] = ()) -> Iterator[None]:
        """Says what is wrong with a file, and in a table with which cell."""
        try:
            yield
        except ImportError:
            raise
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise ValueError(f"{error.strerror}: {self.path}") from error
        except UnicodeDecodeError as error:
            raise value_error(
                f"{self.path.name} must be UTF-8 text: save it so",
                error=str(error),
            ) from error
        except Exception as error:
            known = self.is_arrays or self._is_lines
            if known and isinstance(error, ValueError):
                raise
            raise self._bad_cell(numbers) or value_error(
                self._form, error=str(error)
            ) from error

    @property
    def _form(self) -> str:
        form = f"{self.path.name} must be a readable {self._kind} file"
        return form + " of plain arrays" * self.is_arrays

    def _open(self) -> list[str]:
        """The names of the columns."""
        if self._kind == ".parquet":
            with _pyarrow("parquet").ParquetFile(self.path) as file:
                self.num_rows = file.metadata.num_rows
                return file.schema_arrow.names
        if self._is_lines:
            # All lines: what few have, such as labels, may come late.
            found: dict[str, None] = {}
            self.num_rows = 0
            for record in self._records():
                found.update(dict.fromkeys(record))
                self.num_rows += 1
            return [*found]
        if not self.is_arrays:
            if self._separator is None:
                with open(self.path, encoding="utf-8-sig") as file:
                    head = file.readline()
                head = re.sub('"[^"]*"', "", head)
                # If several are equally frequent, `max` takes the first.
                self._separator = max(_SEPARATORS, key=head.count)
            with self._open_csv({}, []) as reader:
                return reader.schema.names
        with self._npz() as file:
            return file.names

    def _npz(self) -> contextlib.AbstractContextManager[NpzFile]:
        # Masks and labels may be much smaller compressed.
        return reading_npz(self.path, self._form, times=math.inf)

    def _open_csv(self, types: dict[str, str], names: Sequence[str]) -> Any:
        module = _pyarrow("csv")
        return module.open_csv(
            self.path,
            parse_options=module.ParseOptions(
                delimiter=self._separator, newlines_in_values=True
            ),
            convert_options=module.ConvertOptions(
                include_columns=names,
                column_types=types,
                decimal_point=self._decimal,
                # An empty cell is missing, and `NA` may be a name.
                null_values=[""],
                strings_can_be_null=True,
            ),
        )

    def _parts(
        self, texts: Sequence[str], numbers: Sequence[str], names: Sequence[str]
    ) -> Iterator[Any]:
        if self._is_lines:
            with self._readable():
                records = self._records()
                while block := [*itertools.islice(records, _ROWS)]:
                    yield {k: _listed(x.get(k) for x in block) for k in names}
        elif self.is_arrays:
            arrays: dict[str, Any] = {name: self.array(name) for name in names}
            # At least one part, so that the reader can refuse an empty file.
            size = max(len(np.atleast_1d(x)) for x in arrays.values())
            for i in range(0, max(1, size), _ROWS):
                part = slice(i, i + _ROWS)
                yield {k: x[part] if x.ndim else x for k, x in arrays.items()}
        elif self._kind == ".parquet":
            file = _pyarrow("parquet").ParquetFile(self.path, **_BYTES)
            with self._readable(), file:
                yield from file.iter_batches(_ROWS, columns=names)
        else:
            # pyarrow would take the types from the first rows alone.
            types = dict.fromkeys(numbers, "float64")
            types |= dict.fromkeys(texts, "string")
            with (
                self._readable(numbers),
                self._open_csv(types, names) as reader,
            ):
                yield from reader

    def _records(self) -> Iterator[dict[str, Any]]:
        """The objects of a file that has one in each line."""
        with open(self.path, encoding="utf-8") as file:
            for row, line in enumerate(file):
                record: Any = None
                with contextlib.suppress(ValueError, RecursionError):
                    record = json.loads(line, object_pairs_hook=each_once)
                if not isinstance(record, dict):
                    raise value_error(
                        f"{self.path.name} must have one JSON object in each "
                        "line, and each name once",
                        line=row + 1,
                    )
                yield record

    def _bad_cell(self, numbers: Sequence[str]) -> ValueError | None:
        """The error of the first cell of a text file that is none, or None."""
        if self.is_typed or self._separator is None:
            return None
        with (
            contextlib.suppress(UnicodeError),
            open(self.path, encoding="utf-8-sig", newline="") as file,
        ):
            rows = csv.DictReader(file, delimiter=self._separator)
            for row, cells in enumerate(rows):
                if None in cells or None in cells.values():
                    return value_error(
                        f"{self.path.name} must have in every row as many "
                        "columns as names",
                        row=row + 1,
                    )
                for name in numbers:
                    if error := self._bad_number(name, cells[name], row):
                        return error
        return None

    def _bad_number(self, name: str, text: str, row: int) -> ValueError | None:
        try:
            float(text.replace(self._decimal, ".") or "nan")
        except ValueError:
            rule = "must hold numbers in every row"
            if "," in text and self._decimal == ".":
                rule += "; `decimal=,` reads decimal commas"
            return self.bad_value(name, rule, row, value=text)
        return None

    def _values(self, column: Any, name: str, start: int) -> np.ndarray:
        """A column as an array; ValueError if a value is missing."""
        gaps, values = np.zeros(0, bool), column
        if not isinstance(column, np.ndarray):
            gaps = column.is_null().to_numpy(False)
            values = column.to_numpy(zero_copy_only=False)
        elif self._is_lines and column.dtype == object:
            gaps = np.array([_is_missing(x) for x in column])
        if gaps.any():
            raise self.bad_value(
                name,
                "must have a value in every row",
                start + int(gaps.argmax()),
                value=None,
            )
        of_lists = values.dtype == object and len(values)
        if of_lists and isinstance(values[0], np.ndarray | list):
            return self._stacked(values, name, start)
        return values

    def _numbers(self, values: np.ndarray, name: str, start: int) -> np.ndarray:
        if values.dtype == object and self._is_lines:
            for row, value in enumerate(values):
                if type(value) not in (int, float):
                    raise self.bad_value(
                        name,
                        "must hold numbers"
                        + _CHOICES * isinstance(value, dict),
                        start + row,
                        value=value,
                    )
            return values.astype("float64")
        if values.dtype.kind not in "biuf":
            raise self.bad_value(
                name,
                "must hold numbers, or lists of one length, in every row",
                values=values.reshape(-1)[:4].tolist(),
            )
        return values

    def _texts(self, values: np.ndarray, name: str, start: int) -> np.ndarray:
        """Values as strings; ValueError if one is NaN, which is no name."""
        if values.dtype.kind in "fmM":
            missing = np.flatnonzero(np.isnan(values.reshape(-1)))
            if len(missing):
                raise self.bad_value(
                    name,
                    "must have a value in every row: name what is missing",
                    start + int(missing[0]),
                    value=str(values.reshape(-1)[missing[0]]),
                )
        if values.dtype.kind == "f":
            # 1.0 is the same name as 1.
            return np.array([plain(x) for x in values.flat], str)
        if values.dtype == object:
            values = np.array([*map(str, values)], str)
        texts = np.char.strip(values.astype(str))
        if not self.is_typed and np.char.startswith(texts, "'").any():
            texts = np.array([*map(read_cell, texts.tolist())], str)
        return texts

    def _stacked(self, values: np.ndarray, name: str, start: int) -> np.ndarray:
        """Lists of one length as an array."""
        self._length.setdefault(name, len(values[0]))
        for row, value in enumerate(values):
            if np.size(value) != self._length[name]:
                raise self.bad_value(
                    name,
                    "must hold lists of one length in every row" + _CHOICES,
                    start + row,
                    length=np.size(value),
                    length_before=self._length[name],
                )
        return np.stack([*values])


def plain(value: Any) -> str:
    """A value as a text, where 1, 1.0 and "1" are the same."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", str(value).strip())


def _filled(column: Any, has_gaps: bool) -> Any:
    """A column as texts, empty where a value is missing: null or NaN."""
    if not has_gaps:
        return column
    if not isinstance(column, np.ndarray) or column.dtype == object:
        values = column.tolist()
        return np.array(["" if _is_missing(x) else str(x) for x in values], str)
    texts = column.astype(str)
    if column.dtype.kind in "fmM":
        texts[np.isnan(column)] = ""
    return texts


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _listed(values: Iterable[Any]) -> np.ndarray:
    """Values of JSON, which may be lists, in an array of one axis."""
    found = [*values]
    array = np.empty(len(found), object)
    array[:] = found
    return array


def _pyarrow(module: str) -> Any:
    return imported(f"pyarrow.{module}", "Reading CSV and parquet", "report")
