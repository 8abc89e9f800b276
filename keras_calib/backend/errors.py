"""The wording of errors and warnings: rule, what was received."""

import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = [
    "invalid",
    "warn",
]


_PACKAGE = str(Path(__file__).parents[1])


def invalid(rule: str, **received: Any) -> str:
    """One wording for the library: the rule, then the facts."""
    facts = ", ".join(f"{name}={value!r}" for name, value in received.items())
    return f"{rule}. Received: {facts}"


def warn(message: str) -> None:
    """A RuntimeWarning at the line that called this library.

    Python shows it once for each such line.
    """
    frame, depth = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, RuntimeWarning, stacklevel=depth)
