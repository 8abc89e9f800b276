"""Metrics by group: do people, sites or devices differ?

Groups are read as names and codes, from arrays of any kind.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.bootstrap import rank_interval
from keras_calib.formulas.group_sums import Estimates, GroupedSums
from keras_calib.formulas.intervals import Moments, mean_interval, tail_of
from keras_calib.formulas.proper import (
    brier_losses_of_rows,
    log_losses,
    loss_interval,
    losses_of_rows,
)
from keras_calib.formulas.risk_coverage import (
    RankedGroups,
    augrc_of_groups,
    aurc_of_groups,
    failure_auroc_of_groups,
)
from keras_calib.formulas.units import effective_count, group_of, sums_by_unit
from keras_calib.functional.group_table import (
    SUMMED,
    GroupMetrics,
    group_metrics,
)
from keras_calib.functional.hypothesis_tests import (
    check_test,
    records_test,
    votes_of,
)
from keras_calib.functional.ranking import rank
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_flag, check_integer
from keras_calib.inputs.given_metrics import key_of
from keras_calib.inputs.groups import joined_names, read_groups
from keras_calib.inputs.options import ArrayOptions, GivenTogether, is_log
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.top_label import (
    has_shares,
    lead_of,
    top_label,
    top_of_arrays,
    units_of,
)
from keras_calib.inputs.weights import are_binary
from keras_calib.numerics.arrays import as_array

_RANKS: dict[str, tuple[Callable[[RankedGroups], Any], bool]] = {
    "aurc": (aurc_of_groups, False),
    "augrc": (augrc_of_groups, False),
    "failure_auroc": (failure_auroc_of_groups, True),
}
_LOSSES = ("brier_score", "nll")
_TOP1 = (*SUMMED, "mean_confidence", *_RANKS)
_DEFAULT = ("accuracy", "mean_confidence", "confidence_gap", "ece")
# The exact test of the number of correct predictions.
_COUNT = "count"


class Grouping(NamedTuple):
    """Names of groups in order, and the place of each sample in them."""

    names: list[str]
    code: np.ndarray

    def part(self, rows: slice, lead: tuple[int, ...]) -> "Grouping":
        """Those of some rows of predictions `lead`."""
        code = self.code.reshape(lead)[rows].reshape(-1)
        return Grouping(self.names, code)


def by_group(
    labels: Any,
    outputs: Any = None,
    *,
    groups: Any = None,
    metrics: Sequence[str] | None = None,
    statistic: str | None = _COUNT,
    intersections: bool | int = False,
    min_count: int = 30,
    level: float = 0.95,
    simultaneous: bool = False,
    accept: Any = None,
    num_bins: int = 15,
    num_draws: int = 1000,
    seed: int = 0,
    **options: Unpack[ArrayOptions],
) -> GroupMetrics:
    """Metrics of each group of samples, with intervals and tests.

    Use it to see whether a model serves some people, sites or devices worse
    than others. Groups differ by chance too, and the intervals and adjusted
    p-values say by how much.

    - `p_value` tests calibration in the group. `p_holm` adjusts it for the
      number of groups: reject below 5 %, and any false alarm has a probability
      of at most 5 %. `p_bh` (Benjamini and Hochberg) bounds the share of false
      alarms among the alarms.
    - `largest` has the largest difference of a mean between two groups of one
      attribute. Its interval covers with probability `level` for all pairs and
      attributes of a metric at once: max_ij |m_i - m_j|.
    - Rows of one unit depend on each other, as pixels of an image do, and what
      `Predictions` have as `units`. Intervals and tests are then those of the
      units: Student's for means, and for others those of as many independent
      predictions as have the variance between units.
    - A group of fewer than `min_count` predictions says "too few": it has no
      number, no test, and no part in the largest difference. Where rows belong
      to units, so many independent predictions must tell as much.

    Args:
        labels, outputs: Labels `(n, ...)`, predictions `(n, ..., num_classes)`.
        groups: Names or whole numbers, none missing, `(n,)` or of the shape of
            the class ids; or a dict of these by the name of the attribute. None
            takes those of the `Predictions`.
        metrics: Names out of `"accuracy"`, `"mean_confidence"`,
            `"confidence_gap"` (mean confidence less accuracy), `"ece"`,
            `"mce"`, `"rmsce"`, `"brier_score"`, `"nll"`, `"aurc"`, `"augrc"`
            and `"failure_auroc"`, or functions or classes of these names. The
            last three are slow for many groups: their intervals are
            bootstraps. None takes accuracy, confidence, their gap, the ECE,
            and the Brier score and NLL, which logs of confidence and
            correctness do not have.
        statistic: Test of calibration: `"count"` for the test of the number of
            correct predictions, exact but for confidences that are averaged in
            cells; a `statistic` of `calibration_test`; or None. Values from
            draws, as of `"ece"`, have p-values of at least
            1 / (1 + num_draws), too large for many groups.
        intersections: Whether to add the groups of several attributes
            together, or of how many at most.
        min_count: Least number of predictions of a group, at least 1.
        level: Probability that each interval covers, in (0, 1).
        simultaneous: Whether all intervals of a metric cover at once
            (Bonferroni).
        accept: Whether each prediction was accepted, as the `"accept"` of a
            `SelectiveClassifier`. It adds `coverage`, `risk` (wrong among
            accepted), and p-values of a higher risk than in the other groups
            of the attribute (Fisher's exact test).
        num_bins: Number of bins of calibration errors and of the tests.
        num_draws, seed: Draws, as in `calibration_test`.
        **options: As in `ece`. Weights other than 0 and 1 need
            `statistic=None`.

    Returns:
        `GroupMetrics`: print it, or take `table`, `rows` and `largest`.

    Example:

    >>> labels, probs = [0, 0, 0, 1] * 30, [[0.8, 0.2]] * 120
    >>> sites = ["A", "A", "B", "B"] * 30
    >>> sites = {"site": sites}
    >>> found = by_group(labels, probs, groups=sites, metrics=("accuracy",))
    >>> found.table["group"].tolist(), found.table["accuracy"].tolist()
    (['A', 'B'], [1.0, 0.5])
    >>> (found.table["p_holm"] < 0.01).tolist()
    [True, True]

    Reference:
        Holm, A Simple Sequentially Rejective Multiple Test Procedure,
        Scandinavian Journal of Statistics 1979; Benjamini and Hochberg,
        Controlling the False Discovery Rate, JRSS B 1995,
        https://doi.org/10.1111/j.2517-6161.1995.tb02031.x; Hebert-Johnson et
        al., Multicalibration, ICML 2018, https://arxiv.org/abs/1711.08513
        (groups and their intersections)
    """
    known, default = _TOP1, _DEFAULT
    if not is_log(labels):
        known, default = (*_TOP1, *_LOSSES), (*_DEFAULT, *_LOSSES)
    metrics = default if metrics is None else metrics
    metrics = _check(metrics, known, statistic, min_count, num_bins, num_draws)
    if groups is None:
        groups = _told_groups(labels)
    if is_log(labels):
        top, losses = top_label(labels, outputs, drop=False, **options), {}
    else:
        read = standardize_arrays(labels, outputs, drop=False, **options)
        top = top_of_arrays(read)
        losses = {
            "brier_score": partial(brier_losses_of_rows, read),
            "nll": partial(losses_of_rows, log_losses, read),
        }
    if top.weight is not None and are_binary(top.weight):
        # A mask is no weight.
        top = top._replace(weight=None, mask=top.counts)
    top = top._replace(unit=units_of(labels, outputs))
    lead = lead_of(labels, outputs)
    columns = _accepted(accept, lead)
    columns |= {k: losses[k]("float64") for k in _LOSSES if k in metrics}
    votes = None
    if statistic is not None:
        votes = votes_of(labels, options, len(top.correct))
    if votes is not None:
        columns["votes"] = votes
    return _table(
        top,
        columns,
        groupings(groups, lead, intersections),
        votes=has_shares(labels, options),
        metrics=metrics,
        statistic=statistic,
        min_count=min_count,
        level=level,
        simultaneous=simultaneous,
        num_bins=num_bins,
        draws={"num_draws": num_draws, "seed": seed},
    )


def _told_groups(labels: Any) -> Any:
    """The groups of `Predictions`, of which there must be some."""
    found = getattr(labels, "groups", None)
    if not (isinstance(labels, GivenTogether) and found):
        raise type_error(
            "`groups` must be given: names or whole numbers of the rows, here "
            "or to `Predictions`",
            groups=None,
        )
    return found


def _check(
    metrics: Any,
    known: tuple[str, ...],
    statistic: Any,
    min_count: Any,
    num_bins: Any,
    num_draws: Any,
) -> tuple[str, ...]:
    several = isinstance(metrics, Sequence) and not isinstance(metrics, str)
    metrics = metrics if several else (metrics,)
    metrics = tuple(key_of("metrics", x, known) for x in metrics)
    check_integer("min_count", min_count, 1)
    name = "chi2" if statistic in (_COUNT, None) else statistic
    check_test(name, num_bins, num_draws)
    return metrics


def _accepted(accept: Any, lead: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The column of what was accepted, if that is known."""
    if accept is None:
        return {}
    accept = as_array(accept, "accept")
    if accept.shape != lead or not np.isin(accept, (0, 1)).all():
        raise value_error(
            "`accept` must be True or False for each prediction",
            **{"accept.shape": accept.shape, "labels.shape": lead},
        )
    return {"accept": accept.reshape(-1).astype(bool)}


def _table(
    top: Outcomes,
    columns: dict[str, np.ndarray],
    grouped: dict[str, Grouping],
    *,
    votes: bool,
    statistic: str | None,
    num_bins: int,
    draws: dict[str, int],
    **shown: Any,
) -> GroupMetrics:
    """The table of outcomes whose groups were read.

    `columns` `(n,)` are those of losses, numbers of `"votes"` and `"accept"`
    that there are. `shown` are the arguments of `group_metrics` of that name.
    """
    tail_of(shown["level"])
    check_flag("simultaneous", shown["simultaneous"])
    if statistic is not None and top.weight is not None:
        raise value_error(
            "`statistic` must be None with `sample_weight`: a test counts "
            "predictions, and weights change its null distribution",
            statistic=statistic,
        )
    weight = np.ones(len(top.correct)) if top.weight is None else top.weight
    if top.mask is not None:
        weight = weight * top.mask
    counts, sums = np.flatnonzero(weight > 0), {}
    # The groups of each attribute; None has all predictions as one.
    codes: dict[str | None, np.ndarray] = {None: np.zeros(len(counts), int)}
    top = top._replace(weight=weight).part(counts)
    columns = {name: x[counts] for name, x in columns.items()}
    accept = columns.get("accept")
    for name, (names, code) in grouped.items():
        sums[name] = GroupedSums(num_bins, votes)
        codes[name] = sums[name].add(
            names,
            code[counts],
            top.confidence,
            top.correct,
            top.weight,
            accept,
            top.unit,
        )
    slices = _Slices(top, columns, codes)
    p_values = None
    if statistic == _COUNT and not votes:
        p_values = [x.count_p_values() for x in sums.values()]
    elif statistic is not None:
        bins = 1 if statistic == _COUNT else num_bins
        name = "chi2" if statistic == _COUNT else statistic
        p_values = [
            slices.p_values(x, shown["min_count"], name, bins, draws)
            for x in sums
        ]
    more: dict[str, Callable] = {"mean_confidence": slices.mean_confidence}
    more |= {name: partial(slices.loss, name) for name in _LOSSES}
    more |= {name: partial(slices.ranking, name) for name in _RANKS}
    return group_metrics(
        sums,
        more,
        None if p_values is None else np.concatenate(p_values),
        **shown,
        accepts=accept is not None,
    )


class _Slices:
    """What needs the predictions of a group and not only their sums."""

    def __init__(
        self,
        top: Outcomes,
        columns: dict[str, np.ndarray],
        codes: dict[str | None, np.ndarray],
    ):
        self._top, self._columns, self._codes = top, columns, codes
        self._places: dict[str | None, list[np.ndarray]] = {}

    def parts(self, attribute: str | None, places: Any) -> list[np.ndarray]:
        """Where the predictions of each group are."""
        if attribute not in self._places:
            code = self._codes[attribute]
            order = np.argsort(code, kind="stable")
            ends = np.cumsum(np.bincount(code))[:-1]
            self._places[attribute] = np.split(order, ends)
        parts = self._places[attribute]
        return [parts[k] for k in places]

    def p_values(
        self,
        attribute: str,
        min_count: int,
        statistic: str,
        num_bins: int,
        draws: dict[str, int],
    ) -> np.ndarray:
        """P-values of the test of each group that is large enough."""
        size = np.bincount(self._codes[attribute])
        found = np.full(len(size), np.nan)
        places = np.flatnonzero(size >= min_count)
        parts = self.parts(attribute, places)
        votes = self._columns.get("votes")
        for place, own in zip(places, parts, strict=True):
            top, of_own = self._top.part(own), None
            if votes is not None:
                of_own = votes[own]
            test = records_test(top, of_own, statistic, num_bins, **draws)
            found[place] = test.p_value
        return found

    def mean_confidence(
        self, attribute: str | None, places: Any, level: float
    ) -> Estimates:
        """Mean confidence of each group."""
        values = self._top.confidence.astype("float64")
        moments = self._moments(values, attribute, places)
        unseen = (0.0, 1.0) if self._top.unit is None else (None, None)
        low, high = mean_interval(moments, level=level, unseen=unseen)
        low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
        return Estimates(moments.mean, low, high)

    def ranking(
        self, name: str, attribute: str | None, places: Any, level: float
    ) -> Estimates:
        """A metric of `_RANKS` of each group."""
        formula, needs_both = _RANKS[name]

        def value(groups: RankedGroups) -> float:
            return float(formula(groups))

        rows = []
        for own in self.parts(attribute, places):
            part = self._top.part(own)
            ranks, weight = rank(part), part.weight
            ratio = float(np.sum(weight**2) / np.sum(weight))
            if part.unit is not None:
                ratio = ratio * _design_effect(part)
            ends = rank_interval(
                value,
                ranks,
                needs_both=needs_both,
                weight_ratio=ratio,
                level=level,
            )
            rows.append([value(ranks), *ends])
        return Estimates(*np.reshape(rows, (-1, 3)).T)

    def loss(
        self, name: str, attribute: str | None, places: Any, level: float
    ) -> Estimates:
        """Mean loss of each group, `"brier_score"` or `"nll"`."""
        losses = self._columns[name]
        largest = 2.0 if name == "brier_score" else None
        finite = np.isfinite(losses)
        moments = self._moments(np.where(finite, losses, 0), attribute, places)
        wrong = self._moments(self._top.loss, attribute, places)
        errors = wrong.mean * wrong.weight**2 / wrong.squared_weight
        low, high = loss_interval(moments, errors, level=level, largest=largest)
        if self._top.unit is not None:
            low, high = mean_interval(moments, level=level)
            low, high = np.clip([low, high], 0.0, largest)
        # A probability of 0 of the label has an infinite loss.
        lost = self._moments(1.0 * ~finite, attribute, places).total > 0
        mean = np.where(lost, np.inf, moments.mean)
        low, high = np.where(lost, 0.0, low), np.where(lost, np.inf, high)
        return Estimates(mean, low, high)

    def _moments(
        self, values: np.ndarray, attribute: str | None, places: Any
    ) -> Moments:
        """Moments of values of the predictions of each group."""
        code, weight = self._codes[attribute], self._top.weight
        size = int(code.max()) + 1
        if (unit := self._top.unit) is not None:
            # The means of the units of each group in place of the rows.
            num = int(unit.max()) + 1
            keys, own = np.unique(code * num + unit, return_inverse=True)
            total = np.bincount(own, weight * values)
            weight = np.bincount(own, weight)
            code, values = keys // num, total / weight
        return Moments.of(
            values,
            weight,
            lambda terms: np.bincount(code, terms, minlength=size)[places],
        )


def _design_effect(top: Outcomes) -> float:
    """Variance of the risk between units over that between rows."""
    weight, share = top.weight, np.average(top.loss, weights=top.weight)
    count = np.array([weight.sum() ** 2 / np.sum(weight**2)])
    group = group_of(top.unit)
    none = np.zeros(len(group), int)
    loss, size = sums_by_unit(group, none, 1, weight * top.loss, weight)
    alone = np.array([share * (1.0 - share)])
    own = effective_count(alone, loss, size, count)
    return float(count[0] / own[0])


def groupings(
    groups: Any, lead: tuple[int, ...], intersections: bool | int = False
) -> dict[str, Grouping]:
    """Groups by the name of their attribute, of predictions `(prod(lead),)`.

    `intersections` adds those of several attributes, at most so many.
    """
    several = isinstance(groups, Mapping)
    given = dict(groups) if several else {"group": groups}
    if not given:
        raise value_error("`groups` must have an attribute", groups=groups)
    if len({*map(str, given)}) < len(given):
        raise value_error(
            "`groups` must name its attributes differently", names=[*given]
        )
    found = {
        str(name): grouping(
            x, lead, f"groups[{name!r}]" if several else "groups"
        )
        for name, x in given.items()
    }
    most = len(found) if intersections is True else intersections
    if intersections is False:
        return found
    check_integer("intersections", most, 1)
    for order in range(2, most + 1):
        for names in itertools.combinations(list(given), order):
            parts = [found[str(name)] for name in names]
            found[" & ".join(map(str, names))] = _crossed(parts)
    return found


def grouping(groups: Any, lead: tuple[int, ...], name: str) -> Grouping:
    """Names and codes of the groups of one attribute."""
    known, places = read_groups(groups, lead, name)
    return Grouping([str(x) for x in known], places.reshape(-1))


def _crossed(parts: list[Grouping]) -> Grouping:
    """Groups of several attributes together, those that occur."""
    code, size = parts[0].code, len(parts[0].names)
    for part in parts[1:]:
        size *= len(part.names)
        code = code * len(part.names) + part.code
    known, code = np.unique(code, return_inverse=True)
    rows = []
    for place in known.tolist():
        own: list[str] = []
        for part in reversed(parts):
            place, k = divmod(place, len(part.names))
            own.insert(0, part.names[k])
        rows.append(tuple(own))
    return Grouping(joined_names(rows), code.reshape(-1))
