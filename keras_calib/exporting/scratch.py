"""Folders beside a file that is being written, cleared after a crash."""

import contextlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ["scratch_folder"]

# Those of this process: an earlier process may have had its number.
_OWN: set[str] = set()


@contextlib.contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A folder beside a path, to write in and then to rename from.

    It is removed at the end. A process that is killed leaves it; the next
    one that writes to the same path removes it. Folders of processes that
    are alive, or on another machine, are left alone.

    Args:
        path: What will be written, in a folder that is there.

    Yields:
        The folder, empty.
    """
    _clear(path)
    name = f"{_start(path)}{os.getpid()}-{secrets.token_hex(4)}.part"
    folder = path.parent / name
    _OWN.add(name)
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _OWN.discard(name)


def _start(path: Path) -> str:
    """Of the names of folders for a path that this machine makes."""
    # Part of a name: it may have no more than 255 bytes.
    name = path.name.encode("utf-8", "surrogateescape")[:100]
    machine = re.sub(r"[^\w.]", "_", socket.gethostname())[:60]
    return f".{name.decode('utf-8', 'ignore')}-{machine}-"


def _clear(path: Path) -> None:
    """Removes what dead processes have left."""
    start = _start(path)
    for entry in os.scandir(path.parent):
        number, _, end = entry.name.removeprefix(start).partition("-")
        mine = entry.name.startswith(start) and end.endswith(".part")
        if not mine or entry.name in _OWN or not number.isdecimal():
            continue
        if int(number) == os.getpid() or not _lives(int(number)):
            shutil.rmtree(entry.path, ignore_errors=True)


def _lives(process: int) -> bool:
    if os.name != "posix":
        # There this signal would end it.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
