"""Thresholds on the expected cost of an answer."""

import math
from typing import Any, NamedTuple, TypedDict

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.costs import check_reject_cost, mean_cost_of_decisions
from keras_calib.formulas.risk_coverage import within_risk
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_in,
    check_share,
)
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import safe_divide
from keras_calib.selection.choice import Choice, out_of_reach, within_reach
from keras_calib.selection.claims import means
from keras_calib.selection.families import alone, errors_alone
from keras_calib.selection.ladder import Ladder, of_scores, ranked_losses

COST_TESTS = "betting", "hoeffding_bentkus", "binomial"
_PRICES = "chow", "empirical"


class CostTarget(NamedTuple):
    """Target of a threshold on the expected cost.

    `largest` is the largest cost of an answer, and `has_one_cost` True if all
    others are 0.
    """

    largest: float
    has_one_cost: bool
    max_cost: float | None
    reject_cost: float | None
    coverage: float | None
    delta: float | None
    method: str | None

    def check(self) -> "CostTarget":
        """Returns self; raises ValueError for values that are not allowed."""
        if self.reject_cost is not None:
            check_reject_cost(self.reject_cost)
        if self.max_cost is not None:
            check_at_least("max_cost", self.max_cost, 0.0)
        if self.coverage is not None:
            check_share("coverage", self.coverage, positive=True)
        given = self.max_cost, self.reject_cost, self.coverage
        if given == (None, None, None):
            raise value_error(
                "`reject_cost` must be given with `costs`: the price of "
                "asking a human; or `max_cost` or `coverage`",
                reject_cost=None,
            )
        if self.coverage is not None and self.max_cost is not None:
            raise value_error(
                "Only one of `max_cost` and `coverage` can be given",
                max_cost=self.max_cost,
                coverage=self.coverage,
            )
        self._check_delta()
        return self

    def _check_delta(self) -> None:
        if self.delta is not None:
            check_above("delta", self.delta, 0.0)
            limit = self.max_cost
            inside = limit is not None and 0.0 < limit < self.largest
            if not (inside and self.delta < 1.0):
                raise value_error(
                    "`delta` must be < 1 and needs a `max_cost` above 0 and "
                    "below the largest of `costs`",
                    delta=self.delta,
                    max_cost=limit,
                    largest_cost=self.largest,
                )
        if self.method is not None:
            check_in("method", self.method, (*COST_TESTS, *_PRICES))
            if self.method != self._method():
                raise value_error(
                    f"`method` must be one of {COST_TESTS} with `delta`, one "
                    f"of {_PRICES} with `reject_cost` alone, otherwise None",
                    method=self.method,
                )
            if self.method == "binomial" and not self.has_one_cost:
                raise value_error(
                    '`method` must not be "binomial" unless every answer '
                    'costs 0 or one number: take "betting"',
                    method=self.method,
                    largest_cost=self.largest,
                )

    def _method(self) -> str | None:
        """The method: the one given if the target has it, or the first."""
        if self.delta is not None:
            known = COST_TESTS
            if self.has_one_cost:
                known = COST_TESTS[::-1]
        elif self.max_cost is None and self.coverage is None:
            known = _PRICES
        else:
            return None
        return self.method if self.method in known else known[0]

    def choose(self, outcomes: Outcomes, log_odds: bool = False) -> Choice:
        """The best threshold, of losses that are costs.

        Scores are minus expected costs, never log-odds. Raises ValueError if
        no threshold reaches the target.
        """
        score, cost, weight = outcomes.score, outcomes.loss, outcomes.weight
        ladder, finite = of_scores(outcomes), np.isfinite(score)
        certified = np.zeros(len(ladder.threshold), bool)
        if self.max_cost is None:
            threshold = self._free_threshold(ladder)
        else:
            ranked = ranked_losses(outcomes)
            within = self._within(ladder, ranked, self.max_cost)
            if self.delta is not None:
                certified = within
            threshold = self._limited_threshold(ladder, ranked, within)
        # A layer compares in float32.
        accepted = finite & (score >= score.dtype.type(threshold))
        kept, wrong = weight * accepted, 1 - outcomes.correct
        return Choice(
            threshold,
            float(kept.sum() / weight.sum()),
            float(safe_divide((kept * wrong).sum(), kept.sum())),
            len(score),
            None if self.delta is None else float(self.max_cost or 0.0),
            self.delta,
            self._method(),
            "costs",
            cost=mean_cost_of_decisions(
                cost,
                accepted,
                weight,
                self.largest,
                reject_cost=self.reject_cost,
            ),
            tables=((ladder, certified, self.largest),),
            cost_rows=(score, cost, outcomes.correct),
        )

    def _free_threshold(self, ladder: Ladder) -> float:
        """The threshold of a coverage, or of the least cost at a price."""
        if self.coverage is not None:
            reached = ladder.covering(self.coverage)
            return float(ladder.threshold[np.flatnonzero(reached)[0]])
        price = float(self.reject_cost or 0.0)
        if self._method() == "chow":
            return 0.0 - price
        paid = ladder.loss + price * (ladder.accepted[-1] - ladder.accepted)
        # Of equally cheap thresholds the most lenient.
        place = len(paid) - 1 - int(np.argmin(paid[::-1]))
        if price * ladder.accepted[-1] < paid[place]:
            return math.inf
        return float(ladder.threshold[place])

    def _limited_threshold(
        self, ladder: Ladder, ranked: np.ndarray, within: np.ndarray
    ) -> float:
        """The most lenient threshold within the limit of the mean cost.

        Raises ValueError if there is none, which names a limit within reach.
        """
        limit, price = float(self.max_cost or 0.0), self.reject_cost
        allowed = np.ones(len(within), bool)
        facts: dict[str, Any] = {}
        if price is not None:
            # No answer that costs more than a rejection.
            score = np.asarray(ladder.score)
            allowed = score >= -score.dtype.type(price)
            facts = {"reject_cost": price}
        if (reached := np.flatnonzero(within & allowed)).size:
            threshold = float(ladder.threshold[reached[-1]])
            return threshold if price is None else max(threshold, -float(price))
        if not allowed.any():
            raise value_error(
                "`reject_cost` must not be below the expected cost of every "
                "answer",
                max_cost=limit,
                **facts,
                lowest_expected_cost=float(-np.asarray(ladder.score)[0]),
            )
        if self.delta is None:
            loss = np.where(allowed, ladder.loss, np.inf)
            some = ladder._replace(loss=loss)
            raise out_of_reach([some], "max_cost", limit, None, **facts)
        instead = within_reach(
            lambda x: self._within(ladder, ranked, x) & allowed,
            ladder,
            limit,
            "max_cost",
            self.largest,
        )
        raise out_of_reach(
            [ladder],
            "max_cost",
            limit,
            self.delta,
            advice=f"take more data; or {instead}",
            method=self._method(),
            samples=ladder.size,
            **facts,
        )

    def _within(
        self, ladder: Ladder, ranked: np.ndarray, limit: float
    ) -> np.ndarray:
        """Which thresholds have a mean cost of at most `limit`."""
        if self.delta is None:
            return within_risk(ladder.loss, ladder.accepted, limit)
        unit, method = self.largest, self._method() or COST_TESTS[0]
        limit = limit / unit
        if method == "binomial":
            ladder = ladder._replace(loss=np.round(ladder.loss / unit))
            return errors_alone(ladder, limit, self.delta)
        claim = means(ladder, ranked / unit, limit, self.delta, method)
        return alone(claim, len(ladder.threshold))


class RecordCosts(TypedDict, total=False):
    """What answers cost, in place of whether they are right.

    Attributes:
        cost: Cost of each answer, of the shape of the scores or, with `units`,
            `(n,)`. Such as the share of wrong pixels of an image, 1 - IoU, or
            money. Then `risk` is the largest allowed mean cost of the accepted.
        largest_cost: The largest cost that an answer can have, > 0, for
            `max_cost` and `reject_cost`. None is 1.
        max_cost, reject_cost: As in `SelectiveClassifier.fit` with costs; the
            `Choice` then has a `cost`.
        method: As there. For a `risk` of costs or units `"betting"`, the
            default, or `"hoeffding_bentkus"`.
    """

    cost: Any
    largest_cost: float | None
    max_cost: float | None
    reject_cost: float | None
    method: str | None
