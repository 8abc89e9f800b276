"""The wording of errors and warnings: the rule, then what was received."""

import sys
import warnings
from typing import Any

# Their frames are passed over in search of the user's line.
_PACKAGES = "keras_calib", "keras", "torch"


def invalid(rule: str, **received: Any) -> str:
    """Message of the rule that was broken, and of what was received."""
    facts = ", ".join(f"{name}={value!r}" for name, value in received.items())
    end = "" if rule.endswith("?") else "."
    return f"{rule}{end} Received: {facts}"


def type_error(rule: str, **received: Any) -> TypeError:
    """Make a TypeError for an argument of the wrong kind."""
    return TypeError(invalid(rule, **received))


def value_error(rule: str, **received: Any) -> ValueError:
    """Make a ValueError for a value that breaks a rule."""
    return ValueError(invalid(rule, **received))


def warn(message: str) -> None:
    """Issue a RuntimeWarning at the line that called this library or Keras.

    Python shows it once for each such line.
    """
    frame, depth = sys._getframe(1), 2
    while frame.f_back and _package_of(frame) in _PACKAGES:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, RuntimeWarning, stacklevel=depth)


def _package_of(frame: Any) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]
