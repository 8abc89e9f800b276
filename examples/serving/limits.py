"""What one request, and all of them together, may cost a server."""

import math
from typing import NamedTuple

__all__ = ["Limits", "brief"]

_TEXT = 1000


class Limits(NamedTuple):
    """Bounds of a server; beyond them a request is refused.

    Attributes:
        bytes: Of a request. JSON of so many bytes takes about 25 times as
            much memory while it is read.
        elements: Of one input.
        rows: Of one input: the outputs have as many.
        pixels: Of an image in a file, as the head of the file states them.
        calls: That run at the same time, of each protocol.
        connections: Of REST, each of which has a thread; of gRPC; and calls
            of gRPC that run or wait.
        seconds: For a client to send its request and to take the answer, for
            a request to wait for its turn, and for calls to finish when the
            server ends.
    """

    bytes: int = 2**23
    elements: int = 2**23
    rows: int = 2**15
    pixels: int = 2**25
    calls: int = 8
    connections: int = 32
    seconds: float = 30.0

    def check(self, name, shape):
        """Raises ValueError if an input has too many elements or rows."""
        # Python's integers do not wrap.
        if math.prod(map(int, shape)) > self.elements:
            raise ValueError(f"`{name}` has over {self.elements} elements")
        if len(shape) and shape[0] > self.rows:
            raise ValueError(f"`{name}` has over {self.rows} rows")


def brief(error):
    """What an error says, in ASCII, and not more than a head takes."""
    text = str(error).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
