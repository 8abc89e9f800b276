"""Labels and predictions from files, and whether two hold the same."""

import contextlib
import importlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.rows import check_no_probabilities
from keras_calib.inputs.values import check_probabilities

__all__ = ["PredictionFile", "Rows", "check_apart", "row_keys"]

# Names of the columns, or before the number of a class; and whether logits.
_OUTPUTS = {"logits": True, "logit": True, "probs": False, "prob": False}
# Rows that are looked at before anything is computed.
_FIRST = 100
# Rows of a table that are read at a time, and bytes of a parquet file: by
# default all rows that were written at once are in memory.
_ROWS = 4096
_BYTES = {"buffer_size": 2**20, "pre_buffer": False}

# The share of the smaller of two files that the other one may repeat.
_SAME = 0.2
# Of the multipliers of the classes: keys of two files must be comparable.
_SEED = 20
# Of the grids that see through rounding: how many directions they have, and
# how wide their cells are, where all predictions lie on a sphere of radius 1.
_DIRECTIONS = 4
_WIDTHS = (3e-2, 3e-3, 3e-4, 3e-5)
# Four standard deviations of the square root of a count.
_BEYOND_CHANCE = 2.0


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

    Raises ImportError if a table needs pyarrow, ValueError if the file has
    another form, or its first values are not what they are called.

    Attributes:
        path: Of the file.
        from_logits: Whether outputs are logits.
        num_classes: Of the predictions.
        num_rows: Number of samples, None if only reading tells.
        pixels: Whether a sample has several predictions.
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
        with self._readable():
            names = self._open()
        self._find_columns(names)
        if self._kind == ".npz":
            self.num_rows = len(self._rows(self._arrays).labels)
        outputs = next(self.batches(_FIRST)).outputs
        if self.from_logits:
            check_no_probabilities(outputs, "logits")
        else:
            check_probabilities(outputs, "probs")
        # One column is the second of two classes.
        self.num_classes = max(2, outputs.shape[-1])
        self.pixels = outputs.ndim > 2

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
        form += " of plain arrays" * (self._kind == ".npz")
        try:
            yield
        except ImportError:
            raise
        except Exception as error:
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
    if len(parts) == 1:
        return parts[0]
    return Rows(
        *(
            None if column[0] is None else np.concatenate(column)
            for column in zip(*parts, strict=True)
        )
    )


def check_apart(keys: dict[str, np.ndarray]) -> None:
    """Refuses data that were given twice: nothing holds for them.

    Takes `row_keys` by the flag of their file.
    """
    for (one, first), (two, second) in itertools.combinations(keys.items(), 2):
        share = max(map(_shared_share, first.T, second.T))
        if share > _SAME:
            raise value_error(
                "--predictions, --calibration and --selection must be "
                "different data: what was fitted or chosen on the samples "
                "that it is judged by looks better than it is",
                files=(one, two),
                repeated=f"{100.0 * share:.1f} % of the smaller one at least, "
                "digits and form aside",
            )


def row_keys(outputs: np.ndarray, from_logits: bool) -> np.ndarray:
    """Numbers uint64 `(n, num_keys)`, equal where predictions are, or nearly.

    The first is of the values in float32, so that the same predictions have
    the same keys in files of different formats. The others are of the cells
    of grids, from coarse to fine, in which the probabilities lie.
    """
    outputs = np.asarray(outputs).astype("float32", copy=False)
    # 0 and -0 are equal and differ in their bits.
    bits = (outputs.reshape(len(outputs), -1) + np.float32(0.0)).view("uint32")
    with np.errstate(all="ignore"):
        places = np.nan_to_num(_places(outputs, from_logits))
    cells = [np.rint(places / np.float32(width)) for width in _WIDTHS]
    cells = [cell.astype("int64").view("uint64") for cell in cells]
    return np.stack([_hashed(x) for x in (bits.astype("uint64"), *cells)], 1)


def _hashed(rows: np.ndarray) -> np.ndarray:
    random = np.random.default_rng(_SEED)
    factors = random.integers(0, 2**63, rows.shape[1], "uint64") * 2 + 1
    # Modulo 2**64, as unsigned integers of NumPy are.
    return rows @ factors


def _places(outputs: np.ndarray, from_logits: bool) -> np.ndarray:
    """A few numbers for each sample, near where probabilities are near.

    Of their square roots: rounding moves small and large ones alike.
    """
    if outputs.shape[-1] == 1:
        other = np.zeros_like(outputs) if from_logits else 1 - outputs
        outputs = np.concatenate([other, outputs], axis=-1)
    rows = outputs.reshape(-1, outputs.shape[-1])
    if from_logits:
        roots = np.exp(0.5 * (rows - rows.max(axis=-1, keepdims=True)))
    else:
        roots = np.sqrt(np.maximum(rows, 0))
    random = np.random.default_rng(_SEED)
    directions = random.normal(size=(rows.shape[-1], _DIRECTIONS))
    places = roots @ directions.astype("float32")
    places /= np.linalg.norm(roots, axis=-1, keepdims=True)
    # Of an image, the mean over its pixels.
    return places.reshape(len(outputs), -1, _DIRECTIONS).mean(axis=1)


def _shared_share(keys: np.ndarray, others: np.ndarray) -> float:
    """At least this share of the smaller data set is in both, beyond chance.

    Keys that occur twice in all tell: in one data set or once in each. Few
    digits give both by chance. Of two distributions, whatever they are, no
    more pairs are expected in both than twice the geometric mean of those
    within each, by Cauchy and Schwarz.
    """
    _, places = np.unique(np.concatenate([keys, others]), return_inverse=True)
    total = np.bincount(places)
    of_first = np.bincount(places[: len(keys)], minlength=len(total))
    in_second, in_both, in_first = np.bincount(
        of_first[total == 2], minlength=3
    )
    by_chance = 2.0 * np.prod(np.sqrt([in_first, in_second]) + _BEYOND_CHANCE)
    return (in_both - by_chance) / max(1, min(len(keys), len(others)))
