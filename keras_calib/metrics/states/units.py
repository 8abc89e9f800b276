"""The sums of a table of metrics by group of units, of one or more stages.

The spread of the groups tells the error of all that the table computes, and of
the difference of two stages, such as before and after calibration.
"""

from collections.abc import Iterator

import numpy as np

from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.intervals import Moments
from keras_calib.formulas.units import NUM_GROUPS, group_of, sums_by_unit
from keras_calib.inputs.checks import generator
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.metrics.states.composite import Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.numerics import exact_sums

# Bins of the score: enough for the spread of a value, not for the value.
_RESOLUTION = 512
_DRAWS = 128
# So many rows are added at once, as each time takes as long as many rows do.
_ROWS = 2**16


class UnitSums:
    """Sums of predictions by group of units, of one or several stages.

    A stage is what a model says before or after a calibrator, or what another
    model says of the same rows. A group and a stage take 20 kB.

    Args:
        num_stages: Number of stages.
        num_bins: Number of equal-width bins of the confidence.
        losses: Names of the losses that come with the rows.
    """

    def __init__(
        self, num_stages: int, num_bins: int, losses: tuple[str, ...] = ()
    ):
        self._losses = losses
        self._summary = HistogramSummary(_RESOLUTION, num_bins)
        shape = num_stages, NUM_GROUPS
        # Right and wrong weight by cell, and their sums of offsets.
        self._cells = np.zeros((*shape, self._summary.shape[-1]))
        # Weight, confidence and correctness by bin.
        self._bins = np.zeros((num_stages, 3, NUM_GROUPS, num_bins))
        self._means = np.zeros((num_stages, len(losses), NUM_GROUPS))
        self._seen = np.zeros(0, bool)
        self._kept: list[tuple] = []
        self._num_kept = 0

    @property
    def num_units(self) -> int:
        """Number of units with a row that counts."""
        return int(self._seen.sum())

    @property
    def num_groups(self) -> int:
        """Number of groups of units, of which each tells of the spread."""
        return min(self.num_units, NUM_GROUPS)

    @property
    def means(self) -> tuple[str, ...]:
        """Names of the means whose sums are there."""
        return "accuracy", "mean_confidence", "confidence_gap", *self._losses

    def add(
        self,
        unit: np.ndarray,
        weight: np.ndarray,
        stages: list[dict[str, np.ndarray]],
    ) -> None:
        """Adds rows `(n,)` that count.

        Args:
            unit: Numbers of the units, from 0 in the order that they come.
            weight: Weights.
            stages: Columns of each stage: `confidence`, `correct`, the losses,
                and the `score` if it is no function of the confidence.
        """
        if not len(unit):
            return
        if (most := int(unit.max()) + 1) > len(self._seen):
            more = max(most, 2 * len(self._seen)) - len(self._seen)
            self._seen = np.pad(self._seen, (0, more))
        self._seen[unit] = True
        self._kept.append((group_of(unit), weight, stages))
        self._num_kept += len(unit)
        if self._num_kept >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        """Adds the rows that are kept to the sums."""
        if not self._kept:
            return
        groups, weights, stages = zip(*self._kept, strict=True)
        self._kept, self._num_kept = [], 0
        group, weight = np.concatenate(groups), np.concatenate(weights)
        for k, parts in enumerate(zip(*stages, strict=True)):
            self._add(k, group, weight, parts)

    def _add(
        self, k: int, group: np.ndarray, weight: np.ndarray, parts: tuple
    ) -> None:
        """Adds parts of rows of a stage."""
        columns = {
            name: np.concatenate([x[name] for x in parts]).astype("float32")
            for name in parts[0]
        }
        records = Outcomes(
            score=columns.get("score"),
            confidence=columns["confidence"],
            mask=np.ones(len(group), bool),
        )
        cell, offset, index = self._summary.places(records)
        right = weight * columns["correct"]
        wrong, size = weight - right, self._summary.num_cells
        terms = [right, wrong, right * offset, wrong * offset]
        found = sums_by_unit(group, cell, size, *terms)
        own = self._cells[k][:, : 4 * size].reshape(NUM_GROUPS, 4, size)
        own += found.swapaxes(0, 1)
        terms = [weight, weight * columns["confidence"], right]
        bins = self._bins[k]
        bins += sums_by_unit(group, index, bins.shape[-1], *terms)
        for total, name in zip(self._means[k], self._losses, strict=True):
            total += np.bincount(group, weight * columns[name], NUM_GROUPS)

    def total(self, name: str, stage: int = -1) -> np.ndarray:
        """Weighted sums by group, `(groups,)`, of a mean or of `"weight"`."""
        self._flush()
        if name in self._losses:
            return self._means[stage][self._losses.index(name)]
        weight, confidence, correct = self._bins[stage].sum(axis=-1)
        return {
            "weight": weight,
            "accuracy": correct,
            "mean_confidence": confidence,
            "confidence_gap": confidence - correct,
        }[name]

    def moments(self, name: str, stage: int = -1) -> Moments:
        """Moments over groups of units, for the interval of their mean."""
        weight, total = self.total("weight", stage), self.total(name, stage)
        filled = weight > 0
        return Moments.of(total[filled] / weight[filled], weight[filled])

    def by_bin(self, stage: int = -1) -> np.ndarray:
        """Weight, confidence and correctness `(3, groups, num_bins)`."""
        self._flush()
        return self._bins[stage]

    def replicates(self, seed: int = 0) -> Iterator[list[Readings]]:
        """The readings of each stage in replicates of the groups.

        In each every group is repeated a Poisson(1) number of times, the same
        in all stages.
        """
        self._flush()
        rng = generator(seed)
        counts = rng.poisson(size=(_DRAWS, NUM_GROUPS)).astype("float64")
        cells = [counts @ x for x in self._cells]
        bins = [(counts @ x).swapaxes(0, 1) for x in self._bins]
        for k in range(_DRAWS):
            yield [
                self._read(x[k], y[k]) for x, y in zip(cells, bins, strict=True)
            ]

    def readings(self, stage: int = -1) -> Readings:
        """What all predictions of a stage say, with coarse scores."""
        self._flush()
        cells, bins = self._cells[stage], self._bins[stage]
        return self._read(cells.sum(axis=0), bins.sum(axis=1))

    def _read(self, cells: np.ndarray, bins: np.ndarray) -> Readings:
        limbs = exact_sums.of_floats(cells)
        found = Readings(self._summary, limbs, frequency_weights=True)
        weight, confidence, correct = bins
        residual = confidence - correct
        # Exact sums in place of those that cells tell.
        vars(found)["bins"] = BinSums(
            weight, confidence, correct, residual, weight
        )
        return found
