"""The wording of errors and warnings: rule, what was received."""

import sys
import warnings
from pathlib import Path
from typing import Any

__all__ = ["invalid", "type_error", "value_error", "warn"]


_PACKAGE = str(Path(__file__).parents[1])


def invalid(rule: str, **received: Any) -> str:
    """One wording for the library: the rule, then the facts."""
    facts = ", ".join(f"{name}={value!r}" for name, value in received.items())
    return f"{rule}. Received: {facts}"


def type_error(rule: str, **received: Any) -> TypeError:
    """To raise where a thing is of the wrong kind."""
    return TypeError(invalid(rule, **received))


def value_error(rule: str, **received: Any) -> ValueError:
    """To raise where a value breaks a rule."""
    return ValueError(invalid(rule, **received))


def warn(message: str) -> None:
    """A RuntimeWarning at the line that called this library.

    Python shows it once for each such line.
    """
    frame, depth = sys._getframe(1), 2
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, RuntimeWarning, stacklevel=depth)
