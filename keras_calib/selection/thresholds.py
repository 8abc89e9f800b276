"""Thresholds on a score, for a target risk or coverage.

Derivation: docs/derivations.md, 'Families of claims'.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack, cast

import numpy as np
from scipy.special import rel_entr

from keras_calib.backend.errors import value_error
from keras_calib.formulas.bounded_means import TESTS, first_rank_by_betting
from keras_calib.formulas.risk_coverage import within_risk
from keras_calib.inputs.checks import check_above, check_in, check_share
from keras_calib.inputs.options import explaining, filled
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.selection.choice import (
    Choice,
    choose,
    chosen_alone,
    chosen_each,
    out_of_reach,
    rounded_up,
)
from keras_calib.selection.claims import first_rank, means
from keras_calib.selection.costs import CostTarget, RecordCosts
from keras_calib.selection.families import (
    Certified,
    alone,
    dependent,
    each,
    errors_alone,
    separate,
)
from keras_calib.selection.ladder import (
    Ladder,
    by_group,
    in_log_odds,
    of_scores,
    of_units,
    ranked_losses,
    read_outcomes,
)

# Largest foreseeable number of samples, as a multiple of those there are.
_FURTHER = 20


class ErrorTarget(NamedTuple):
    """Target of a threshold: risk or coverage, with or without guarantee.

    `method` is a test of a mean where rows are wrong by a share; None where
    they are right or wrong.
    """

    risk: float | None
    coverage: float | None
    delta: float | None
    method: str | None = None

    def check(self) -> "ErrorTarget":
        """Returns self; raises ValueError for values that are not allowed."""
        if (self.risk is None) == (self.coverage is None):
            raise value_error(
                "One of `risk` and `coverage` must be given",
                risk=self.risk,
                coverage=self.coverage,
            )
        if self.coverage is not None:
            check_share("coverage", self.coverage, positive=True)
        else:
            check_share("risk", self.risk)
        if self.delta is not None:
            check_above("delta", self.delta, 0.0)
            if self.risk:
                check_above("risk", self.risk, 0.0)
            inside = self.risk is not None and 0.0 < self.risk < 1.0
            if not (inside and self.delta < 1.0):
                raise value_error(
                    "`delta` must be < 1 and needs a `risk` in (0, 1)",
                    delta=self.delta,
                    risk=self.risk,
                )
        if self.method is not None:
            check_in("method", self.method, TESTS)
        return self

    @property
    def promise(self) -> tuple[float, float] | None:
        """Risk and delta of a guarantee; None without one."""
        if self.risk is None or self.delta is None:
            return None
        return float(self.risk), float(self.delta)

    def facts(self) -> dict[str, Any]:
        """What a choice says of the guarantee; empty without one."""
        if self.promise is None:
            return {}
        limit, delta = self.promise
        return {"limit": limit, "delta": delta, "method": self.method or "ltt"}

    def choose(self, outcomes: Outcomes, log_odds: bool = False) -> Choice:
        """The best threshold, or that of each group.

        `log_odds` is True if scores are log-odds of the confidence. Raises
        ValueError if no threshold reaches the target.
        """
        if outcomes.names:
            return self.choose_each(outcomes.names, by_group(outcomes))
        ladder = of_scores(outcomes)
        promise = self.promise
        if promise is None:
            none = np.zeros(len(ladder.threshold), bool)
            place = self._best(ladder, none)
            if place is None:
                risk = cast(float, self.risk)
                raise out_of_reach([ladder], "risk", risk, None)
            return chosen_alone(ladder, none, place, log_odds)
        limit, delta = promise

        def certified_at(risk: float) -> np.ndarray:
            if self.method is None:
                return errors_alone(ladder, risk, delta)
            losses = ranked_losses(outcomes)
            claim = means(ladder, losses, risk, delta, self.method)
            return alone(claim, len(ladder.threshold))

        return choose(
            ladder,
            certified_at,
            limit,
            delta,
            log_odds=log_odds,
            refusal=lambda: _refusal(ladder, limit, delta, self.method),
            method=self.method or "ltt",
        )

    def choose_each(
        self,
        names: Sequence,
        ladders: Sequence[Ladder | None],
        kind: str = "groups",
        at_once: bool = True,
    ) -> Choice:
        """The best threshold of each group, or of each label.

        With `at_once` delta is for all of them. Groups are independent, and
        labels depend on each other. Raises ValueError if none reaches the
        target.
        """
        present = [k for k, one in enumerate(ladders) if one is not None]
        some = [one for one in ladders if one is not None]
        if self.promise is None:
            none = [np.zeros(len(one.threshold), bool) for one in some]
            found = Certified(none, np.zeros(len(some), bool), 0)
        elif kind == "groups":
            found = each(some, *self.promise)
        else:
            found = (dependent if at_once else separate)(some, *self.promise)
        masks: list[Any] = [None] * len(ladders)
        places: list[int | None] = [None] * len(ladders)
        for k, ladder, mask in zip(present, some, found.masks, strict=True):
            masks[k], places[k] = mask, self._best(ladder, mask, True)
        if all(place is None for place in places):
            raise self._none_reached(some, kind, found.fewest)
        facts: dict[str, Any] = {"at_once": at_once}
        if kind == "groups":
            tested = {present[i] for i in np.flatnonzero(found.tested)}
            facts = {"min_count": found.fewest, "tested": ()}
            if self.promise is not None:
                facts["tested"] = tuple(k in tested for k in range(len(names)))
        facts = {"kind": kind, "facts": facts, **self.facts()}
        return chosen_each(names, ladders, masks, places, **facts)

    def _best(
        self, ladder: Ladder, certified: np.ndarray, lenient: bool = False
    ) -> int | None:
        """Place of the best threshold; None if none reaches the target.

        `lenient` takes None also where a coverage is out of reach.
        """
        if self.promise is not None:
            reached = certified
        elif self.risk is not None:
            reached = within_risk(ladder.loss, ladder.accepted, self.risk)
        else:
            coverage = cast(float, self.coverage)
            if lenient and ladder.coverage[-1] < coverage - 1e-12:
                return None
            reached = ladder.covering(coverage)
        if not reached.any():
            return None
        # The most coverage of a risk, and the least risk of a coverage.
        return int(np.flatnonzero(reached)[0 if self.risk is None else -1])

    def _none_reached(
        self, ladders: Sequence[Ladder], kind: str, fewest: int
    ) -> ValueError:
        noun = kind.removesuffix("s")
        count: dict[str, Any] = {kind: len(ladders)}
        if self.promise is None:
            risk = cast(float, self.risk)
            return out_of_reach(ladders, "risk", risk, None, noun=noun, **count)
        largest, where = max(one.size for one in ladders), ""
        if largest < fewest:
            where = f", which takes {fewest} samples even if all are correct"
        alone = first_rank(*self.promise)
        return out_of_reach(
            ladders,
            "risk",
            *self.promise,
            noun=noun,
            where=where,
            advice=(
                f"take more data or fewer {kind}, or ask for a larger `risk` "
                f"or `delta`; one {noun} alone needs {alone} samples without "
                "an error"
            ),
            largest=largest,
            **count,
        )


@explaining(RecordCosts)
def choose_threshold(
    scores: Any,
    correct: Any = None,
    groups: Any = None,
    *,
    risk: float | None = None,
    coverage: float | None = None,
    delta: float | None = None,
    sample_weight: Any = None,
    units: Any = None,
    **costs: Unpack[RecordCosts],
) -> Choice:
    """The threshold with the largest coverage at a risk, or the reverse.

    Use it to abstain on units of your own: whole images, documents, patients.
    Samples with equal scores are accepted together. With `delta`,

    P(a threshold is returned and its true risk exceeds `risk`) <= `delta`

    With `groups`, such as regions, devices or customers, each has a threshold,
    and the promise is for all groups at once:

    P(any group with a threshold has a true risk above `risk`) <= `delta`

    Groups share `delta`, and a group that is certified as a whole passes its
    share on to the others. With many groups, those that look safe at a
    coverage share less there. A group without a certified threshold rejects
    everything.

    With `units`, such as images, each is accepted as a whole. Its score is the
    mean score of its rows, its loss their share of errors or mean cost, and the
    risk is the mean loss of the accepted units. Mean losses are tested by
    betting, and errors by binomial tests.

    Args:
        scores: Scores `(...)`, higher = surer; `(n,)` with `delta` or as units
            have them. Infinite ones are never accepted. Or `Predictions`, which
            know correctness and weights too: their score is the confidence, or
            of logits without `units` its log-odds.
        correct: 1 for right and 0 for wrong predictions, shape `(...)`. None
            with `Predictions` or `cost`.
        groups: Group of each sample: whole numbers in the range of int32, or
            names; of the shape of the scores, or `(n,)`. Or the name of a
            group of the `Predictions`. None for one threshold of all, as with
            `cost` and `units`.
        risk: Largest allowed share of errors among the accepted, of a group;
            or their mean cost.
        coverage: Least share to accept, of each group, in (0, 1]; instead of
            `risk`.
        delta: Probability that the guarantee may fail. It needs independent
            samples, within groups and between them, that chose nothing else.
            None bounds the risk on these samples only.
        sample_weight: Weights >= 0, of the shape of the scores or `(n,)`;
            with `delta` 1, or 0 for samples to leave out. In units any.
        units: Unit of each row, names or whole numbers `(n,)` or `(...)`. True
            takes those of the `Predictions` or else the first axis, such as
            images of pixels. None takes each row alone.
        **costs: What answers cost, instead of `correct`:

    Returns:
        A `Choice`, with a row for each group. With `max_cost` or `reject_cost`
        its `risk` is the share of the accepted that cost more than 0.

    Raises:
        ValueError: If no threshold reaches the target, or values are out of
            range.
        TypeError: If groups are neither names nor numbers.

    Example:

    >>> chosen = choose_threshold([4, 3, 2, 1], [1, 1, 0, 1], risk=0.25)
    >>> chosen.coverage, chosen.risk
    (1.0, 0.25)

    >>> groups = ["a", "a", "a", "b", "b"]
    >>> chosen = choose_threshold(
    ...     [4, 3, 2, 4, 3], [1, 1, 0, 0, 0], groups, risk=0.0)
    >>> chosen.group, chosen.threshold
    (('a', 'b'), (2.5, inf))

    >>> images = [[0.9, 0.9], [0.8, 0.7], [0.6, 0.5]]
    >>> right = [[1, 1], [1, 0], [0, 0]]
    >>> chosen = choose_threshold(images, right, units=True, risk=0.25)
    >>> chosen.coverage, chosen.risk
    (0.6666666666666666, 0.25)

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500; guarantees:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052; means: Waudby-Smith and Ramdas,
        Estimating Means of Bounded Random Variables by Betting, Journal of the
        Royal Statistical Society B 86, 2024, https://arxiv.org/abs/2010.09686;
        shares that pass on: Holm, A Simple Sequentially Rejective Multiple
        Test Procedure, Scandinavian Journal of Statistics 6, 1979,
        https://www.jstor.org/stable/4615733; counts of
        groups that may be bad: Guo, A Note on Adaptive Bonferroni and Holm
        Procedures under Dependence, Biometrika 96, 2009,
        https://doi.org/10.1093/biomet/asp048
    """
    given = filled("choose_threshold", costs, RecordCosts)
    method, cost = given.method, given.cost
    prices = given.max_cost, given.reject_cost, given.largest_cost
    largest = 1.0 if given.largest_cost is None else given.largest_cost
    check_above("largest_cost", largest, 0.0)
    is_mean = cost is not None or units is not None
    is_priced = prices != (None,) * 3
    rule = None
    if not is_mean and (is_priced or method is not None):
        rule = "`cost` or `units` must be given with `method` and prices"
    elif is_mean and groups is not None:
        rule = "`groups` must be None with `cost` or `units`"
    elif cost is not None and correct is not None:
        rule = "`correct` must be None with `cost`, which takes its place"
    elif is_priced and risk is not None:
        rule = "`risk` must be None with prices, which `max_cost` limits"
    if rule is not None:
        raise value_error(rule, arguments=sorted(costs))
    target: ErrorTarget | CostTarget
    if is_priced:
        if (method, delta, given.max_cost, coverage) == (None,) * 4:
            method = "empirical"
        goal = given.max_cost, given.reject_cost, coverage, delta, method
        target = CostTarget(float(largest), False, *goal).check()
    else:
        method = TESTS[0] if is_mean and method is None else method
        target = ErrorTarget(risk, coverage, delta, method).check()
    if units is not None:
        return target.choose(
            of_units(scores, correct, cost, sample_weight, units, largest)
        )
    outcomes = read_outcomes(
        scores,
        correct if cost is None else cost,
        sample_weight,
        delta,
        groups=groups,
        largest_cost=None if cost is None else largest,
    )
    return target.choose(outcomes, in_log_odds(scores))


def _refusal(
    ladder: Ladder, limit: float, delta: float, method: str | None
) -> dict[str, Any]:
    """What the error for a risk out of reach says of the data to take."""
    data, where = "take more data", ""
    first_of = first_rank if method is None else first_rank_by_betting
    if (needed := first_of(limit, delta)) > ladder.size:
        where = f", which takes {needed} samples even if all are correct"
    more = _enough_samples(ladder, limit, delta)
    if method is None and more is not None:
        data += f", at least {more} samples like these"
        data += " (`plan` has how many make success likely)"
    return {"where": where, "advice": data}


def _enough_samples(ladder: Ladder, risk: float, delta: float) -> int | None:
    """About how many samples could certify the risk; None if too many.

    The estimate assumes the share of errors at each coverage found here, so
    that with so many at best half of the fits succeed. It uses the exponent of
    the binomial tail with half of `delta`, which a test at one coverage has.
    """
    # A few samples without an error do not prove a rate of 0.
    rate = (ladder.loss + 0.5) / (ladder.accepted + 1.0)
    rate = np.minimum(rate, risk)
    exponent = rel_entr(rate, risk)
    exponent += rel_entr(1.0 - rate, 1.0 - risk)
    per_sample = float((exponent * ladder.coverage).max())
    needed = math.log(2.0 / delta)
    if needed > per_sample * _FURTHER * ladder.size:
        return None
    count = rounded_up(max(needed / per_sample, ladder.size + 1.0))
    return math.ceil(count)
