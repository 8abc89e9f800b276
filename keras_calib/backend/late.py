"""Keras, which a command may do without: its import takes seconds."""

import importlib
import sys
from typing import Any

__all__ = ["keras_module", "loaded"]


class _Late:
    """Stands for a module, and imports it when an attribute is asked for."""

    def __init__(self, name: str):
        self._address = name

    def __getattr__(self, attribute: str) -> Any:
        # Tools that inspect modules ask every object for such names.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        found = getattr(importlib.import_module(self._address), attribute)
        setattr(self, attribute, found)
        return found


def keras_module(name: str) -> Any:
    """The module, if Keras is loaded; else one that loads it at its first use.

    `import keras_calib` loads Keras first, so that only a command that needs no
    Keras gets the latter.
    """
    if "keras" in sys.modules:
        return importlib.import_module(name)
    return _Late(name)


def loaded(module: Any) -> Any:
    """The module itself, for comparisons by `is`."""
    late = isinstance(module, _Late)
    return importlib.import_module(module._address) if late else module
