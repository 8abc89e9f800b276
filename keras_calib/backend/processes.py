"""Which process wrote a file, and whether it still runs."""

import functools
import hashlib
import os
import secrets
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "is_alive", "this_process"]

_PROC = Path("/proc")


class Process(NamedTuple):
    """A process, told apart from later ones with the same number.

    Attributes:
        machine: Names the system since its last start, and the container;
            "" where that cannot be known.
        number: The process id.
        started: When the process started, in ticks of that machine; a random
            number where that cannot be known.
    """

    machine: str
    number: int
    started: int


def this_process() -> Process:
    """The process that calls."""
    number = os.getpid()
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("utf-8").strip()
        # Numbers are unique within a namespace: each container has its own.
        space = os.stat(_PROC / "self/ns/pid").st_ino
        _, started = _state_and_start(number)
    except (OSError, ValueError, IndexError):
        return Process("", number, _random_number(number))
    machine = hashlib.sha256(f"{boot} {space}".encode()).hexdigest()[:12]
    return Process(machine, number, started)


@functools.cache
def _random_number(number: int) -> int:
    """Tells this process from those of other containers with its id."""
    return secrets.randbits(48)


def is_alive(process: Process) -> bool | None:
    """Whether a process still runs; None where that cannot be told.

    It can be told on the machine of that process, if this is Linux.
    """
    here = this_process().machine
    if not here or process.machine != here:
        return None
    try:
        state, started = _state_and_start(process.number)
    except (ProcessLookupError, FileNotFoundError):
        return _hidden(process.number)
    except (OSError, ValueError, IndexError):
        return None
    # A process that was killed stays as a zombie until its parent asks.
    return started == process.started and state not in "ZX"


def _state_and_start(number: int) -> tuple[str, int]:
    text = (_PROC / str(number) / "stat").read_text("utf-8", "replace")
    # The name of the program, in parentheses, may hold spaces.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _hidden(number: int) -> bool | None:
    """Whether /proc hides a process of another user."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return None
