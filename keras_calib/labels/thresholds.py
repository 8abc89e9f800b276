"""Thresholds of several labels of the same examples, with promises.

Derivation: docs/derivations.md, 'Thresholds by label'.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import TESTS
from keras_calib.inputs.checks import check_in
from keras_calib.labels.columns import LabelColumns
from keras_calib.selection.candidates import (
    Candidates,
    check_equal_weights,
    ranked_candidates,
)
from keras_calib.selection.fact_tables import table_lines
from keras_calib.selection.group_walks import dependent_groups
from keras_calib.selection.guarantees import first_rank, fixed_sequence_of_means
from keras_calib.selection.thresholds import (
    ChosenThreshold,
    Target,
    choose,
    points_of,
)
from keras_calib.selection.tuning import drawn_parts

__all__ = [
    "ExampleTarget",
    "LabelThresholds",
    "choose_of_labels",
    "example_records",
    "split_rows",
    "weighted",
]


class LabelThresholds(NamedTuple):
    """One threshold for each label, with coverage, risk and guarantee.

    Attributes:
        label: Numbers or names of the labels, in the order of the outputs.
        num_samples: Number of examples where each label is known.
        threshold: Least score to accept of each label; inf rejects every
            answer, for a label where no threshold reaches the target.
        label_coverage: Accepted share of the answers to each label.
        label_risk: Share of errors among the accepted answers to each label.
        coverage: Accepted share of all answers.
        risk: Share of errors among all accepted answers.
        certified_risk: Upper bound of the true risks with probability 1 -
            `delta`; None without a guarantee.
        delta: Probability that the guarantee fails, or None.
        method: `"ltt"` or `"sgr"`, or None.
        at_once: Whether `delta` is the probability that it fails for any
            label, not for a single one.
    """

    label: tuple
    num_samples: tuple
    threshold: tuple
    label_coverage: tuple
    label_risk: tuple
    coverage: float
    risk: float
    certified_risk: float | None = None
    delta: float | None = None
    method: str | None = None
    at_once: bool = True

    def __repr__(self) -> str:
        good = sum(t < np.inf for t in self.threshold)
        head = f"LabelThresholds: {good} of {len(self.label)} labels answer, "
        lines = [f"{head}coverage {self.coverage:.4g}, risk {self.risk:.4g}"]
        if self.delta is not None:
            whose = "no label has" if self.at_once else "a label does not have"
            lines.append(
                f"with probability {1.0 - self.delta:.4g} {whose} a true risk "
                f"above {self.certified_risk:.4g}"
            )
        columns = "label", "samples", "threshold", "coverage", "risk"
        return "\n".join([*lines, *table_lines(columns, self[:5])])


def choose_of_labels(
    names: Sequence,
    found: Sequence[Candidates | None],
    target: Target,
    at_once: bool,
) -> LabelThresholds:
    """The best threshold of each label; None has no example.

    Raises ValueError if no label has a threshold that reaches the target.
    Derivation: docs/derivations.md, 'Thresholds by label'.
    """
    some = [one for one in found if one is not None]
    certified = _certified(some, target, at_once)
    columns = points_of(found, certified, target)
    facts = LabelThresholds(tuple(names), *columns)
    if min(facts.threshold) == np.inf:
        raise _none_within_reach(some, target, at_once)
    return facts._replace(at_once=at_once, **target.guarantee())


def _certified(
    found: Sequence[Candidates], target: Target, at_once: bool
) -> list[np.ndarray]:
    """Which thresholds of each label are certified."""
    risk, delta = target.risk, target.delta
    if risk is None or delta is None:
        return [np.zeros(len(one.threshold), bool) for one in found]
    if at_once:
        return dependent_groups(found, risk, delta, target.method)
    return [target.certified(one, risk, delta) for one in found]


def _none_within_reach(
    found: Sequence[Candidates], target: Target, at_once: bool
) -> ValueError:
    facts: dict[str, Any] = {"risk": target.risk, "labels": len(found)}
    if target.delta is None or target.risk is None:
        facts["lowest risk"] = min(float(one.risk.min()) for one in found)
        return value_error(
            "`risk` is below that of every threshold of every label: ask for "
            "a higher one",
            **facts,
        )
    share = target.delta / len(found) if at_once else target.delta
    return value_error(
        "No label has a threshold that is certified to have this `risk`: take "
        "more data, or ask for a larger `risk` or `delta`",
        delta=target.delta,
        largest=max(one.num_samples for one in found),
        **{"samples without an error": first_rank(target.risk, share)},
        **facts,
    )


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
