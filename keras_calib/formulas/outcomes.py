"""Outcomes: what became of answers, the one kind of row above the door."""

from typing import Any, NamedTuple

__all__ = ["Outcomes"]


class Outcomes(NamedTuple):
    """Answers and what became of them, arrays `(n,)`.

    Whatever a subject is, its answers are turned into these rows where they
    come in. Whoever judges, ranks, resamples or promises knows no others.

    Attributes:
        score: What ranks the answers, higher = surer; log-odds where there is
            a confidence.
        loss: 0 for right and 1 for wrong, a share between, or a cost.
        weight: Weight of each row; None for 1.
        unit: The image, sequence or example that a row belongs to, as codes;
            None if each is one of its own.
        group: Class, label or site of a row, as places in `names`, or None.
        names: Names of the groups, or of the classes.
        wrong: Whether an answer was wrong, where losses are costs.
        confidence: What is claimed of each answer; None for bare scores.
    """

    score: Any
    loss: Any
    weight: Any = None
    unit: Any = None
    group: Any = None
    names: tuple = ()
    wrong: Any = None
    confidence: Any = None

    @property
    def correct(self) -> Any:
        """1 for right and 0 for wrong answers, of losses that are errors."""
        return 1.0 - self.loss

    def rows(self, part: Any) -> "Outcomes":
        """Some of the rows."""
        columns = {
            name: value[part]
            for name, value in self._asdict().items()
            if value is not None and name != "names"
        }
        return self._replace(**columns)
