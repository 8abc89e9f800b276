"""The one reader of `.npz` files, which may come from anywhere."""

import contextlib
import math
import os
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of

__all__ = ["NpzFile", "Stored", "reading_npz"]

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Stored(NamedTuple):
    """What an array must be: kinds of dtypes, sizes of axes, range of values.

    An axis of None may have any size, and one of -n has at most n.
    """

    kinds: str
    shape: tuple[int | None, ...]
    low: float = -math.inf
    high: float = math.inf
    nan: bool = False

    def check_form(self, name: str, dtype: np.dtype, shape: tuple) -> None:
        """Raises ValueError for another kind or shape."""
        fits = dtype.kind in self.kinds and len(shape) == len(self.shape)
        pairs = zip(shape, self.shape, strict=False)
        if not fits or not all(n in (x, None) or x <= -n for x, n in pairs):
            raise value_error(
                f'"{name}" must have the shape and dtype that were saved',
                dtype=dtype.name,
                shape=shape,
                expected=self.shape,
            )

    def check(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array; ValueError for another kind, shape or range."""
        self.check_form(name, array.dtype, array.shape)
        if array.dtype.kind in "iuf":
            right = (array >= self.low) & (array <= self.high)
            right |= self.nan & np.isnan(array)
            if not right.all():
                raise value_error(
                    f'"{name}" must lie in [{self.low}, {self.high}]',
                    wrong=array[~right].ravel()[:3].tolist(),
                )
        return array


class NpzFile:
    """The arrays of an open file, by `names`; each is read when asked for."""

    def __init__(self, archive: zipfile.ZipFile, most: float):
        self._archive, self._left = archive, most
        entries = [x.filename for x in archive.infolist()]
        if len({*entries}) < len(entries):
            raise value_error("each array must be there once", names=entries)
        self.names = [x[:-4] for x in entries if x.endswith(".npy")]
        self._unread = {*self.names}

    def form(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Dtype and shape of an array, which is not read."""
        entry = self._archive.getinfo(f"{name}.npy")
        with self._archive.open(entry) as file:
            shape, _, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
            size = math.prod(shape) * dtype.itemsize
            if dtype.hasobject or size != entry.file_size - file.tell():
                raise value_error(
                    f'"{name}" must be a plain array of the size of its entry',
                    dtype=str(dtype),
                    shape=shape,
                    bytes=entry.file_size,
                )
        return dtype, shape

    def read(self, name: str, stored: Stored | None = None) -> np.ndarray:
        """An array, once; what it must be is checked before it is read."""
        form, entry = self.form(name), self._archive.getinfo(f"{name}.npy")
        if stored is not None:
            stored.check_form(name, *form)
        self._left -= entry.file_size
        if self._left < 0 or name not in self._unread:
            raise value_error(
                "arrays must be read once, and not exceed the file by far",
                name=name,
                bytes=entry.file_size,
            )
        self._unread.remove(name)
        with self._archive.open(entry) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            # Read to the end, where the checksum is compared.
            file.read()
        return array if stored is None else stored.check(name, array)


@contextlib.contextmanager
def reading_npz(
    path: Any, rule: str, *, times: float = 1.0
) -> Iterator[NpzFile]:
    """Open a `.npz` file; ValueError of a `rule` for whatever is wrong in it.

    What is read may have so many `times` the bytes of the file: 1 for arrays
    that were saved without compression.
    """
    path = path_of(path)
    if path.is_dir():
        raise value_error(rule, file=str(path), error="it is a folder")
    with open(path, "rb") as opened:
        try:
            size = os.fstat(opened.fileno()).st_size
            with zipfile.ZipFile(opened) as archive:
                yield NpzFile(archive, times * size)
        except MemoryError:
            raise
        # A file from elsewhere may raise anything.
        except Exception as error:
            raise value_error(
                rule, file=str(path), error=f"{type(error).__name__}: {error}"
            ) from error
