"""Held-out data for the fits of calibrators, read once and never copied.

Fits pass over the samples in blocks that fit a cache, in float64, on every
core. They need no copy of the logits, which may belong to ten million pixels.
"""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from keras_calib.inputs.batch import standardize_logits
from keras_calib.inputs.groups import read_groups
from keras_calib.numerics.arrays import as_numbers, safe_divide, shape_of
from keras_calib.numerics.softmax import FAR_BELOW, is_ruled_out
from keras_calib.predictions.predictions import Predictions

# Logits in a block, so that a cache holds it with a few temporaries.
_BLOCK = 2**16
# From so many classes on, sums over them are faster in C order.
_MANY = 200


# The libraries that NumPy and SciPy loaded: it takes 3 ms to look.
_threads = functools.cache(ThreadpoolController)


def one_thread_of_blas() -> Any:
    """A context for fits, whose blocks run on all cores already.

    Further threads of BLAS would spin while they wait for each other.
    """
    return _threads().limit(limits=1, user_api="blas")


class FittingData(NamedTuple):
    """Held-out samples: labels, finite logits, weights, and which are valid.

    Logits of -inf became `FAR_BELOW`, which `is_ruled_out` knows.
    """

    labels: np.ndarray  # int64 ids `(n,)`, or soft `(n, num_classes)`
    logits: np.ndarray  # `(n, num_classes)`
    weight: np.ndarray | None = None  # None where all weigh 1
    valid: np.ndarray | None = None  # None where all count
    # The image or sequence of each sample, int32, or how many samples each has;
    # None where each sample is alone.
    group: np.ndarray | int | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.logits.shape[-1]

    def counts(self) -> np.ndarray:
        """Samples that are valid and weigh more than 0, bool `(n,)`."""
        rows = np.ones(len(self.logits), bool)
        for part in (self.valid, self.weight):
            rows = rows if part is None else rows & (part > 0)
        return rows

    def rows(self, keep: np.ndarray) -> "FittingData":
        """A copy of some samples, by index or where `keep` is True."""
        parts = (*self[:-1], self.groups())
        return FittingData._make(x if x is None else x[keep] for x in parts)

    def subsampled(self, size: int) -> "FittingData":
        """Valid samples at even distances, with about `size` logits."""
        counts = self.counts()
        step = -(-int(counts.sum()) // max(1, size // self.num_classes))
        if step <= 1:
            return self
        return self.rows(np.flatnonzero(counts)[::step])

    def groups(self) -> np.ndarray | None:
        """The image or sequence of each sample, int32."""
        if isinstance(self.group, int):
            return np.arange(len(self.logits), dtype="int32") // self.group
        return self.group

    def effective_count(self) -> float:
        """Number of samples that the weights stand for.

        Their sum, if they are frequencies; Kish's effective sample size, if
        they are on a smaller scale.
        """
        if self.weight is None:
            return float(self.counts().sum())
        weight = self.weight if self.valid is None else self.weight[self.valid]
        total = float(weight.sum(dtype="float64"))
        # Squares of weights below 1e-160 would be 0.
        shares = weight / weight.max()
        whole = float(shares.sum(dtype="float64"))
        return max(total, whole**2 / float(np.square(shares).sum()))

    def sizes(self) -> tuple[int, int | None]:
        """Effective numbers of samples and, if they are alike, of units."""
        units, alike = None, self.groups()
        if alike is not None:
            counts, weight = self.counts(), np.zeros(int(alike.max()) + 1)
            # Block by block, as copies of all rows would take much memory.
            for start in range(0, len(counts), _BLOCK):
                part = slice(start, start + _BLOCK)
                own = counts[part] * 1.0
                if self.weight is not None:
                    own = own * self.weight[part]
                weight += np.bincount(alike[part], own, len(weight))
            units = round(weight.sum() ** 2 / np.square(weight).sum())
        return max(1, round(self.effective_count())), units

    def as_frequencies(self) -> "FittingData":
        """Samples whose weights sum to that number."""
        if self.weight is None:
            return self
        total = self.weight[self.counts()].sum(dtype="float64")
        scale = self.effective_count() / total
        return self._replace(weight=self.weight * scale)

    def weights(self) -> np.ndarray:
        """Weights `(n,)`, 1 where none are given."""
        return np.ones(len(self.logits)) if self.weight is None else self.weight

    def soft_labels(self) -> np.ndarray:
        """Labels as float64 rows `(n, num_classes)` that sum to 1."""
        if self.labels.ndim == 2:
            total = self.labels.sum(axis=-1, keepdims=True, dtype="float64")
            # Rows without votes weigh 0.
            return safe_divide(self.labels, total)
        rows = np.zeros((len(self.labels), self.num_classes))
        rows[np.arange(len(rows)), self.labels] = 1.0
        return rows

    def at_labels(self, values: np.ndarray) -> np.ndarray:
        """The value at each label `(n,)`, or the mean by a soft label."""
        if self.labels.ndim == 1:
            return values[np.arange(len(values)), self.labels]
        return np.sum(self.soft_labels() * values, axis=-1)

    def less_labels(self, probs: np.ndarray) -> np.ndarray:
        """Probabilities less those of the labels, in their place."""
        if self.labels.ndim == 1:
            probs[np.arange(len(probs)), self.labels] -= 1.0
        else:
            probs -= self.soft_labels()
        return probs

    def shifted(self) -> np.ndarray:
        """Logits less the largest of each sample: exp(0) is on top."""
        return self.logits - self.logits.max(axis=-1, keepdims=True)

    def has_class(self) -> np.ndarray:
        """Classes that have a valid sample, bool `(num_classes,)`."""
        counts = self.counts()
        if self.labels.ndim == 2:
            return np.any(self.labels > 0, axis=0, where=counts[:, None])
        # Weights of 0 or 1 save a copy of the valid labels.
        return np.bincount(self.labels, counts, self.num_classes) > 0

    def blocks(self, size: int = _BLOCK) -> Iterator["FittingData"]:
        """Valid samples in order, float64, at most `size` logits a block."""
        return map(self._block, self._places(size))

    def sums(
        self, of_block: Callable[["FittingData"], tuple], size: int = _BLOCK
    ) -> list:
        """Sums over blocks, in the same order for any number of cores."""
        totals: list = []
        for values in self._values(of_block, size):
            totals = totals or [np.zeros(np.shape(v)) for v in values]
            for total, value in zip(totals, values, strict=True):
                total += value
        return totals

    def moments(
        self, features: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean and variance of features of the logits, and sum of weights."""

        def sums_of(block):
            weight = block.weights()
            return weight @ features(block.logits), weight.sum()

        def squares_of(block):
            x = features(block.logits) - mean
            return (block.weights() @ np.square(x),)

        first, total = self.sums(sums_of)
        mean = first / total
        return mean, self.sums(squares_of)[0] / total, float(total)

    def placed_blocks(self) -> Iterator[tuple[Any, "FittingData"]]:
        """The rows of each block, and the block."""
        for rows in self._places(_BLOCK):
            yield rows, self._block(rows)

    def _values(self, of_block: Callable, size: int) -> Iterator[tuple]:
        if self.logits.size <= 2 * size:
            yield from map(of_block, self.blocks(size))
            return
        cores = min(os.cpu_count() or 1, 16)
        places = self._places(size)
        with ThreadPoolExecutor(cores) as pool:
            # One `pool.map` would hold the results of all blocks.
            while some := list(islice(places, 4 * cores)):
                yield from pool.map(lambda x: of_block(self._block(x)), some)

    def _places(self, size: int) -> Iterator[Any]:
        """The rows of each block: slices, or indices."""
        count = max(1, size // self.num_classes)
        for start in range(0, len(self.logits), count):
            rows = slice(start, start + count)
            if self.valid is not None:
                rows = start + np.flatnonzero(self.valid[rows])
                if not len(rows):
                    continue
            yield rows

    def _block(self, rows: Any) -> "FittingData":
        order: Literal["F", "C"] = "F" if self.num_classes < _MANY else "C"
        return FittingData(
            self.labels[rows],
            np.array(self.logits[rows], "float64", order=order),
            None if self.weight is None else self.weight[rows],
        )


def read_predictions(predictions: Predictions) -> FittingData:
    """Reads predictions of classes; rows of a unit are alike."""
    p = predictions
    samples = read_samples(
        p.labels, p.logits, p.sample_weight, p.ignore_class, votes=p.votes
    )
    if p.units is None:
        return samples
    codes = read_groups(p.units, (len(p),), "units")[1].astype("int32")
    places = len(samples.logits) // len(p)
    return samples._replace(group=np.repeat(codes, places))


def read_samples(
    labels: Any,
    logits: Any,
    sample_weight: Any = None,
    ignore_class: int | None = None,
    **reading: Any,
) -> FittingData:
    """Reads and checks the arguments of `fit`, without a copy if possible."""
    read = standardize_logits(
        labels,
        logits,
        sample_weight=sample_weight,
        ignore_class=ignore_class,
        drop=False,
        **reading,
    )
    labels, outputs = read.labels, read.outputs
    if is_ruled_out(outputs.min()):
        if labels.ndim == 2:
            labels = np.where(is_ruled_out(outputs), 0.0, labels)
        outputs = np.maximum(outputs, outputs.dtype.type(FAR_BELOW))
    group = None
    lead = shape_of(as_numbers(logits, "logits"))[:-1]
    if len(lead) > 1:
        group = int(np.prod(lead[1:]))
    return FittingData(labels, outputs, read.weight, read.mask, group)
