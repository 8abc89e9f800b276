"""Outcomes: what became of answers, the one kind of row above the door."""

from typing import Any, NamedTuple


class Outcomes(NamedTuple):
    """Answers and what became of them, arrays or tensors `(n,)`.

    Whatever a subject is, its answers are turned into these rows where they
    come in. Whoever judges, ranks, resamples or promises knows no others.

    Attributes:
        score: What ranks the answers, higher = surer. Streams rank by
            log-odds, which differ even where the confidence rounds to 1, and
            exact functions of probabilities by the confidence.
        correct: 1 for right and 0 for wrong, or the share of votes for the
            answer; None where only its cost is known.
        cost: What the answer costs, such as 1 - IoU; None for 1 - correct.
        weight: Weight of each row, 0 where it counts nothing; None for 1.
        confidence: What is claimed, in [0, 1]; None for bare scores.
        mask: False for rows that count nothing; None for none.
        unit: The image, sequence or example that a row belongs to, as codes;
            None if each is one of its own.
        group: Class, label or site of a row, as places in `names`, or None.
        names: Names of the groups, or of the classes.
        rows: The `Batch` of labels and outputs of all classes, for those who
            ask.
    """

    score: Any
    correct: Any = None
    cost: Any = None
    weight: Any = None
    confidence: Any = None
    mask: Any = None
    unit: Any = None
    group: Any = None
    names: tuple = ()
    rows: Any = None

    @property
    def loss(self) -> Any:
        """What is to be small: the cost, or whether the answer is wrong."""
        return 1 - self.correct if self.cost is None else self.cost

    @property
    def counts(self) -> Any:
        """Whether a row of arrays has a weight above 0 and no mask, or None."""
        if self.weight is None:
            return self.mask
        some = self.weight > 0
        return some if self.mask is None else self.mask & some

    def counted(self) -> "Outcomes":
        """The rows of arrays that no mask leaves out, of a weight above 0."""
        counts = self.counts
        if counts is None or counts.all():
            return self
        return self.part(counts)

    def part(self, rows: Any) -> "Outcomes":
        """Some of the rows, without what is known of all classes."""
        columns = {
            name: value[rows]
            for name, value in self._asdict().items()
            if value is not None and name not in ("names", "rows")
        }
        return self._replace(**{**columns, "rows": None})
