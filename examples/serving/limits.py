"""Limits of what one request, and all requests together, cost a server."""

import math
from typing import NamedTuple

_TEXT = 1000


class Limits(NamedTuple):
    """Limits of a server, which refuses requests beyond them.

    Attributes:
        bytes: Size of a request. JSON takes about 25 times its size in memory
            while it is read.
        elements: Number of elements of one input.
        rows: Number of rows of one input, and so of the outputs.
        pixels: Number of pixels of an image file, as its header states them.
        calls: Number of simultaneous calls, for each protocol.
        connections: Number of REST connections, each of which has a thread;
            also of gRPC connections, and of gRPC calls that run or wait.
        seconds: Time for a client to send its request and to take the answer,
            for a request to wait, and for calls to finish when the server
            ends.
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
    """The text of an error in ASCII, short enough for an HTTP header."""
    text = str(error).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= _TEXT else text[: _TEXT - 3] + "..."
