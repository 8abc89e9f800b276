"""Names of groups, and the group of each sample."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.functional.groupings import joined
from keras_calib.numerics.arrays import to_numpy
from keras_calib.selection.served_groups import LARGEST_ID

__all__ = ["combined_groups", "read_groups"]


def combined_groups(*groups: Any) -> list[str]:
    """Names of the intersections of groupings, such as `"f & old"`.

    Use it to ask for a threshold in each intersection: its result is the
    `groups` of a fit.

    Args:
        *groups: Integers or strings `(n,)` of each grouping.

    Returns:
        A list of n names.

    Raises:
        ValueError: If lengths differ, or two intersections get one name.
        TypeError: If groups are neither integers nor strings.

    Example:

    >>> combined_groups(["f", "m"], [3, 4])
    ['f & 3', 'm & 4']

    Reference:
        Kearns et al., Preventing Fairness Gerrymandering, ICML 2018,
        https://arxiv.org/abs/1711.05144
    """
    arrays = [to_numpy(one).reshape(-1) for one in groups]
    if len({len(one) for one in arrays}) != 1:
        raise value_error(
            "`groups` must all have one value per sample",
            lengths=[len(one) for one in arrays],
        )
    lists = []
    for one in arrays:
        names, places = read_groups(one, one.shape)
        lists.append([names[place] for place in places])
    rows = list(zip(*lists, strict=True))
    found = {row: joined(row) for row in rows}
    if len(set(found.values())) < len(found):
        raise value_error(
            '`groups` must be told apart when joined by " & ": rename them',
            intersections=len(found),
            names=len(set(found.values())),
        )
    return [found[row] for row in rows]


def read_groups(
    groups: Any, shape: tuple, costs: Any = None
) -> tuple[tuple, np.ndarray]:
    """Names of the groups, ascending, and the place of each sample's group.

    Places have the given shape, that of the scores. Costs are refused.
    """
    if costs is not None:
        raise value_error(
            "`groups` must be left out with `costs`: thresholds by group are "
            "for risk and coverage"
        )
    array = to_numpy(groups)
    if array.dtype.kind == "U" and isinstance(groups, list | tuple):
        # Of names and a NaN, NumPy makes names.
        array = np.array(groups, object)
    if array.dtype.kind == "O":
        flat = [
            x.decode("utf-8") if isinstance(x, bytes) else x
            for x in array.reshape(-1).tolist()
        ]
        whole = all(isinstance(x, str) for x in flat)
        array = np.array(flat).reshape(array.shape) if whole else array
    if array.dtype.kind not in "iuUS":
        raise type_error(
            "`groups` must be integers or strings, without NaN and None: give "
            "missing ones a group of their own",
            dtype=array.dtype.name,
        )
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    per_row = array.shape == shape[:1]
    if array.shape != shape and not (per_row and shape):
        raise value_error(
            "`groups` must have one value per sample, or per row",
            **{"groups.shape": array.shape, "samples": shape},
        )
    names, places = np.unique(array, return_inverse=True)
    if array.dtype.kind in "iu" and len(names):
        ends = int(names[0]), int(names[-1])
        if ends[0] < -LARGEST_ID or ends[1] > LARGEST_ID:
            raise value_error(
                "`groups` must be in the range of int32: number them, or "
                "pass their names",
                minimum=ends[0],
                maximum=ends[1],
            )
    places = places.reshape(array.shape + (1,) * (len(shape) - array.ndim))
    return tuple(names.tolist()), np.broadcast_to(places, shape)
