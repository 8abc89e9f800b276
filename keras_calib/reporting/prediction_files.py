"""Labels and predictions from files of any framework."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import invalid

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

    path: Path
    from_logits: bool
    num_rows: int | None = None
    class_names: list[str] | None = None

    def batches(self, size: int) -> Iterator[Rows]:
        """The samples, `size` at a time.

        Raises:
            ValueError: If values are missing or no numbers.
        """
        raise NotImplementedError

    def read(self) -> Rows:
        """All samples.

        Raises:
            ValueError: As `batches`, and if there are none.
        """
        parts = list(self.batches(_ROWS))
        if not parts:
            raise ValueError(
                invalid("the file must have samples", path=str(self.path))
            )
        return _joined(parts)


def open_predictions(path: Any) -> PredictionFile:
    """Opens an `.npz`, `.csv` or `.parquet` file of predictions.

    An `.npz` file has the arrays `labels` and `logits` or `probs`, and may
    have `sample_weight` and `class_names`. A table has a column `label` and
    columns `logit_0`, `logit_1`, ... or `prob_0`, `prob_1`, ..., in any
    order; parquet may have lists in one column `logits` or `probs`. Tables
    are read piece by piece. Nothing that is read is executed: pickled arrays
    are refused.

    Args:
        path: Of the file.

    Raises:
        ImportError: If pyarrow is not installed and the file is a table.
        OSError: If the file is not there.
        ValueError: If it has another form.
    """
    path = Path(path)
    kinds = {".npz": _Arrays, ".csv": _Table, ".parquet": _Table}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ValueError(
            invalid(
                "a file of predictions must end in .npz, .csv or .parquet",
                path=str(path),
            )
        )
    if not path.is_file():
        raise FileNotFoundError(
            invalid("there must be a file of predictions", path=str(path))
        )
    return kind(path)


class _Arrays(PredictionFile):
    def __init__(self, path: Path):
        self.path = path
        arrays = _plain_arrays(path)
        columns = _columns(list(arrays), path)
        self.from_logits = columns.from_logits
        name, weight = columns.outputs[0], columns.sample_weight
        self._rows = Rows(
            arrays[columns.labels], arrays[name], arrays.get(weight)
        )
        _check_arrays(self._rows, (columns.labels, name, weight), path)
        self.num_rows = len(self._rows.labels)
        if "class_names" in arrays:
            names = arrays["class_names"].reshape(-1)
            self.class_names = [str(x) for x in names]

    def batches(self, size: int) -> Iterator[Rows]:
        for start in range(0, self.num_rows, size):
            yield _cut(self._rows, slice(start, start + size))


class _Table(PredictionFile):
    def __init__(self, path: Path):
        try:
            import pyarrow as pa
            import pyarrow.csv
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError(_ABSENT) from error
        self.path = path
        self._arrow = pa
        with self._readable():
            if path.suffix.lower() == ".parquet":
                with pa.parquet.ParquetFile(path) as file:
                    names = file.schema_arrow.names
                    self.num_rows = file.metadata.num_rows
            else:
                with pa.csv.open_csv(path) as reader:
                    names = reader.schema.names
        self._columns = _columns(names, path)
        self.from_logits = self._columns.from_logits

    def batches(self, size: int) -> Iterator[Rows]:
        waiting = None
        for part in self._parts():
            waiting = part if waiting is None else _joined([waiting, part])
            while len(waiting.labels) >= size:
                yield _cut(waiting, slice(size))
                waiting = _cut(waiting, slice(size, None))
        if waiting is not None and len(waiting.labels):
            yield waiting

    def _parts(self) -> Iterator[Rows]:
        pa, columns = self._arrow, self._columns
        wanted = [columns.labels, *columns.outputs]
        if columns.sample_weight is not None:
            wanted.append(columns.sample_weight)
        with self._readable():
            if self.path.suffix.lower() == ".parquet":
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
                for part in reader:
                    yield self._rows(part)

    def _rows(self, part: Any) -> Rows:
        columns = self._columns
        if columns.outputs[0] in _OUTPUTS:
            name = columns.outputs[0]
            outputs = self._lists(part.column(name), name)
        else:
            outputs = np.stack(
                [_numbers(part.column(x), x) for x in columns.outputs], axis=-1
            )
        weight = columns.sample_weight
        return Rows(
            _numbers(part.column(columns.labels), columns.labels),
            outputs,
            None if weight is None else _numbers(part.column(weight), weight),
        )

    def _lists(self, column: Any, name: str) -> np.ndarray:
        """A column of lists of one length as a matrix."""
        types = self._arrow.types
        kind = column.type
        sizes = [0]
        if types.is_fixed_size_list(kind) and not column.null_count:
            sizes = [kind.list_size]
        elif types.is_list(kind) or types.is_large_list(kind):
            sizes = column.value_lengths().unique().to_pylist()
        if len(sizes) != 1 or not sizes[0]:
            raise ValueError(
                invalid(
                    f"column `{name}` must hold lists of one length, in every "
                    "row",
                    type=str(kind),
                )
            )
        return _numbers(column.flatten(), name).reshape(-1, sizes[0])

    def _readable(self) -> Any:
        return _Readable(self.path, self._arrow)


class _Readable:
    """Says which file it is that cannot be read."""

    def __init__(self, path: Path, arrow: Any):
        self._path, self._faults = (
            path,
            (arrow.ArrowException, OSError, UnicodeDecodeError),
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, self._faults):
            raise ValueError(
                invalid(
                    f"{self._path.name} must be a readable "
                    f"{self._path.suffix} file",
                    error=str(error),
                )
            ) from error


def _plain_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, none of which needs code to be read."""
    try:
        # NumPy leaves a file open that is cut off.
        with (
            open(path, "rb") as opened,
            np.load(opened, allow_pickle=False) as file,
        ):
            return {name: file[name] for name in file.files}
    except _UNREADABLE as error:
        raise ValueError(
            invalid(
                f"{path.name} must be an .npz file of plain arrays",
                error=str(error),
            )
        ) from error


