"""The package as the frozen results see it, which notes what they use."""

import types
from typing import Any

import keras_calib

# Public names that were asked for.
USED: set[str] = set()


class _Noted:
    """A module, whose public names are noted when they are used."""

    def __init__(self, module: types.ModuleType):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            return _Noted(found)
        USED.add(name)
        return found


kc: Any = _Noted(keras_calib)
