"""Examples of several labels as records for thresholds: right by share."""

from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import TESTS
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.multi_label import LabelColumns
from keras_calib.selection.candidates import check_equal_weights
from keras_calib.selection.candidates import ranked_candidates
from keras_calib.selection.guarantees import fixed_sequence_of_means
from keras_calib.selection.thresholds import ChosenThreshold
from keras_calib.selection.thresholds import Target
from keras_calib.selection.thresholds import choose
from keras_calib.selection.tuning import drawn_parts

__all__ = ["ExampleTarget", "example_records", "split_rows", "weighted"]


class ExampleTarget(NamedTuple):
    """Target for the mean share of wrong labels of the accepted examples."""

    risk: float | None
    coverage: float | None
    delta: float | None
    method: str | None

    def check(self) -> "ExampleTarget":
        """Returns self; raises ValueError for values that are not allowed."""
        self._plain().check()
        if self.method is not None:
            check_in("method", self.method, TESTS)
        return self

    def choose(self, score: Any, correct: Any, weight: Any) -> ChosenThreshold:
        """The best threshold; ValueError if none reaches the target."""
        weight = np.ones(len(score)) if weight is None else weight
        check_equal_weights(weight, self.delta)
        found = ranked_candidates(score, 1.0 - correct, weight)
        if self.delta is None or self.risk is None:
            return choose(found, self._plain())[0]
        test = self.method or TESTS[0]
        losses = (1.0 - correct)[np.argsort(-score, kind="stable")]
        certified = fixed_sequence_of_means(
            found.accepted, losses, self.risk, self.delta, test
        )
        if not certified.any():
            raise value_error(
                "No threshold is certified to have this `risk`: take more "
                "data, or ask for a larger `risk` or `delta`",
                risk=self.risk,
                delta=self.delta,
                samples=found.num_samples,
            )
        place = np.flatnonzero(certified)[-1]
        return ChosenThreshold(
            *found.at(place),
            found.num_samples,
            **self._plain().guarantee(),
        )._replace(method=test)

    def _plain(self) -> Target:
        return Target(self.risk, self.coverage, self.delta, "ltt")


def example_records(
    columns: LabelColumns, right: np.ndarray, example: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows that count, how far each is right, and weights.

    Raises ValueError if only some labels of an example are missing: its score
    is of all labels.
    """
    kept: np.ndarray = np.ones(len(right), bool)
    if columns.present is not None:
        kept = np.asarray(columns.present.all(axis=-1))
        partly = columns.present.any(axis=-1) & ~kept
        if partly.any():
            raise value_error(
                "`labels` must have all labels of an example, or none, with "
                '`by="example"`: the score of an example is of all',
                examples=int(partly.sum()),
            )
    right, weight = right[kept], columns.weight
    found = np.asarray(right.all(axis=-1), "float64")
    if example == "mean":
        found = right.mean(axis=-1)
    if weight is not None:
        weight = weight[kept]
        if not np.all(weight == weight[:, :1]):
            raise value_error(
                "`sample_weight` must be one for each example, `(n,)`, with "
                '`by="example"`',
                shape=weight.shape,
            )
        weight = weight[:, 0]
    return kept, found, weight


def split_rows(
    columns: LabelColumns, fraction: float, seed: int
) -> list[LabelColumns]:
    """A random share of the examples for tuning, and the rest."""
    return [
        LabelColumns._make(None if x is None else x[part] for x in columns)
        for part in drawn_parts(len(columns.labels), fraction, seed)
    ]


def weighted(columns: LabelColumns) -> tuple:
    """Labels, logits and weights, 0 for missing labels, or None."""
    weight = columns.weight
    if weight is None and columns.present is not None:
        weight = columns.present.astype("float32")
    return columns.labels, columns.outputs, weight
