"""Thresholds on the expected cost of an answer."""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.costs import check_reject_cost, mean_cost_of_decisions
from keras_calib.formulas.operating_points import within_risk
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_in,
    check_share,
)
from keras_calib.numerics.arrays import safe_divide
from keras_calib.selection.candidates import (
    Candidates,
    check_equal_weights,
    ranked_candidates,
)
from keras_calib.selection.guarantees import (
    fixed_sequence,
    fixed_sequence_of_means,
)
from keras_calib.selection.reach import two_digits, within_reach
from keras_calib.selection.thresholds import ChosenThreshold, Target

if TYPE_CHECKING:
    from keras_calib.selection.costs import CostRule

__all__ = ["COST_TESTS", "CostTarget", "read_target"]

COST_TESTS = "betting", "hoeffding_bentkus", "binomial"
_PRICES = "chow", "empirical"


class CostTarget(NamedTuple):
    """Target of a threshold on the expected cost.

    `largest` is the largest cost of an answer, and `has_one_cost` True if all
    others are 0.
    """

    largest: float
    has_one_cost: bool
    mean_cost: float | None
    reject_cost: float | None
    coverage: float | None
    delta: float | None
    method: str | None

    def check(self, risk: float | None) -> None:
        """Raises ValueError for values that are not allowed."""
        if risk is not None:
            raise value_error(
                "`risk` must be None with `costs`, as it counts errors: give "
                "`reject_cost`, or a limit `mean_cost` for the accepted",
                risk=risk,
            )
        if self.reject_cost is not None:
            check_reject_cost(self.reject_cost)
        if self.mean_cost is not None:
            check_at_least("mean_cost", self.mean_cost, 0.0)
        if self.coverage is not None:
            check_share("coverage", self.coverage, positive=True)
        given = self.mean_cost, self.reject_cost, self.coverage
        if given == (None, None, None):
            raise value_error(
                "`reject_cost` must be given with `costs`: the price of "
                "asking a human; or `mean_cost` or `coverage`",
                reject_cost=None,
            )
        if self.coverage is not None and self.mean_cost is not None:
            raise value_error(
                "Only one of `mean_cost` and `coverage` can be given",
                mean_cost=self.mean_cost,
                coverage=self.coverage,
            )
        self._check_delta()

    def _check_delta(self) -> None:
        if self.delta is not None:
            check_above("delta", self.delta, 0.0)
            limit = self.mean_cost
            inside = limit is not None and 0.0 < limit < self.largest
            if not (inside and self.delta < 1.0):
                raise value_error(
                    "`delta` must be < 1 and needs a `mean_cost` above 0 and "
                    "below the largest of `costs`",
                    delta=self.delta,
                    mean_cost=limit,
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
        elif self.mean_cost is None and self.coverage is None:
            known = _PRICES
        else:
            return None
        return self.method if self.method in known else known[0]

    def choose(
        self,
        score: np.ndarray,
        cost: np.ndarray,
        wrong: np.ndarray,
        weight: np.ndarray,
    ) -> tuple[Candidates, ChosenThreshold, np.ndarray]:
        """All candidates, the best threshold, and which are certified.

        Takes scores, costs and errors of answers, and weights > 0, `(n,)`.
        Raises ValueError if no threshold reaches the target.
        """
        check_equal_weights(weight, self.delta)
        found = ranked_candidates(score, cost, weight)
        # Sorted among ties, so that the order of the data does not matter.
        finite = np.isfinite(score)
        ranked = cost[finite][np.lexsort((cost[finite], -score[finite]))]
        threshold, certified = self._threshold(found, ranked)
        # A layer compares in float32.
        accepted = finite & (score >= score.dtype.type(threshold))
        kept = weight * accepted
        chosen = ChosenThreshold(
            threshold,
            float(kept.sum() / weight.sum()),
            float(safe_divide((kept * wrong).sum(), kept.sum())),
            len(score),
            delta=self.delta,
            method=self._method(),
            cost=mean_cost_of_decisions(
                cost,
                accepted,
                weight,
                self.largest,
                reject_cost=self.reject_cost,
            ),
        )
        if self.delta is not None and self.mean_cost is not None:
            limit = float(self.mean_cost)
            chosen = chosen._replace(certified_cost=limit)
        return found, chosen, certified

    def _threshold(
        self, found: Candidates, ranked: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """The threshold, and which are certified."""
        none = np.zeros(len(found.threshold), bool)
        if self.mean_cost is not None:
            reached = certified = self._within(found, ranked, self.mean_cost)
            if self.reject_cost is not None:
                # No answer that costs more than a rejection.
                reached = reached & self._affordable(found)
            if not reached.any():
                raise self._not_reached(found, ranked)
            place = np.flatnonzero(reached)[-1]
            if self.delta is None:
                certified = none
            threshold = float(found.threshold[place])
            if self.reject_cost is not None:
                threshold = max(threshold, -float(self.reject_cost))
            return threshold, certified
        if self.coverage is not None:
            reached = found.covering(self.coverage)
            return float(found.threshold[np.flatnonzero(reached)[0]]), none
        price = float(self.reject_cost or 0.0)
        if self._method() == "chow":
            return 0.0 - price, none
        paid = found.wrong + price * (found.accepted[-1] - found.accepted)
        # Of equally cheap thresholds the most lenient.
        place = len(paid) - 1 - int(np.argmin(paid[::-1]))
        if price * found.accepted[-1] < paid[place]:
            return math.inf, none
        return float(found.threshold[place]), none

    def _affordable(self, found: Candidates) -> np.ndarray:
        """Whether no answer that a threshold accepts costs over the price."""
        score = np.asarray(found.score)
        return score >= -score.dtype.type(self.reject_cost)

    def _within(
        self, found: Candidates, ranked: np.ndarray, limit: float
    ) -> np.ndarray:
        """Which thresholds have a mean cost of at most `limit`."""
        if self.delta is None:
            return within_risk(found.wrong, found.accepted, limit)
        unit, method = self.largest, self._method() or COST_TESTS[0]
        accepted = found.accepted.astype(int)
        if method == "binomial":
            wrong = np.round(found.wrong / unit)
            return fixed_sequence(accepted, wrong, limit / unit, self.delta)
        return fixed_sequence_of_means(
            accepted, ranked / unit, limit / unit, self.delta, method
        )

    def _not_reached(self, found: Candidates, ranked: np.ndarray) -> ValueError:
        """The error for a limit out of reach, which names one within reach."""
        limit, price = float(self.mean_cost or 0.0), self.reject_cost
        allowed = np.ones(len(found.threshold), bool)
        facts: dict[str, Any] = {"mean_cost": limit}
        if price is not None:
            allowed = self._affordable(found)
            facts["reject_cost"] = price
        if not allowed.any():
            return value_error(
                "`reject_cost` must not be below the expected cost of every "
                "answer",
                **facts,
                lowest_expected_cost=float(-np.asarray(found.score)[0]),
            )
        if self.delta is None:
            best = int(np.argmin(np.where(allowed, found.risk, np.inf)))
            return value_error(
                "`mean_cost` is below that of every threshold on these data: "
                "ask for a higher one",
                **facts,
                **{
                    "lowest mean cost": float(found.risk[best]),
                    "at coverage": float(found.coverage[best]),
                },
            )
        return self._not_certified(found, ranked, allowed, facts)

    def _not_certified(
        self,
        found: Candidates,
        ranked: np.ndarray,
        allowed: np.ndarray,
        facts: dict[str, Any],
    ) -> ValueError:
        advice = "take more data, or a larger `mean_cost` or `delta`"
        reach = within_reach(
            lambda x: self._within(found, ranked, x) & allowed,
            two_digits(facts["mean_cost"], self.largest),
        )
        if reach is not None:
            advice += (
                f"; `mean_cost={reach[0]:g}` is within reach, with a "
                f"coverage of {found.coverage[reach[1]]:.3f} here (a limit "
                "that these data chose is guaranteed on other data only)"
            )
        return value_error(
            f"No threshold is certified to have this `mean_cost`: {advice}",
            **facts,
            delta=self.delta,
            method=self._method(),
            samples=found.num_samples,
        )


def read_target(
    rule: "CostRule | None",
    risk: float | None,
    coverage: float | None,
    delta: float | None,
    method: str | None,
    prices: tuple[float | None, float | None],
) -> Target | CostTarget:
    """The target of a fit, checked, by costs if there is a rule.

    `prices` are `mean_cost` and `reject_cost`.
    """
    if rule is None:
        mean_cost, reject_cost = prices
        if mean_cost is not None or reject_cost is not None:
            raise value_error(
                "`costs` must be given with `reject_cost` or `mean_cost`: row "
                "j for the true class j, column k for the answer k; "
                "`1 - np.eye(num_classes)` counts errors",
                mean_cost=mean_cost,
                reject_cost=reject_cost,
            )
        return Target(risk, coverage, delta, method or "ltt").check()
    costs = rule.costs
    one_cost = bool(np.all((costs == 0.0) | (costs == costs.max())))
    target = CostTarget(
        float(costs.max()), one_cost, *prices, coverage, delta, method
    )
    target.check(risk)
    return target
