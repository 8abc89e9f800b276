"""States of several labels: one for each label, or one of whole examples."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.traced import is_traced
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.labels.columns import over_labels
from keras_calib.metrics.states.records import by_column
from keras_calib.numerics import exact_sums
from keras_calib.numerics.arrays import array_namespace, cast, on_host

# Sums beside those of a label: weight, weight of 1, fractional weights.
_BESIDE = 3


class _Wrapped:
    """What a summary around another one shares with it."""

    # Whether correctness is a share whatever the labels are.
    _has_shares = False

    def __init__(self, inner: Any, num_labels: int):
        self.inner, self.num_labels = inner, num_labels
        self.needs_rows = inner.needs_rows

    @property
    def on_host(self) -> str | None:
        """What is read of the outputs on the host."""
        return getattr(self.inner, "on_host", None)

    @property
    def max_rows(self) -> int:
        """Number of entries that fit into one update."""
        rows = getattr(self.inner, "max_rows", exact_sums.MAX_BATCH)
        return rows * self.num_labels

    @property
    def votes(self) -> bool:
        """Whether labels are votes, or correctness is a share."""
        return self.inner.votes

    @votes.setter
    def votes(self, votes: bool) -> None:
        self.inner.votes = votes or self._has_shares


class ColumnSummary(_Wrapped):
    """The sums of a summary of one label for each of several.

    Records are the entries of all labels, those of an example side by side.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Limbs by label, and three sums more for each."""
        size = self.inner.shape[-1] + _BESIDE
        return (exact_sums.NUM_LIMBS, self.num_labels, size)

    def update(self, records: Outcomes) -> Any:
        """Limbs of one batch by label."""
        xp = array_namespace(records.mask)
        if getattr(self.inner, "takes_columns", False):
            limbs = self.inner.update(records, self.num_labels)
        else:
            limbs = self._one_by_one(records)
        return xp.concatenate([limbs, self._beside(records)], axis=-1)

    def split(self, sums: Any) -> tuple[Any, Any, Any, Any]:
        """Limbs by label, and of each label the weight, that of 1, and flags.

        The flags are above 0 where a weight was no whole number.
        """
        limbs, beside = sums[..., :-_BESIDE], sums[..., -_BESIDE:]
        numbers = exact_sums.to_float(beside)
        return limbs, *(numbers[..., i] for i in range(_BESIDE))

    def _one_by_one(self, records: Outcomes) -> Any:
        """The same, of a summary that takes no columns."""
        fields = _parts_of(records, self.num_labels)

        def limbs_of(fields):
            return self.inner.update(_records_of(fields, records))

        if not is_traced(records.mask):
            limbs = [
                limbs_of({name: x[i] for name, x in fields.items()})
                for i in range(self.num_labels)
            ]
            return array_namespace(limbs[0]).stack(limbs, axis=1)
        limbs = ops.map(limbs_of, fields)
        return ops.moveaxis(limbs, 0, 1)

    def _beside(self, records: Outcomes) -> Any:
        """Limbs `(3, labels, 3)` of the sums beside."""
        xp = array_namespace(records.mask)
        labels = records.rows.labels
        labels = on_host(labels) if xp is np else labels
        if len(labels.shape) > 1:
            labels = labels[..., 1] > labels[..., 0]
        mask, labels, weight = by_column(
            self.num_labels, records.mask, cast(labels, "int32"), records.weight
        )
        present = cast(mask, "int32")
        odd = xp.zeros_like(xp.sum(present, axis=-1))
        if weight is None:
            counts = xp.stack([present, present * labels], axis=-1)
            counts = xp.sum(counts, axis=1)
            counts = cast(counts, "int32")
            limbs = exact_sums.limbs_from_counts(counts)
        else:
            rows = [weight, weight * cast(labels, "float32")]
            limbs = exact_sums.sum_rows(xp.stack(rows, axis=-2))
            odd = xp.any(xp.not_equal(weight, xp.floor(weight)), axis=-1)
        odd = exact_sums.limbs_from_counts(cast(odd, "int32"))
        return xp.concatenate([limbs, odd[..., None]], axis=-1)


class ExampleSummary(_Wrapped):
    """The sums of a summary of one record for each example.

    `example` is `"worst"` or `"mean"` of the labels.
    """

    def __init__(self, inner: Any, example: str):
        # The number of labels is set once it is known.
        super().__init__(inner, 1)
        self.example, self._has_shares = example, example == "mean"

    @property
    def shape(self) -> tuple[int, ...]:
        """Limbs of the examples."""
        return self.inner.shape

    def update(self, records: Outcomes) -> Any:
        """Limbs of one batch."""
        return self.inner.update(self._of_examples(records))

    def _of_examples(self, records: Outcomes) -> Outcomes:
        """Records of the examples, from the labels that are there."""
        xp = array_namespace(records.mask)

        def by_example(x):
            return xp.reshape(x, (-1, self.num_labels))

        counted, weight = by_example(records.mask), None
        if records.weight is not None:
            weights = by_example(records.weight)
            counted = xp.logical_and(counted, weights > 0)
            weight = xp.max(weights, axis=-1)
        confidence = by_example(records.confidence)
        confidence = over_labels(confidence, counted, self.example)
        correct, score = by_example(records.correct), None
        if self.example == "mean":
            correct = over_labels(cast(correct, "float32"), counted, "mean")
        else:
            wrong = xp.logical_and(counted, correct == 0)
            correct = 1 - cast(xp.any(wrong, axis=-1), "int32")
            if records.score is not None:
                score = by_example(records.score)
                score = over_labels(score, counted, "worst")
        return Outcomes(
            score=score,
            correct=correct,
            weight=weight,
            confidence=confidence,
            mask=xp.any(counted, axis=-1),
        )


def _parts_of(records: Outcomes, columns: int) -> dict[str, Any]:
    """Arrays of records and of their rows by name, labels first."""
    named = {"rows." + k: x for k, x in records.rows._asdict().items()}
    named |= records._asdict()
    return {
        name: _by_rows(x, columns)
        for name, x in named.items()
        if hasattr(x, "shape")
    }


def _by_rows(x: Any, columns: int) -> Any:
    """Entries `(n columns, ...)` as `(columns, n, ...)`."""
    xp = array_namespace(x)
    shape = (-1, columns, *x.shape[1:])
    return xp.moveaxis(xp.reshape(x, shape), 1, 0)


def _records_of(fields: dict[str, Any], like: Outcomes) -> Outcomes:
    """Records again, of the arrays of one label."""
    of_rows = {
        name.removeprefix("rows."): x
        for name, x in fields.items()
        if name.startswith("rows.")
    }
    own = {k: x for k, x in fields.items() if "." not in k}
    return like._replace(rows=like.rows._replace(**of_rows), **own)
