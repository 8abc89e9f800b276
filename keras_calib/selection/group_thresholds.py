"""Thresholds by group: one for each group, with a promise for all at once."""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.candidates import (
    Candidates,
    of_records,
    read_records,
)
from keras_calib.selection.fact_tables import SHOWN, table_lines
from keras_calib.selection.group_names import read_groups
from keras_calib.selection.group_walks import certified_by_group
from keras_calib.selection.guarantees import first_rank
from keras_calib.selection.thresholds import Target, points_of

__all__ = [
    "GroupThresholds",
    "choose_group_thresholds",
    "choose_of_groups",
    "split_by_group",
]


class GroupThresholds(NamedTuple):
    """One threshold for each group, with coverage, risk and guarantee.

    Attributes:
        group: Ids or names of the groups, ascending.
        num_samples: Number of samples of each group.
        threshold: Least score to accept in each group; inf rejects
            everything, for a group where no threshold reaches the target.
        group_coverage: Accepted share of each group's data.
        group_risk: Share of errors among the accepted data of each group.
        coverage: Accepted share of all data.
        risk: Share of errors among all accepted data.
        certified_risk: With probability 1 - `delta` no group has a higher
            true risk; None without a guarantee.
        delta: Probability that the guarantee fails for any group, or None.
        method: `"ltt"` or `"sgr"`, or None.
        min_samples: The fewest samples that could certify a tested group;
            0 without a guarantee.
        tested: Whether each group was tested. The others are too small for a
            share of `delta`. Empty without a guarantee.
        data_sha256: SHA-256 of names and (score, correct) rows of the groups
            in canonical order, set by a selector's fit with `delta`; else
            None.
        ranking_sha256: The same of counts alone, in order of the scores.
    """

    group: tuple
    num_samples: tuple
    threshold: tuple
    group_coverage: tuple
    group_risk: tuple
    coverage: float
    risk: float
    certified_risk: float | None = None
    delta: float | None = None
    method: str | None = None
    min_samples: int = 0
    tested: tuple = ()
    data_sha256: str | None = None
    ranking_sha256: str | None = None

    @property
    def accepts(self) -> tuple:
        """Whether each group has a threshold that accepts anything."""
        return tuple(bool(t < np.inf) for t in self.threshold)

    def __repr__(self) -> str:
        count, good = len(self.group), sum(self.accepts)
        head = f"GroupThresholds: {good} of {count} groups answer, "
        head += f"coverage {self.coverage:.4g}, risk {self.risk:.4g}"
        lines = [head]
        if self.delta is not None:
            lines.append(
                f"with probability {1.0 - self.delta:.4g} no group has a true "
                f"risk above {self.certified_risk:.4g}"
            )
        columns = "group", "samples", "threshold", "coverage", "risk"
        table = table_lines(columns, self[:5])
        for k, threshold in enumerate(self.threshold[:SHOWN], start=1):
            if threshold == np.inf:
                table[k] += f"  rejects everything: {self._reason(k - 1)}"
        return "\n".join([*lines, *table])

    def _reason(self, place: int) -> str:
        number = self.num_samples[place]
        if not number:
            return "no samples"
        if number < self.min_samples:
            return f"fewer than {self.min_samples} samples"
        if self.tested and not self.tested[place]:
            return "too few samples for a share of delta"
        return "too many errors for so many samples"


