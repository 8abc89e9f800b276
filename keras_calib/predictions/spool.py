"""Columns on disk: written batch by batch, then read as arrays in memory maps.

So predictions that do not fit in memory are made once and read many times.
"""

import shutil
import tempfile
import weakref
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def is_mapped(x: Any) -> bool:
    """Whether the values of an array are read from a file, as needed."""
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap):
            return True
        x = x.base
    return False


class Spool:
    """A temporary folder of columns, deleted with the object.

    Rows of a later batch may have other lengths, as sequences have: at the end
    all are padded with zeros to the longest.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="keras_calib-"))
        self._parts: dict[Hashable, list[tuple[np.dtype, tuple[int, ...]]]] = {}
        self.close = weakref.finalize(
            self, shutil.rmtree, self._folder, ignore_errors=True
        )

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
        return np.memmap(path, dtype, "c", shape=whole)

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
