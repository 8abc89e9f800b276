"""Choices: thresholds that were chosen on data, and what is promised."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.formulas.costs import CostEstimate, upper_bounds_of_means
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.results import Result, text_table
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.ladder import Ladder

# Delta of bounds without a guarantee.
_USUAL_DELTA = 0.05
# Rows of a table on each side of the chosen one.
_AROUND = 7
# What the groups of a choice are.
_NOUNS = {"labels": "label", "classes": "class"}


class ThresholdTable(Result):
    """Coverage and risk of each threshold `(num_thresholds,)`, strictest first.

    With costs, mean costs of the accepted take the place of risks.

    Attributes:
        threshold: Least score to accept, midway between two scores of the
            data; the last is -inf.
        coverage: Accepted share of the data.
        risk: Share of errors among the accepted data.
        upper_bound: Exact binomial upper bound of the true risk at level 1 -
            `delta` (0.95 without delta), valid for a row chosen in advance.
            NaN if weights differ from 1. For costs, by Hoeffding and Bentkus.
        certified: True where the target risk is certified: with probability
            1 - `delta`, all these rows have a true risk of at most the target.
        chosen: True for the row that was chosen, around which the table is
            printed.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray
    upper_bound: np.ndarray
    certified: np.ndarray
    chosen: np.ndarray

    def _shown(self) -> dict[str, Any]:
        row, count = int(np.argmax(self.chosen)), len(self.chosen)
        start = max(min(row - _AROUND, count - 2 * _AROUND - 1), 0)
        rows = slice(start, start + 2 * _AROUND + 1)
        columns = {k: x[rows] for k, x in self._columns().items()}
        columns["threshold"] = told_apart(columns["threshold"])
        mark = ["<- chosen" if x else "" for x in columns.pop("chosen")]
        return {**columns, "": mark}

    def _note(self) -> str:
        return f"`to_frame` has all {len(self.chosen):,} rows"


