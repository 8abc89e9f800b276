"""A fine histogram of a score: one mergeable state for every rank metric.

The score is the log-odds t of the confidence, which resolves confidences
near 1 that a histogram of the probability would pile into one bin. Bins are
uniform in asinh(t / 2), from t = -16 up to t = 4110. The edges of the
equal-width calibration bins are inserted as extra boundaries, so that a cell
lies in one calibration bin. Per cell, separately for correct and wrong
predictions, the state keeps the mass and the sum of the offsets inside the
bin, in exact integers (see `exact_sums`); the mean confidence of a cell
follows from its mean offset.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
from keras import ops
from scipy.special import expit

from keras_calib import exact_sums
from keras_calib.bins import bin_index
from keras_calib.bins import observe
from keras_calib.calibration_error import equal_mass_edges
from keras_calib.calibration_error import equal_mass_error
from keras_calib.checks import check_integer
from keras_calib.inputs import Predictions
from keras_calib.numerics import namespace
from keras_calib.numerics import safe_divide
from keras_calib.numerics import sigmoid
from keras_calib.ranked_groups import RankedGroups

__all__ = ["Cells", "HistogramSummary", "aece_bounds", "aece_of_cells"]

# v = 738 asinh(t / 2), bins floor(v) + 2050, for 8192 bins.
_SLOPE = 738.0 / 8192
_ZERO = 2050 / 8192
_OFFSET_DIGITS = 2
_QUANTUM = 2.0 ** (-8 * _OFFSET_DIGITS)


class Cells(NamedTuple):
    """The histogram, read, in ascending score; shapes `(num_cells,)`.

    Attributes:
        mass: Weight of the predictions in the cell.
        wrong: Weight of the wrong ones.
        before: Weight of all cells below.
        confidence: Sum of weight times confidence.
    """

    mass: Any
    wrong: Any
    before: Any
    confidence: Any


class HistogramSummary:
    """The layout and arithmetic of the histogram.

    Args:
        resolution: Number of bins of the score, at least 64. 8192 gives AURC
            to 3e-7 in most cases, 2048 to 5e-6.
        num_bins: Number of equal-width calibration bins whose edges are
            inserted.
    """

    def __init__(self, resolution: int = 8192, num_bins: int = 15):
        check_integer("resolution", resolution, 64)
        check_integer("num_bins", num_bins, 1)
        self.resolution = resolution
        self.num_bins = num_bins
        self.num_cells = resolution + num_bins - 1
        self._slope = _SLOPE * resolution
        self._zero = round(_ZERO * resolution)
        # The first cell past each inserted edge, and hence of each cell its
        # calibration bin and its bin of the histogram.
        edges = np.arange(1, num_bins) / num_bins
        position = self._slope * np.arcsinh(np.log(edges / (1 - edges)) / 2)
        first = np.floor(position).astype(int) + self._zero
        first = np.clip(first, 0, resolution - 1) + np.arange(1, num_bins)
        cells = np.arange(self.num_cells)
        self.calibration_bin = np.searchsorted(first, cells, side="right")
        self._bin = cells - self.calibration_bin

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the int32 limbs: limb, mass or offset, key."""
        return (exact_sums.NUM_LIMBS, 2, 2 * self.num_cells)

    def summarise(self, batch: Predictions) -> Any:
        """Limbs of mass and offset sum by cell and wrong, of one batch."""
        top, wrong, counted = observe(batch)
        safe = ops.where(counted, top.log_odds, ops.zeros_like(top.log_odds))
        # asinh of 1e5 is the last bin by far; infinity must not get there.
        safe = ops.clip(safe, -1e5, 1e5)
        position = self._slope * ops.arcsinh(safe / 2.0)
        floor = ops.floor(position)
        offset = position - floor
        cell = ops.cast(floor, "int32") + self._zero
        cell = ops.clip(cell, 0, self.resolution - 1)
        confidence = ops.where(
            counted, top.confidence, ops.zeros_like(top.confidence)
        )
        cell = cell + bin_index(confidence, self.num_bins)
        num_keys = 2 * self.num_cells
        keys = ops.where(
            counted, 2 * cell + wrong, ops.full_like(cell, num_keys)
        )
        if batch.weight is None:
            mass = exact_sums.limbs_from_counts(
                exact_sums.count_by_key(keys, num_keys)
            )
            # Cut to 16 bits; reading adds back half a quantum.
            offset = ops.floor(offset / _QUANTUM) * _QUANTUM
            offsets = exact_sums.sum_by_key(
                offset, keys, num_keys, num_digits=_OFFSET_DIGITS
            )
        else:
            scale = exact_sums.power_of_two_above(batch.weight)
            mass = exact_sums.sum_by_key(
                batch.weight, keys, num_keys, scale=scale
            )
            offset = ops.floor(offset / _QUANTUM) * _QUANTUM
            offsets = exact_sums.sum_by_key(
                batch.weight * offset, keys, num_keys, scale=scale
            )
        return ops.stack([mass, offsets], axis=1)

    def cells(self, limbs: Any) -> Cells:
        """Cells in ascending score (either: NumPy limbs give float64)."""
        xp = namespace(limbs)
        limbs = self._split(limbs)
        values = exact_sums.to_float(limbs)
        confidence = values[0] * self._mean_confidence(_mean_offset(values))
        both = limbs[:, 0, :, 0] + limbs[:, 0, :, 1]
        return Cells(
            mass=exact_sums.to_float(both),
            wrong=values[0, :, 1],
            before=exact_sums.sum_before(_carried(both)),
            confidence=xp.sum(confidence, axis=-1),
        )

    def ranked(self, limbs: Any) -> RankedGroups:
        """Cells as groups of tied scores, surest first (either)."""
        xp = namespace(limbs)
        limbs = xp.flip(self._split(limbs), axis=2)
        values = exact_sums.to_float(limbs)
        wrong = limbs[:, 0, :, 1]
        both = limbs[:, 0, :, 0] + wrong
        before = exact_sums.sum_before(
            _carried(xp.stack([both, wrong], axis=1))
        )
        # A correct and a wrong prediction in one cell are not really tied:
        # their mean offsets say which of the two tends to score higher.
        mixed = xp.logical_and(values[0, :, 0] > 0, values[0, :, 1] > 0)
        offset = _mean_offset(values)
        slope = xp.clip(offset[:, 0] - offset[:, 1], -1 / 3, 1 / 3)
        return RankedGroups(
            mass=exact_sums.to_float(both),
            wrong=values[0, :, 1],
            before=before[0],
            wrong_before=before[1],
            slope=xp.where(mixed, slope, xp.zeros_like(slope)),
        )

    def lower_confidence(self) -> np.ndarray:
        """The smallest confidence that each cell can hold, float64."""
        log_odds = 2 * np.sinh((self._bin - self._zero) / self._slope)
        lowest = expit(log_odds)
        lowest[self._bin == 0] = 0.0
        return np.maximum(lowest, self.calibration_bin / self.num_bins)

    def _split(self, limbs: Any) -> Any:
        """Limbs by limb, mass or offset, cell, correct or wrong."""
        shape = (exact_sums.NUM_LIMBS, 2, self.num_cells, 2)
        return namespace(limbs).reshape(limbs, shape)

    def _mean_confidence(self, offset: Any) -> Any:
        """Mean confidence of cells at mean offset `(num_cells, 2)`.

        The confidence at the mean offset, plus the curvature of a bin that
        is filled evenly: p''(v) / 24.
        """
        xp = namespace(offset)
        start = (self._bin - self._zero)[:, None]
        if xp is ops:
            start = ops.convert_to_tensor(start.astype("float32"))
        angle = (start + offset) / self._slope
        log_odds = 2.0 * xp.sinh(angle)
        p = sigmoid(log_odds)
        e = xp.exp(-xp.abs(log_odds))
        pq = e / xp.square(1.0 + e)
        # pq decays faster than the derivatives grow, which overflow alone.
        angle = xp.clip(angle, -5.0, 5.0)
        first = 2.0 * xp.cosh(angle) / self._slope
        second = 2.0 * xp.sinh(angle) / self._slope**2
        curvature = pq * ((1.0 - 2.0 * p) * xp.square(first) + second)
        return p + curvature / 24.0


