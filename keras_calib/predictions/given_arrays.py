"""Arrays that are given as a data set: read, and cut into batches."""

import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error

__all__ = ["as_arrays", "cut", "length", "with_arrays"]


def as_arrays(data: Any) -> tuple | None:
    """The arrays of a tuple; None of what is a data set of batches."""
    if not isinstance(data, tuple):
        return None
    if data and all(map(_is_batch, data)) and not _are_parts(data):
        # Tuples (x, y) in a tuple.
        return None
    if len(data) not in (1, 2, 3):
        raise type_error(
            "data must be a tuple of arrays (x, y) or (x, y, "
            "sample_weight), or a data set of batches",
            **{"parts of the tuple": len(data)},
        )
    return with_arrays(*data)


def with_arrays(x: Any, *others: Any) -> tuple:
    """Inputs, labels and weights with arrays for lists of numbers.

    Lists of as many rows as there are examples are rows; shorter lists of
    such lists are of several outputs.
    """
    x = _read(x)
    return x, *(_read(part, x) for part in others)


def _are_parts(data: tuple) -> bool:
    """Whether tuples in a tuple are all `x`, all `y`, and not batches.

    Batches are alike in the types and dimensions of their arrays, and need
    not have one length.

    Raises:
        ValueError: If they may be either.
    """
    if len(data) not in (2, 3) or not all(
        getattr(x, "shape", ()) for part in data for x in part
    ):
        return False
    if len({x.shape[0] for part in data for x in part}) > 1:
        return False
    kinds = [[(len(x.shape), _type(x)) for x in part] for part in data]
    if any(part != kinds[0] for part in kinds):
        return True
    rows = [[tuple(x.shape[1:]) for x in part] for part in data]
    if len(set(kinds[0])) == 1 and (
        len(set(rows[0])) == 1 or any(part != rows[0] for part in rows)
    ):
        raise value_error(
            "tuples of arrays in a tuple may be batches, or the arrays of "
            "several inputs and outputs: give a list of batches, or a "
            "tuple of lists or dicts for `x` and `y`",
            shapes=[[tuple(x.shape) for x in part] for part in data],
        )
    return False


def _type(x: Any) -> str:
    """The type of an array without its number of bits."""
    return re.sub(r"\d", "", str(getattr(x, "dtype", "")))


def _is_batch(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) in (2, 3) and not _is_plain(x)


def _read(structure: Any, x: Any = None) -> Any:
    """Lists of numbers and of strings as arrays, in any structure.

    Args:
        structure: What is given.
        x: The inputs that it belongs to, or None.
    """
    if isinstance(structure, dict):
        return {key: _read(x) for key, x in structure.items()}
    if isinstance(structure, list | tuple):
        if not _is_plain(structure) or _is_of_each_output(structure, x):
            return tuple(map(_read, structure))
        try:
            return np.asarray(structure)
        except ValueError as error:
            raise value_error(
                "lists in `data` must have rows of one length",
                rows=len(structure),
            ) from error
    if hasattr(structure, "iloc") or (
        hasattr(structure, "detach") and keras.backend.backend() != "torch"
    ):
        # A table of pandas; a tensor of torch on another backend.
        return np.asarray(structure)
    return structure


def _is_of_each_output(labels: Any, x: Any) -> bool:
    """Whether plain lists are one of all examples for each output."""
    if x is None or not all(isinstance(y, list | tuple) for y in labels):
        return False
    count = length(x)
    return len(labels) != count and {len(y) for y in labels} == {count}


def _is_plain(x: Any) -> bool:
    """Whether these are numbers, strings, or lists of them."""
    if isinstance(x, list | tuple):
        return all(map(_is_plain, x[:1]))
    return isinstance(x, str | bytes) or not (
        x is None or isinstance(x, dict) or getattr(x, "shape", ())
    )


def cut(arrays: tuple, size: int) -> Iterator[tuple]:
    """Arrays as batches."""
    for start in range(0, length(arrays), size):
        part = slice(start, start + size)
        yield keras.tree.map_structure(
            lambda x, part=part: None if x is None else x[part], arrays
        )


def length(arrays: Any) -> int:
    """The number of examples."""
    flat = [x for x in keras.tree.flatten(arrays) if x is not None]
    counts = set()
    for x in flat:
        shape = getattr(x, "shape", None)
        if shape is None or not len(shape):
            raise type_error(
                "`data` must be arrays, or tuples, lists and dicts of "
                "them, one row for each example",
                part=type(x).__name__,
            )
        counts.add(len(x) if shape[0] is None else int(shape[0]))
    if len(counts) != 1:
        raise value_error(
            "arrays of `data` must have the same length", lengths=sorted(counts)
        )
    return counts.pop()
