"""Columns of predictions: arrays with a row for each example.

They are in memory, or on disk: written batch by batch, then read in memory
maps. So predictions that do not fit in memory are made once and read often.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.groups import as_groups
from keras_calib.numerics.arrays import as_array

NUMBERS = "labels", "outputs", "sample_weight"
# Those of groups are called ("groups", name).
NAMES = (*NUMBERS, "units", "ids", "inputs")


def is_mapped(x: Any) -> bool:
    """Whether the values of an array are read from a file, as needed."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap):
            return True
        x = x.base
    return False


def by_name(groups: Any) -> dict[tuple[str, str], Any]:
    """Columns of groups, which are one array or a dict of several."""
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        groups = {"group": groups}
    return {("groups", str(name)): x for name, x in groups.items()}


def told_name(name: Any) -> str:
    """What errors call a column."""
    return name if isinstance(name, str) else f"groups[{name[1]!r}]"


def checked(columns: Mapping[Any, Any], may_be_empty: bool) -> dict[Any, Any]:
    """Columns as arrays of one length; ValueError for others."""
    kept: dict[Any, Any] = dict.fromkeys(NAMES)
    lengths = {}
    for name, x in columns.items():
        if x is None:
            continue
        told = told_name(name)
        array = as_array(x, told) if name in NUMBERS else as_groups(x)
        if array.ndim == 0:
            raise value_error(
                f"`{told}` must have a row for each prediction",
                **{f"{told}.shape": ()},
            )
        kept[name], lengths[told] = array, len(array)
    if len({*lengths.values()}) > 1:
        raise value_error(
            "all columns of `Predictions` must have one length", **lengths
        )
    if not (kept["outputs"].size or may_be_empty):
        raise value_error(
            "`outputs` must not be empty",
            **{"outputs.shape": kept["outputs"].shape},
        )
    return kept


def of_log(correct: Any, confidence: Any) -> dict[Any, Any]:
    """Two columns of a log, checked."""
    given = {"correct": correct, "confidence": confidence}
    columns = {
        k: as_array(x, k).astype("float64", copy=False)
        for k, x in given.items()
    }
    for name, x in columns.items():
        right = (x >= 0.0) & (x <= 1.0)
        if x.ndim != 1 or not right.all():
            rule = f"`{name}` must be one number in [0, 1] a row"
            if np.isnan(x).any():
                rule += (
                    "; leave out rows without one, or give them any and the "
                    "`sample_weight` 0: a `Monitor` counts them as answers "
                    "without a label"
                )
            raise value_error(
                rule,
                **{f"{name}.shape": x.shape, "wrong": x[~right][:4].tolist()},
            )
    return {"labels": columns["correct"], "outputs": columns["confidence"]}


def ids_of_names(labels: Any, names: list[str] | None) -> np.ndarray:
    """Labels as numbers; names of classes as their places."""
    first = labels
    while isinstance(first, list | tuple) and first:
        first = first[0]
    kind = getattr(getattr(labels, "dtype", None), "kind", "")
    if not (isinstance(first, str | bytes) or kind in ("O", "S", "U")):
        return as_array(labels, "labels")
    array = np.asarray(labels)
    texts = [
        x.decode() if isinstance(x, bytes) else str(x) for x in array.ravel()
    ]
    places = {name: k for k, name in enumerate(names or [])}
    if unknown := [x for x in dict.fromkeys(texts) if x not in places]:
        raise value_error(
            "`labels` must be class ids, or names out of `class_names`",
            unknown=unknown[:4],
            class_names=names,
        )
    ids = np.array([places[x] for x in texts], "int64")
    return ids.reshape(array.shape)


def rows_of(columns: Mapping[Any, Any], rows: Any, size: int) -> dict[Any, Any]:
    """Some rows of all columns; numbers that are on disk stay there.

    Args:
        columns: Columns by name.
        rows: A slice, or places of rows.
        size: Number of rows to copy at once.
    """
    names = [k for k, x in columns.items() if x is not None]
    copied: dict[Any, Any] = {}
    if not isinstance(rows, slice) and is_mapped(columns["outputs"]):
        spool = Spool()
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            spool.add({k: columns[k][some] for k in names if k in NUMBERS})
        copied = spool.arrays()
    return {k: columns[k][rows] for k in names if k not in copied} | copied


