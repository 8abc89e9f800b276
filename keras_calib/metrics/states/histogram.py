"""A fine histogram of a score: one mergeable state for every rank metric.

The score of a confidence is its log-odds, which resolve confidences near 1.
The edges of the equal-width calibration bins are inserted as boundaries, so
that each cell lies in one calibration bin.

A cell keeps the mass and the sum of the offsets inside the bin, in exact
integers, separately for correct and wrong predictions.
"""

from typing import Any, NamedTuple

import numpy as np
from keras import ops
from scipy.special import expit

from keras_calib.formulas.bins import CLOSED, BinSums, bin_index
from keras_calib.formulas.risk_coverage import RankedGroups
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
from keras_calib.numerics.arrays import (
    array_namespace,
    at_least,
    cast,
    host_math,
    on_host,
    safe_divide,
    sum_slices,
)
from keras_calib.numerics.softmax import log_odds_of, sigmoid

_OFFSET_DIGITS = 2
_QUANTUM = 2.0 ** (-8 * _OFFSET_DIGITS)


class ScoreMap(NamedTuple):
    """Bins of a score t: v = slope asinh(t / scale), bin floor(v) + zero.

    Derivation: docs/derivations.md, 'Log-odds map'.

    Attributes:
        slope: Slope divided by the number of bins.
        zero: Bin of t = 0, divided by the number of bins.
        scale: Scores below it are spread evenly.
        limit: Scores are clipped to it. It lies far inside of the last bins.
    """

    slope: float
    zero: float
    scale: float
    limit: float

    def position(self, score: Any, resolution: int, xp: Any = None) -> Any:
        """Positions v of scores among `resolution` bins (array-agnostic)."""
        xp = xp or array_namespace(score)
        score = xp.clip(score, -self.limit, self.limit)
        return self.slope * resolution * xp.arcsinh(score / self.scale)


LOG_ODDS = ScoreMap(738.0 / 8192, 2050 / 8192, 2.0, 1e5)
# From -4096 to 4096; 1e30 keeps asinh finite.
UNBOUNDED = ScoreMap(178.9 / 8192, 0.5, 2.0**-20, 1e30)


class Cells(NamedTuple):
    """Cells of the histogram in ascending score, arrays `(num_cells,)`.

    Attributes:
        mass: Weight of the predictions in the cell.
        wrong: Weight of the wrong predictions.
        before: Weight of all cells below.
        confidence: Sum of weight times confidence.
        confidence_minus_correct: Sum of weight times (confidence - correct).
        correct_one_minus_confidence: Sum of weight times (1 - confidence) of
            the correct predictions.
        squared_residual: Sum of weight times (confidence - share of votes)^2,
            for votes. Confidences are 0 for other scores. None for classes.
    """

    mass: Any
    wrong: Any
    before: Any
    confidence: Any
    confidence_minus_correct: Any
    correct_one_minus_confidence: Any
    squared_residual: Any = None

    def share_moments(self) -> tuple[Any, Any]:
        """Sums of weight times the squares and the cubes of shares of votes.

        Confidences of one cell are taken as equal, and its shares as symmetric.
        """
        correct = self.mass - self.wrong
        mean = safe_divide(correct, self.mass)
        gap = safe_divide(self.confidence, self.mass) - mean
        variance = safe_divide(self.squared_residual, self.mass) - gap * gap
        variance = at_least(variance, 0.0)
        square = self.mass * (mean * mean + variance)
        return square, self.mass * mean * (mean * mean + 3.0 * variance)


