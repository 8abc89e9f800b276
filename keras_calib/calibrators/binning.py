"""Calibrators that are lookup tables of the probability.

They use gathers and comparisons only, which every export format supports.
"""

from typing import Any, Unpack

import keras
import numpy as np
from keras import ops
from scipy.optimize import isotonic_regression

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.base import FittedValue
from keras_calib.calibrators.columns import ROWS, OneVsRest
from keras_calib.calibrators.fitted_layer import CalibratorOptions
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.inputs.checks import (
    check_at_least,
    check_at_most,
    check_in,
    check_integer,
)
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import to_logits


class _Table(OneVsRest):
    """Abstract: looks up the calibrated q_k of each p_k."""

    def __init__(self, *, min_prob: float, **kwargs: Any):
        check_at_least("min_prob", min_prob, 0.0)
        check_at_most("min_prob", min_prob, 0.5)
        super().__init__(**kwargs)
        self._keep(min_prob=float(min_prob))

    def look_up(self, probs: Any) -> Any:
        """Calibrated q_k of p_k, `(..., num_classes)`."""
        raise NotImplementedError

    def both_log_probs(self, features: Any) -> tuple[Any, Any]:
        q = self.look_up(features)
        q = ops.clip(q, self.min_prob, 1.0 - self.min_prob)
        return to_logits(q), to_logits(1.0 - q)


