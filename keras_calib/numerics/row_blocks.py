"""What rows of NumPy predictions hold, read in blocks that fit the cache.

A pass over all rows would write and read an array of their size at each step.
Few classes are read column by column, as loops over short rows cost more than
the numbers in them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_calib.numerics.softmax import sigmoid, top1

# Bytes of a block.
_BLOCK = 2**19
# Rows of at most so many classes are read column by column. Their classes
# must fit in 8 bits.
_FEW_CLASSES = 32


class RowFacts(NamedTuple):
    """Facts of rows of predictions `(n, num_classes)`.

    Attributes:
        predicted: First of the largest classes, `(n,)`.
        largest: Largest entries `(n,)`, in the dtype of the rows.
        log_odds: Log-odds of the predicted class, `(n,)`; None for
            probabilities, or if they were not asked for.
        lowest: Smallest entry, NaN if there is a NaN; 0 for logits.
        distance: Largest distance of the sum of a row from 1; 0 for logits.
    """

    predicted: np.ndarray
    largest: np.ndarray
    log_odds: Any
    lowest: float = 0.0
    distance: float = 0.0

    @property
    def confidence(self) -> np.ndarray:
        """Probability of the predicted class, `(n,)`."""
        if self.log_odds is None:
            return np.clip(self.largest, 0.0, 1.0)
        return sigmoid(self.log_odds)

    def of(self, rows: np.ndarray) -> "RowFacts":
        """The facts of some of the rows."""
        log_odds = self.log_odds
        return self._replace(
            predicted=self.predicted[rows],
            largest=self.largest[rows],
            log_odds=None if log_odds is None else log_odds[rows],
        )


def block_slices(rows: np.ndarray) -> Iterator[slice]:
    """Slices of rows `(n, k)` whose blocks fit the cache in float64."""
    size = max(1, _BLOCK // (8 * rows.shape[-1]))
    for start in range(0, len(rows), size):
        yield slice(start, start + size)


def probability_blocks(
    outputs: np.ndarray, from_logits: bool
) -> Iterator[tuple[slice, np.ndarray]]:
    """Slices of rows `(n, num_classes)`, and their probabilities in [0, 1].

    A block is overwritten by the next.
    """
    size = max(1, _BLOCK // (outputs.itemsize * outputs.shape[-1]))
    room = np.empty((size, outputs.shape[-1]), outputs.dtype)
    for start in range(0, len(outputs), size):
        part = slice(start, min(start + size, len(outputs)))
        block = outputs[part]
        probs = room[: len(block)]
        if from_logits:
            np.subtract(block, block.max(axis=-1, keepdims=True), out=probs)
            np.exp(probs, out=probs)
            probs /= probs.sum(axis=-1, keepdims=True)
            block = probs
        yield part, np.clip(block, 0.0, 1.0, out=probs)


def read_rows(
    outputs: np.ndarray,
    *,
    from_logits: bool,
    dtype: str | None = None,
    log_odds: bool = True,
) -> RowFacts:
    """Read rows `(n, num_classes)`, converted to `dtype` block by block.

    NaN makes facts NaN and raises nothing. `log_odds` are those of logits.
    """
    dtype = np.dtype(dtype or outputs.dtype)
    if from_logits:
        return _read(outputs, dtype, log_odds=log_odds)
    facts = _read(outputs, dtype, by_bits=True, sums=True)
    if np.signbit(facts.largest).any():
        facts = _read(outputs, dtype, sums=True)
    return facts


def _read(
    outputs: np.ndarray,
    dtype: np.dtype,
    by_bits: bool = False,
    log_odds: bool = False,
    sums: bool = False,
) -> RowFacts:
    """The facts that are asked for.

    With `by_bits`, a sign in `largest` tells of entries below 0, and `lowest`
    costs no pass of its own.
    """
    num_rows, num_classes = outputs.shape
    few = num_classes <= _FEW_CLASSES
    size = max(1, _BLOCK // (dtype.itemsize * num_classes))
    room: Any = None
    if few or log_odds:
        shape = (num_classes, size) if few else (size, num_classes)
        room = np.empty(shape, dtype)
    predicted = np.empty(num_rows, "uint8" if few else "int64")
    largest, totals = np.ones((2, num_rows), dtype)
    odds: Any = np.empty(num_rows, dtype) if log_odds else None
    lowest = [0.0]
    fill = _fill_of_columns if few else _fill_of_rows
    with np.errstate(all="ignore"):
        for start in range(0, num_rows, size):
            part = slice(start, min(start + size, num_rows))
            block = outputs[part]
            if few:
                columns = room[:, : len(block)]
                np.copyto(columns, block.T, casting="unsafe")
                block = columns
            else:
                block = block.astype(dtype, order="C", copy=False)
            places: Any = fill(block, predicted[part], largest[part], by_bits)
            if log_odds and few:
                odds[part] = _log_odds_of_columns(block, places, largest[part])
            elif log_odds:
                others = room[: len(block)]
                np.copyto(others, block)
                others[places] = -np.inf
                odds[part] = _log_odds(block, others, largest[part])
            if sums:
                np.einsum("ij->j" if few else "ij->i", block, out=totals[part])
                if not by_bits:
                    lowest.append(block.min())
        distance = np.abs(totals - 1.0).max()
    predicted = predicted.astype("int64", copy=False)
    return RowFacts(predicted, largest, odds, np.min(lowest), distance)


def _bits(x: np.ndarray) -> np.ndarray:
    """Bits as integers, in the order of numbers >= 0; negatives are largest."""
    return x.view(f"u{x.itemsize}")


def _fill_of_rows(
    rows: np.ndarray, predicted: np.ndarray, largest: np.ndarray, by_bits: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Fill in the first of the largest classes, and what it has.

    Returns the places of the former. `by_bits` finds the largest entry and any
    below 0 in one pass.
    """
    np.argmax(_bits(rows) if by_bits else rows, axis=-1, out=predicted)
    places = np.arange(len(rows)), predicted
    largest[:] = rows[places]
    return places


