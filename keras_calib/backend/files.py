"""Files that stay complete, even if a writer is killed."""

import contextlib
import csv
import glob
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from keras_calib.backend.errors import type_error, value_error

__all__ = ["each_once", "path_of", "replacing", "safe_cell", "write_csv"]

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