def choose_group_thresholds(
    scores: Any,
    correct: Any,
    groups: Any,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    delta: float | None = None,
    method: str = "ltt",
    sample_weight: Any = None,
) -> GroupThresholds:
    """One threshold for each group, with a promise for all groups at once.

    Use it to keep the risk within its limit in every group: regions, devices,
    customers. With `delta`,

    P(any group with a threshold has a true risk above `risk`) <= `delta`

    Groups share `delta`, and a group that is certified as a whole passes its
    share on to the others. With many groups, those that look safe at a
    coverage share less there. A group without a certified threshold rejects
    everything.

    Args:
        scores: Scores `(...)`, higher = surer; `(n,)` with `delta`.
        correct: 1 for right and 0 for wrong predictions, shape `(...)`.
        groups: Group of each sample: whole numbers in the range of int32, or
            names; of the shape of the scores, or `(n,)`.
        risk: Largest allowed share of errors among the accepted of a group.
        coverage: Least share of each group to accept, in (0, 1]; instead of
            `risk`.
        delta: Probability that the guarantee may fail for any group. It
            needs samples that are independent, within groups and between
            them. None bounds the risk on these samples only.
        method: With `delta`, `"ltt"` for Learn then Test, or `"sgr"`, with
            which certified groups pass nothing on.
        sample_weight: Weights >= 0, of the shape of the scores or `(n,)`;
            with `delta` 1, or 0 for samples to leave out.

    Returns:
        GroupThresholds.

    Raises:
        ValueError: If no group has a threshold that reaches the target, or
            values are out of range.
        TypeError: If groups are neither names nor numbers.

    Example:

    >>> groups = ["a", "a", "a", "b", "b"]
    >>> chosen = choose_group_thresholds(
    ...     [4, 3, 2, 4, 3], [1, 1, 0, 0, 0], groups, risk=0.0)
    >>> chosen.group, chosen.threshold
    (('a', 'b'), (2.5, inf))
    >>> chosen.coverage, chosen.risk
    (0.4, 0.0)

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; shares that pass on: Holm, A Simple
        Sequentially Rejective Multiple Test Procedure, Scandinavian Journal
        of Statistics 6, 1979, https://www.jstor.org/stable/4615733; counts of
        groups that may be bad: Guo, A Note on Adaptive Bonferroni and Holm
        Procedures under Dependence, Biometrika 96, 2009,
        https://doi.org/10.1093/biomet/asp048
    """
    target = Target(risk, coverage, delta, method).check()
    scores = as_array(scores, "scores")
    names, places = read_groups(groups, scores.shape, sample_weight)
    found = split_by_group(
        scores, correct, places, len(names), sample_weight, delta
    )
    return choose_of_groups(names, found, target)[0]


def split_by_group(
    scores: Any,
    correct: Any,
    places: np.ndarray,
    num_groups: int,
    sample_weight: Any,
    delta: float | None,
) -> list[Candidates | None]:
    """Candidate thresholds of each group; None if all its weights are 0."""
    # Checks everything at once, so that errors name the place in all data.
    records = read_records(scores, correct, sample_weight, delta)
    flat = places.reshape(-1)
    kept = np.flatnonzero(records[2] > 0)
    order = kept[np.argsort(flat[kept], kind="stable")]
    ends = np.searchsorted(flat[order], np.arange(1, num_groups))
    return [
        of_records(*(x[rows] for x in records)) if len(rows) else None
        for rows in np.split(order, ends)
    ]


def choose_of_groups(
    names: tuple, found: list[Candidates | None], target: Target
) -> tuple[GroupThresholds, list[np.ndarray]]:
    """Facts of the best thresholds, and which candidates are certified.

    Raises ValueError if no group has a threshold that reaches the target.
    """
    risk, delta = target.risk, target.delta
    some = [one for one in found if one is not None]
    fewest, certified = 0, [np.zeros(len(x.threshold), bool) for x in some]
    tested = np.zeros(len(some), bool)
    if risk is not None and delta is not None:
        certified, tested, fewest = certified_by_group(
            some, risk, delta, target.method
        )
    facts = GroupThresholds(names, *points_of(found, certified, target))
    if not any(facts.accepts):
        raise _none_within_reach(some, target, fewest)
    shares = iter(tested.tolist())
    if delta is not None and risk is not None:
        facts = facts._replace(
            **target.guarantee(),
            min_samples=fewest,
            tested=tuple(one is not None and next(shares) for one in found),
        )
    return facts, certified


def _none_within_reach(
    found: list[Candidates], target: Target, fewest: int
) -> ValueError:
    if target.delta is None or target.risk is None:
        best = min(float(one.risk.min()) for one in found)
        return value_error(
            "`risk` is below that of every threshold of every group: ask for a "
            "higher one",
            risk=target.risk,
            **{"lowest risk": best},
        )
    sizes = [one.num_samples for one in found]
    rule = "No group has a threshold that is certified to have this `risk`"
    if max(sizes) < fewest:
        rule += f", which takes {fewest} samples even if all are correct"
    alone = first_rank(target.risk, target.delta)
    return value_error(
        f"{rule}: take more data or fewer groups, or ask for a larger `risk` "
        f"or `delta`; one group alone needs {alone} "
        "samples without an error",
        risk=target.risk,
        delta=target.delta,
        groups=len(found),
        largest=max(sizes),
    )
