"""The sums of a table of metrics by group of units, of one or more stages.

The spread of the groups tells the error of all that the table computes, and of
the difference of two stages, such as before and after calibration.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_calib.formulas.intervals import Moments
from keras_calib.formulas.units import NUM_GROUPS, group_of
from keras_calib.inputs.checks import generator
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.metrics.states.composite import CompositeSummary, Readings
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import BinSummary, MomentSummary
from keras_calib.numerics import exact_sums

# So many rows are kept until they are added.
_ROWS = 2**17
# Bins of the score: enough for the spread of a value, not for the value.
_RESOLUTION = 1024
_DRAWS = 200


class UnitSums:
    """Sums of predictions by group of units, of one or several stages.

    A stage is what a model says before or after a calibrator, or what another
    model says of the same rows.

    Args:
        num_stages: Number of stages.
        num_bins: Number of equal-width bins of the confidence.
        losses: Names of the losses that come with the rows.
        votes: Whether correctness is a share of votes.
    """

    def __init__(
        self,
        num_stages: int,
        num_bins: int,
        losses: tuple[str, ...] = (),
        votes: bool = False,
    ):
        self._losses = losses
        parts: dict[str, Any] = {
            "histogram": HistogramSummary(_RESOLUTION, num_bins),
            "bins": BinSummary(num_bins),
        }
        if losses:
            # The losses of a part stand where others have its rows.
            values = [lambda x, k=k: (x.rows[k], None) for k in losses]
            parts["losses"] = MomentSummary(*values)
        self.summary = CompositeSummary(**parts)
        self.summary.votes = votes
        size = self.summary.shape[-1]
        self._sums = np.zeros((num_stages, NUM_GROUPS, size))
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
            stages: Columns of each stage: `score`, `confidence`, `correct`, and
                the losses.
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
        group = np.concatenate(groups)
        order = np.argsort(group, kind="stable")
        found, starts = np.unique(group[order], return_index=True)
        weight = np.concatenate(weights)[order].astype("float32")
        alike, votes = bool((weight == 1.0).all()), self.summary.votes
        for sums, parts in zip(
            self._sums, zip(*stages, strict=True), strict=True
        ):
            columns = {
                k: np.concatenate([x[k] for x in parts])[order].astype(
                    "int32" if k == "correct" and not votes else "float32"
                )
                for k in parts[0]
            }
            for k, start, end in zip(
                found, starts, [*starts[1:], len(group)], strict=True
            ):
                rows = {name: x[start:end] for name, x in columns.items()}
                given = None if alike else weight[start:end]
                sums[k] += self._sums_of(rows, given)

    def _sums_of(self, rows: dict[str, np.ndarray], weight: Any) -> np.ndarray:
        total = np.zeros(self._sums.shape[-1])
        size = len(rows["correct"])
        for start in range(0, size, exact_sums.MAX_BATCH):
            part = slice(start, start + exact_sums.MAX_BATCH)
            own = {k: x[part] for k, x in rows.items()}
            records = Outcomes(
                score=own.get("score"),
                correct=own["correct"],
                confidence=own["confidence"],
                weight=None if weight is None else weight[part],
                mask=np.ones(len(own["correct"]), bool),
                rows={k: own[k] for k in self._losses},
            )
            total += exact_sums.to_float(self.summary.update(records))
        return total

    def total(self, name: str, stage: int = -1) -> np.ndarray:
        """Weighted sums by group, `(groups,)`, of a mean or of `"weight"`."""
        self._flush()
        if name in self._losses:
            losses = self.summary.split(self._sums[stage])["losses"]
            each = losses.shape[-1] // len(self._losses)
            return losses[:, each * self._losses.index(name) + 1]
        weight, confidence, correct = self.by_bin(stage)
        return {
            "weight": weight,
            "accuracy": correct,
            "mean_confidence": confidence,
            "confidence_gap": confidence - correct,
        }[name].sum(axis=-1)

    def moments(self, name: str, stage: int = -1) -> Moments:
        """Moments over groups of units, for the interval of their mean."""
        weight, total = self.total("weight", stage), self.total(name, stage)
        filled = weight > 0
        return Moments.of(total[filled] / weight[filled], weight[filled])

    def by_bin(self, stage: int = -1) -> np.ndarray:
        """Weight, confidence and correctness `(3, groups, num_bins)`."""
        self._flush()
        sums = self.summary.split(self._sums[stage])["bins"]
        bins = self.summary.parts["bins"].num_bins
        sums = sums[:, : 6 * bins].reshape(len(sums), 3, bins, 2)
        both = sums.sum(axis=-1)
        return np.stack([both[:, 0], both[:, 1], sums[:, 0, :, 0]])

    def replicates(self, seed: int = 0) -> Iterator[list[Readings]]:
        """The readings of each stage in replicates of the groups.

        In each every group is repeated a Poisson(1) number of times, the same
        in all stages.
        """
        self._flush()
        rng = generator(seed)
        counts = rng.poisson(size=(_DRAWS, NUM_GROUPS)).astype("float64")
        for totals in zip(*(counts @ x for x in self._sums), strict=True):
            yield [*map(self._read, totals)]

    def readings(self, stage: int = -1) -> Readings:
        """What all predictions of a stage say, with coarse scores."""
        self._flush()
        return self._read(self._sums[stage].sum(axis=0))

    def _read(self, total: np.ndarray) -> Readings:
        limbs = exact_sums.of_floats(total)
        return Readings(self.summary, limbs, frequency_weights=True)
