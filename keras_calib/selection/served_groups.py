"""Groups of a served layer: their ids, and the threshold of each sample."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error
from keras_calib.numerics.arrays import to_numpy

__all__ = ["LARGEST_ID", "ids_of", "served_ids", "thresholds_of"]

# Ids are served as int32. Its ends stand for ids out of its range.
LARGEST_ID = 2**31 - 2


def ids_of(group: tuple) -> np.ndarray:
    """The ids by which groups are served, int32, ascending."""
    named = bool(group) and isinstance(group[0], str)
    return np.asarray(range(len(group)) if named else group, "int32")


def served_ids(groups: Any, group: tuple) -> Any:
    """Ids of groups as given to a layer: places for names, -1 for unknown."""
    named = bool(group) and isinstance(group[0], str)
    if hasattr(groups, "shape") and not isinstance(groups, np.ndarray):
        kind = str(getattr(groups, "dtype", ""))
        if "string" not in kind:
            return groups
    array = to_numpy(groups)
    if array.dtype.kind in "OUS":
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if not named:
            raise type_error(
                "`groups` must be integers, as in `fit`", dtype=array.dtype.name
            )
        place = {name: i for i, name in enumerate(group)}
        flat = [
            place.get(x.decode() if isinstance(x, bytes) else x, -1)
            for x in array.reshape(-1).tolist()
        ]
        return np.asarray(flat, "int32").reshape(array.shape)
    if array.dtype.kind not in "iu":
        raise type_error(
            "`groups` must be integers or strings", dtype=array.dtype.name
        )
    return np.clip(array, -LARGEST_ID - 1, LARGEST_ID + 1).astype("int32")


def thresholds_of(ids: Any, thresholds: Any, groups: Any, rank: int) -> Any:
    """The threshold of each sample's group; inf for an unknown one.

    A search in steps that halve, by gathers and comparisons, which every
    format can serve.

    Args:
        ids: Ids of the groups `(num_groups,)`, int32, ascending.
        thresholds: Their thresholds `(num_groups,)`.
        groups: Ids of the samples `(batch,)`, or of the shape of the scores.
        rank: Number of axes of the scores.
    """
    groups = ops.convert_to_tensor(groups)
    if keras.backend.standardize_dtype(groups.dtype) == "int64":
        groups = ops.clip(groups, -LARGEST_ID - 1, LARGEST_ID + 1)
    groups = ops.cast(groups, "int32")
    last = ids.shape[0] - 1
    place = ops.zeros_like(groups)
    step = 1 << max(last, 1).bit_length() - 1
    while step:
        ahead = ops.minimum(place + step, last)
        fits = ops.less_equal(ops.take(ids, ahead), groups)
        place = ops.where(fits, ahead, place)
        step //= 2
    known = ops.equal(ops.take(ids, place), groups)
    found = ops.take(thresholds, place)
    found = ops.where(known, found, ops.full_like(found, float("inf")))
    for _ in range(rank - len(found.shape)):
        found = ops.expand_dims(found, -1)
    return found