class HistogramSummary:
    """The layout and arithmetic of the histogram.

    Args:
        resolution: Number of bins of the score, at least 64. 8192 gives AURC
            to 3e-7 in most cases, 2048 to 5e-6.
        num_bins: Number of equal-width calibration bins whose edges are
            inserted. None for another score than the confidence.
        closed: End that belongs to a calibration bin, `"right"` or `"left"`.
        score_map: Map from scores to bins.
        score: Function of records to scores `(n,)`. None for the score in the
            records.
        mode: `"binary"` for the probability of the second of two classes.
    """

    def __init__(
        self,
        resolution: int = 8192,
        num_bins: int | None = 15,
        *,
        closed: str = "right",
        score_map: ScoreMap = LOG_ODDS,
        score: Any = None,
        mode: str = "top_label",
    ):
        check_in("mode", mode, MODES)
        self.is_binary = mode == "binary"
        check_integer("resolution", resolution, 64)
        check_in("closed", closed, CLOSED)
        self.needs_rows = self.votes = False
        self.on_host = "records" if score is None else "tensors"
        if self.is_binary:
            self.on_host = "arrays"
        self.score = score
        self.closed = closed
        self.resolution = resolution
        self.num_bins = 1 if num_bins is None else num_bins
        check_integer("num_bins", self.num_bins, 1)
        self.num_cells = resolution + self.num_bins - 1
        self._has_confidence = num_bins is not None
        self._map = score_map
        self.is_unbounded = score_map is UNBOUNDED
        self._slope = score_map.slope * resolution
        self._zero = round(score_map.zero * resolution)
        # The first cell past each inserted edge, and hence of each cell its
        # calibration bin and its bin of the histogram.
        steps = np.arange(1, self.num_bins)
        edges = steps / self.num_bins
        log_odds = np.log(edges / (1 - edges))
        position = score_map.position(log_odds, resolution)
        first = np.floor(position).astype(int) + self._zero
        first = np.clip(first, 0, resolution - 1) + steps
        self._first = np.concatenate([[0], first]).astype("int32")
        cells = np.arange(self.num_cells)
        self.calibration_bin = np.searchsorted(first, cells, side="right")
        self._bin = cells - self.calibration_bin

    @property
    def shape(self) -> tuple[int, ...]:
        """Limbs of mass and offsets by key, and of squared weights by bin.

        Squared residuals of votes come last, by cell.
        """
        size = (5 if self.votes else 4) * self.num_cells + self.num_bins
        return (exact_sums.NUM_LIMBS, size)

    takes_columns = True

    def update(self, records: Outcomes, columns: int | None = None) -> Any:
        """Limbs of one batch, by cell, for correct and wrong predictions.

        Entries of columns give limbs `(3, columns, ...)`.
        """
        if self.is_binary:
            records = second_class(records)
        xp = array_namespace(records.mask)
        cell, offset, calibration_bin = self.places(records)
        outside = xp.full_like(cell, self.num_bins)
        calibration_bin = xp.where(records.mask, calibration_bin, outside)
        weight, calibration_bin = by_column(
            columns, records.weight, calibration_bin
        )
        squares = weights_by_key(
            weight, calibration_bin, self.num_bins, squared=True
        )
        if self.votes:
            sums = self._sums_of_votes(records, offset, cell, columns)
            return xp.concatenate([*sums[:-1], squares, sums[-1]], axis=-1)
        num_keys = 2 * self.num_cells
        keys = cell + self.num_cells * records.loss
        keys = xp.where(records.mask, keys, xp.full_like(keys, num_keys))
        keys, offset = by_column(columns, keys, offset)
        mass, offsets = sums_by_key(
            weight, offset, keys, num_keys, num_digits=_OFFSET_DIGITS
        )
        return xp.concatenate([mass, offsets, squares], axis=-1)

    def _sums_of_votes(
        self, records: Outcomes, offset: Any, cell: Any, columns: int | None
    ) -> list:
        """Limbs in the order of `shape`, but for the squared weights."""
        xp, size = array_namespace(offset), self.num_cells
        keys = xp.where(records.mask, cell, xp.full_like(cell, size))
        center = xp.zeros_like(offset)
        if self._has_confidence:
            center = records.confidence
        mass, offsets, distances = vote_sums_by_key(
            records, offset, center, keys, size, columns
        )
        sums = [x[..., i] for x in (mass, offsets) for i in range(2)]
        return [*sums, distances]

    def places(self, records: Outcomes) -> tuple[Any, Any, Any]:
        """Cell of each record, its offset in it, and its calibration bin."""
        xp = array_namespace(records.mask)
        math = host_math() if xp is np else ops
        if self.score is not None:
            score = self.score(records)
            score = on_host(score) if xp is np else score
        elif (score := records.score) is None:
            score = log_odds_of(records.confidence, math)
        score = xp.where(records.mask, score, xp.zeros_like(score))
        position = self._map.position(score, self.resolution, math)
        floor = xp.floor(position)
        # Cut to 16 bits; reading adds back half a quantum.
        offset = xp.floor((position - floor) / _QUANTUM) * _QUANTUM
        cell = cast(floor, "int32") + self._zero
        # Scores beyond the last bins are placed at their outer edges.
        above, below = cell >= self.resolution, cell < 0
        offset = xp.where(above, xp.full_like(offset, 1 - _QUANTUM), offset)
        offset = xp.where(below, xp.zeros_like(offset), offset)
        cell = xp.clip(cell, 0, self.resolution - 1)
        calibration_bin = xp.zeros_like(cell)
        if self.num_bins > 1:
            calibration_bin = bin_index(
                records.confidence, self.num_bins, self.closed
            )
            cell = cell + calibration_bin
            if self.closed == "left":
                # The log-odds of a confidence on an edge may round below it.
                first = xp.take(self._first, calibration_bin)
                cell = xp.maximum(cell, first)
        return cell, offset, calibration_bin

    def cells(self, limbs: Any) -> Cells:
        """Cells in ascending score; confidences are 0 for other scores.

        Derivation: docs/derivations.md, 'Log-odds map'.
        """
        right, wrong, right_offset, wrong_offset = self._split(limbs)
        both = right + wrong
        right, wrong = exact_sums.to_float(right), exact_sums.to_float(wrong)
        sure, unsure = self._mean_confidence(_mean_offset(right_offset, right))
        fooled, _ = self._mean_confidence(_mean_offset(wrong_offset, wrong))
        correct_one_minus_confidence = right * unsure
        squared_residual = None
        if self.votes:
            squared_residual = exact_sums.to_float(limbs[:, -self.num_cells :])
        return Cells(
            mass=exact_sums.to_float(both),
            wrong=wrong,
            before=exact_sums.sum_before(both),
            confidence=right * sure + wrong * fooled,
            # Differences of long sums would lose a confidence near 1.
            confidence_minus_correct=wrong * fooled
            - correct_one_minus_confidence,
            correct_one_minus_confidence=correct_one_minus_confidence,
            squared_residual=squared_residual,
        )

    def bins(self, limbs: Any, cells: Cells) -> BinSums:
        """Sums of the equal-width calibration bins (array-agnostic)."""
        # Cells of one bin lie side by side.
        ends = np.searchsorted(
            self.calibration_bin, np.arange(self.num_bins + 1)
        )
        mass = sum_slices(cells.mass, ends)
        return BinSums(
            weight=mass,
            confidence=sum_slices(cells.confidence, ends),
            correct=mass - sum_slices(cells.wrong, ends),
            residual=sum_slices(cells.confidence_minus_correct, ends),
            squared_weight=self._squares(limbs),
            squared_residual=(
                sum_slices(cells.squared_residual, ends) if self.votes else None
            ),
        )

    def ranked(self, limbs: Any, frequency_weights: Any) -> RankedGroups:
        """Cells as groups of tied scores, highest first (array-agnostic).

        Derivation: docs/derivations.md, 'AURC from a histogram'.
        """
        xp = array_namespace(limbs)
        right, wrong, right_offset, wrong_offset = (
            xp.flip(x, axis=-1) for x in self._split(limbs)
        )
        both = right + wrong
        before, wrong_before = map(exact_sums.sum_before, (both, wrong))
        right, wrong = exact_sums.to_float(right), exact_sums.to_float(wrong)
        # A correct and a wrong prediction in one cell are not really tied:
        # their mean offsets say which of the two tends to score higher.
        mixed = xp.logical_and(right > 0, wrong > 0)
        slope = _mean_offset(right_offset, right)
        slope = slope - _mean_offset(wrong_offset, wrong)
        slope = xp.clip(slope, -1 / 3, 1 / 3)
        return RankedGroups(
            mass=exact_sums.to_float(both),
            wrong=wrong,
            before=before,
            wrong_before=wrong_before,
            slope=xp.where(mixed, slope, xp.zeros_like(slope)),
            frequency_weights=frequency_weights,
        )

    def weight_ratio(self, limbs: Any) -> Any:
        """Sum of squared weights over that of weights, 0 when empty."""
        both = exact_sums.to_float(limbs[:, : 2 * self.num_cells])
        xp = array_namespace(limbs)
        return safe_divide(xp.sum(self._squares(limbs)), xp.sum(both))

    def clipped_share(self, limbs: np.ndarray) -> float:
        """Share of the weight in outer cells that mix correct and wrong."""
        right, wrong = map(exact_sums.to_float, self._split(limbs)[:2])
        ends = np.array([0, -1])
        mixed = (right[ends] > 0) & (wrong[ends] > 0)
        total = right.sum() + wrong.sum()
        return safe_divide(((right + wrong)[ends] * mixed).sum(), total)

    @property
    def confidence_room(self) -> float:
        """Largest error of the mean confidence computed for a cell.

        The confidence bends by at most 0.44 / slope^2 over a bin. The error
        is 1/8 of that if a cell is filled at its ends, minus the 1/24 that was
        added for a cell that is filled evenly.
        """
        return 0.44 / 6.0 / self._slope**2

    def lower_score(self) -> np.ndarray:
        """The smallest score that each cell can hold, float64."""
        position = (self._bin - self._zero) / self._slope
        lowest = self._map.scale * np.sinh(position)
        lowest[self._bin == 0] = -np.inf
        return lowest

    def lower_confidence(self) -> np.ndarray:
        """The smallest confidence that each cell can hold, float64."""
        lowest = expit(self.lower_score())
        return np.maximum(lowest, self.calibration_bin / self.num_bins)

    def _split(self, limbs: Any) -> list[Any]:
        """Limbs by cell: mass correct, wrong, and offsets correct, wrong."""
        # Separate slices, because compilers make faster code of them.
        size = self.num_cells
        return [limbs[:, i * size : i * size + size] for i in range(4)]

    def _squares(self, limbs: Any) -> Any:
        """Sums of squared weights by calibration bin."""
        start = 4 * self.num_cells
        return exact_sums.to_float(limbs[:, start : start + self.num_bins])

    def _mean_confidence(self, offset: Any) -> tuple[Any, Any]:
        """Mean p and 1 - p of cells at mean offset `(num_cells,)`.

        The confidence at the mean offset, plus the curvature of a bin that
        is filled evenly: p''(v) / 24.
        """
        xp = array_namespace(offset)
        start = self._bin - self._zero
        if xp is ops:
            start = ops.convert_to_tensor(start.astype("float32"))
        angle = (start + offset) / self._slope
        if not self._has_confidence:
            return xp.zeros_like(angle), xp.zeros_like(angle)
        log_odds = 2.0 * xp.sinh(angle)
        p, q = sigmoid(log_odds), sigmoid(-log_odds)
        # pq decays faster than the derivatives grow, but they would overflow.
        angle = xp.clip(angle, -5.0, 5.0)
        first = 2.0 * xp.cosh(angle) / self._slope
        second = 2.0 * xp.sinh(angle) / self._slope**2
        curvature = p * q * ((q - p) * xp.square(first) + second) / 24.0
        return p + curvature, q - curvature


def _mean_offset(limbs: Any, mass: Any) -> Any:
    """Mean offset of a sum, plus the half quantum that was cut off."""
    return safe_divide(exact_sums.to_float(limbs), mass) + 0.5 * _QUANTUM
