"""Weighted means, their spread, and equal-width bins, as states that merge."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_calib.formulas.bins import CLOSED, BinSums, bin_index
from keras_calib.formulas.intervals import Moments
from keras_calib.inputs.checks import MODES, check_in, check_integer
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.metrics.states.records import (
    by_column,
    second_class,
    sums_by_key,
    vote_sums_by_key,
    weights_by_key,
)
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace, cast, on_host

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
        *values: Callable[[Outcomes], tuple[Any, Any]],
        needs_rows: bool = False,
    ):
        self.values = values
        self.needs_rows = needs_rows
        self.on_host = "arrays" if needs_rows else "records"
        self.shape = (exact_sums.NUM_LIMBS, _NUM_SUMS * len(values))

    takes_columns = True

    def update(self, records: Outcomes, columns: int | None = None) -> Any:
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
    return xp.stack(by_column(columns, *rows), axis=-2)


class BinSummary:
    """Equal-width bins as exact, mergeable integer sums."""

    needs_rows = False
    takes_columns = True
    # Whether labels are votes, and correctness a share.
    votes = False

    def __init__(
        self, num_bins: int, closed: str = "right", mode: str = "top_label"
    ):
        check_integer("num_bins", num_bins, 1)
        check_in("closed", closed, CLOSED)
        check_in("mode", mode, MODES)
        self.is_binary = mode == "binary"
        self.on_host = "arrays" if self.is_binary else "records"
        self.num_bins = num_bins
        self.closed = closed

    @property
    def shape(self) -> tuple[int, ...]:
        """Limbs, by sums and keys."""
        sums = 7 if self.votes else 6
        return (exact_sums.NUM_LIMBS, sums * self.num_bins)

    def update(self, records: Outcomes, columns: int | None = None) -> Any:
        """Limbs of weight, confidence and squared weight by key.

        A key stands for a bin, and for correct or wrong predictions. Squared
        residuals of votes come last, by bin. Entries of columns give limbs
        `(3, columns, ...)`.
        """
        if self.is_binary:
            records = second_class(records)
        if self.votes:
            return self._update_by_votes(records, columns)
        xp = array_namespace(records.mask)
        num_keys = 2 * self.num_bins
        confidence, weight = records.confidence, records.weight
        keys = 2 * bin_index(confidence, self.num_bins, self.closed)
        keys = keys + records.loss
        keys = xp.where(records.mask, keys, xp.full_like(keys, num_keys))
        weight, confidence, keys = by_column(columns, weight, confidence, keys)
        mass, total = sums_by_key(weight, confidence, keys, num_keys)
        squares = mass
        if weight is not None:
            squares = weights_by_key(weight, keys, num_keys, squared=True)
        return xp.concatenate([mass, total, squares], axis=-1)

    def _update_by_votes(self, records: Outcomes, columns: int | None) -> Any:
        xp, num_bins = array_namespace(records.mask), self.num_bins
        confidence, weight = records.confidence, records.weight
        keys = bin_index(confidence, num_bins, self.closed)
        keys = xp.where(records.mask, keys, xp.full_like(keys, num_bins))
        mass, total, distances = vote_sums_by_key(
            records, confidence, confidence, keys, num_bins, columns
        )
        squares = mass
        if weight is not None:
            weight, keys = by_column(columns, weight, keys)
            squares = weights_by_key(weight, keys, num_bins, squared=True)
            squares = xp.stack([squares, xp.zeros_like(squares)], axis=-1)
        parts = [
            xp.reshape(x, (*x.shape[:-2], 2 * num_bins))
            for x in (mass, total, squares)
        ]
        return xp.concatenate([*parts, distances], axis=-1)

    def bins(self, limbs: Any) -> BinSums:
        """Bin sums of limbs (array-agnostic)."""
        shape = (exact_sums.NUM_LIMBS, 3, self.num_bins, 2)
        distances = limbs[:, 6 * self.num_bins :]
        limbs = limbs[:, : 6 * self.num_bins]
        limbs = array_namespace(limbs).reshape(limbs, shape)
        both = limbs[..., 0] + limbs[..., 1]
        values = exact_sums.to_float(both)
        # A float32 difference of two long sums would lose a small gap.
        correct = limbs[:, 0, :, 0]
        return BinSums(
            weight=values[0],
            confidence=values[1],
            correct=exact_sums.to_float(correct),
            residual=exact_sums.to_float(both[:, 1] - correct),
            squared_weight=values[2],
            squared_residual=(
                exact_sums.to_float(distances) if self.votes else None
            ),
        )
