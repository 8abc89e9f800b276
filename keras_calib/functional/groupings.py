"""Groups of samples as names and codes, from arrays of any kind."""

import itertools
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_integer

__all__ = ["Grouping", "groupings", "joined", "read_groups"]


class Grouping(NamedTuple):
    """Names of groups in order, and the place of each sample in them."""

    names: list[str]
    code: np.ndarray

    def part(self, rows: slice, lead: tuple[int, ...]) -> "Grouping":
        """Those of some rows of predictions `lead`."""
        code = self.code.reshape(lead)[rows].reshape(-1)
        return Grouping(self.names, code)


def groupings(
    groups: Any, lead: tuple[int, ...], intersections: bool | int = False
) -> dict[str, Grouping]:
    """Groups by the name of their attribute, of predictions `(prod(lead),)`.

    `intersections` adds those of several attributes, at most so many.
    """
    several = isinstance(groups, Mapping)
    given = dict(groups) if several else {"group": groups}
    if not given:
        raise value_error("`groups` must have an attribute", groups=groups)
    found = {
        str(name): read_groups(
            x, lead, f"groups[{name!r}]" if several else "groups"
        )
        for name, x in given.items()
    }
    most = len(found) if intersections is True else intersections
    if intersections is False:
        return found
    check_integer("intersections", most, 1)
    for order in range(2, most + 1):
        for names in itertools.combinations(list(given), order):
            parts = [found[str(name)] for name in names]
            found[joined(names)] = _crossed(parts)
    return found


def joined(names: Iterable[Any]) -> str:
    """The name of the intersection of groups, or of attributes."""
    return " & ".join(map(str, names))


def read_groups(groups: Any, lead: tuple[int, ...], name: str) -> Grouping:
    """Names and codes of the groups of one attribute.

    Raises ValueError if a sample has none, or shapes do not fit.
    """
    values = np.asarray(groups)
    if values.dtype.kind == "U" and isinstance(groups, list | tuple):
        # Of names and a NaN, NumPy makes names.
        values = np.array(groups, object)
    if values.shape not in (lead, lead[:1]):
        raise value_error(
            f"`{name}` must have a group for each sample, or for each "
            "prediction",
            **{f"{name}.shape": values.shape, "labels.shape": lead},
        )
    kind = values.dtype.kind
    if kind not in "biufOUS":
        raise type_error(
            f"`{name}` must be names or whole numbers", dtype=str(values.dtype)
        )
    names, code = _factorized(values.reshape(-1), name)
    if values.shape != lead:
        code = np.repeat(code, int(np.prod(lead[1:])))
    return Grouping(names, code)


def _factorized(values: np.ndarray, name: str) -> tuple[list[str], np.ndarray]:
    """Names in order, and the place of each value among them."""
    if values.dtype.kind in "biuf":
        known, code = np.unique(values, return_inverse=True)
        rule = f"`{name}` must have a group in every row: name what is missing"
        if values.dtype.kind == "f" and np.isnan(known).any():
            raise value_error(rule, row=int(np.argmax(np.isnan(values))))
        if values.dtype.kind == "f" and (known != np.rint(known)).any():
            row = int(np.argmax(values != np.rint(values)))
            raise value_error(
                f"`{name}` must be names or whole numbers: cut a measurement "
                "into ranges first",
                row=row,
                value=float(values[row]),
            )
        known = known.astype(int) if values.dtype.kind == "f" else known
        return [str(x) for x in known.tolist()], code.reshape(-1)
    listed = values.tolist()
    texts = {x: _text(x, name, listed) for x in dict.fromkeys(listed)}
    names = sorted({*texts.values()}, key=lambda x: (len(x), x))
    if not all(map(str.isdecimal, names)):
        names = sorted(names)
    place = {text: k for k, text in enumerate(names)}
    codes = {x: place[text] for x, text in texts.items()}
    return names, np.fromiter((codes[x] for x in listed), int, len(listed))


def _text(value: Any, name: str, listed: list) -> str:
    """A value as the name of its group."""
    missing = value is None or value != value or str(value) in ("", "<NA>")
    if missing:
        row = next(i for i, x in enumerate(listed) if x is value or x == value)
        raise value_error(
            f"`{name}` must have a group in every row: name what is missing",
            row=row,
            value=value,
        )
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def _crossed(parts: list[Grouping]) -> Grouping:
    """Groups of several attributes together, those that occur."""
    code, size = parts[0].code, len(parts[0].names)
    for part in parts[1:]:
        size *= len(part.names)
        code = code * len(part.names) + part.code
    known, code = np.unique(code, return_inverse=True)
    names = []
    for place in known.tolist():
        own: list[str] = []
        for part in reversed(parts):
            place, k = divmod(place, len(part.names))
            own.insert(0, part.names[k])
        names.append(joined(own))
    if len(set(names)) < len(names):
        raise value_error(
            '`groups` must be told apart when joined by " & ": rename them',
            intersections=len(names),
            names=len(set(names)),
        )
    return Grouping(names, code.reshape(-1))
