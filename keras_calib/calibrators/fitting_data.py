"""Held-out data: what calibrators are fitted on, read once and never copied.

Fits pass over the samples in blocks that a cache holds, in float64, on every
core: NumPy then needs about the time of a compiled graph, and no copy of the
logits, which can be those of ten million pixels.
"""

import functools
import os
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.numerics.arrays import to_numpy

__all__ = [
    "FittingData",
    "read_batches",
    "read_samples",
    "single_threaded_blas",
]

# Logits in a block: a cache holds it, and a few temporaries beside it.
_BLOCK = 2**16
_FEW = 200


class FittingData(NamedTuple):
    """Held-out samples, NumPy.

    Attributes:
        labels: Class ids `(n,)`, int64, or soft labels `(n, num_classes)`.
        logits: Finite logits `(n, num_classes)`.
        weight: `(n,)`, or None where every sample counts 1.
        valid: bool `(n,)`, or None where every sample counts.
    """

    labels: np.ndarray
    logits: np.ndarray
    weight: np.ndarray | None = None
    valid: np.ndarray | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.logits.shape[-1]

    def count(self) -> int:
        """Number of samples that count."""
        return int(self._counts().sum())

    def subsampled(self, size: int) -> "FittingData":
        """Samples that count, at even distances, of about `size` logits."""
        counts = self._counts()
        step = -(-int(counts.sum()) // max(1, size // self.num_classes))
        if step <= 1:
            return self
        rows, seen = [], 0
        for start in range(0, len(counts), _BLOCK):
            found = start + np.flatnonzero(counts[start : start + _BLOCK])
            rows.append(found[-seen % step :: step])
            seen += len(found)
        keep = np.concatenate(rows)
        weight = None if self.weight is None else self.weight[keep]
        return FittingData(self.labels[keep], self.logits[keep], weight)

    def rows(self, keep: np.ndarray) -> "FittingData":
        """A copy of the samples where `keep`, bool `(n,)`."""
        return FittingData(*(x if x is None else x[keep] for x in self))

    def total(self) -> float:
        """Total weight of the samples that count."""
        if self.weight is None:
            return float(self.count())
        return float(self.weight[self._counts()].sum())

    def _counts(self) -> np.ndarray:
        rows = np.ones(len(self.logits), bool)
        for part in (self.valid, self.weight):
            rows = rows if part is None else rows & (part > 0)
        return rows

    def blocks(self, size: int = _BLOCK) -> Iterator["FittingData"]:
        """Parts of at most `size` logits, in order, of what counts.

        The logits are float64. Those of few classes lie class by class in
        memory, where sums and maxima over them are far faster.
        """
        for rows in self._rows(size):
            yield self._block(rows)

    def _rows(self, size: int) -> Iterator[Any]:
        """Where the rows of each block are: slices, or indices."""
        count = max(1, size // self.num_classes)
        for start in range(0, len(self.logits), count):
            rows = slice(start, start + count)
            if self.valid is not None:
                rows = start + np.flatnonzero(self.valid[rows])
                if not len(rows):
                    continue
            yield rows

    def _block(self, rows: Any) -> "FittingData":
        order = "F" if self.num_classes < _FEW else "C"
        return FittingData(
            self.labels[rows],
            np.array(self.logits[rows], "float64", order=order),
            None if self.weight is None else self.weight[rows],
        )

    def weights(self) -> np.ndarray:
        """Weights `(n,)`, 1 where none are given."""
        return np.ones(len(self.logits)) if self.weight is None else self.weight

    def soft_labels(self) -> np.ndarray:
        """Labels as float64 rows `(n, num_classes)` that sum to 1."""
        if self.labels.ndim == 2:
            return _normalized(self.labels)
        rows = np.zeros((len(self.labels), self.num_classes))
        rows[np.arange(len(rows)), self.labels] = 1.0
        return rows

    def class_weights(self) -> np.ndarray:
        """Total weight of the labels of each class, `(num_classes,)`."""
        total = np.zeros(self.num_classes)
        for rows in self._rows(_BLOCK):
            labels = self.labels[rows]
            weight = np.ones(len(labels))
            if self.weight is not None:
                weight = self.weight[rows]
            if labels.ndim == 1:
                total += np.bincount(labels, weight, self.num_classes)
            else:
                total += weight @ _normalized(labels)
        return total

    def sums(
        self,
        of_block: Callable[["FittingData"], tuple],
        size: int = _BLOCK,
    ) -> list:
        """Sums over the blocks of each value that a function returns.

        Blocks are shared out to the cores, and added in their order: the
        result does not depend on the number of cores.

        Args:
            of_block: Maps a block to numbers and arrays.
            size: Logits in a block.

        Returns:
            The sums, float64.
        """
        totals: list = []
        for values in self._values(of_block, size):
            totals = totals or [np.zeros(np.shape(v)) for v in values]
            for total, value in zip(totals, values, strict=True):
                total += value
        return totals

    def _values(self, of_block: Callable, size: int) -> Iterator[tuple]:
        if self.logits.size <= 2 * size:
            yield from map(of_block, self.blocks(size))
            return
        cores = min(os.cpu_count() or 1, 16)

        def of_rows(rows: Any) -> tuple:
            return of_block(self._block(rows))

        with ThreadPoolExecutor(cores) as pool:
            # A few blocks in work, instead of all as by `pool.map`.
            waiting: deque = deque()
            for rows in self._rows(size):
                waiting.append(pool.submit(of_rows, rows))
                if len(waiting) > cores:
                    yield waiting.popleft().result()
            for result in waiting:
                yield result.result()


def _normalized(labels: np.ndarray) -> np.ndarray:
    return labels / labels.sum(axis=-1, keepdims=True, dtype="float64")


def single_threaded_blas() -> AbstractContextManager:
    """While it is entered, products of matrices stay on their thread.

    Blocks are shared out to the cores already. Threads that BLAS adds wait
    for each other by spinning, which takes far longer where another process
    has one of the cores.
    """
    return _libraries().limit(limits=1, user_api="blas")


@functools.cache
def _libraries() -> ThreadpoolController:
    # To look for them takes milliseconds; that of NumPy is there by now.
    return ThreadpoolController()


def read_samples(
    labels: Any,
    logits: Any,
    sample_weight: Any = None,
    ignore_class: int | None = None,
) -> FittingData:
    """Whole data sets, read and checked, without a copy where possible.

    The arguments are those of `Calibrator.fit`.

    Raises:
        ValueError: If shapes do not fit, there is no sample, a logit is not
            finite, or these are probabilities.
    """
    read = standardize_arrays(
        labels,
        logits,
        from_logits=True,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
        name="logits",
        drop=False,
        refuse_probabilities=True,
    )
    if read.outputs.min() == -np.inf:
        raise value_error("`logits` must be finite", minimum=-np.inf)
    return FittingData(read.labels, read.outputs, read.weight, read.mask)


def read_batches(
    batches: Iterable, ignore_class: int | None = None
) -> FittingData:
    """All batches of `(labels, logits)` or `(labels, logits, weights)`.

    Only what counts is kept, once, in arrays that grow in place.

    Raises:
        ValueError: Also if there is no batch, or batches do not fit each
            other.
        TypeError: If these are no batches.
    """
    if not isinstance(batches, Iterable) or isinstance(batches, np.ndarray):
        raise type_error(
            "`logits` must be given, or `labels` be batches of (labels, "
            "logits)",
            labels=type(batches).__name__,
            logits=None,
        )
    columns: list[_Growing] = []
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise value_error(
                "each batch must be (labels, logits) or (labels, logits, "
                "sample_weight)",
                batch=type(batch).__name__,
            )
        part = _of_batch(*batch, ignore_class=ignore_class)
        if part is None:
            continue
        values = [v for v in part if v is not None]
        if not columns:
            columns = [_Growing(v) for v in values]
        shapes = [c.shape for c in columns]
        if [v.shape[1:] for v in values] != shapes:
            raise value_error(
                "batches must all have the same kind of labels, number "
                "of classes, and weights or none",
                first=shapes,
                later=[v.shape[1:] for v in values],
            )
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    if not columns:
        raise value_error("there must be a sample that counts", n=0)
    return FittingData(*(column.rows() for column in columns))


def _of_batch(
    labels: Any, logits: Any, weight: Any = None, *, ignore_class: int | None
) -> FittingData | None:
    """One batch without what does not count; None if nothing does."""
    if not np.size(to_numpy(labels)):
        return None
    if weight is not None and not np.any(to_numpy(weight)):
        return None
    if ignore_class is not None and np.all(to_numpy(labels) == ignore_class):
        return None
    whole = read_samples(labels, logits, weight, ignore_class)
    if whole.valid is None:
        return whole
    return whole.rows(whole.valid)._replace(valid=None)


class _Growing:
    """Rows of one array, of which there come more."""

    def __init__(self, like: np.ndarray):
        self._array = np.empty((0, *like.shape[1:]), like.dtype)
        self._count = 0

    @property
    def shape(self) -> tuple:
        """Shape of a row."""
        return self._array.shape[1:]

    def append(self, rows: np.ndarray) -> None:
        """Adds rows; grows by half, in place where the system can."""
        end = self._count + len(rows)
        if end > len(self._array):
            size = max(end, len(self._array) * 3 // 2)
            self._array.resize((size, *self.shape), refcheck=False)
        self._array[self._count : end] = rows
        self._count = end

    def rows(self) -> np.ndarray:
        """What was added."""
        return self._array[: self._count]
