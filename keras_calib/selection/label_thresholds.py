"""Thresholds of several labels of the same examples, with promises.

Derivation: docs/derivations.md, 'Thresholds by label'.
"""

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.selection.candidates import Candidates
from keras_calib.selection.fact_tables import table_lines
from keras_calib.selection.group_walks import dependent_groups
from keras_calib.selection.guarantees import first_rank
from keras_calib.selection.thresholds import Target
from keras_calib.selection.thresholds import points_of

__all__ = ["LabelThresholds", "choose_of_labels"]


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
