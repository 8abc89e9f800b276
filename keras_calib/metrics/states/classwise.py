"""Calibration of every class as a state that streams and merges.

With many classes, almost every probability lies in the first bin of equal
width: at most `num_bins` of a row lie beyond it. So only the largest of each
row are sorted into bins. The first bin gets the rest of the sum over the
column, which is exact because the sums are integers.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.compiled import take_at
from keras_calib.backend.errors import value_error
from keras_calib.formulas.bins import bin_index, equal_mass_error
from keras_calib.inputs.batch import Batch
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import hard_labels
from keras_calib.metrics.states.histogram import ScoreMap
from keras_calib.metrics.states.records import sums_by_key, weights_by_key
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace, cast, safe_divide
from keras_calib.numerics.row_blocks import probability_blocks
from keras_calib.numerics.softmax import log_odds_of

# Rounding must not leave out what lies beyond the first edge.
_BELOW_EDGE = 0.999
# From -90 to 18: probabilities in float32 lie between 1e-37 and 1 - 6e-8.
_LOG_ODDS = ScoreMap(1 / 7.4, 4.5 / 7.4, 2.0, 90.0)


class ClassBinSummary:
    """Sums of p_k and of labels in equal-width bins of every class."""

    needs_rows = True
    on_host = "arrays"
    # Sums of base-4096 digits fit in int32.
    max_rows = 2**18

    def __init__(
        self, num_classes: int, num_bins: int, threshold: float, closed: str
    ):
        self.num_classes = num_classes
        self.num_bins = num_bins
        self.threshold = threshold
        self.closed = closed
        # In schema 2, bins (lo, hi] left out p_k = 0.
        self.schema = 3 if closed == "right" and threshold == 0 else 2
        self._num_keys = num_classes * num_bins
        self.shape = (exact_sums.NUM_LIMBS, 2 * self._num_keys + 1)

    def update(self, records: Outcomes) -> Any:
        """Limbs of p and of labels by class and bin, and of all weights."""
        if array_namespace(records.mask) is np:
            return self._update_on_host(records)
        probs = _class_probabilities(records, self.num_classes)
        if self.threshold > 0:
            low = probs < self.threshold
            probs = ops.where(low, ops.zeros_like(probs), probs)
        weight = records.weight
        scale = ops.ones((), "float32")
        if weight is not None:
            scale = exact_sums.power_of_two_above(weight)
        if self.num_classes <= 2 * self.num_bins:
            # With few classes all probabilities are sorted into bins.
            classes = ops.arange(self.num_classes, dtype="int32")
            classes = ops.broadcast_to(classes, ops.shape(probs))
            digits = self._digits(probs, classes, weight, scale)
        else:
            values, classes = ops.top_k(probs, self.num_bins)
            classes = ops.cast(classes, "int32")
            digits = self._digits(values, classes, weight, scale)
            shape = (-1, self.num_classes, self.num_bins)
            beyond = ops.reshape(digits, shape)[..., 1:]
            columns = exact_sums.column_digits(_weighted(probs, weight, scale))
            first = columns - ops.sum(beyond, axis=-1)
            digits = ops.concatenate([first[..., None], beyond], axis=-1)
        digits = ops.reshape(digits, (-1, self._num_keys))
        totals = exact_sums.limbs_of_digits(digits, scale)
        if records.rows.votes:
            shares = _weighted(records.rows.labels, weight, scale)
            digits = self._share_digits(shares, probs, records.mask)
            truth = exact_sums.limbs_of_digits(digits, scale)
        else:
            ids = _labels_in_range(records, self.num_classes)
            truth = self._labels(records, ids, take_at(probs, ids))
        return ops.concatenate([totals, truth, _all_weight(records)], axis=-1)

    def _update_on_host(self, records: Outcomes) -> np.ndarray:
        """The same for NumPy arrays, by blocks that fit the cache."""
        rows, weight = records.rows, records.weight
        _check_classes(rows, self.num_classes)
        scale = np.ones((), "float32")
        if weight is not None:
            scale = exact_sums.power_of_two_above(weight)
        ids = hard_labels(rows.labels)
        of_votes = np.zeros((2, self._num_keys), "int32")
        p_of_label = np.empty(len(ids), "float32")
        columns = np.zeros((2, self.num_classes), "int64")
        found = []
        for part, probs in probability_blocks(rows.outputs, rows.from_logits):
            if not records.mask[part].all():
                probs[~records.mask[part]] = 0.0
            if self.threshold > 0:
                probs[probs < self.threshold] = 0.0
            p_of_label[part] = probs[np.arange(len(probs)), ids[part]]
            values, shares = probs, rows.labels[part]
            if weight is not None:
                values = _weighted(probs, weight[part], scale)
            if rows.votes:
                if weight is not None:
                    shares = _weighted(shares, weight[part], scale)
                of_votes += self._share_digits(
                    shares, probs, records.mask[part]
                )
            columns += exact_sums.column_digits(values)
            places = np.flatnonzero(probs >= _BELOW_EDGE / self.num_bins)
            index = bin_index(
                probs.reshape(-1)[places], self.num_bins, self.closed
            )
            places, index = places[index > 0], index[index > 0]
            keys = places % self.num_classes * self.num_bins + index
            found.append((values.reshape(-1)[places], keys))
        beyond, keys = map(np.concatenate, zip(*found, strict=True))
        digits = exact_sums.digits_by_key(beyond, keys, self._num_keys)
        by_class = digits.reshape(2, self.num_classes, self.num_bins)
        by_class[..., 0] = columns - by_class.sum(axis=-1)
        totals = exact_sums.limbs_of_digits(digits, scale)
        if rows.votes:
            truth = exact_sums.limbs_of_digits(of_votes, scale)
        else:
            truth = self._labels(records, ids, p_of_label)
        return np.concatenate([totals, truth, _all_weight(records)], axis=-1)

    def error(self, limbs: Any) -> Any:
        """Mean over the classes of their calibration errors."""
        xp, size = array_namespace(limbs), self._num_keys
        # Integers are subtracted, so that rounding comes last.
        difference = limbs[:, :size] - limbs[:, size : 2 * size]
        residual = exact_sums.to_float(difference)
        weight = exact_sums.to_float(limbs[:, -1])
        return safe_divide(xp.sum(xp.abs(residual)), self.num_classes * weight)

    def _digits(
        self, values: Any, classes: Any, weight: Any, scale: Any
    ) -> Any:
        """Integer sums of values `(n, k)` by class and bin."""
        keys = bin_index(values, self.num_bins, self.closed)
        keys = keys + classes * self.num_bins
        values = _weighted(values, weight, scale)
        return exact_sums.digits_by_key(
            ops.reshape(values, (-1,)), ops.reshape(keys, (-1,)), self._num_keys
        )

    def _share_digits(self, shares: Any, probs: Any, mask: Any) -> Any:
        """Integer sums of shares of votes by class and bin of p."""
        xp = array_namespace(probs)
        keys = bin_index(probs, self.num_bins, self.closed)
        classes = xp.arange(self.num_classes, dtype="int32")
        keys = keys + classes * self.num_bins
        kept = xp.logical_and(mask[:, None], xp.ones_like(probs, dtype="bool"))
        if self.threshold > 0:
            kept = xp.logical_and(kept, probs > 0)
        keys = xp.where(kept, keys, xp.full_like(keys, self._num_keys))
        return exact_sums.digits_by_key(
            xp.reshape(shares, (-1,)), xp.reshape(keys, (-1,)), self._num_keys
        )

    def _labels(self, records: Outcomes, ids: Any, p: Any) -> Any:
        """Limbs of labels by class and bin of p_y."""
        xp = array_namespace(ids)
        keys = ids * self.num_bins
        keys = keys + bin_index(p, self.num_bins, self.closed)
        kept = records.mask
        if self.threshold > 0:
            # 0 stands for p below the threshold, and is in no bin.
            kept = xp.logical_and(kept, p > 0)
        keys = xp.where(kept, keys, xp.full_like(keys, self._num_keys))
        return weights_by_key(records.weight, keys, self._num_keys)


class ClassHistogramSummary:
    """A histogram of p_k for every class, for bins of equal mass."""

    needs_rows = True
    # 3: cells reach from p = 1e-37, and not from 1e-7.
    schema = 3

    def __init__(self, num_classes: int, resolution: int, threshold: float):
        self.num_classes = num_classes
        self.resolution = resolution
        self.threshold = threshold
        self._num_keys = num_classes * resolution
        self.shape = (exact_sums.NUM_LIMBS, 3 * self._num_keys + 1)

    def update(self, records: Outcomes) -> Any:
        """Limbs of mass, of p and of labels by cell, and of all weights."""
        probs = _class_probabilities(records, self.num_classes)
        cell = self._cells(probs)
        classes = ops.arange(self.num_classes, dtype="int32")
        keys = classes * self.resolution + cell
        kept = ops.logical_and(probs >= self.threshold, records.mask[:, None])
        keys = ops.where(kept, keys, ops.full_like(keys, self._num_keys))
        flat = ops.reshape(keys, (-1,))
        size = self._num_keys
        weight = records.weight
        if weight is not None:
            weight = ops.broadcast_to(weight[:, None], ops.shape(probs))
            weight = ops.reshape(weight, (-1,))
        mass, total = sums_by_key(weight, ops.reshape(probs, (-1,)), flat, size)
        if records.rows.votes:
            shares = ops.reshape(records.rows.labels, (-1,))
            _, truth = sums_by_key(weight, shares, flat, size)
        else:
            ids = _labels_in_range(records, self.num_classes)
            truth = weights_by_key(records.weight, take_at(keys, ids), size)
        parts = [mass, total, truth, _all_weight(records)]
        return ops.concatenate(parts, axis=-1)

    def by_class(self, limbs: Any) -> list[Any]:
        """Mass, sum of p, labels, and sum less labels, by class and cell."""
        xp, size = array_namespace(limbs), self._num_keys
        parts = [limbs[:, i * size : i * size + size] for i in range(3)]
        parts.append(parts[1] - parts[2])
        shape = (self.num_classes, self.resolution)
        return [xp.reshape(exact_sums.to_float(x), shape) for x in parts]

    def _cells(self, probs: Any) -> Any:
        """The cell of each probability."""
        place = _LOG_ODDS.position(log_odds_of(probs), self.resolution)
        cell = ops.cast(ops.floor(place), "int32")
        cell = cell + round(_LOG_ODDS.zero * self.resolution)
        return ops.clip(cell, 0, self.resolution - 1)

    def error(self, limbs: Any, num_bins: int, frequency_weights: Any) -> Any:
        """Mean over the classes of their equal-mass errors."""
        xp = array_namespace(limbs)
        mass, _, _, residual = self.by_class(limbs)
        before = xp.cumsum(mass, axis=-1) - mass
        errors = equal_mass_error(
            before, mass, residual, num_bins, frequency_weights
        )
        kept = before[:, -1] + mass[:, -1]
        return safe_divide(
            xp.sum(errors * kept),
            self.num_classes * exact_sums.to_float(limbs[:, -1]),
        )


class ClassForecastSummary(ClassHistogramSummary):
    """Mass, sums of p_k and labels in equal-width bins of every class."""

    def __init__(self, num_classes: int, num_bins: int):
        super().__init__(num_classes, num_bins, 0.0)

    def _cells(self, probs: Any) -> Any:
        return bin_index(probs, self.resolution)


def _class_probabilities(records: Outcomes, num_classes: int) -> Any:
    """Probabilities of all classes in [0, 1], 0 in masked rows."""
    rows = records.rows
    _check_classes(rows, num_classes)
    probs = rows.outputs
    if rows.from_logits:
        probs = ops.softmax(probs, axis=-1)
    probs = ops.clip(probs, 0.0, 1.0)
    counted = ops.expand_dims(records.mask, -1)
    return ops.where(counted, probs, ops.zeros_like(probs))


def _check_classes(rows: Batch, num_classes: int) -> None:
    if rows.outputs.shape[-1] != num_classes:
        raise value_error(
            "`num_classes` must be the number of classes of the predictions",
            num_classes=num_classes,
            classes=rows.outputs.shape[-1],
        )


def _labels_in_range(records: Outcomes, num_classes: int) -> Any:
    """Class ids of a batch of tensors; of masked rows any."""
    ids = ops.cast(hard_labels(records.rows.labels), "int32")
    return ops.clip(ids, 0, num_classes - 1)


def _all_weight(records: Outcomes) -> Any:
    """Limbs `(3, 1)` of all weights."""
    if records.weight is not None:
        return exact_sums.sum_rows(records.weight[None])
    xp = array_namespace(records.mask)
    total = xp.sum(cast(records.mask, "int32"), axis=-1, keepdims=True)
    return exact_sums.limbs_from_counts(total)


def _weighted(values: Any, weight: Any, scale: Any) -> Any:
    """Values in [0, 1] times weights in units of `scale`."""
    return values if weight is None else values * (weight / scale)[:, None]
