"""Several summaries as one state, and what is computed from a state."""

from functools import cached_property
from typing import Any

import numpy as np

from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.cumulative import CumulativeCurve
from keras_calib.formulas.intervals import Moments
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    RiskCoveragePoints,
    curve_of_groups,
)
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.metrics.states.cells import differences_of_cells
from keras_calib.metrics.states.classwise import ClassForecastSummary
from keras_calib.metrics.states.histogram import Cells, HistogramSummary
from keras_calib.metrics.states.sums import BinSummary, MomentSummary
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace, safe_divide


class CompositeSummary:
    """Several summaries, side by side on the last axis of their limbs.

    Args:
        **parts: Summaries by name.
    """

    needs_rows = False

    def __init__(self, **parts: Any):
        self.parts = parts
        forms = [getattr(part, "on_host", None) for part in parts.values()]
        # The one that suits all of them.
        order = (None, "tensors", "arrays", "records")
        self.on_host: Any = min(forms, key=order.index)
        self.takes_columns = all(
            getattr(part, "takes_columns", False) for part in parts.values()
        )
        self._votes = False

    @property
    def votes(self) -> bool:
        """Whether labels are votes, for all parts."""
        return self._votes

    @votes.setter
    def votes(self, votes: bool) -> None:
        self._votes = votes
        for part in self.parts.values():
            part.votes = votes

    @property
    def shape(self) -> tuple[int, ...]:
        """Limbs of all parts."""
        return (exact_sums.NUM_LIMBS, self._ends[-1])

    @property
    def _ends(self) -> list[int]:
        sizes = [part.shape[-1] for part in self.parts.values()]
        return np.cumsum(sizes).tolist()

    def update(self, records: Outcomes, columns: int | None = None) -> Any:
        """Limbs of all parts, of one batch."""
        given = () if columns is None else (columns,)
        limbs = [part.update(records, *given) for part in self.parts.values()]
        return array_namespace(limbs[0]).concatenate(limbs, axis=-1)

    def split(self, limbs: Any) -> dict[str, Any]:
        """Limbs of each part by its name (array-agnostic)."""
        ends = self._ends
        spans = zip(self.parts, [0, *ends[:-1]], ends, strict=True)
        return {name: limbs[:, start:end] for name, start, end in spans}


class Readings:
    """What is computed from a state, each part once, on first use.

    Args:
        summary: Summary of the metric, or several as one.
        sums: Limbs of the summary (array-agnostic).
        frequency_weights: Whether all weights so far were whole numbers.
        num_invalid: Number of invalid samples.
        has_all_rows: Whether all records came with the outputs of all classes.
    """

    def __init__(
        self,
        summary: Any,
        sums: Any,
        frequency_weights: Any,
        num_invalid: Any = 0,
        has_all_rows: Any = True,
    ):
        self.sums = sums
        self.frequency_weights = frequency_weights
        self.num_invalid = num_invalid
        self.has_all_rows = has_all_rows
        self.votes = getattr(summary, "votes", False)
        self._parts = {type(summary): (summary, sums)}
        if isinstance(summary, CompositeSummary):
            limbs = summary.split(sums)
            self._parts = {
                type(part): (part, limbs[name])
                for name, part in summary.parts.items()
            }
        self.histogram, self._limbs = self._parts.get(
            HistogramSummary, (None, None)
        )

    @cached_property
    def cells(self) -> Cells:
        return self.histogram.cells(self._limbs)

    @cached_property
    def bins(self) -> BinSums:
        if BinSummary in self._parts:
            summary, limbs = self._parts[BinSummary]
            return summary.bins(limbs)
        return self.histogram.bins(self._limbs, self.cells)

    @cached_property
    def groups(self) -> RankedGroups:
        return self.histogram.ranked(self._limbs, self.frequency_weights)

    @cached_property
    def weight_ratio(self) -> Any:
        return self.histogram.weight_ratio(self._limbs)

    @cached_property
    def share_variances(self) -> Any:
        """Variances of the shares of votes in each of `groups`, or None."""
        if not self.votes:
            return None
        square, _ = self.cells.share_moments()
        mass = self.cells.mass
        mean = safe_divide(mass - self.cells.wrong, mass)
        return np.flip(safe_divide(square, mass) - mean**2)

    @property
    def clipped_share(self) -> float:
        return self.histogram.clipped_share(self._limbs)

    @property
    def curve(self) -> RiskCoveragePoints:
        """Curve through the ends of the cells that are not empty."""
        return curve_of_groups(
            self.groups, np.flip(self.histogram.lower_score())
        )

    @property
    def differences(self) -> CumulativeCurve:
        """Cumulative differences through the cells that are not empty."""
        return differences_of_cells(
            self.cells, self.frequency_weights, self.weight_ratio
        )

    def by_class(self) -> tuple[Any, Any, Any]:
        """Mass, probabilities and labels by class and bin."""
        summary, limbs = self._parts[ClassForecastSummary]
        mass, total, truth, _ = summary.by_class(limbs)
        return mass, total, truth

    def moments(self, index: int = 0) -> Moments:
        """Moments of the value at `index`, or of the last if it is beyond."""
        summary, limbs = self._parts[MomentSummary]
        return summary.moments(limbs, min(index, len(summary.values) - 1))

    def is_saturated(self, index: int) -> bool:
        """Whether a sum of the value at `index` left its range."""
        summary, limbs = self._parts[MomentSummary]
        found = exact_sums.is_saturated(limbs)
        found = np.any(found.reshape(len(summary.values), -1), axis=-1)
        return bool(found[min(index, len(found) - 1)])
