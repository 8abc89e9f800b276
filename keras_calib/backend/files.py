"""Files: written whole, even by a writer that is killed, and read with care."""

import contextlib
import csv
import glob
import math
import os
import re
import time
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error

# Age in seconds at which an unfinished file is taken to be abandoned.
_ABANDONED = 3600.0
_URL = re.compile(r"[A-Za-z][\w+.-]+:/")
# How a cell begins that a spreadsheet may run, also in the wide forms of East
# Asian keyboards, and numbers, which begin so too.
_FORMULA = re.compile(r"\s*[=+\-@\uff0b\uff0d\uff1d\uff20]|[\t\r\n]")
_NUMBER = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.I
)


def path_of(path: Any, name: str = "path") -> Path:
    """The path of a text or `os.PathLike`, with ~ for the user's folder."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise type_error(
            f"`{name}` must be a text or an `os.PathLike`", **{name: path}
        )
    # Before it is a Path, which loses one of two slashes.
    if "\0" in text or _URL.match(text):
        raise value_error(
            f"`{name}` must be of a local file system", **{name: text}
        )
    return Path(os.path.expanduser(text))


@contextlib.contextmanager
def replacing(path: Any, *, text: bool = False) -> Iterator[IO]:
    """Open a new file, which replaces `path` when it is complete.

    Readers see the old file or the new one, even after a kill or a power
    failure. After an error only the old file is there.

    The folder of the file is created. A symbolic link stays, and its target is
    replaced. Text is UTF-8, and line ends are not changed.

    Raises ValueError if `path` is a folder.
    """
    path = path_of(path).resolve()
    if path.is_dir():
        raise value_error(
            "A file must not take the place of a folder: give the name of a "
            "file within it",
            path=str(path),
        )
    new = [f for f in path.parents if not f.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for made in reversed(new):
        _sync_folder(made.parent)
    # A file name may have at most 255 bytes.
    head = f".{path.name[:50]}."
    for left in path.parent.glob(f"{glob.escape(head)}*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
    beside = path.with_name(f"{head}{uuid.uuid4().hex}.tmp")
    how: Any = {"encoding": "utf-8", "newline": ""} if text else {}
    try:
        with open(beside, "w" if text else "wb", **how) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        # That a disk is full does not say which.
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = str(path)
        raise
    _sync_folder(path.parent)


def write_csv(file: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write rows of cells, of which none is a formula to a spreadsheet."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows(map(safe_cell, row) for row in rows)


def safe_cell(cell: Any) -> Any:
    """A cell of CSV; text that a spreadsheet may run begins with a quote."""
    if isinstance(cell, str) and _FORMULA.match(cell):
        return cell if _NUMBER.fullmatch(cell) else f"'{cell}"
    return cell


def read_cell(text: str) -> str:
    """The text of a cell that `safe_cell` wrote."""
    is_safe = text[:1] == "'" and safe_cell(text[1:]) == text
    return text[1:] if is_safe else text


def _sync_folder(folder: Any) -> None:
    """Write the names in a folder to disk, if the system can."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; ValueError for a name that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a name is there twice: {[k for k, _ in pairs]}")
    return found


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
