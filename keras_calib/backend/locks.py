"""One writer at a time for a file, on this machine and on others."""

import atexit
import contextlib
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from typing import Any
from typing import NamedTuple

from keras_calib.backend.errors import invalid
from keras_calib.backend.processes import Process
from keras_calib.backend.processes import is_alive
from keras_calib.backend.processes import this_process

__all__ = ["PathLock", "check_not_locked"]

# Seconds between two touches of the lock file, and of silence after which
# its owner is dead where nothing else can tell.
_BEAT = 5.0
_SILENCE = 20.0
# The locks of this process by token.
_HELD: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


class _Owner(NamedTuple):
    """What a lock file says."""

    process: Process
    host: str
    since: str
    token: str


class PathLock:
    """Keeps a file for the process that writes it, beside it in a lock file.

    The lock file names the process. A process that is dead has lost the
    lock; on another machine it is dead if the lock file was not touched for
    20 seconds, which a waiting process watches. A lock that the same thread
    took before, such as that of a `fit` that was interrupted, is taken over.

    A forked process does not inherit the lock. The lock is released by
    `release`, when the object is deleted, and when the interpreter exits.
    Errors name the argument `name`.
    """

    def __init__(self, name: str, path: Any):
        self._name = name
        self._path = Path(path)
        self._file = _lock_file(path)
        self._owner: _Owner | None = None
        self._thread = threading.current_thread()
        self._end: Any = None

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            OSError: If the lock file cannot be written.
            RuntimeError: If another process that runs has the lock, or
                another thread.
        """
        self._file.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._acquire()
        except PermissionError as error:
            raise PermissionError(
                invalid(
                    f"`{self._name}` must have a lock file beside it that you "
                    "may write: choose another path, or let its owner delete "
                    "the lock file once the process in it has ended",
                    **{self._name: str(self._path)},
                    lock=str(self._file),
                )
            ) from error

    def _acquire(self) -> None:
        watched, since = None, time.monotonic()
        while True:
            with _guarded(self._file) as file:
                owner = _read(file)
                alive = self._is_alive(owner)
                beat = owner, os.fstat(file.fileno()).st_mtime_ns
                silent = time.monotonic() - since > _SILENCE
                moved = watched not in (None, beat)
                if alive or (alive is None and moved):
                    raise _taken(self._name, self._path, owner)
                if alive is False or silent:
                    self._take(file)
                    return
                watched = beat
            time.sleep(min(0.2, _SILENCE / 10))

    def check(self) -> None:
        """Raises unless the lock is still held, as it must be to write.

        A lock file that somebody deleted is written anew.

        Raises:
            OSError: If the lock file cannot be written.
            RuntimeError: If another process took the lock meanwhile.
        """
        with _guarded(self._file) as file:
            owner = _read(file)
            if owner is None:
                self._take(file)
            elif owner != self._owner or owner.process != this_process():
                raise _taken(self._name, self._path, owner)

    def release(self) -> None:
        """Gives the lock back, if this process has it."""
        end, self._end = self._end, None
        if end is not None:
            end()
        self._owner = None

    def __enter__(self) -> "PathLock":
        self.acquire()
        return self

    def __exit__(self, *error: Any) -> None:
        self.release()

    def _is_alive(self, owner: _Owner | None) -> bool | None:
        if owner is None:
            return False
        if owner.process == this_process():
            held = _HELD.get(owner.token)
            thread = held and held._thread
            here = threading.current_thread()
            return bool(thread and thread is not here and thread.is_alive())
        return is_alive(owner.process)

    def _take(self, file: IO) -> None:
        self._thread = threading.current_thread()
        if self._owner is None or self._owner.process != this_process():
            token = secrets.token_hex(8)
            since = time.strftime("%Y-%m-%d %H:%M:%S%z")
            process, host = this_process(), socket.gethostname()
            self._owner = _Owner(process, host, since, token)
            stop = threading.Event()
            arguments = (self._file, self._owner, stop)
            self._end = weakref.finalize(self, _release, *arguments)
            # `atexit` of this module, which a forked process also runs.
            self._end.atexit = False
            _HELD[token] = self
            threading.Thread(
                target=_beat, args=arguments, daemon=True, name="path lock"
            ).start()
        file.seek(0)
        file.truncate()
        json.dump(self._owner._asdict(), file)
        file.flush()


def check_not_locked(name: str, path: Any) -> None:
    """Raises if another process keeps a file for itself.

    One on another machine is watched for a while, as by `acquire`.
    """
    try:
        with open(_lock_file(path), encoding="utf-8") as file:
            owner = _read(file)
    except OSError:
        return
    if owner is not None and owner.process != this_process():
        with PathLock(name, path):
            pass


def _lock_file(path: Any) -> Path:
    path = Path(os.path.realpath(path))
    return path.with_name(f".{path.name}.lock")


def _taken(name: str, path: Any, owner: _Owner) -> RuntimeError:
    return RuntimeError(
        invalid(
            f"`{name}` must have one writer at a time: end the other one, or "
            "choose another path",
            **{name: str(path)},
            process=owner.process.number,
            host=owner.host,
            since=owner.since,
            lock=str(_lock_file(path)),
        )
    )


@contextlib.contextmanager
def _guarded(path: Path) -> Iterator[IO]:
    """The open lock file, which nobody else reads or changes meanwhile."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        opened = os.open(path, flags, 0o666)
        with open(opened, "r+", encoding="utf-8") as file, _alone(file):
            try:
                same = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                same = False
            if same:
                yield file
                return
            # Its owner deleted it in between.


@contextlib.contextmanager
def _alone(file: IO) -> Iterator[None]:
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    except (ImportError, OSError):
        # Without it two that take over a dead lock at once may both have it
        # until one of them writes, and `check` tells.
        yield
        return
    try:
        yield
    finally:
        # To close it is not enough: a process forked meanwhile has it open.
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)


def _read(file: IO) -> _Owner | None:
    """What a lock file says; None if it is empty or cut off."""
    file.seek(0)
    try:
        content = json.loads(file.read())
        machine, number, started = content["process"]
        process = Process(str(machine), int(number), int(started))
        rest = (str(content[key]) for key in ("host", "since", "token"))
        return _Owner(process, *rest)
    except (ValueError, TypeError, KeyError):
        return None


def _beat(path: Path, owner: _Owner, stop: threading.Event) -> None:
    while not stop.wait(_BEAT):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            if _read(file) == owner:
                os.utime(path)


def _release(path: Path, owner: _Owner, stop: threading.Event) -> None:
    stop.set()
    if owner.process != this_process():
        # A fork: the lock is that of its parent.
        return
    with contextlib.suppress(OSError):
        if not path.exists():
            return
        with _guarded(path) as file:
            if _read(file) in (None, owner):
                path.unlink()


def _release_all() -> None:
    for lock in list(_HELD.values()):
        lock.release()


atexit.register(_release_all)
