"""Several summaries as one state, so that one pass serves many metrics."""

from typing import Any

from keras import ops

from keras_calib.numerics import exact_sums
from keras_calib.numerics.softmax import Top1

__all__ = ["CompositeSummary"]


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
        ends = zip(self.parts, starts, self._ends, strict=True)
        return {name: limbs[:, start:end] for name, start, end in ends}
