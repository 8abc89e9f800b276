"""Weighted means, and the spread of their values, as a state that merges."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.formulas.intervals import Moments
from keras_calib.metrics.states.records import by_column
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace, cast, on_host
from keras_calib.numerics.softmax import Top1

__all__ = ["MomentSummary"]

_NUM_SUMS = len(Moments._fields)
# More than any sum holds.
_LARGEST = 2.0**60


class MomentSummary:
    """The sums of `Moments`, for one or more values x.

    Args:
        *values: Functions of records to `(x, where)`. x are finite values
            >= 0 of shape `(n,)`, and `where` is a mask of them, bool `(n,)`,
            or None for all. Shares in [0, 1] in its place multiply weights.
        needs_rows: Whether the values need the outputs of all classes.
    """

    def __init__(
        self,
        *values: Callable[[Top1], tuple[Any, Any]],
        needs_rows: bool = False,
    ):
        self.values = values
        self.needs_rows = needs_rows
        self.on_host = "arrays" if needs_rows else "records"
        self.shape = (exact_sums.NUM_LIMBS, _NUM_SUMS * len(values))

    takes_columns = True

    def update(self, records: Top1, columns: int | None = None) -> Any:
        """Limbs of the sums of one batch, in the order of `Moments`.

        Entries of columns give limbs `(3, columns, ...)`.
        """
        if self.needs_rows and records.rows is None:
            return ops.zeros(self.shape, dtype="int32")
        xp, rows = array_namespace(records.mask), []
        weighted = records.weight is not None
        for value in self.values:
            x, where = value(records)
            if xp is np:
                x = on_host(x)
                where = None if where is None else on_host(where)
            counted, weight = records.mask, records.weight
            if where is not None and "float" in str(where.dtype):
                weight = where if weight is None else weight * where
                weighted = True
            elif where is not None:
                counted = xp.logical_and(counted, where)
            zero = xp.zeros_like(x)
            # Larger squares are infinite, and 0 times infinity is NaN.
            x = xp.where(counted, xp.minimum(x, _LARGEST), zero)
            if weight is None:
                w = cast(counted, x.dtype)
                square = xp.square(x)
                rows += [w, x, square, square * x]
            else:
                w = xp.where(counted, weight, zero)
                wx = w * x
                rows += [w, wx, xp.square(w), w * wx, xp.square(wx)]
                rows += [wx * x, wx * xp.square(x)]
        limbs = exact_sums.sum_rows(_stacked(rows, columns))
        if weighted:
            return limbs
        # Weights of 1 are their own squares.
        lead = limbs.shape[:-1]
        limbs = xp.reshape(limbs, (*lead, -1, 4))
        w, wx, wxx, wxxx = (limbs[..., i] for i in range(4))
        limbs = xp.stack([w, wx, w, wx, wxx, wxx, wxxx], axis=-1)
        return xp.reshape(limbs, (*lead, self.shape[-1]))

    def moments(self, limbs: Any, index: int = 0) -> Moments:
        """Sums of one of the values (array-agnostic)."""
        part = limbs[:, index * _NUM_SUMS : (index + 1) * _NUM_SUMS]
        sums = exact_sums.to_float(part)
        return Moments(*(sums[i] for i in range(_NUM_SUMS)))


def _stacked(rows: list[Any], columns: int | None) -> Any:
    """Rows `(..., rows, n)` of values by column, in an order NumPy likes."""
    xp = array_namespace(rows[0])
    if columns is not None and xp is np:
        return np.stack([x.reshape(-1, columns) for x in rows]).transpose(
            2, 0, 1
        )
    return xp.stack([by_column(row, columns) for row in rows], axis=-2)
