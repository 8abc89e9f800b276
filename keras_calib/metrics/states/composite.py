"""Several summaries as one state, so that one pass serves many metrics."""

from functools import cached_property
from typing import Any

from keras import ops

from keras_calib.numerics import exact_sums
from keras_calib.numerics.softmax import Top1

__all__ = ["CompositeSummary", "TableReadings"]


class CompositeSummary:
    """Summaries side by side on the last axis of their limbs.

    Args:
        **parts: Summaries by name.
    """

    needs_rows = False

    def __init__(self, **parts: Any):
        self.parts = parts
        sizes = [part.shape[-1] for part in parts.values()]
        self._ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        self.shape = (exact_sums.NUM_LIMBS, self._ends[-1])

    def update(self, records: Top1) -> Any:
        """Limbs of all parts, of one batch."""
        limbs = [part.update(records) for part in self.parts.values()]
        return ops.concatenate(limbs, axis=-1)

    def split(self, limbs: Any) -> dict[str, Any]:
        """Limbs of each part by its name (array-agnostic)."""
        starts = [0, *self._ends[:-1]]
        return {
            name: limbs[:, start:end]
            for name, start, end in zip(
                self.parts, starts, self._ends, strict=True
            )
        }


class TableReadings:
    """What the formulas of `CalibrationMetrics` look at, each read once."""

    def __init__(
        self, summary: CompositeSummary, sums: Any, frequency_weights: Any
    ):
        self.histogram = summary.parts["histogram"]
        self.losses = summary.parts["losses"]
        self.limbs = summary.split(sums)
        self.frequency_weights = frequency_weights

    @cached_property
    def cells(self):
        return self.histogram.cells(self.limbs["histogram"])

    @cached_property
    def bins(self):
        return self.histogram.bins(self.limbs["histogram"], self.cells)

    @cached_property
    def groups(self):
        return self.histogram.ranked(
            self.limbs["histogram"], self.frequency_weights
        )

    def moments(self, index):
        return self.losses.moments(self.limbs["losses"], index)

    @property
    def saturated(self):
        """Whether sums of each of the losses left their range."""
        found = exact_sums.is_saturated(self.limbs["losses"])
        return found.reshape(len(self.losses.values), -1).any(axis=-1)

    @property
    def weight_ratio(self):
        return self.histogram.weight_ratio(self.limbs["histogram"])