class Spool:
    """A temporary folder of columns, deleted with the last array of it.

    Rows of a later batch may have other lengths, as sequences have: at the end
    all are padded with zeros to the longest.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="keras_calib-"))
        self._parts: dict[Hashable, list[tuple[np.dtype, tuple[int, ...]]]] = {}
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def add(self, columns: Mapping[Any, np.ndarray]) -> None:
        """Appends rows to each column."""
        for name, array in columns.items():
            parts = self._parts.setdefault(name, [])
            with open(self._path(name), "ab") as file:
                np.ascontiguousarray(array).tofile(file)
            parts.append((array.dtype, array.shape))

    def arrays(self) -> dict[Any, np.ndarray]:
        """The columns as arrays, which the system reads from disk as needed.

        What is written to them stays in memory.
        """
        return {name: self._array(name) for name in self._parts}

    def _path(self, name: Hashable) -> Path:
        # A name may be of a group, which users give.
        return self._folder / f"{[*self._parts].index(name)}.bin"

    def _array(self, name: Hashable) -> np.ndarray:
        path, parts = self._path(name), self._parts[name]
        rows = sum(shape[0] for _, shape in parts)
        dtype = np.result_type(*{dtype for dtype, _ in parts})
        longest = np.max([shape[1:] for _, shape in parts], axis=0)
        whole = (rows, *map(int, longest))
        if any((dtype, whole[1:]) != (x, shape[1:]) for x, shape in parts):
            path = self._padded(path, parts, dtype, whole)
        if not np.prod(whole):
            return np.zeros(whole, dtype)
        array = np.memmap(path, dtype, "c", shape=whole)
        # Every view of the array holds its base, which now holds the folder.
        weakref.finalize(array.base, lambda _: None, self)
        return array

    def _padded(
        self,
        path: Path,
        parts: list[tuple[np.dtype, tuple[int, ...]]],
        dtype: np.dtype,
        whole: tuple[int, ...],
    ) -> Path:
        """A file of rows of one length, from that of rows of several."""
        padded = path.with_suffix(".padded")
        with open(path, "rb") as given, open(padded, "wb") as written:
            for kind, shape in parts:
                rows = np.fromfile(given, kind, int(np.prod(shape)))
                ends = [
                    (0, most - size)
                    for most, size in zip(whole[1:], shape[1:], strict=True)
                ]
                rows = np.pad(rows.reshape(shape), [(0, 0), *ends])
                rows.astype(dtype, copy=False).tofile(written)
        path.unlink()
        return padded


class Gathered:
    """Columns that come batch by batch: numbers on disk, others in memory.

    Batches of sequences or images may have other lengths, whose ends weigh
    nothing.
    """

    def __init__(self) -> None:
        self._spool = Spool()
        self._others: dict[Any, list] = {}
        self._lengths: set[tuple[int, ...]] = set()
        self._weighs = False

    def add(self, columns: Mapping[Any, Any], lead: tuple[int, ...]) -> None:
        """Adds a batch of predictions of the shape `lead`; inputs are left."""
        self._lengths.add(lead[1:])
        weight = columns["sample_weight"]
        if weight is None:
            weight = np.ones(lead, "float32")
        else:
            self._weighs = True
            if weight.shape == lead[: weight.ndim]:
                weight = spread_over(weight, lead)
        numbers = {k: columns[k] for k in ("labels", "outputs")}
        self._spool.add({**numbers, "sample_weight": weight})
        for name, x in columns.items():
            if name not in (*NUMBERS, "inputs"):
                self._others.setdefault(name, []).append(x)

    def columns(self) -> dict[Any, Any]:
        """All rows; no column without a row."""
        found: dict[Any, Any] = self._spool.arrays()
        if not self._weighs and len(self._lengths) == 1:
            found["sample_weight"] = None
        return found | {k: np.concatenate(x) for k, x in self._others.items()}


def spread_over(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Values of each row, or of each prediction, for each of the latter."""
    if values.size == np.prod(shape):
        return values.reshape(shape)
    lead = values.shape + (1,) * (len(shape) - values.ndim)
    return np.broadcast_to(values.reshape(lead), shape)


def of_batches(batches: Any, made: Callable[..., Any]) -> dict[Any, Any]:
    """Labels, outputs and weights that users made batch by batch, on disk.

    `made` makes `Predictions` of a batch.
    """
    if not isinstance(batches, Iterable) or hasattr(batches, "shape"):
        raise type_error(
            "`batches` must be an iterable of (labels, outputs) or (labels, "
            "outputs, sample_weight)",
            batches=type(batches).__name__,
        )
    # It needs Keras.
    from keras_calib.inputs.weights import weight_of_rows

    gathered, kinds = Gathered(), set()
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise value_error(
                "each batch must be (labels, outputs) or (labels, outputs, "
                "sample_weight)",
                batch=type(batch).__name__,
            )
        if not len(batch[0]):
            continue
        p = made(*batch[:2], sample_weight=[*batch, None][2])
        labels, outputs, weight = p.labels, p.outputs, p.sample_weight
        kinds.add((labels.ndim, outputs.ndim, outputs.shape[-1:]))
        if len(kinds) > 1:
            raise value_error(
                "batches must all have the same kind of labels, number of "
                "classes and axes",
                different=sorted(kinds),
            )
        lead = outputs.shape if p.multi_label else p.shape
        if weight is not None:
            weight = weight_of_rows(weight, lead).reshape(lead)
        columns = dict(zip(NUMBERS, (labels, outputs, weight), strict=True))
        gathered.add(columns, lead)
    if not kinds:
        raise value_error("`batches` must hold a row", n=0)
    return gathered.columns()