def _check_arrays(rows: Rows, names: tuple, path: Path) -> None:
    """Arrays must hold numbers, of one number of samples."""
    for name, array in zip(names, rows, strict=True):
        if array is not None and array.dtype.kind not in "biuf":
            raise ValueError(
                invalid(
                    f"`{name}` of {path.name} must hold numbers",
                    dtype=str(array.dtype),
                )
            )
    shapes = {
        name: array.shape
        for name, array in zip(names, rows, strict=True)
        if array is not None
    }
    if () in shapes.values() or rows.outputs.ndim < 2:
        raise ValueError(
            invalid(
                f"{path.name} must have an axis of samples, and in "
                f"`{names[1]}` a last one of classes; values of the second "
                "of two classes alone are a column, of shape (n, 1)",
                **shapes,
            )
        )
    if len({shape[0] for shape in shapes.values()}) > 1:
        raise ValueError(
            invalid(f"{path.name} must have arrays of one length", **shapes)
        )


def _columns(names: list[str], path: Path) -> _Columns:
    def first(known: Any) -> str | None:
        return next((name for name in known if name in names), None)

    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(
            invalid(f"{path.name} must have each column once", twice=twice[:20])
        )
    labels, whole = first(_LABELS), [x for x in _OUTPUTS if x in names]
    numbered = {x: _numbered(x, names) for x in _OUTPUTS}
    numbered = {x: found for x, found in numbered.items() if found}
    if labels is None or len(whole) + len(numbered) != 1:
        wanted = "`logits` or `probs`"
        if path.suffix.lower() != ".npz":
            wanted = "`logit_0`, ... or `prob_0`, ... (or lists, " + wanted
            wanted += ")"
        raise ValueError(
            invalid(
                f"{path.name} must have `{_LABELS[path.suffix != '.npz']}` "
                f"and either {wanted}",
                columns=names[:20],
            )
        )
    prefix = whole[0] if whole else next(iter(numbered))
    outputs = whole
    if numbered:
        found = numbered[prefix]
        if sorted(found) != list(range(len(found))):
            raise ValueError(
                invalid(
                    f"{path.name} must have `{prefix}_0` to "
                    f"`{prefix}_{len(found) - 1}`, one for each class",
                    columns=[found[number] for number in sorted(found)][:20],
                )
            )
        outputs = [found[number] for number in range(len(found))]
    return _Columns(labels, outputs, _OUTPUTS[prefix], first(_WEIGHTS))


def _numbered(prefix: str, names: list[str]) -> dict[int, str]:
    """Columns `logit_0`, ... by the number of the class."""
    found = {}
    for name in names:
        start, _, number = name.rpartition("_")
        if start == prefix and number.isdecimal():
            found[int(number)] = name
    return found


def _numbers(column: Any, name: str) -> np.ndarray:
    """A column of numbers without gaps."""
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.dtype.kind not in "biuf":
        raise ValueError(
            invalid(
                f"column `{name}` must hold numbers, in every row",
                type=str(column.type),
                empty=column.null_count,
            )
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
