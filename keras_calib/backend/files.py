"""Files that are whole at any time, whoever is killed while writing them.

`replacing` is the one way in which this package replaces a file, and
`scratch_folder` is for what libraries write by themselves, to be renamed.
"""

import contextlib
import errno
import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from typing import Any

from keras_calib.backend.processes import Process
from keras_calib.backend.processes import is_alive
from keras_calib.backend.processes import this_process

__all__ = [
    "clear_leftovers",
    "replacing",
    "scratch_folder",
    "sync_folder",
    "unfinished",
]

_NUMBERS = itertools.count()
# Seconds after which a leftover is dead if its writer is out of sight.
_ABANDONED = 3600.0
# What file systems say that cannot synchronise a folder.
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS}


@contextlib.contextmanager
def replacing(path: Any, *, text: bool = False) -> Iterator[IO]:
    """Opens a new file, which takes the place of `path` when it is complete.

    Readers see the old file or the new one, also after a kill or a failure
    of power. After an error the old file is still there, and nothing else.

    The folder of the file is made. A symbolic link stays, and what it points
    to is replaced. Text is UTF-8, with line ends as they are.
    """
    path = Path(os.path.realpath(path))
    _make_folder(path.parent)
    clear_leftovers(path)
    beside = unfinished(path)
    options = {"encoding": "utf-8", "newline": ""} if text else {}
    try:
        with open(beside, "w" if text else "wb", **options) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def scratch_folder(path: Any) -> Iterator[Path]:
    """A folder beside a path, to write in and then to rename from.

    It is removed at the end. A process that is killed leaves it; the next
    one that writes to the same path removes it.
    """
    clear_leftovers(path)
    folder = unfinished(path)
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unfinished(path: Any) -> Path:
    """A new name beside `path` for what this process has not yet completed.

    The name says which process writes, so that `clear_leftovers` can tell.
    """
    path = Path(path)
    machine, number, started = this_process()
    mark = f"{machine}-{number}-{started}-{next(_NUMBERS)}"
    return path.with_name(f".{_short(path.name)}.{mark}.tmp")


def clear_leftovers(path: Any) -> None:
    """Deletes what killed processes left of files or folders named `path`.

    What a running process still writes stays. If the writer is on another
    machine, what was not touched for an hour goes.
    """
    path = Path(path)
    head = re.escape(f".{_short(path.name)}.")
    # Release 0.1 wrote the process id alone.
    pattern = re.compile(head + r"(?:(\w*)-)?(\d+)(?:-(\d+)-\d+)?\.tmp")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    for name in names:
        match = pattern.fullmatch(name)
        if match and _is_left(path.parent / name, *match.groups()):
            _delete(path.parent / name)


def _short(name: str) -> str:
    """What of a name leaves room for more: 255 bytes are the most."""
    start = name.encode("utf-8", "surrogateescape")[:100]
    return start.decode("utf-8", "ignore")


def sync_folder(folder: Any) -> None:
    """Waits until the names in a folder would outlive a failure of power."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        # Some systems open no folders.
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(opened)


def _make_folder(folder: Path) -> None:
    new = [f for f in (folder, *folder.parents) if not f.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(new):
        sync_folder(made.parent)


def _is_left(
    place: Path, machine: str | None, number: str, started: str | None
) -> bool:
    if started is not None:
        writer = Process(machine or "", int(number), int(started))
        if writer == this_process():
            return False
        alive = is_alive(writer)
        if alive is not None:
            return not alive
    try:
        return time.time() - place.stat().st_mtime > _ABANDONED
    except OSError:
        return False


def _delete(place: Path) -> None:
    with contextlib.suppress(OSError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
