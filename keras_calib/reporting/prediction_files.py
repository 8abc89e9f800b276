"""Labels and predictions from files of any framework."""

import contextlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error

__all__ = ["PredictionFile", "Rows", "open_predictions"]

_ABSENT = (
    "Reading CSV and parquet needs pyarrow: pip install 'keras-calib[report]'"
)
_LABELS = ("labels", "label", "y_true")
_WEIGHTS = ("sample_weight", "weight")
# What NumPy raises of a file that is none, or is cut off.
_UNREADABLE = (
    EOFError,
    MemoryError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
# Names of the columns, or before the number of a class; and whether logits.
_OUTPUTS = {
    "logits": True,
    "logit": True,
    "probs": False,
    "prob": False,
    "probabilities": False,
}
# Rows of a table that are read at a time, and bytes of a parquet file: by
# default all rows that were written at once are in memory.
_ROWS = 4096
_BYTES = {"buffer_size": 2**20, "pre_buffer": False}


class Rows(NamedTuple):
    """Some or all samples of a file.

    Attributes:
        labels: Class ids `(n, ...)`, or one-hot or soft labels.
        outputs: `(n, ..., num_classes)`.
        sample_weight: Weights, or None.
    """

    labels: np.ndarray
    outputs: np.ndarray
    sample_weight: np.ndarray | None


class _Columns(NamedTuple):
    """Names of the columns that are read."""

    labels: str
    outputs: list[str]
    from_logits: bool
    sample_weight: str | None


class PredictionFile:
    """Labels with logits or probabilities; see `open_predictions`.

    Attributes:
        path: Of the file.
        from_logits: Whether outputs are logits.
        num_rows: Number of samples, None if only reading tells.
        class_names: Names of the classes, or None.
    """

    num_rows: int | None = None
    class_names: list[str] | None = None

    def __init__(self, path: Path, names: list[str]):
        self.path = path
        self._columns = _columns(names, path)
        self.from_logits = self._columns.from_logits

    def batches(self, size: int) -> Iterator[Rows]:
        """The samples, `size` at a time; ValueError if one is no number."""
        waiting = None
        for part in self._parts():
            waiting = part if waiting is None else _joined([waiting, part])
            while len(waiting.labels) >= size:
                yield _cut(waiting, slice(size))
                waiting = _cut(waiting, slice(size, None))
        if waiting is not None and len(waiting.labels):
            yield waiting

    def read(self) -> Rows:
        """All samples; ValueError if there are none."""
        parts = list(self._parts())
        if not any(len(part.labels) for part in parts):
            raise value_error("the file must have samples", path=str(self.path))
        return _joined(parts)

    def _parts(self) -> Iterator[Rows]:
        raise NotImplementedError


def open_predictions(path: Any) -> PredictionFile:
    """Opens an `.npz`, `.csv` or `.parquet` file of predictions.

    An `.npz` file has the arrays `labels` and `logits` or `probs`, and may
    have `sample_weight` and `class_names`. A table has a column `label` and
    columns `logit_0`, `logit_1`, ... or `prob_0`, `prob_1`, ..., in any
    order; parquet may have lists in one column `logits` or `probs`. Tables
    are read piece by piece. Nothing that is read is executed: pickled arrays
    are refused.

    Raises ImportError if a table needs pyarrow, OSError if there is no file,
    ValueError if it has another form.
    """
    path = Path(path)
    kinds = {".npz": _Arrays, ".csv": _Table, ".parquet": _Table}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise value_error(
            "a file of predictions must end in .npz, .csv or .parquet",
            path=str(path),
        )
    if not path.is_file():
        raise FileNotFoundError(
            invalid("there must be a file of predictions", path=str(path))
        )
    return kind(path)


class _Arrays(PredictionFile):
    def __init__(self, path: Path):
        # NumPy leaves a file open that is cut off.
        with (
            _readable(path, "an .npz file of plain arrays", _UNREADABLE),
            open(path, "rb") as opened,
            np.load(opened, allow_pickle=False) as file,
        ):
            arrays = {name: file[name] for name in file.files}
        super().__init__(path, list(arrays))
        labels, (outputs,), _, weight = self._columns
        self._rows = Rows(arrays[labels], arrays[outputs], arrays.get(weight))
        _check_arrays(self._rows, (labels, outputs, weight), path)
        self.num_rows = len(self._rows.labels)
        if "class_names" in arrays:
            names = arrays["class_names"].reshape(-1)
            self.class_names = [str(x) for x in names]

    def _parts(self) -> Iterator[Rows]:
        yield self._rows


class _Table(PredictionFile):
    def __init__(self, path: Path):
        try:
            import pyarrow as pa
            import pyarrow.csv
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError(_ABSENT) from error
        self._arrow, self._is_parquet = pa, path.suffix.lower() == ".parquet"
        with self._readable(path):
            if self._is_parquet:
                with pa.parquet.ParquetFile(path) as file:
                    names = file.schema_arrow.names
                    self.num_rows = file.metadata.num_rows
            else:
                with pa.csv.open_csv(path) as reader:
                    names = reader.schema.names
        super().__init__(path, names)

    def _readable(self, path: Path) -> Any:
        faults = self._arrow.ArrowException, OSError, UnicodeDecodeError
        return _readable(path, f"a readable {path.suffix} file", faults)

    def _parts(self) -> Iterator[Rows]:
        pa, columns = self._arrow, self._columns
        wanted = [columns.labels, *columns.outputs]
        if columns.sample_weight is not None:
            wanted.append(columns.sample_weight)
        with self._readable(self.path):
            if self._is_parquet:
                with pa.parquet.ParquetFile(self.path, **_BYTES) as file:
                    for part in file.iter_batches(_ROWS, columns=wanted):
                        yield self._rows(part)
                return
            # The first rows do not tell the type of a column.
            types = dict.fromkeys(wanted[1:], pa.float64())
            convert = pa.csv.ConvertOptions(
                include_columns=wanted, column_types=types
            )
            with pa.csv.open_csv(self.path, convert_options=convert) as reader:
                yield from map(self._rows, reader)

    def _rows(self, part: Any) -> Rows:
        labels, outputs, _, weight = self._columns
        if outputs[0] in _OUTPUTS:
            values = self._lists(part.column(outputs[0]), outputs[0])
        else:
            values = np.stack([_numbers(part, x) for x in outputs], axis=-1)
        if weight is not None:
            weight = _numbers(part, weight)
        return Rows(_numbers(part, labels), values, weight)

    def _lists(self, column: Any, name: str) -> np.ndarray:
        """A column of lists of one length as a matrix."""
        types, kind = self._arrow.types, column.type
        sizes = [0]
        if types.is_fixed_size_list(kind) and not column.null_count:
            sizes = [kind.list_size]
        elif types.is_list(kind) or types.is_large_list(kind):
            sizes = column.value_lengths().unique().to_pylist()
        if len(sizes) != 1 or not sizes[0]:
            raise value_error(
                f"column `{name}` must hold lists of one length, in every row",
                type=str(kind),
            )
        values = {name: column.flatten()}
        return _numbers(values, name).reshape(-1, sizes[0])


@contextlib.contextmanager
def _readable(path: Path, form: str, faults: tuple) -> Iterator[None]:
    """Says which file it is that cannot be read."""
    try:
        yield
    except faults as error:
        raise value_error(
            f"{path.name} must be {form}", error=str(error)
        ) from error


def _check_arrays(rows: Rows, names: tuple, path: Path) -> None:
    """Arrays must hold numbers, of one number of samples."""
    arrays = dict(zip(names, rows, strict=True))
    arrays.pop(None, None)
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise value_error(
                f"`{name}` of {path.name} must hold numbers",
                dtype=str(array.dtype),
            )
    shapes = {name: array.shape for name, array in arrays.items()}
    if () in shapes.values() or rows.outputs.ndim < 2:
        raise value_error(
            f"{path.name} must have an axis of samples, and in "
            f"`{names[1]}` a last one of classes; values of the second "
            "of two classes alone are a column, of shape (n, 1)",
            **shapes,
        )
    if len({shape[0] for shape in shapes.values()}) > 1:
        raise value_error(
            f"{path.name} must have arrays of one length", **shapes
        )


def _columns(names: list[str], path: Path) -> _Columns:
    def first(known: Any) -> str | None:
        return next((name for name in known if name in names), None)

    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise value_error(
            f"{path.name} must have each column once", twice=twice[:20]
        )
    # Columns by what is before their number, `logit_0`; and whole ones.
    found = {x: {} for x in _OUTPUTS}
    for name in names:
        start, _, number = name.rpartition("_")
        if start in found and number.isdecimal():
            found[start][int(number)] = name
    whole = [x for x in _OUTPUTS if x in names]
    numbered = [x for x in _OUTPUTS if found[x]]
    labels, is_array = first(_LABELS), path.suffix.lower() == ".npz"
    if labels is None or len(whole + numbered) != 1:
        wanted = "`logits` or `probs`"
        if not is_array:
            wanted = f"`logit_0`, ... or `prob_0`, ... (or lists, {wanted})"
        raise value_error(
            f"{path.name} must have `{_LABELS[not is_array]}` and either "
            f"{wanted}",
            columns=names[:20],
        )
    (prefix,) = whole or numbered
    outputs = whole
    if numbered:
        outputs = [found[prefix][k] for k in sorted(found[prefix])]
        last = len(outputs) - 1
        if max(found[prefix]) != last:
            raise value_error(
                f"{path.name} must have `{prefix}_0` to "
                f"`{prefix}_{last}`, one for each class",
                columns=outputs[:20],
            )
    return _Columns(labels, outputs, _OUTPUTS[prefix], first(_WEIGHTS))


def _numbers(part: Any, name: str) -> np.ndarray:
    """A column of numbers without gaps."""
    column = part[name]
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.dtype.kind not in "biuf":
        raise value_error(
            f"column `{name}` must hold numbers, in every row",
            type=str(column.type),
            empty=column.null_count,
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
