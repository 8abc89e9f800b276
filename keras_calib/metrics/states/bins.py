"""Equal-width bins of the confidence as a state that streams and merges."""

from typing import Any

from keras_calib.formulas.bins import CLOSED, BinSums, VoteBinSums, bin_index
from keras_calib.inputs.checks import MODES, check_in, check_integer
from keras_calib.metrics.states.records import (
    by_column,
    second_class,
    squares_by_key,
    sums_by_key,
    vote_sums_by_key,
)
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace
from keras_calib.numerics.softmax import Top1

__all__ = ["BinSummary"]


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

    def update(self, records: Top1, columns: int | None = None) -> Any:
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
        keys = keys + 1 - records.correct
        keys = xp.where(records.mask, keys, xp.full_like(keys, num_keys))
        weight, confidence, keys = (
            by_column(x, columns) for x in (weight, confidence, keys)
        )
        mass, total = sums_by_key(weight, confidence, keys, num_keys)
        squares = mass
        if weight is not None:
            squares = squares_by_key(weight, keys, num_keys)
        return xp.concatenate([mass, total, squares], axis=-1)

    def _update_by_votes(self, records: Top1, columns: int | None) -> Any:
        xp, num_bins = array_namespace(records.mask), self.num_bins
        confidence, weight = records.confidence, records.weight
        keys = bin_index(confidence, num_bins, self.closed)
        keys = xp.where(records.mask, keys, xp.full_like(keys, num_bins))
        mass, total, distances = vote_sums_by_key(
            records, confidence, confidence, keys, num_bins, columns
        )
        squares = mass
        if weight is not None:
            weight, keys = by_column(weight, columns), by_column(keys, columns)
            squares = squares_by_key(weight, keys, num_bins)
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
        sums = BinSums(
            weight=values[0],
            confidence=values[1],
            correct=exact_sums.to_float(correct),
            residual=exact_sums.to_float(both[:, 1] - correct),
            squared_weight=values[2],
        )
        if self.votes:
            square = exact_sums.to_float(distances)
            sums = VoteBinSums(*sums, squared_residual=square)
        return sums