class Choice(Result):
    """Thresholds with their coverage, risk and guarantee.

    One threshold is a number. Thresholds of several groups, labels or classes
    are a tuple, with one row for each of `group`.

    Attributes:
        threshold: Least score to accept; -inf accepts everything, inf
            nothing, for a group where no threshold reaches the target. The
            default score of `SelectiveClassifier` is in log-odds,
            log(p / (1 - p)) of the confidence p.
        coverage: Accepted share of the data. With a target prior samples weigh
            as their class does there.
        risk: Share of errors among the accepted data, with the same weights.
            For boxes it is 1 - precision.
        num_samples: Number of samples, of examples or of images.
        limit: With probability 1 - `delta`, what the true risks do not
            exceed, or with costs the mean cost. None without a guarantee.
        delta: Probability that the guarantee fails, for any group; or None.
        method: The test of the guarantee, such as `"ltt"` for Learn then Test
            by exact binomial tests; with costs, how the threshold was chosen.
            None without either.
        kind: What chose it: `"scores"`, `"costs"`, `"groups"`, `"labels"`,
            `"mixtures"`, `"prior"`, `"limits"`, `"boxes"` or `"classes"`.
        confidence: The threshold as a confidence in [0, 1], if the score is in
            log-odds and there is one; otherwise None. Near 1 only `threshold`
            is exact.
        cost: With costs, what the decisions cost on the data, a `CostEstimate`.
        group: Names or numbers of the groups, in order; empty without groups.
        group_samples: Number of samples of each group.
        group_coverage: Accepted share of each group's data.
        group_risk: Share of errors among the accepted data of each group.
        facts: What only a kind has, by name. `"groups"` have `min_count`,
            the fewest that could certify a group, and `tested`, whether each
            had a share of `delta`; `"labels"` have `at_once`; `"mixtures"`
            have `worst_group`, `worst_risk` and `worst_coverage`. `"prior"`
            has `target_prior`, `num_tested`, `effective_samples`, which is
            (sum w)^2 / sum w^2, and `largest_weight`. `"limits"` have
            `limits` and `estimates` by name, and `p_values` of the rows of
            the table. `"boxes"` and `"classes"` have `precision`, `target`,
            `boxes_per_image`, `average` and `max_boxes`, with `recall` or
            `advice` for a class without a threshold.
        data_sha256: SHA-256 of the (score, correct) rows of the data in
            canonical order, set by a selector's fit with `delta`; else None.
        ranking_sha256: The same of counts alone, in order of the scores.
    """

    threshold: Any
    coverage: float
    risk: float
    num_samples: int
    limit: float | None = None
    delta: float | None = None
    method: str | None = None
    kind: str = "scores"
    confidence: float | None = None
    cost: CostEstimate | None = None
    group: tuple = ()
    group_samples: tuple = ()
    group_coverage: tuple = ()
    group_risk: tuple = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    data_sha256: str | None = None
    ranking_sha256: str | None = None
    # Ladders, which are certified, and the largest cost: not stored.
    tables: tuple = field(default=(), compare=False)
    # Scores, costs and correctness of a choice by costs: not stored.
    cost_rows: Any = field(default=None, compare=False)

    @property
    def accepts(self) -> tuple:
        """Whether each group has a threshold that accepts anything."""
        return tuple(bool(t < np.inf) for t in np.atleast_1d(self.threshold))

    @property
    def risk_limit(self) -> float | None:
        """The limit of the true risk; None with costs, which limit another."""
        return None if self.kind == "costs" else self.limit

    def table(self, group: Any = None) -> ThresholdTable:
        """Coverage and risk of each threshold, on the data that chose one.

        Args:
            group: Id or name of a group or label, after a choice of several.
        """
        if not self.tables:
            raise RuntimeError(
                invalid(
                    "`table` needs the data that chose the threshold, which "
                    "loaded layers and files do not keep",
                    choice=self,
                )
            )
        known: dict[Any, int] = {None: 0}
        if isinstance(self.threshold, tuple):
            known = {name: k for k, name in enumerate(self.group)}
        place = known.get(group, -1)
        if place < 0 or self.tables[place][0] is None:
            raise value_error(
                "`group` must name a group of the fit with data where each "
                "has a threshold, and else be None",
                group=group,
                groups=len(self.group),
            )
        ladder, certified, largest_cost = self.tables[place]
        if largest_cost is None and np.any(ladder.loss % 1.0):
            # Losses are shares.
            largest_cost = 1.0
        bounds = np.full(len(ladder.threshold), np.nan)
        level = 1.0 - (_USUAL_DELTA if self.delta is None else self.delta)
        if ladder.counts and largest_cost is not None:
            totals = ladder.loss / largest_cost
            bounds = largest_cost * upper_bounds_of_means(
                totals, ladder.accepted, level=level
            )
        elif ladder.counts:
            bounds = binomial_upper_bound(
                ladder.loss, ladder.accepted, level=level
            )
        return ThresholdTable(
            ladder.threshold,
            ladder.coverage,
            ladder.risk,
            bounds,
            certified,
            chosen=ladder.threshold == np.ravel(self.threshold)[place],
        )

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The choice of stored facts, whose tuples are lists."""
        given = _with_tuples(stored)
        given["facts"] = _with_tuples(stored.get("facts", {}))
        if given.get("cost") is not None:
            given["cost"] = CostEstimate(**given["cost"])
        return cls(**given)

    def __repr__(self) -> str:
        told = told_apart(np.ravel(self.threshold), tables=self.tables)
        head = f"Choice: threshold {told[0]}"
        if isinstance(self.threshold, tuple):
            good, noun = sum(self.accepts), _NOUNS.get(self.kind, "group")
            plural = f"{noun}es" if noun == "class" else f"{noun}s"
            head = f"Choice: {good} of {len(self.group)} {plural} answer"
        if self.confidence is not None:
            head += f" in log-odds (confidence {_told(self.confidence)})"
        head += f", coverage {self.coverage:.4g}, risk {self.risk:.4g}"
        lines = [head, *([self._note()] if self._note() else ())]
        if not self.group:
            lines[0] += f", {self.num_samples:,} samples"
            lines += [
                f"  {name} {_told(value)}"
                for name, value in self.facts.items()
                if isinstance(value, int | float | str)
            ]
        if self.cost is not None:
            lines.append(
                f"  mean cost of the accepted {self.cost.accepted:.4g}"
            )
        if self.group_samples:
            lines += ["  " + x for x in text_table(self._shown())]
        return "\n".join(lines)

    __str__ = __repr__

    def _facts(self) -> dict[str, Any]:
        names = "threshold", "confidence", "coverage", "risk", "num_samples"
        facts = {name: getattr(self, name) for name in names}
        return facts | {k: x for k, x in self.facts.items() if x is not None}

    def _note(self) -> str:
        if self.delta is None or self.limit is None:
            return ""
        what = "mean cost" if self.kind == "costs" else "risk"
        whose = {
            "groups": "no group has a",
            "labels": "no label has a",
            "classes": "no class has a",
            "mixtures": "no mixture of the groups has a",
        }.get(self.kind)
        if not self.facts.get("at_once", True):
            whose = "a label does not have a"
        text = f"with probability {1.0 - self.delta:.4g} "
        if whose:
            return f"{text}{whose} true {what} above {self.limit:.4g}"
        where = " at the target prior" if self.kind == "prior" else ""
        return f"{text}the true {what}{where} is at most {self.limit:.4g}"

    def _columns(self) -> dict[str, Any]:
        if not self.group_samples:
            return {}
        names = [str(x) for x in self.group]
        columns: dict[str, Any] = {_NOUNS.get(self.kind, "group"): names}
        columns["samples"] = self.group_samples
        if isinstance(self.threshold, tuple):
            columns["threshold"] = self.threshold
        return {
            **columns,
            "coverage": self.group_coverage,
            "risk": self.group_risk,
        }

    def _shown(self) -> dict[str, Any]:
        columns = self._columns()
        reasons = [
            "" if t < np.inf else f"rejects everything: {self._reason(k)}"
            for k, t in enumerate(columns.get("threshold", ()))
        ]
        if columns:
            columns["samples"] = [f"{x:,}" for x in self.group_samples]
        if reasons:
            told = told_apart(columns["threshold"], tables=self.tables)
            columns["threshold"] = told
        return {**columns, **({"": reasons} if any(reasons) else {})}

    def _reason(self, place: int) -> str:
        number, facts = self.group_samples[place], self.facts
        if facts.get("advice"):
            return facts["advice"][place]
        if not number:
            return "no samples"
        if number < facts.get("min_count", 0):
            return f"fewer than {facts['min_count']} samples"
        if facts.get("tested") and not facts["tested"][place]:
            return "too few samples for a share of delta"
        return "too many errors for so many samples"


def told_apart(
    values: Any, digits: int = 4, tables: Sequence[tuple] = ()
) -> list[str]:
    """Thresholds as texts of few digits, which differ as the thresholds do.

    Those with a ladder in `tables` accept the same data, too.
    """
    scores = [getattr(x, "score", None) for x, *_ in tables[: len(values)]]
    known = [(k, x[::-1]) for k, x in enumerate(scores) if x is not None]
    for count in range(digits, 18):
        texts = [f"{x:.{count}g}" for x in values]
        both = np.stack([values, np.array(texts, float)], axis=-1)
        same = (x.searchsorted(both[k].astype(x.dtype)) for k, x in known)
        if len({*texts}) == len({*values}) and not any(map(np.ptp, same)):
            break
    return texts


def _told(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _with_tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {
        k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()
    }


def choose(
    ladder: Ladder,
    certified_at: Callable[[float], np.ndarray],
    limit: float,
    delta: float,
    *,
    log_odds: bool = False,
    refusal: Callable[[], dict[str, Any]] = dict,
    **facts: Any,
) -> Choice:
    """The choice of the most lenient threshold that is certified at a risk.

    `certified_at` says for any risk which are. Where none is, it raises a
    ValueError that names a risk within reach. `refusal` has what else the error
    says: arguments of `out_of_reach`, and `here`, what data a coverage is of.
    """
    certified = certified_at(limit)
    if certified.any():
        place = int(np.flatnonzero(certified)[-1])
        facts |= {"limit": limit, "delta": delta}
        return chosen_alone(ladder, certified, place, log_odds, **facts)
    told = {"advice": "take more data", "samples": ladder.size, **refusal()}
    here = told.pop("here", "here")
    instead = within_reach(certified_at, ladder, limit, where=here)
    told["advice"] += f"; or {instead}"
    raise out_of_reach([ladder], "risk", limit, delta, **told)


def chosen_alone(
    ladder: Ladder,
    certified: np.ndarray,
    place: int,
    log_odds: bool = False,
    **facts: Any,
) -> Choice:
    """The choice of one threshold of a ladder.

    `log_odds` is True if scores are log-odds of the confidence.
    """
    threshold, coverage, risk = ladder.at(place)
    found = Choice(threshold, coverage, risk, ladder.size, **facts)
    cut = float(sigmoid(np.float64(threshold))) if log_odds else None
    tables = ((ladder, certified, None),)
    return replace(found, confidence=cut, tables=tables)


def chosen_each(
    names: Sequence,
    ladders: Sequence[Ladder | None],
    certified: Sequence[np.ndarray | None],
    places: Sequence[int | None],
    **facts: Any,
) -> Choice:
    """The choice of a threshold for each of several ladders.

    It is inf where no place is given, and for None, which has no samples.
    """
    rows: list[tuple] = []
    accepted = lost = total = 0.0
    for ladder, place in zip(ladders, places, strict=True):
        size = 0 if ladder is None else ladder.size
        total += 0.0 if ladder is None else ladder.total
        if ladder is None or place is None:
            rows.append((np.inf, 0.0, 0.0, size))
            continue
        accepted += float(ladder.accepted[place])
        lost += float(ladder.loss[place])
        rows.append((*ladder.at(place), size))
    threshold, coverage, risk, sizes = zip(*rows, strict=True)
    return Choice(
        threshold,
        accepted / total,
        float(safe_divide(np.float64(lost), np.float64(accepted))),
        sum(sizes),
        group=tuple(names),
        group_samples=sizes,
        group_coverage=coverage,
        group_risk=risk,
        tables=tuple(
            (ladder, mask, None)
            for ladder, mask in zip(ladders, certified, strict=True)
        ),
        **facts,
    )


def out_of_reach(
    ladders: Sequence[Ladder],
    argument: str,
    limit: float,
    delta: float | None,
    *,
    noun: str | None = None,
    where: str = "",
    advice: str = "",
    **facts: Any,
) -> ValueError:
    """The one error for a limit that no threshold keeps.

    `argument` is the name of the argument that has the limit, and `noun` what
    there are several of, such as `"group"`. `where` follows the rule, and
    `advice` says what to do where nothing is certified.
    """
    if delta is None:
        best = min(ladders, key=lambda one: float(one.risk.min()))
        place = int(np.argmin(best.risk))
        of = f" of every {noun}" if noun else " on these data"
        told = {f"lowest {argument.replace('_', ' ')}": float(best.risk[place])}
        if noun is None:
            told["at coverage"] = float(best.coverage[place])
        return value_error(
            f"`{argument}` is below that of every threshold{of}: ask for a "
            "higher one",
            **{argument: limit},
            **facts,
            **told,
        )
    whose = f"No {noun} has a threshold that" if noun else "No threshold"
    rule = f"{whose} is certified to have this `{argument}`{where}: {advice}"
    return value_error(rule, **{argument: limit}, delta=delta, **facts)


def within_reach(
    certified_at: Callable[[float], np.ndarray],
    ladder: Ladder,
    limit: float,
    argument: str = "risk",
    below: float = 1.0,
    where: str = "here",
) -> str:
    """What to ask for in place of a limit out of reach.

    `certified_at` is as in `choose`, limits lie below `below`, and `where` says
    what data the coverage is of.
    """
    # Numbers of two digits between the two.
    ends = math.floor(math.log10(limit)) - 1, math.floor(math.log10(below))
    limits = [
        value
        for exponent in range(ends[0], ends[1] + 1)
        for digits in range(10, 100)
        if limit < (value := float(f"{digits}e{exponent}")) < below
    ]
    low, high, place = 0, len(limits), -1
    while low < high:
        middle = (low + high) // 2
        places = np.flatnonzero(certified_at(limits[middle]))
        if len(places):
            high, place = middle, int(places[-1])
        else:
            low = middle + 1
    if place < 0:
        return f"a larger `{argument}` or `delta`"
    what = "risk" if argument == "risk" else "limit"
    return (
        f"ask for `{argument}={limits[high]:g}`, with which coverage would be "
        f"{ladder.coverage[place]:.3f} {where} (a {what} that these data chose "
        "is guaranteed on other data only)"
    )


def rounded_up(value: float) -> float:
    """At most two digits, not below the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    # A number of two digits stays.
    return round(math.ceil(round(value / unit, 9)) * unit, 12)
