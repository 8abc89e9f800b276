"""The package as the frozen results see it, which notes what they use."""

from typing import Any

import keras_calib

__all__ = ["USED", "kc"]

# Public names that were asked for.
USED: set[str] = set()


class _Noted:
    """`keras_calib`, whose public names are noted when they are used."""

    def __getattr__(self, name: str) -> Any:
        USED.add(name)
        return getattr(keras_calib, name)


kc = _Noted()
