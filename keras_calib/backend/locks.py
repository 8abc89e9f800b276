"""Locks: one writer of a file, one thread at a state, no change by halves."""

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from keras_calib.backend.errors import invalid
from keras_calib.backend.files import path_of

_Method = TypeVar("_Method", bound=Callable[..., Any])

# Locks by process and lock file. A process that opens its lock file again would
# lose the lock when it closes it.
_HELD: dict[tuple[int, Path], "PathLock"] = {}
_GUARD = threading.Lock()
# Threads that read or change the state of a metric or monitor take turns. One
# lock for all: what holds one of its own cannot be copied or pickled.
STATES = threading.RLock()


def in_turn(method: _Method) -> _Method:
    """A method that reads or changes a state, whole and in one thread."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        with STATES, unbroken():
            return method(*arguments, **options)

    return cast(_Method, call)


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Holds Ctrl-C back until a change is whole.

    Use it for short changes only, after all that can take long.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and callable(before)):
        yield
        return
    held: list[tuple] = []
    signal.signal(signal.SIGINT, lambda *given: held.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


class PathLock:
    """Reserve a file for the process that writes it, by a lock file beside it.

    The operating system frees the lock when the process ends, even after a
    crash. A forked process does not get it. A lock that the same thread took
    before, such as that of an interrupted `fit`, is taken over. On a file
    system without locks, all writers are let in.

    Errors name the argument `name`.
    """

    _thread: threading.Thread

    def __init__(self, name: str, path: Any):
        self._name = name
        self._path = path_of(path, name).resolve()
        self._place = self._path.with_name(f".{self._path.name}.lock")

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            OSError: If the lock file cannot be written.
            RuntimeError: If another process has the lock, or another thread.
        """
        with _GUARD:
            self._key = os.getpid(), self._place
            held = _HELD.get(self._key)
            here = threading.current_thread()
            if held is None:
                self._place.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._open()
            elif held._thread is here or not held._thread.is_alive():
                self._file = held._file
            else:
                raise self._taken(held._file)
            self._thread = here
            _HELD[self._key] = self

    def release(self) -> None:
        """Release the lock, if this object still has it."""
        with _GUARD:
            if _HELD.get((os.getpid(), self._place)) is self:
                del _HELD[self._key]
                # Windows deletes no open file, so there the file stays.
                with contextlib.suppress(OSError):
                    self._place.unlink()
                os.close(self._file)

    def __enter__(self) -> "PathLock":
        self.acquire()
        return self

    def __exit__(self, *error: Any) -> None:
        self.release()

    def _open(self) -> int:
        """Open and lock the lock file, and return its number."""
        file = os.open(self._place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            error = self._taken(file)
            os.close(file)
            raise error from None
        except OSError:
            # The file system has no locks.
            pass
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), self._place.stat()):
                since = time.strftime("%Y-%m-%d %H:%M:%S%z")
                owner = {"process": os.getpid(), "host": socket.gethostname()}
                os.truncate(file, 0)
                os.write(file, json.dumps({**owner, "since": since}).encode())
                return file
        # Its owner deleted it in between.
        os.close(file)
        return self._open()

    def _taken(self, file: int) -> RuntimeError:
        os.lseek(file, 0, os.SEEK_SET)
        try:
            owner = json.loads(os.read(file, 2**16))
        except ValueError:
            owner = {}
        return RuntimeError(
            invalid(
                f"`{self._name}` must have one writer at a time: end the "
                "other one, or choose another path",
                **{self._name: str(self._path)},
                **owner,
                lock=str(self._place),
            )
        )


def check_not_locked(name: str, path: Any) -> None:
    """Raise RuntimeError if another process has locked a file."""
    lock = PathLock(name, path)
    if (os.getpid(), lock._place) not in _HELD and lock._place.exists():
        with lock:
            pass


def _lock(file: int) -> None:
    """Lock a file; BlockingIOError or PermissionError if it is locked."""
    if sys.platform == "win32":
        import msvcrt

        # The lock lies behind the text, which others may read.
        os.lseek(file, 2**30, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
