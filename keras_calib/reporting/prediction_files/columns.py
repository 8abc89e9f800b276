"""Columns by name from `.npz`, `.csv`, `.tsv` and `.parquet` files."""

import contextlib
import csv
import importlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of
from keras_calib.backend.npz import NpzFile, reading_npz

__all__ = ["ColumnFile", "check_one_role", "check_present", "plain"]

_ENDINGS = (".npz", ".csv", ".tsv", ".parquet")
_SEPARATORS = ",;\t|"
# A table is read by so many rows, and parquet through a buffer of so many
# bytes: by default pyarrow holds all rows that were written together.
_ROWS = 4096
_BYTES = {"buffer_size": 2**20, "pre_buffer": False}


class ColumnFile:
    """A file whose columns have names, read piece by piece.

    Pickled arrays are refused. Rows of errors count from 1, without the line
    of a table that has the names.

    Raises ImportError if a table needs pyarrow, ValueError if the file cannot
    be read.

    Attributes:
        path: Path of the file.
        names: Names of its columns, in order.
        num_rows: Number of rows, None if only reading tells.
        is_table: Whether columns have one value, or one list, for each row;
            else they are arrays of any shape.
        is_typed: Whether the file says what kind of values a column has.
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
        if self._kind not in _ENDINGS:
            raise value_error(
                "a file of predictions must end in .npz, .csv, .tsv or "
                ".parquet, and a log of answers in one of these or .jsonl",
                file=str(path),
            )
        self.is_table = self._kind != ".npz"
        self.is_typed = self._kind in (".npz", ".parquet")
        with self._readable():
            self.names = self._open()
        if twice := {x for x in self.names if self.names.count(x) > 1}:
            raise value_error(
                f"{self.path.name} must have each column once",
                twice=sorted(twice)[:20],
            )

    def array(self, name: str) -> np.ndarray | None:
        """A whole array of an `.npz` file, or None."""
        if self.is_table or name not in self.names:
            return None
        if name not in self._arrays:
            with self._readable(), self._npz() as file:
                self._arrays[name] = file.read(name)
        return self._arrays[name]

    def parts(
        self,
        texts: Sequence[str],
        numbers: Sequence[str],
        others: Sequence[str],
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
                if read[name].dtype.kind not in "biuf":
                    raise self.bad_value(
                        name,
                        "must hold numbers, or lists of one length, in every "
                        "row",
                    )
            for name in (*texts, *others):
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
        else:
            received = {"type": self._type(name), **received}
        return value_error(f"`{name}` {rule}", **received)

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
            if not self.is_table and isinstance(error, ValueError):
                raise
            raise self._bad_cell(numbers) or value_error(
                self._form, error=str(error)
            ) from error

    @property
    def _form(self) -> str:
        form = f"{self.path.name} must be a readable {self._kind} file"
        return form + " of plain arrays" * (not self.is_table)

    def _open(self) -> list[str]:
        """The names of the columns."""
        if self._kind == ".parquet":
            with _pyarrow("parquet").ParquetFile(self.path) as file:
                self.num_rows = file.metadata.num_rows
                return file.schema_arrow.names
        if self.is_table:
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
            parse_options=module.ParseOptions(delimiter=self._separator),
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
        if not self.is_table:
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
                rule += "; --decimal=, reads decimal commas"
            return self.bad_value(name, rule, row, value=text)
        return None

    def _values(self, column: Any, name: str, start: int) -> np.ndarray:
        """A column as an array; ValueError if a value is missing."""
        if isinstance(column, np.ndarray):
            return column
        if column.null_count:
            (gaps,) = np.nonzero(column.is_null().to_numpy(False))
            raise self.bad_value(
                name,
                "must have a value in every row",
                start + int(gaps[0]),
                value=None,
            )
        values = column.to_numpy(zero_copy_only=False)
        if len(values) and isinstance(values[0], np.ndarray):
            return self._stacked(values, name, start)
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
        return np.char.strip(values.astype(str))

    def _stacked(self, values: np.ndarray, name: str, start: int) -> np.ndarray:
        """Lists of one length as an array."""
        self._length.setdefault(name, len(values[0]))
        for row, value in enumerate(values):
            if len(value) != self._length[name]:
                raise self.bad_value(
                    name,
                    "must hold lists of one length in every row",
                    start + row,
                    length=len(value),
                    length_before=self._length[name],
                )
        return np.stack([*values])

    def _type(self, name: str) -> str:
        """What a column holds, in the words of its format."""
        if not self.is_table:
            with self._npz() as file:
                return str(file.form(name)[0])
        if self._kind == ".parquet":
            with _pyarrow("parquet").ParquetFile(self.path) as file:
                return str(file.schema_arrow.field(name).type)
        with self._open_csv({}, [name]) as reader:
            return str(reader.schema.field(name).type)


def plain(value: Any) -> str:
    """A value as a text, where 1, 1.0 and "1" are the same."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", str(value).strip())


def check_one_role(columns: Iterable[tuple[str, str | None]]) -> None:
    """Raises ValueError for a column that two options give."""
    options: dict[str, str] = {}
    for option, name in columns:
        if name and name in options:
            raise value_error(
                f"`{name}` must be the column of one option; the other needs "
                "a column of its own",
                options=[options[name], option],
            )
        options[name or ""] = option


def check_present(file: str, names: list[str], wanted: Sequence[str]) -> None:
    """Raises ValueError for names that no column has."""
    if absent := [x for x in wanted if x not in names]:
        raise value_error(
            f"{file} must have the columns that are asked for",
            absent=absent[:20],
            columns=names[:20],
        )


def _filled(column: Any, has_gaps: bool) -> Any:
    """A column as texts, empty where a value is missing: null or NaN."""
    if not has_gaps:
        return column
    if not isinstance(column, np.ndarray):
        values = column.to_pylist()
        return np.array(
            ["" if x is None or x != x else str(x) for x in values], str
        )
    texts = column.astype(str)
    if column.dtype.kind in "fmM":
        texts[np.isnan(column)] = ""
    return texts


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise ImportError(
            "Reading CSV and parquet needs pyarrow: "
            "pip install 'keras-calib[report]'"
        ) from error