@keras.saving.register_keras_serializable(package="keras_calib")
class HistogramBinning(_Table):
    """Histogram binning of each class against the rest.

    Use it when the miscalibration has no smooth shape and there are thousands
    of held-out samples. The calibrated q is the mean label of the held-out
    samples in the same bin as p. Bins are (lo, hi], the first closed. The q
    of a sample are then normalised to sum 1. All p of a bin get the same q,
    so scores tie.

    Args:
        num_bins: Number of bins for each class, at least 1.
        edges: `"width"` for bins of equal width; `"mass"` for bins with
            equally many samples, which are fewer where probabilities tie.
        empty: Value of an empty bin: `"centre"` for its centre, or `"zero"`.
        min_prob: Least q, in [0, 0.5]. With 0 the NLL of a single sample can
            reach 85 nats; 0.001 prevents that.
        upper_edges: Upper ends of the bins `(num_classes, num_bins)`, if you
            know them, the last 1, or one row for two classes; None waits for
            `fit`.
        values: q of each bin, of that shape; goes with `upper_edges`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> binning = HistogramBinning(upper_edges=[[0.5, 1]], values=[[0.2, 0.7]])
    >>> logits = binning(np.log([[0.1, 0.9]]))
    >>> probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    >>> print(np.round(probs, 4))
    [[0.3 0.7]]

    Reference:
        Zadrozny and Elkan, Obtaining calibrated probability estimates from
        decision trees and naive Bayesian classifiers, ICML 2001; one against
        the rest: Transforming Classifier Scores into Accurate Multiclass
        Probability Estimates, KDD 2002,
        https://doi.org/10.1145/775047.775151

    Differs:
        The code behind the tables of Kull et al. (NeurIPS 2019) gives 0 in
        empty bins.
    """

    upper_edges = FittedValue(ROWS, "size", ascends=True)
    values = FittedValue(ROWS, "size", rule="in [0, 1]")

    def __init__(
        self,
        *,
        num_bins: int = 15,
        edges: str = "width",
        empty: str = "centre",
        min_prob: float = 0.0,
        upper_edges: Any = None,
        values: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        check_integer("num_bins", num_bins, 1)
        check_in("edges", edges, ("width", "mass"))
        check_in("empty", empty, ("centre", "zero"))
        super().__init__(min_prob=min_prob, **kwargs)
        self._keep(num_bins=num_bins, edges=edges, empty=empty)
        self.set_known(upper_edges=upper_edges, values=values)
        if self.fitted and (self.upper_edges[:, -1] != 1.0).any():
            raise value_error(
                "`upper_edges` must end with 1 in each row",
                last=self.upper_edges[:, -1].tolist()[:4],
            )

    def look_up(self, probs: Any) -> Any:
        (found,) = entries_of(probs, self._upper_edges, self._values)
        return found

    def num_parameters(self, num_classes: int) -> int:
        """The bins of one class: each class is fitted on all samples."""
        return self.num_bins

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        """Upper ends of the bins of one class, and the value of each."""
        probs, labels, weight = column
        # The layer compares them in float32.
        inner = self._edges_of(probs, weight).astype("float32")
        index = np.searchsorted(inner, probs, side="left")
        size = len(inner) + 1
        total = np.bincount(index, weight, minlength=size)
        positive = labels if weight is None else labels * weight
        positive = np.bincount(index, positive, minlength=size)
        upper = np.append(inner, 1.0)
        share = safe_divide(positive, total.astype("float64"))
        if self.empty == "centre":
            centres = (np.append(0.0, inner) + upper) / 2.0
            share = np.where(total > 0, share, centres)
        return upper, share

    def _edges_of(self, probs: np.ndarray, weight: Any) -> np.ndarray:
        shares = np.arange(1, self.num_bins) / self.num_bins
        if self.edges == "width":
            return shares
        order = np.argsort(probs, kind="stable")
        mass = np.ones(len(probs)) if weight is None else weight[order]
        mass = np.cumsum(mass)
        last = np.searchsorted(mass, shares * mass[-1] * (1.0 - 1e-12))
        probs, inner = probs[order], np.unique(probs[order][last])
        # Other backends round these p to others within 2e-6.
        after = np.searchsorted(probs, inner, side="right")
        after = np.append(probs, 1.0)[after]
        return np.minimum(inner * (1.0 + 2e-6), 0.5 * (inner + after))


@keras.saving.register_keras_serializable(package="keras_calib")
class IsotonicCalibration(_Table):
    """Isotonic regression of each class against the rest.

    Use it when the miscalibration has no particular shape and there are
    thousands of held-out samples. The calibrated q is the increasing function
    of p with the least squared error on those samples. It is linear between
    their p, and constant beyond. The q of a sample are then normalised to
    sum 1.

    Args:
        min_prob: Least q, in [0, 0.5]. With 0 the NLL of a single sample can
            reach 85 nats; 0.001 prevents that.
        thresholds: p at the bends of the function `(num_classes, size)`, if
            you know them, or one row for two classes; None waits for `fit`.
            Short rows repeat their last.
        values: q at these p, of that shape; goes with `thresholds`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> isotonic = IsotonicCalibration(
    ...     thresholds=[[0.5, 1.0]], values=[[0.4, 0.8]]
    ... )
    >>> logits = isotonic(np.log([[0.25, 0.75]]))
    >>> probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    >>> print(np.round(probs, 4))
    [[0.4 0.6]]

    Reference:
        Zadrozny and Elkan, Transforming Classifier Scores into Accurate
        Multiclass Probability Estimates, KDD 2002,
        https://doi.org/10.1145/775047.775151
    """

    thresholds = FittedValue(ROWS, "size", rule="in [0, 1]", ascends=True)
    values = FittedValue(ROWS, "size", rule="in [0, 1]", ascends=True)

    def __init__(
        self,
        *,
        min_prob: float = 0.0,
        thresholds: Any = None,
        values: Any = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(min_prob=min_prob, **kwargs)
        self.set_known(thresholds=thresholds, values=values)

    def look_up(self, probs: Any) -> Any:
        return interpolate(self._thresholds, self._values, probs)

    def fit_column(self, samples: FittingData, *column: Any) -> tuple:
        """The bends of the isotonic function, and its values there."""
        probs, labels, weight = column
        if weight is None and labels.dtype == bool:
            first, last, positive, total = _runs(probs, labels)
        else:
            x, index = np.unique(probs, return_inverse=True)
            positive = labels if weight is None else labels * weight
            positive = np.bincount(index, positive)
            total = np.bincount(index, weight)
            some = total > 0
            first = last = x[some]
            positive, total = positive[some], total[some]
        y = isotonic_regression(positive / total, weights=total).x
        # Only the ends of flat parts are needed.
        steps = np.flatnonzero(y[1:] != y[:-1])
        starts, ends = np.r_[0, steps + 1], np.r_[steps, len(y) - 1]
        x = np.stack([first[starts], last[ends]], axis=-1).ravel()
        bends = np.r_[True, x[1:] != x[:-1]]
        return x[bends], np.repeat(y[starts], 2)[bends]


def _runs(probs: np.ndarray, labels: np.ndarray) -> tuple:
    """First and last p, positives and size of samples that are always pooled.

    Sorted by p, with the positives of a tie first, a run of positives and the
    negatives after it violate the order. Rare classes have few runs.
    """
    # Floats >= 0 sort by their bits.
    key = np.sort(probs.view("uint32") << 1 | ~labels)
    positive = key & 1 == 0
    starts = np.flatnonzero(np.r_[True, positive[1:] & ~positive[:-1]])
    ends = np.r_[starts[1:], len(key)]
    probs = (key >> 1).view("float32")
    count = np.add.reduceat(positive, starts, dtype="int64")
    return probs[starts], probs[ends - 1], count, ends - starts


def _take(table: Any, index: Any) -> Any:
    """Entries `table[k, index[..., k]]` `(..., num_classes)`, int32 index."""
    num_classes, size = table.shape
    start = ops.arange(num_classes, dtype="int32") * size
    return ops.take(ops.reshape(table, (-1,)), index + start)


def locate(edges: Any, values: Any) -> Any:
    """Number of its class' edges `(num_classes, size)` that a value exceeds."""
    size = edges.shape[1]
    count = ops.cast(ops.zeros_like(values), "int32")
    step = 1 << size.bit_length() - 1
    while step:
        probe = count + step
        # The edge before which `probe` edges lie, itself included.
        edge = _take(edges, ops.minimum(probe, size) - 1)
        more = ops.logical_and(probe <= size, edge < values)
        count = ops.where(more, probe, count)
        step //= 2
    return count


def entries_of(values: Any, edges: Any, *tables: Any) -> list[Any]:
    """Entries of the first edge that a value does not exceed, else the last.

    NaN stays NaN, although it exceeds no edge.
    """
    index = ops.minimum(locate(edges, values), edges.shape[1] - 1)
    known = ops.equal(values, values)
    return [ops.where(known, _take(x, index), values) for x in tables]


def interpolate(x: Any, y: Any, values: Any) -> Any:
    """Piecewise linear functions of each class, constant beyond their ends."""
    right = ops.minimum(locate(x, values), x.shape[1] - 1)
    left = ops.maximum(right - 1, 0)
    x0, y0 = _take(x, left), _take(y, left)
    width = _take(x, right) - x0
    share = (values - x0) / ops.where(width > 0, width, ops.ones_like(width))
    return y0 + ops.clip(share, 0.0, 1.0) * (_take(y, right) - y0)
