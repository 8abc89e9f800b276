"""One line on the terminal that says what a command is doing."""

import shutil
import sys
import time
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

__all__ = ["Progress"]

# Seconds between two changes of the line.
_PAUSE = 0.1


class Progress:
    """A line on standard error that is rewritten, and gone at the end.

    Nothing is written if that is no terminal, or if `quiet`.
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
        """The same parts of rows, whose `labels` are counted in the line."""
        done, begun, shown = 0, time.monotonic(), 0.0
        for part in parts:
            yield part
            done += len(part.labels)
            if (now := time.monotonic()) - shown < _PAUSE:
                continue
            shown, text = now, f"{what}: {done:,} rows"
            if total:
                text = f"{what}: {done:,} of {total:,} rows"
                left = (now - begun) * (total / done - 1)
                text += f", {100 * done // total} %, {left:.0f} s left"
            self.say(text)
