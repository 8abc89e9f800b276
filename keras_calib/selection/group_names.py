"""Names of groups, and the group of each sample."""

import itertools
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.groups import as_groups, joined_names
from keras_calib.inputs.groups import read_groups as groups_of

__all__ = ["LARGEST_ID", "combined_groups", "read_groups"]

# Ids are served as int32. Its ends stand for ids out of its range.
LARGEST_ID = 2**31 - 2


def combined_groups(*groups: Any) -> list[str]:
    """Names of the intersections of groupings, such as `"f & old"`.

    Use it to ask for a threshold in each intersection: its result is the
    `groups` of a fit.

    Args:
        *groups: Names or whole numbers `(n,)` of each grouping.

    Returns:
        A list of n names.

    Raises:
        ValueError: If lengths differ, a group is missing, or two
            intersections get one name.
        TypeError: If groups are neither names nor numbers.

    Example:

    >>> combined_groups(["f", "m"], [3, 4])
    ['f & 3', 'm & 4']

    Reference:
        Kearns et al., Preventing Fairness Gerrymandering, ICML 2018,
        https://arxiv.org/abs/1711.05144
    """
    arrays = [as_groups(one) for one in groups]
    shapes = [one.shape for one in arrays]
    if len({*shapes}) != 1 or len(shapes[0]) != 1:
        raise value_error(
            "`groups` must all have one value per sample", shapes=shapes
        )
    read = [read_groups(one, one.shape) for one in arrays]
    lists = [[names[k] for k in places] for names, places in read]
    rows = list(zip(*lists, strict=True))
    different = list(dict.fromkeys(rows))
    found = dict(zip(different, joined_names(different), strict=True))
    return [found[row] for row in rows]


def read_groups(
    groups: Any, shape: tuple, weight: Any = None, costs: Any = None
) -> tuple[tuple, np.ndarray]:
    """Groups in order that have weight, and the place of each sample's group.

    Places have the given shape, that of the scores. Costs are refused.
    """
    if costs is not None:
        raise value_error(
            "`groups` must be left out with `costs`: thresholds by group are "
            "for risk and coverage"
        )
    known, places = groups_of(groups, tuple(shape))
    ends = known[:1] + known[-1:]
    if any(isinstance(x, int) and abs(x) > LARGEST_ID for x in ends):
        raise value_error(
            "`groups` must be in the range of int32: number them, or "
            "pass their names",
            minimum=ends[0],
            maximum=ends[1],
        )
    if weight is not None:
        # Here, as it needs Keras, which records without weights do without.
        from keras_calib.inputs.weights import weight_of_rows

        weight = weight_of_rows(weight, places.shape)
        counted = places.reshape(-1)[weight > 0]
        kept = np.bincount(counted, minlength=len(known)) > 0
        known = tuple(itertools.compress(known, kept))
        places = np.maximum(np.cumsum(kept) - 1, 0)[places]
    return known, places
