"""Labels and predictions from files of any framework."""

import contextlib
import importlib
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error

__all__ = ["PredictionFile", "Rows"]

# Names of the columns, or before the number of a class; and whether logits.
_OUTPUTS = {"logits": True, "logit": True, "probs": False, "prob": False}
# What NumPy and pyarrow raise of a file that is none, or is cut off.
_FAULTS = (
    EOFError,
    MemoryError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
# Rows of a table that are read at a time, and bytes of a parquet file: by
# default all rows that were written at once are in memory.
_ROWS = 4096
_BYTES = {"buffer_size": 2**20, "pre_buffer": False}


class Rows(NamedTuple):
    """Labels `(n, ...)`, outputs `(n, ..., num_classes)`, weights or None."""

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None


class PredictionFile:
    """An `.npz`, `.csv` or `.parquet` file of labels and predictions.

    An `.npz` file has the arrays `labels` and `logits` or `probs`, and may
    have `sample_weight` and `class_names`. A table has a column `label` and
    columns `logit_0`, `logit_1`, ... or `prob_0`, `prob_1`, ..., in any
    order; parquet may have lists in one column `logits` or `probs`. Tables
    are read piece by piece. Pickled arrays are refused.

    Raises ImportError if a table needs pyarrow, OSError if there is no file,
    ValueError if it has another form.

    Attributes:
        path: Of the file.
        from_logits: Whether outputs are logits.
        num_rows: Number of samples, None if only reading tells.
        class_names: Names of the classes, or None.
    """

    def __init__(self, path: Any):
        self.path = Path(path)
        self.num_rows: int | None = None
        self.class_names: list[str] | None = None
        self._kind = self.path.suffix.lower()
        if self._kind not in (".npz", ".csv", ".parquet"):
            raise value_error(
                "a file of predictions must end in .npz, .csv or .parquet",
                path=str(path),
            )
        if not self.path.is_file():
            raise FileNotFoundError(
                invalid("there must be a file of predictions", path=str(path))
            )
        with self._readable():
            names = self._open()
        self._find_columns(names)
        if self._kind == ".npz":
            self.num_rows = len(self._rows(self._arrays).labels)

    def batches(self, size: int) -> Iterator[Rows]:
        """The samples, `size` at a time.

        Raises ValueError if there are none, or one is no number.
        """
        waiting, count = [], 0
        for part in map(self._rows, self._parts()):
            count += len(part.labels)
            waiting = [_joined([*waiting, part])]
            while len(waiting[0].labels) >= size:
                yield _cut(waiting[0], slice(size))
                waiting = [_cut(waiting[0], slice(size, None))]
        if not count:
            raise value_error("the file must have samples", path=str(self.path))
        if len(waiting[0].labels):
            yield waiting[0]

    def read(self) -> Rows:
        """All samples."""
        return _joined([*self.batches(_ROWS)])

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        form = f"a readable {self._kind} file"
        if self._kind == ".npz":
            form = "an .npz file of plain arrays"
        try:
            yield
        except _FAULTS as error:
            raise value_error(
                f"{self.path.name} must be {form}", error=str(error)
            ) from error

    def _open(self) -> list[str]:
        """The names of the columns."""
        if self._kind == ".csv":
            with _pyarrow("csv").open_csv(self.path) as reader:
                return reader.schema.names
        if self._kind == ".parquet":
            with _pyarrow("parquet").ParquetFile(self.path) as file:
                self.num_rows = file.metadata.num_rows
                return file.schema_arrow.names
        # NumPy leaves a file open that is cut off.
        with (
            open(self.path, "rb") as opened,
            np.load(opened, allow_pickle=False) as file,
        ):
            self._arrays = {name: file[name] for name in file.files}
        if "class_names" in self._arrays:
            names = self._arrays["class_names"].reshape(-1)
            self.class_names = [str(x) for x in names]
        return list(self._arrays)

    def _parts(self) -> Iterator[Any]:
        """Columns by name, piece by piece."""
        if self._kind == ".npz":
            yield self._arrays
            return
        numbers = [*self._outputs, *["sample_weight"] * self._weighted]
        names = [self._labels, *numbers]
        with self._readable():
            if self._kind == ".parquet":
                file = _pyarrow("parquet").ParquetFile(self.path, **_BYTES)
                with file:
                    yield from file.iter_batches(_ROWS, columns=names)
                return
            csv = _pyarrow("csv")
            # The first rows do not tell the type of a column.
            convert = csv.ConvertOptions(
                include_columns=names,
                column_types=dict.fromkeys(numbers, "float64"),
            )
            with csv.open_csv(self.path, convert_options=convert) as reader:
                yield from reader

    def _find_columns(self, names: list[str]) -> None:
        if twice := {name for name in names if names.count(name) > 1}:
            raise value_error(
                f"{self.path.name} must have each column once",
                twice=sorted(twice)[:20],
            )
        numbered = [name for name in names if re.search(r"_\d+$", name)]
        starts = {*names, *(name.rpartition("_")[0] for name in numbered)}
        prefixes = [x for x in _OUTPUTS if x in starts]
        labels = [x for x in ("labels", "label") if x in names]
        if not labels or len(prefixes) != 1:
            raise value_error(
                f"{self.path.name} must have `label` or `labels`, and either "
                "`logits` or `probs`, which a table may give as `logit_0`, "
                "... or `prob_0`, ...",
                columns=names[:20],
            )
        (prefix,) = self._outputs = prefixes
        if prefix not in names:
            found = {x for x in numbered if x.rpartition("_")[0] == prefix}
            self._outputs = [f"{prefix}_{k}" for k in range(len(found))]
            if {*self._outputs} != found:
                raise value_error(
                    f"{self.path.name} must have `{prefix}_0` to "
                    f"`{self._outputs[-1]}`, one for each class",
                    columns=sorted(found)[:20],
                )
        self.from_logits = _OUTPUTS[prefix]
        self._labels = labels[0]
        self._weighted = "sample_weight" in names

    def _rows(self, part: Any) -> Rows:
        outputs = [_numbers(part, name) for name in self._outputs]
        if self._outputs[0] not in _OUTPUTS:
            outputs = [np.stack(outputs, axis=-1)]
        weight = _numbers(part, "sample_weight") if self._weighted else None
        rows = Rows(_numbers(part, self._labels), outputs[0], weight)
        shapes = [x.shape for x in rows if x is not None]
        if () in shapes or rows.outputs.ndim < 2 or not shapes[1][-1]:
            raise value_error(
                f"{self.path.name} must have an axis of samples, and in "
                f"`{self._outputs[0]}` a last one of classes; values of the "
                "second of two classes alone are a column, of shape (n, 1)",
                shapes=shapes,
            )
        if len({shape[0] for shape in shapes}) > 1:
            raise value_error(
                f"{self.path.name} must have arrays of one length",
                shapes=shapes,
            )
        return rows


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise ImportError(
            "Reading CSV and parquet needs pyarrow: "
            "pip install 'keras-calib[report]'"
        ) from error


def _numbers(part: Any, name: str) -> np.ndarray:
    """A column of numbers, or of lists of them, without gaps."""
    column = values = part[name]
    if not isinstance(column, np.ndarray):
        values = column.to_numpy(zero_copy_only=False)
    with contextlib.suppress(ValueError, TypeError):
        values = np.stack(values) if values.dtype == object else values
    empty = getattr(column, "null_count", 0)
    if empty or values.dtype.kind not in "biuf":
        raise value_error(
            f"`{name}` must hold numbers, or lists of one length, in every row",
            type=str(getattr(column, "type", values.dtype)),
            empty=empty,
        )
    return values


def _cut(rows: Rows, part: slice) -> Rows:
    return Rows(*(None if x is None else x[part] for x in rows))


def _joined(parts: list[Rows]) -> Rows:
    return Rows(
        *(
            None if column[0] is None else np.concatenate(column)
            for column in zip(*parts, strict=True)
        )
    )
