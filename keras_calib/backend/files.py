"""Files that are whole at any time, whoever is killed while writing them."""

import contextlib
import glob
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from typing import Any

__all__ = ["replacing"]

# Seconds after which an unfinished file is that of a process that is dead.
_ABANDONED = 3600.0


@contextlib.contextmanager
def replacing(path: Any, *, text: bool = False) -> Iterator[IO]:
    """Opens a new file, which takes the place of `path` when it is complete.

    Readers see the old file or the new one, also after a kill or a failure
    of power. After an error the old file is still there, and nothing else.

    The folder of the file is made. A symbolic link stays, and what it points
    to is replaced. Text is UTF-8, with line ends as they are.
    """
    path = Path(os.path.realpath(path))
    new = [f for f in path.parents if not f.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    for made in reversed(new):
        _sync_folder(made.parent)
    # 255 bytes are the most that a name may have.
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
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Any) -> None:
    """Keeps the names in a folder safe from a failure of power, if it can."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
