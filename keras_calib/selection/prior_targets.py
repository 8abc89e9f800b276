"""Thresholds whose risk is guaranteed at another prior of the classes.

Derivation: docs/derivations.md, 'Other priors and mixtures'.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import check_inside
from keras_calib.formulas.prior import read_prior
from keras_calib.formulas.shifted_risk import (
    class_weights,
    largest_bet,
    log_evidence,
    subsample_of,
)
from keras_calib.inputs.checks import check_in, check_integer, generator
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.candidates import Candidates, ranked_candidates
from keras_calib.selection.fixed_thresholds import (
    counts_at,
    fixed_thresholds,
    starts_at,
    tenth_of,
    tenth_sizes,
)
from keras_calib.selection.guarantees import first_rank, fixed_sequence, walk
from keras_calib.selection.reach import advice_on_risk
from keras_calib.selection.shifted_facts import PriorThreshold

__all__ = [
    "PRIOR_METHODS",
    "PriorTarget",
    "PriorTest",
    "check_risk_and_delta",
]

PRIOR_METHODS = "subsampling", "betting"

# Part of delta for draws that the rows of a class do not fill.
_UNFILLED = 0.05
# Samples that betting takes for one of the exact test, as measured in
# benchmarks/results/shifted_guarantees.md.
_PRICE = 2.4


class PriorTest(NamedTuple):
    """Thresholds, strictest first, and a test of them by risk."""

    threshold: np.ndarray
    certified: Callable[[float], np.ndarray]
    num_tested: int
    method: str


class PriorTarget(NamedTuple):
    """Target of a threshold: a guaranteed risk at a known prior.

    Derivation: docs/derivations.md, 'Other priors and mixtures'.
    """

    prior: np.ndarray
    risk: float
    delta: float
    method: str | None
    seed: int

    @classmethod
    def of(
        cls, target_prior: Any, risk: Any, delta: Any, method: Any, seed: Any
    ) -> "PriorTarget":
        """Reads and checks the arguments."""
        prior = read_prior("target_prior", target_prior)
        check_risk_and_delta(risk, delta)
        check_in("method", method, (None, *PRIOR_METHODS))
        check_integer("seed", seed, 0)
        return cls(prior, float(risk), float(delta), method, int(seed))

    def choose(
        self,
        scores: np.ndarray,
        correct: np.ndarray,
        labels: np.ndarray,
        log_odds: bool = False,
    ) -> tuple[Candidates, PriorThreshold, np.ndarray]:
        """All candidates, the best threshold, and which are certified.

        Takes scores, correctness and true classes `(n,)`. Raises ValueError if
        no threshold is certified.
        """
        some = self.prior[labels] > 0
        scores, labels = scores[some], labels[some]
        wrong = 1.0 - np.asarray(correct, "float64")[some]
        test = self.test(scores, wrong, labels)
        certified = test.certified(self.risk)
        count = np.bincount(labels, minlength=len(self.prior))
        weight = class_weights(count, self.prior)
        each = weight[labels]
        found = _candidates(scores, wrong, each, test.threshold)
        if not certified.any():
            raise self._not_reached(found, test)
        place = int(np.flatnonzero(certified)[-1])
        facts = found.at(place)
        chosen = PriorThreshold(
            *facts,
            len(scores),
            self.risk,
            self.delta,
            test.method,
            test.num_tested,
            float(each.sum() ** 2 / (each**2).sum()),
            float(weight.max()),
            tuple(self.prior.tolist()),
            float(sigmoid(np.float64(facts[0]))) if log_odds else None,
        )
        return found, chosen, certified

    def test(
        self, scores: np.ndarray, wrong: np.ndarray, labels: np.ndarray
    ) -> PriorTest:
        """The test of samples `(n,)` of classes that the target has."""
        count = np.bincount(labels, minlength=len(self.prior))
        self._check_classes(count)
        made = self._bet
        if self.method_for(count) == "subsampling":
            made = self._subsampled
        return made(scores, wrong, labels, count)

    def _check_classes(self, count: np.ndarray) -> None:
        missing = np.flatnonzero((self.prior > 0) & (count == 0))
        if len(missing):
            raise value_error(
                "`labels` must have every class that `target_prior` has: "
                "nothing is known of the others",
                missing=missing[:10].tolist(),
                share=float(self.prior[missing].sum()),
            )

    def method_for(self, count: np.ndarray) -> str:
        """The method, of which labels and prior alone decide.

        Raises ValueError if it could not certify anything.
        """
        drawn = subsample_of(count, self.prior, _UNFILLED)
        level = self.delta * drawn.chance
        capable = {
            "subsampling": drawn.size >= first_rank(self.risk, level),
            "betting": self._most_evidence(count) >= -math.log(self.delta),
        }
        method = self.method
        if method is None:
            rest = count - tenth_sizes(count)
            weight = class_weights(count, self.prior)
            worth = rest.sum() / float(self.prior @ weight) / _PRICE
            method = PRIOR_METHODS[int(worth > drawn.size)]
            if not capable[method]:
                method = PRIOR_METHODS[int(method == "subsampling")]
        if not capable[method]:
            raise self._too_few(count)
        return method

    def _most_evidence(self, count: np.ndarray) -> float:
        """Evidence of all samples accepted and right, for the largest bet."""
        rest = count - tenth_sizes(count)
        if ((self.prior > 0) & (rest == 0)).any():
            return 0.0
        weight = class_weights(rest, self.prior)
        bet = np.array([largest_bet(weight, self.risk)])
        none = np.zeros((1, len(rest)))
        return float(log_evidence(rest[None], none, weight, bet, self.risk)[0])

    def _subsampled(
        self,
        scores: np.ndarray,
        wrong: np.ndarray,
        labels: np.ndarray,
        count: np.ndarray,
    ) -> PriorTest:
        """The exact test on rows drawn so that their classes follow the prior.

        The labels of the sample are drawn first. A draw that lacks rows is
        drawn again, which the level allows for.
        """
        drawn = subsample_of(count, self.prior, _UNFILLED)
        rng = generator(self.seed)
        while True:
            wanted = rng.multinomial(drawn.size, self.prior)
            if (wanted <= count).all():
                break
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        place = np.arange(len(order)) - np.repeat(
            np.cumsum(count) - count, count
        )
        rows = order[place < np.repeat(wanted, count)]
        found = ranked_candidates(scores[rows], wrong[rows], np.ones(len(rows)))
        level = self.delta * drawn.chance

        def certified(risk: float) -> np.ndarray:
            return fixed_sequence(found.accepted, found.wrong, risk, level)

        return PriorTest(found.threshold, certified, len(rows), "subsampling")

    def _bet(
        self,
        scores: np.ndarray,
        wrong: np.ndarray,
        labels: np.ndarray,
        count: np.ndarray,
    ) -> PriorTest:
        """Tests by betting on all rows but the tenth that fixes thresholds."""
        tenth = tenth_of(labels, self.seed)
        rest = count - np.bincount(labels[tenth], minlength=len(count))
        weight = class_weights(rest, self.prior)
        each = class_weights(count - rest, self.prior)[labels[tenth]]
        threshold = fixed_thresholds(scores[tenth], each)
        one = np.zeros(len(each), int)
        coverage = counts_at(scores[tenth], one, 1, threshold, each)[:, 0]
        coverage = safe_divide(coverage, coverage[-1])
        error = wrong[~tenth].astype(int)
        kind = 2 * labels[~tenth] + error
        cells = counts_at(scores[~tenth], kind, 2 * len(count), threshold)
        right, errors = cells[:, ::2], cells[:, 1::2]
        spread = float(self.prior @ weight) * rest.sum() * coverage

        def certified(risk: float) -> np.ndarray:
            # The bet that shows most if the test just passes.
            best = -2.0 * math.log(self.delta / 2.0)
            best = np.sqrt(best / (spread * risk * (1.0 - risk)))
            bet = np.minimum(best, largest_bet(weight, risk))
            arguments = weight, bet, risk
            expected = np.multiply.outer(coverage, rest)
            capacity = log_evidence(expected, 0.0 * expected, *arguments)
            first, shares = starts_at(
                capacity, coverage, lambda level: -math.log(level), self.delta
            )
            evidence = log_evidence(right, errors, *arguments)
            return walk(np.exp(-np.maximum(evidence, 0.0)), first, shares)

        return PriorTest(threshold, certified, int(rest.sum()), "betting")

    def _too_few(self, count: np.ndarray) -> ValueError:
        """The error for counts that certify nothing, even without an error."""
        rarest = int(np.argmax(class_weights(count, self.prior)))
        size = first_rank(self.risk, self.delta * (1.0 - _UNFILLED))
        part = _UNFILLED / np.count_nonzero(self.prior)
        needed = int(binom.isf(part, size, self.prior[rarest]))
        return value_error(
            f"`target_prior` leaves too few samples to certify this `risk`, "
            f"even if all are correct: take about {needed} of class {rarest}, "
            "or ask for a larger `risk` or `delta`",
            risk=self.risk,
            delta=self.delta,
            **{
                f"samples of class {rarest}": int(count[rarest]),
                "share in `target_prior`": float(self.prior[rarest]),
            },
        )

    def _not_reached(self, found: Candidates, test: PriorTest) -> ValueError:
        advice = advice_on_risk(
            test.certified, self.risk, found.coverage, "at the target prior"
        )
        return value_error(
            "No threshold is certified to have this `risk` at `target_prior`: "
            f"take more data; or {advice}",
            risk=self.risk,
            delta=self.delta,
            method=test.method,
            samples=found.num_samples,
            tested=test.num_tested,
        )


def check_risk_and_delta(risk: Any, delta: Any) -> None:
    """Raises ValueError unless both are inside (0, 1)."""
    for name, value in (("risk", risk), ("delta", delta)):
        if value is None:
            raise value_error(
                f"`{name}` must be given: a guarantee needs `risk` and "
                "`delta`; without one, weights go to `sample_weight`",
                **{name: value},
            )
        check_inside(name, value)


def _candidates(
    scores: np.ndarray,
    wrong: np.ndarray,
    weight: np.ndarray,
    threshold: np.ndarray,
) -> Candidates:
    """Given thresholds, with weights accepted and wrong there."""
    one = np.zeros(len(scores), int)
    accepted = counts_at(scores, one, 1, threshold, weight)[:, 0]
    errors = counts_at(scores, one, 1, threshold, weight * wrong)[:, 0]
    wrong = np.minimum(errors, accepted)
    never = (float(weight @ ~np.isfinite(scores)), 0.0)
    return Candidates(
        threshold, accepted, wrong, len(scores), False, never=never
    )
