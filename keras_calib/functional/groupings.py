"""Groups of samples as names and codes, from arrays of any kind."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.groups import joined_names, read_groups

__all__ = ["Grouping", "grouping", "groupings", "joined"]


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
    if len({*map(str, given)}) < len(given):
        raise value_error(
            "`groups` must name its attributes differently", names=[*given]
        )
    found = {
        str(name): grouping(
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


def grouping(groups: Any, lead: tuple[int, ...], name: str) -> Grouping:
    """Names and codes of the groups of one attribute."""
    known, places = read_groups(groups, lead, name)
    return Grouping([str(x) for x in known], places.reshape(-1))


def _crossed(parts: list[Grouping]) -> Grouping:
    """Groups of several attributes together, those that occur."""
    code, size = parts[0].code, len(parts[0].names)
    for part in parts[1:]:
        size *= len(part.names)
        code = code * len(part.names) + part.code
    known, code = np.unique(code, return_inverse=True)
    rows = []
    for place in known.tolist():
        own: list[str] = []
        for part in reversed(parts):
            place, k = divmod(place, len(part.names))
            own.insert(0, part.names[k])
        rows.append(tuple(own))
    return Grouping(joined_names(rows), code.reshape(-1))
