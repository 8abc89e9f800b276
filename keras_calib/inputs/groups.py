"""Groups of samples come in: names or whole numbers, one for each sample.

Ids of answers follow the same rule: 1 and 1.0 are one name, and None is none.
"""

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.numerics.arrays import check_numbers, to_numpy

_GIVEN = "have a value in every row: name what is missing"
_WHOLE = "be names or whole numbers: cut a measurement into ranges first"


def read_groups(
    groups: Any, lead: tuple[int, ...], name: str = "groups"
) -> tuple[tuple, np.ndarray]:
    """The groups in order, and the place of each prediction's group.

    Groups are integers if all values are whole numbers, and names otherwise.
    Names that are all decimal are in the order of their numbers.

    Args:
        groups: Group of each prediction of shape `lead`, or of each sample
            `lead[:1]`.
        lead: Shape of the predictions without classes.
        name: What errors call them.

    Returns:
        Integers or strings, and places of shape `lead`.

    Raises:
        ValueError: If a sample has none, shapes do not fit, or numbers are
            not whole.
        TypeError: If groups are neither names nor numbers.
    """
    check_numbers(name, groups, of_part=True)
    values = as_groups(groups)
    if values.shape not in (lead, lead[:1]):
        raise value_error(
            f"`{name}` must have a group for each sample, or for each "
            "prediction",
            **{f"{name}.shape": values.shape, "predictions": lead},
        )
    if values.dtype.kind not in "biufOUS":
        raise type_error(
            f"`{name}` must be names or whole numbers", dtype=values.dtype.name
        )
    known, places = _factorized(values.reshape(-1), name)
    if values.shape != lead:
        places = np.repeat(places, int(np.prod(lead[1:])))
    return known, places.reshape(lead)


def joined_names(rows: list[tuple]) -> list[str]:
    """Names of intersections, such as "f & old", which must be apart.

    Raises ValueError if two of the different rows get one name.
    """
    names = [" & ".join(map(str, row)) for row in rows]
    if len(set(names)) < len(names):
        raise value_error(
            '`groups` must be told apart when joined by " & ": rename them',
            intersections=len(names),
            names=len(set(names)),
        )
    return names


def as_groups(groups: Any) -> np.ndarray:
    """Groups as an array, in which those of a list keep their types."""
    try:
        values = to_numpy(groups)
    except ValueError:
        # Rows of several lengths.
        return np.empty((), object)
    if isinstance(groups, list | tuple) and values.dtype.kind in "biufUS":
        listed = np.array(groups, object)
        # Tensors have one type.
        kept = str | bytes | numbers.Real | np.generic
        values = listed if isinstance(next(listed.flat, 0), kept) else values
    if values.dtype.kind == "O" and all(map(_is_number, values.flat)):
        listed = values.tolist()
        exact = np.array(listed)
        # Large integers of two kinds would be rounded to floats.
        values = exact if exact.tolist() == listed else values
    return values


def name_of(value: Any) -> str:
    """A value as a name, where 1.0 is "1"; "" if it is missing."""
    known = value.decode("utf-8", "replace") if type(value) is bytes else value
    if value is None or str(known) == "<NA>" or value != value:
        return ""
    is_whole = _is_number(value) and value == value // 1
    return str(int(value) if is_whole else known)


def names_of(values: Iterable, name: str) -> list[str]:
    """Names of values; raises ValueError if one is missing or measured."""
    names = [*map(name_of, listed := [*values])]
    measured = [*map(_is_measured, listed)]
    for bad, rule in (([not x for x in names], _GIVEN), (measured, _WHOLE)):
        if True in bad:
            row = bad.index(True)
            raise value_error(
                f"`{name}` must {rule}", row=row, value=listed[row]
            )
    return names


def _is_measured(value: Any) -> bool:
    return _is_number(value) and bool(value != value // 1)


def _is_number(value: Any) -> bool:
    kind = type(value)
    if kind in (int, float, str):  # Fast for most.
        return kind is not str
    return isinstance(value, numbers.Real) and kind is not bool


def _factorized(values: np.ndarray, name: str) -> tuple[tuple, np.ndarray]:
    """Groups in order, and the place of each value among them."""
    if values.dtype.kind in "iuf":
        known, places = np.unique(values, return_inverse=True)
        if values.dtype.kind == "f" and any(map(_is_measured, known.tolist())):
            names_of(values.tolist(), name)
        # float64 holds whole numbers that int64 does not.
        return tuple(map(int, known.tolist())), places
    listed = values.tolist()
    # True is 1 to a dict.
    keys = [(_is_number(x) or type(x).__name__.strip("_"), x) for x in listed]
    texts = {key: name_of(key[1]) for key in dict.fromkeys(keys)}
    if "" in texts.values() or any(_is_measured(x) for _, x in texts):
        names_of(listed, name)
    known = sorted({*texts.values()})
    if len(known) < len(texts):
        every = [*texts.values()]
        raise value_error(
            f"`{name}` must not have groups that differ in type alone: make "
            "all of them names, or numbers",
            groups=[x for (_, x), y in texts.items() if every.count(y) > 1],
        )
    if all(map(str.isdecimal, known)):
        known.sort(key=lambda x: (len(x), x))
    place = {text: k for k, text in enumerate(known)}
    codes = {key: place[text] for key, text in texts.items()}
    return tuple(known), np.fromiter((codes[x] for x in keys), int, len(keys))
