"""Imports at first use: a command may do without Keras, which takes seconds."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["keras_module", "late_names"]


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


def late_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a name when it is first used.

    Args:
        package: Name of the package.
        modules: Modules of the package to the public names of each, separated
            by spaces.
    """
    homes = {
        x: module for module, names in modules.items() for x in names.split()
    }

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        module = importlib.import_module(f"{package}.{homes[name]}")
        found = getattr(module, name)
        setattr(sys.modules[package], name, found)
        return found

    return imported
