"""Groups of samples: their names, ids when served, and thresholds."""

import itertools
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.late import keras_module
from keras_calib.inputs.groups import as_groups, name_of
from keras_calib.inputs.groups import read_groups as groups_of

keras = keras_module("keras")
ops = keras_module("keras.ops")

# Ids are served as int32. Its ends stand for ids out of its range.
_LARGEST_ID = 2**31 - 2


def read_groups(
    groups: Any, shape: tuple, weight: Any = None
) -> tuple[tuple, np.ndarray]:
    """Groups in order that have weight, and the place of each sample's group.

    Places have the given shape, that of the scores.
    """
    known, places = groups_of(groups, tuple(shape))
    ends = known[:1] + known[-1:]
    if any(isinstance(x, int) and abs(x) > _LARGEST_ID for x in ends):
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
    array = as_groups(groups)
    if array.dtype.kind == "f" and np.all(array == np.rint(array)):
        array = array.astype("int64")
    if array.dtype.kind in "bOUS":
        if not named:
            raise type_error(
                "`groups` must be integers, as in `fit`", dtype=array.dtype.name
            )
        place = {name: i for i, name in enumerate(group)}
        flat = [place.get(name_of(x), -1) for x in array.reshape(-1).tolist()]
        return np.asarray(flat, "int32").reshape(array.shape)
    if array.dtype.kind not in "iu":
        raise type_error(
            "`groups` must be integers or strings", dtype=array.dtype.name
        )
    return np.clip(array, -_LARGEST_ID - 1, _LARGEST_ID + 1).astype("int32")


def thresholds_of(ids: Any, thresholds: Any, groups: Any, shape: tuple) -> Any:
    """The threshold of each sample's group; inf for an unknown one.

    A search in steps that halve, by gathers and comparisons, which every
    format can serve. Ids ascend, and groups are those of the samples `(batch,)`
    or of scores of this shape, with None for what is not known.
    """
    groups = ops.convert_to_tensor(groups)
    fits = len(groups.shape) in (1, len(shape)) and all(
        None in (one, other) or one == other
        for one, other in zip(groups.shape, shape, strict=False)
    )
    if not fits and shape:
        raise value_error(
            "`groups` must have one value per row, shape (batch,), or per "
            "score",
            **{"groups.shape": tuple(groups.shape), "score.shape": shape},
        )
    dtype = keras.backend.standardize_dtype(groups.dtype)
    if "int" not in dtype:
        raise type_error("`groups` must be integers or strings", dtype=dtype)
    known = ops.cast(groups, "int32")
    if dtype in ("int64", "uint32", "uint64"):
        # Operators, as functions of Keras compare uint64 as uint32, and on
        # torch int64 as int32.
        outside = groups > ops.cast(_LARGEST_ID, dtype)
        if dtype == "int64":
            low = groups < ops.cast(-_LARGEST_ID, dtype)
            outside = ops.logical_or(outside, low)
        known = ops.where(outside, _LARGEST_ID + 1, known)
    groups = known
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
    for _ in range(len(shape) - len(found.shape)):
        found = ops.expand_dims(found, -1)
    return found
