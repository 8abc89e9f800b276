"""Groups of samples come in: names or whole numbers, one for each sample."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import check_numbers
from keras_calib.numerics.arrays import to_numpy

__all__ = ["joined_names", "read_groups"]


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
    try:
        values = to_numpy(groups)
    except ValueError:
        # Rows of several lengths.
        values = np.empty((), object)
    if values.dtype.kind == "U" and isinstance(groups, list | tuple):
        # Of names and a NaN, NumPy makes names.
        values = np.array(groups, object)
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


def _factorized(values: np.ndarray, name: str) -> tuple[tuple, np.ndarray]:
    """Groups in order, and the place of each value among them."""
    if values.dtype.kind in "iuf":
        known, places = np.unique(values, return_inverse=True)
        if values.dtype.kind == "f":
            _check_whole(values, name)
            known = known.astype(int)
        return tuple(known.tolist()), places
    listed = values.tolist()
    different = dict.fromkeys(listed)
    for value in different:
        if value is None or value != value or str(value) in ("", "<NA>"):
            same = (i for i, x in enumerate(listed) if x is value or x == value)
            raise _missing(name, next(same), value)
    if all(type(x) is int for x in different):
        return _factorized(np.array(listed), name)
    texts = {x: _text(x) for x in different}
    known = sorted({*texts.values()})
    if all(map(str.isdecimal, known)):
        known.sort(key=lambda x: (len(x), x))
    place = {text: k for k, text in enumerate(known)}
    codes = {x: place[text] for x, text in texts.items()}
    found = np.fromiter((codes[x] for x in listed), int, len(listed))
    return tuple(known), found


def _check_whole(values: np.ndarray, name: str) -> None:
    if np.isnan(values).any():
        raise _missing(name, int(np.argmax(np.isnan(values))), np.nan)
    measured = (values != np.rint(values)) | np.isinf(values)
    if measured.any():
        row = int(np.argmax(measured))
        raise value_error(
            f"`{name}` must be names or whole numbers: cut a measurement "
            "into ranges first",
            row=row,
            value=float(values[row]),
        )


def _missing(name: str, row: int, value: Any) -> ValueError:
    return value_error(
        f"`{name}` must have a group in every row: name what is missing",
        row=row,
        value=value,
    )


def _text(value: Any) -> str:
    """A value as the name of its group."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)