def _fill_of_columns(
    columns: np.ndarray,
    predicted: np.ndarray,
    largest: np.ndarray,
    by_bits: bool,
) -> np.ndarray:
    """The same of columns. Returns a mask of all largest entries.

    Two columns need none, and are returned.
    """
    if by_bits:
        np.max(_bits(columns), axis=0, out=_bits(largest))
    else:
        np.max(columns, axis=0, out=largest)
    if len(columns) == 2:
        np.greater(columns[1], columns[0], out=predicted.view("bool"))
        return columns
    at_top = columns == largest
    count = len(columns)
    # Higher for earlier classes, of which the largest wins.
    rank = np.arange(count, 0, -1, dtype="uint8")[:, None]
    np.max(at_top.view("uint8") * rank, axis=0, out=predicted)
    np.subtract(count, predicted, out=predicted)
    return at_top


def _log_odds_of_columns(
    columns: np.ndarray, at_top: np.ndarray, largest: np.ndarray
) -> np.ndarray:
    """Log-odds of logits `(num_classes, n)`, which are overwritten."""
    if len(columns) == 2:
        return largest - np.minimum(columns[0], columns[1])
    ties = np.sum(at_top, axis=0, dtype="uint8") - np.uint8(1)
    np.copyto(columns, -np.inf, where=at_top)
    second = np.where(ties > 0, largest, columns.max(axis=0))
    second = _exp_above(columns, second)
    return _beside(largest, second, _sum_of_columns(columns) + ties)


def _sum_of_columns(columns: np.ndarray) -> np.ndarray:
    """Sums over the classes, added in the order in which NumPy adds rows."""
    whole = len(columns) - len(columns) % 8
    if not whole:
        return columns.sum(axis=0)
    parts = columns[:whole].reshape(-1, 8, columns.shape[-1]).sum(axis=0)
    while len(parts) > 1:
        parts = parts[::2] + parts[1::2]
    total = parts[0]
    for column in columns[whole:]:
        total += column
    return total


def _log_odds(
    block: np.ndarray, others: np.ndarray, largest: np.ndarray
) -> np.ndarray:
    """Log-odds of logits `(n, num_classes)`; overwrites `others`."""
    second = others.max(axis=-1)
    tied = np.flatnonzero(second == largest)
    second = _exp_above(others, second[:, None])[:, 0]
    log_odds = _beside(largest, second, others.sum(axis=-1))
    if len(tied):
        log_odds[tied] = top1(block[tied], from_logits=True)[1]
    return log_odds


def _exp_above(others: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Overwrite `others` by exp(others - second); returns finite `second`."""
    second = np.where(np.isfinite(second), second, np.zeros_like(second))
    np.subtract(others, second, out=others)
    np.exp(others, out=others)
    return second


def _beside(
    largest: np.ndarray, second: np.ndarray, total: np.ndarray
) -> np.ndarray:
    """Largest logit minus the log-sum-exp of the others."""
    # Without another class the log-odds are infinite.
    alone = total == 0
    log_total = np.log(np.where(alone, np.ones_like(total), total))
    return np.where(alone, np.inf, largest - second - log_total).astype(
        largest.dtype, copy=False
    )
