"""What commands show: results, a line of progress, whose fault it is.

Log lines are those of compiled code, which come as Keras is imported.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# Seconds between two changes of the line.
_PAUSE = 0.1


class Found(NamedTuple):
    """What a command found.

    Attributes:
        text: For the terminal.
        facts: The same for `--json`.
        code: Exit code.
        error: What is wrong though all was read, or None.
    """

    text: str
    facts: dict[str, Any]
    code: int = 0
    error: str | None = None


def printed(found: Found, as_json: bool) -> str:
    """What to print of it."""
    if not as_json:
        return found.text
    return json.dumps(for_json(found.facts), indent=2, allow_nan=False)


def for_json(value: Any, nan: Any = None, infinity: Any = None) -> Any:
    """A value for JSON, which has no NaN and no infinity."""
    # It needs NumPy, which the help does without.
    from keras_calib.numerics.results import plain

    value = plain(value)
    if isinstance(value, dict):
        return {k: for_json(x, nan, infinity) for k, x in value.items()}
    if isinstance(value, list):
        return [for_json(x, nan, infinity) for x in value]
    if isinstance(value, float) and not math.isfinite(value):
        return nan if math.isnan(value) else infinity
    return value


@contextlib.contextmanager
def blamed(flag: str) -> Iterator[None]:
    """Says which file is at fault."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{flag}: {error}") from error


@contextlib.contextmanager
def of_arguments() -> Iterator[None]:
    """Says that the arguments are at fault, not a file."""
    try:
        yield
    except ValueError as error:
        raise argparse.ArgumentError(None, str(error)) from error


class Progress:
    """A line on standard error that is rewritten, and gone at the end.

    Nothing is written if standard error is no terminal, or if `quiet`.
    """

    def __init__(self, quiet: bool = False):
        self._shows = not quiet and sys.stderr.isatty()
        self._width = 0

    def say(self, text: str) -> None:
        """Replaces the line."""
        if not self._shows:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"\r{text.ljust(self._width)}\r{text}")
        sys.stderr.flush()
        self._width = len(text)

    def clear(self) -> None:
        """Takes the line away, before anything else is written."""
        if self._width:
            self.say("")

    def rows(
        self, parts: Iterable[Any], what: str, total: int | None
    ) -> Iterator[Any]:
        """The same parts of rows, which are counted in the line.

        A part has `labels`, or is a dict with `correct`.
        """
        done, begun, shown = 0, time.monotonic(), 0.0
        for part in parts:
            yield part
            done += len(part["correct"] if type(part) is dict else part.labels)
            if (now := time.monotonic()) - shown < _PAUSE:
                continue
            shown, text = now, f"{what}: {done:,} rows"
            if total:
                text = f"{what}: {done:,} of {total:,} rows"
                left = (now - begun) * (total / done - 1)
                text += f", {100 * done // total} %, {left:.0f} s left"
            self.say(text)


def load_keras(progress: Progress) -> None:
    """Imports Keras and its backend, without what they log as they load."""
    if "keras" in sys.modules:
        return
    progress.say("Loading Keras ...")
    with _without_log_lines():
        try:
            importlib.import_module("keras")
        except ImportError as error:
            raise ImportError(
                "Keras needs its backend: pip install "
                "'keras-calib[tensorflow]', or set KERAS_BACKEND to jax or "
                f"torch where that is installed. Received: {error}"
            ) from error


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Drops what compiled code writes to standard error.

    Not if TF_CPP_MIN_LOG_LEVEL is set: then somebody wants the lines.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    # Python's own `sys.stderr` is not what compiled code writes to.
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            yield
            sys.stderr.flush()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
