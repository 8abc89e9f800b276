"""Results as flat mappings: key to number, array or text."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from keras import ops

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


def flat(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """One level of keys; each value a number, a text or an array.

    Dicts and lists add `/name` and `/0`, `/1` and so on. None is the text
    "None". A result of a class of its own is an error: `read` names its parts.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        for name, part in _parts(key, value):
            if name in found:
                raise ValueError(f"two values of one key: {name}")
            found[name] = part
    return found


def _parts(key: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _parts(f"{key}/{name}", part)
    elif value is None or isinstance(value, str):
        yield key, str(value)
    elif hasattr(value, "_fields"):
        raise TypeError(f"{key}: read the fields of a {type(value).__name__}")
    elif hasattr(value, "shape") or isinstance(value, int | float):
        yield key, _array(value)
    elif isinstance(value, list | tuple):
        if all(isinstance(x, int | float | np.number) for x in value):
            yield key, np.asarray(value)
        else:
            for i, part in enumerate(value):
                yield from _parts(f"{key}/{i}", part)
    else:
        raise TypeError(f"{key}: a {type(value).__name__} is no number or text")


def _array(value: Any) -> Any:
    array = np.asarray(ops.convert_to_numpy(value))
    return array.tolist() if array.dtype.kind in "USO" else array


def read(result: Any, fields: Mapping[str, str]) -> dict[str, Any]:
    """Values of a result: neutral names, and the attributes that have them.

    `"facts.name"` is an entry of the attribute `facts`, or None.
    """

    def value(field: str) -> Any:
        first, _, name = field.partition(".")
        found = getattr(result, first)
        return found.get(name) if name else found

    return {name: value(field) for name, field in fields.items()}


def tried(call: Callable, *args: Any, **options: Any) -> Any:
    """What a call returns; or that it refuses, and the numbers it tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return call(*args, **options)
        except (TypeError, ValueError, RuntimeError) as error:
            told = str(error).partition("Received:")[0]
            told = [x.replace(",", "") for x in _NUMBER.findall(told)]
            kind = type(error).__name__
            return {"refused": kind, "told": [float(x) for x in told]}
