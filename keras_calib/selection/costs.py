"""Thresholds on the expected cost of an answer."""

import math
from typing import Any, NamedTuple

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
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.selection.choice import Choice, out_of_reach, within_reach
from keras_calib.selection.claims import errors, means
from keras_calib.selection.families import alone
from keras_calib.selection.ladder import (
    Ladder,
    check_equal_weights,
    of_scores,
    read_outcomes,
)

__all__ = ["COST_TESTS", "CostTarget", "choose_threshold_by_cost"]

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

    @classmethod
    def of(cls, costs: np.ndarray, *asked: Any) -> "CostTarget":
        """The target by a matrix of costs, checked.

        `asked` are mean cost, cost of a rejection, coverage, delta and method.
        """
        largest = float(costs.max())
        one = bool(np.all((costs == 0.0) | (costs == largest)))
        return cls(largest, one, *asked).check()

    def check(self) -> "CostTarget":
        """Returns self; raises ValueError for values that are not allowed."""
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
        return self

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

    def choose(self, outcomes: Outcomes) -> Choice:
        """The best threshold, of losses that are costs.

        Raises ValueError if no threshold reaches the target.
        """
        score, cost, weight = outcomes.score, outcomes.loss, outcomes.weight
        check_equal_weights(weight, self.delta)
        ladder = of_scores(outcomes)
        # Sorted among ties, so that the order of the data does not matter.
        finite = np.isfinite(score)
        ranked = cost[finite][np.lexsort((cost[finite], -score[finite]))]
        threshold, certified = self._threshold(ladder, ranked)
        # A layer compares in float32.
        accepted = finite & (score >= score.dtype.type(threshold))
        kept, wrong = weight * accepted, 1 - outcomes.correct
        return Choice(
            threshold,
            float(kept.sum() / weight.sum()),
            float(safe_divide((kept * wrong).sum(), kept.sum())),
            len(score),
            None if self.delta is None else float(self.mean_cost or 0.0),
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

    def _threshold(
        self, ladder: Ladder, ranked: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """The threshold, and which are certified."""
        none = np.zeros(len(ladder.threshold), bool)
        if self.mean_cost is not None:
            reached = certified = self._within(ladder, ranked, self.mean_cost)
            if self.reject_cost is not None:
                # No answer that costs more than a rejection.
                reached = reached & self._affordable(ladder)
            if not reached.any():
                raise self._not_reached(ladder, ranked)
            place = np.flatnonzero(reached)[-1]
            if self.delta is None:
                certified = none
            threshold = float(ladder.threshold[place])
            if self.reject_cost is not None:
                threshold = max(threshold, -float(self.reject_cost))
            return threshold, certified
        if self.coverage is not None:
            reached = ladder.covering(self.coverage)
            return float(ladder.threshold[np.flatnonzero(reached)[0]]), none
        price = float(self.reject_cost or 0.0)
        if self._method() == "chow":
            return 0.0 - price, none
        paid = ladder.loss + price * (ladder.accepted[-1] - ladder.accepted)
        # Of equally cheap thresholds the most lenient.
        place = len(paid) - 1 - int(np.argmin(paid[::-1]))
        if price * ladder.accepted[-1] < paid[place]:
            return math.inf, none
        return float(ladder.threshold[place]), none

    def _affordable(self, ladder: Ladder) -> np.ndarray:
        """Whether no answer that a threshold accepts costs over the price."""
        score = np.asarray(ladder.score)
        return score >= -score.dtype.type(self.reject_cost)

    def _within(
        self, ladder: Ladder, ranked: np.ndarray, limit: float
    ) -> np.ndarray:
        """Which thresholds have a mean cost of at most `limit`."""
        if self.delta is None:
            return within_risk(ladder.loss, ladder.accepted, limit)
        unit, method = self.largest, self._method() or COST_TESTS[0]
        if method == "binomial":
            ladder = ladder._replace(loss=np.round(ladder.loss / unit))
            claim = errors(ladder, limit / unit, self.delta)
        else:
            claim = means(
                ladder, ranked / unit, limit / unit, self.delta, method
            )
        return alone(claim, len(ladder.threshold))

    def _not_reached(self, ladder: Ladder, ranked: np.ndarray) -> ValueError:
        """The error for a limit out of reach, which names one within reach."""
        limit = float(self.mean_cost or 0.0)
        facts: dict[str, Any] = {}
        allowed = np.ones(len(ladder.threshold), bool)
        if self.reject_cost is not None:
            allowed = self._affordable(ladder)
            facts["reject_cost"] = self.reject_cost
        if not allowed.any():
            return value_error(
                "`reject_cost` must not be below the expected cost of every "
                "answer",
                mean_cost=limit,
                **facts,
                lowest_expected_cost=float(-np.asarray(ladder.score)[0]),
            )
        if self.delta is None:
            loss = np.where(allowed, ladder.loss, np.inf)
            some = ladder._replace(loss=loss)
            return out_of_reach([some], "mean_cost", limit, None, **facts)
        advice = within_reach(
            lambda x: self._within(ladder, ranked, x) & allowed,
            ladder.coverage,
            limit,
            "mean_cost",
            self.largest,
        )
        return out_of_reach(
            [ladder],
            "mean_cost",
            limit,
            self.delta,
            advice=(
                "take more data; or "
                f"{advice or 'a larger `mean_cost` or `delta`'}"
            ),
            method=self._method(),
            samples=ladder.size,
            **facts,
        )


def choose_threshold_by_cost(
    scores: Any,
    cost: Any,
    *,
    largest_cost: float,
    reject_cost: float | None = None,
    mean_cost: float | None = None,
    coverage: float | None = None,
    delta: float | None = None,
    method: str | None = None,
    sample_weight: Any = None,
) -> Choice:
    """The threshold of the least or of a limited mean cost, from records.

    Use it if logs keep the score of each answer and what it cost later, such
    as the `score` of an exported selector with costs. If all errors cost the
    same, `choose_threshold` with `risk=mean_cost / largest_cost` does as much.

    Args:
        scores: Scores `(...)`, higher = surer; `(n,)` with `delta`. For Chow's
            rule they are minus the expected cost.
        cost: Cost of each answer `(...)`, between 0 and `largest_cost`.
        largest_cost: The largest cost that an answer can have, > 0.
        reject_cost, mean_cost, coverage, delta: As in
            `SelectiveClassifier.fit` with costs.
        method: As there. None takes `"empirical"` with `reject_cost` alone,
            and `"betting"` with `delta`.
        sample_weight: Weights >= 0, of the shape of the scores or `(n,)`;
            with `delta` 1, or 0 for samples to leave out.

    Returns:
        A `Choice`. Its `risk` is the share of the accepted that cost
        more than 0.

    Raises:
        ValueError: If no threshold reaches the target, or values are out of
            range.

    Example:

    >>> chosen = choose_threshold_by_cost(
    ...     [4, 3, 2, 1], [0, 0, 5, 0], largest_cost=5, reject_cost=1
    ... )
    >>> chosen.coverage, chosen.cost.value
    (0.5, 0.5)

    Reference:
        Chow, On Optimum Recognition Error and Reject Tradeoff, IEEE
        Transactions on Information Theory 1970,
        https://doi.org/10.1109/TIT.1970.1054406
    """
    # Here, as these need Keras, which verification does without.
    from keras_calib.inputs.checks import located
    from keras_calib.inputs.weights import weight_of_rows

    check_above("largest_cost", largest_cost, 0.0)
    if method is None and delta is None and mean_cost is None:
        method = "empirical" if coverage is None else None
    target = CostTarget(
        float(largest_cost),
        False,
        mean_cost,
        reject_cost,
        coverage,
        delta,
        method,
    ).check()
    # The scores and weights are checked as those of errors are.
    given = as_array(cost, "cost", "float64")
    kept = read_outcomes(scores, np.ones(given.shape), sample_weight, delta)
    counts = np.ones(given.shape, bool)
    if sample_weight is not None:
        counts = weight_of_rows(sample_weight, given.shape) > 0
        counts = counts.reshape(given.shape)
    bad = ~((given >= 0.0) & (given <= largest_cost)) & counts
    if bad.any():
        raise value_error(
            "`cost` must lie between 0 and `largest_cost`",
            **located(bad.reshape(-1)),
            largest_cost=largest_cost,
        )
    cost = given[counts]
    return target.choose(kept._replace(cost=cost, correct=cost == 0.0))