def aece_of_cells(cells: Cells, num_bins: int, whole: Any) -> Any:
    """Equal-mass calibration error of the cells (either)."""
    residual = cells.confidence - (cells.mass - cells.wrong)
    return equal_mass_error(cells.before, cells.mass, residual, num_bins, whole)


def aece_bounds(
    cells: Cells, lowest: np.ndarray, num_bins: int, whole: bool
) -> tuple[float, float]:
    """What the equal-mass error can be, whatever the order inside cells.

    Args:
        cells: Cells in float64.
        lowest: The smallest confidence each cell can hold, `(num_cells,)`.
        num_bins: Number of equal-mass bins.
        whole: Whether weights are counts.

    Returns:
        `(lower, upper)`; both 0 when empty.
    """
    filled = cells.mass > 0
    if not filled.any():
        return 0.0, 0.0
    mass, wrong, before, confidence = (v[filled] for v in cells)
    lowest = lowest[filled]
    total = before[-1] + mass[-1]
    edges = equal_mass_edges(total, num_bins, whole)
    # The cell that each edge cuts, and the mass x of it below the edge. Of
    # that, as few or as many are correct as can be, and the mean confidence
    # lies between the lowest of the cell and its mean.
    cut = np.searchsorted(before, edges, side="right") - 1
    x = np.clip(edges - before[cut], 0.0, mass[cut])
    correct = mass - wrong
    residual = confidence - correct
    below = (np.cumsum(residual) - residual)[cut]
    fewest = np.maximum(0.0, x - wrong[cut])
    most = np.minimum(x, correct[cut])
    mean = (confidence / mass)[cut]
    whole_cell = x >= mass[cut]
    low = below + x * np.minimum(lowest[cut], mean) - most
    high = below + x * mean - fewest
    low, high = (
        np.where(whole_cell, below + residual[cut], v) for v in (low, high)
    )
    smallest, largest = low[1:] - high[:-1], high[1:] - low[:-1]
    least = np.maximum(0.0, np.maximum(smallest, -largest))
    most = np.maximum(np.abs(smallest), np.abs(largest))
    return float(least.sum() / total), float(most.sum() / total)


def _mean_offset(values: Any) -> Any:
    """Mean offset of mass and offset sums; half a quantum was cut off."""
    return safe_divide(values[1], values[0]) + 0.5 * _QUANTUM


def _carried(limbs: Any) -> Any:
    if namespace(limbs) is np:
        return limbs
    return exact_sums.add(limbs, ops.zeros_like(limbs))
