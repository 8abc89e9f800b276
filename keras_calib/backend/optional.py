"""Optional packages, which are imported at their first use."""

import importlib
from typing import Any

__all__ = [
    "imported",
    "tensorflow",
    "tensorflow_datasets",
    "tensorflow_probability",
]


def imported(name: str, what: str, extra: str) -> Any:
    """A module of a package; ImportError says how to install it for what."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{what} needs {package}: pip install 'keras-calib[{extra}]'"
        ) from error


class _Extra:
    """Stands for a package that an extra of this library installs."""

    def __init__(self, name: str, extra: str):
        self._name = name
        self._extra = extra

    def __getattr__(self, attribute: str) -> Any:
        # Tools that inspect modules ask every object for such names.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        try:
            module = importlib.import_module(self._name)
            # Some import what they need when a name is asked for.
            return getattr(module, attribute)
        except ImportError as error:
            raise ImportError(
                f"This needs {self._name}: "
                f"pip install 'keras-calib[{self._extra}]'"
            ) from error


tensorflow: Any = _Extra("tensorflow", "tensorflow")
tensorflow_datasets: Any = _Extra("tensorflow_datasets", "tfds")
tensorflow_probability: Any = _Extra("tensorflow_probability", "bayes")
