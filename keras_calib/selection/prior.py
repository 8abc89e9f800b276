"""Thresholds that keep their guarantee at another prior of the classes.

Derivation: docs/derivations.md, 'Other priors and mixtures'.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.prior import read_prior
from keras_calib.formulas.shifted_risk import (
    class_weights,
    largest_bet,
    log_evidence,
    subsample_of,
)
from keras_calib.inputs.checks import check_in, check_integer, generator
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array
from keras_calib.predictions.predictions import Predictions
from keras_calib.selection.choice import Choice, choose
from keras_calib.selection.claims import (
    Claim,
    check_risk_and_delta,
    first_rank,
    starts_at,
)
from keras_calib.selection.families import alone, errors_alone
from keras_calib.selection.ladder import (
    counts_at,
    drawn_of_each,
    fixed_thresholds,
    in_log_odds,
    of_grid,
    of_scores,
    read_outcomes,
    tenth_of,
    tenth_sizes,
)

_METHODS = "subsampling", "betting"
# Part of delta for draws that the rows of a class do not fill.
_UNFILLED = 0.05
# Samples that betting takes for one of the exact test, as measured in
# benchmarks/results/shifted_guarantees.md.
_PRICE = 2.4


class _Test(NamedTuple):
    """Thresholds, strictest first, and a test of them by risk."""

    threshold: np.ndarray
    certified: Callable[[float], np.ndarray]
    num_tested: int
    method: str


class PriorTarget(NamedTuple):
    """Target of a threshold: a guaranteed risk at a known prior."""

    prior: np.ndarray
    risk: float
    delta: float
    method: str | None
    seed: int

    def check(self) -> "PriorTarget":
        """Returns self, read; raises ValueError for what is not allowed."""
        prior = read_prior("target_prior", self.prior)
        check_risk_and_delta(self.risk, self.delta)
        check_in("method", self.method, (None, *_METHODS))
        check_integer("seed", self.seed, 0)
        return PriorTarget(
            prior,
            float(self.risk),
            float(self.delta),
            self.method,
            int(self.seed),
        )

    def choose(self, outcomes: Outcomes, log_odds: bool = False) -> Choice:
        """The best threshold; ValueError if none is certified.

        The groups of the outcomes are their true classes.
        """
        outcomes = outcomes.part(self.prior[outcomes.group] > 0)
        labels = outcomes.group
        test = self.test(outcomes)
        count = np.bincount(labels, minlength=len(self.prior))
        weight = class_weights(count, self.prior)
        each = weight[labels]
        return choose(
            of_grid(outcomes._replace(weight=each), test.threshold),
            test.certified,
            self.risk,
            self.delta,
            log_odds=log_odds,
            refusal=lambda: {
                "where": " at `target_prior`",
                "here": "at the target prior",
                "method": test.method,
                "tested": test.num_tested,
            },
            kind="prior",
            method=test.method,
            facts={
                "target_prior": tuple(self.prior.tolist()),
                "num_tested": test.num_tested,
                "effective_samples": float(each.sum() ** 2 / (each**2).sum()),
                "largest_weight": float(weight.max()),
            },
        )

    def test(self, outcomes: Outcomes) -> _Test:
        """The test of samples of classes that the target has."""
        count = np.bincount(outcomes.group, minlength=len(self.prior))
        missing = np.flatnonzero((self.prior > 0) & (count == 0))
        if len(missing):
            raise value_error(
                "`labels` must have every class that `target_prior` has: "
                "nothing is known of the others",
                missing=missing[:10].tolist(),
                share=float(self.prior[missing].sum()),
            )
        made = self._bet
        if self.method_for(count) == "subsampling":
            made = self._subsampled
        return made(outcomes, count)

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
            method = _METHODS[int(worth > drawn.size)]
            if not capable[method]:
                method = _METHODS[int(method == "subsampling")]
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

    def _subsampled(self, outcomes: Outcomes, count: np.ndarray) -> _Test:
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
        rows = drawn_of_each(outcomes.group, wanted, rng)
        ladder = of_scores(outcomes.part(rows))
        level = self.delta * drawn.chance
        return _Test(
            ladder.threshold,
            lambda risk: errors_alone(ladder, risk, level),
            int(rows.sum()),
            "subsampling",
        )

    def _bet(self, outcomes: Outcomes, count: np.ndarray) -> _Test:
        """Tests by betting on all rows but the tenth that fixes thresholds."""
        tenth = tenth_of(outcomes.group, self.seed)
        first, others = outcomes.part(tenth), outcomes.part(~tenth)
        rest = np.bincount(others.group, minlength=len(count))
        weight = class_weights(rest, self.prior)
        each = class_weights(count - rest, self.prior)[first.group]
        threshold, coverage = fixed_thresholds(first._replace(weight=each))
        kind = 2 * others.group + others.loss.astype(int)
        cells = counts_at(others.score, kind, 2 * len(count), threshold)
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
            p_value = np.exp(-np.maximum(evidence, 0.0))
            return alone(Claim(p_value, first, shares), len(threshold))

        return _Test(threshold, certified, int(rest.sum()), "betting")

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


def choose_threshold_for_prior(
    scores: Any,
    correct: Any = None,
    labels: Any = None,
    *,
    target_prior: Any,
    risk: float,
    delta: float,
    method: str | None = None,
    seed: int = 0,
) -> Choice:
    """The threshold with the largest coverage, guaranteed at another prior.

    Use it when classes are more or less frequent in use than in the data, and
    you know how frequent they are there (label shift). If p(x | class) is the
    same in both,

    P(a threshold is returned and its true risk at the prior exceeds `risk`)
    <= `delta`,  with risk = sum_y q_y P(wrong, accept | y) / sum_y q_y
    P(accept | y)

    in finite samples, whatever the prior of the data. The rarest class
    relative to the prior limits what can be certified.

    Args:
        scores: Scores `(n,)`, higher = surer. Or `Predictions` of classes,
            which know all three.
        correct: 1 for right and 0 for wrong predictions `(n,)`.
        labels: True classes `(n,)`, integers in [0, num_classes). They must be
            known apart from the predictions.
        target_prior: Share of each class in use `(num_classes,)`, >= 0, with
            sum 1. Samples of a class with share 0 do not count.
        risk: Largest allowed share of errors among the accepted, in (0, 1).
        delta: Probability that the guarantee may fail, in (0, 1). It needs
            samples that are independent within each class and chose nothing
            else.
        method: `"subsampling"` tests exactly on rows drawn at random so that
            their classes follow the prior. `"betting"` tests on all rows but a
            tenth, which fixes the thresholds. None takes the stronger one,
            which labels and prior alone decide.
        seed: Seed of the random rows, >= 0.

    Returns:
        A `Choice`.

    Raises:
        ValueError: If no threshold can be certified, a class of the prior has
            too few samples, or values are out of range.
        TypeError: If labels are no integers.

    Example:

    >>> n = np.arange(2000)
    >>> chosen = choose_threshold_for_prior(
    ...     -n, n < 1800, n % 2, target_prior=[0.8, 0.2], risk=0.05, delta=0.1)
    >>> chosen.method, round(chosen.facts["largest_weight"], 2)
    ('subsampling', 1.6)

    Reference:
        Si et al., PAC Prediction Sets Under Label Shift, ICLR 2024,
        https://arxiv.org/abs/2310.12964, for rejection sampling; bets:
        Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables
        by Betting, 2024, https://arxiv.org/abs/2010.09686
    """
    target = PriorTarget(target_prior, risk, delta, method, seed).check()
    if not isinstance(scores, Predictions):
        scores = as_array(scores, "scores")
    elif labels is None:
        labels = scores.class_ids
    classes = read_classes(labels, scores.shape, len(target.prior))
    outcomes = read_outcomes(scores, correct, None, delta, classes)
    return target.choose(outcomes, in_log_odds(scores))


def read_classes(labels: Any, shape: tuple, num_classes: int) -> np.ndarray:
    """True classes of the samples, checked."""
    found = as_array(labels, "labels")
    if found.dtype.kind not in "iu":
        raise type_error("`labels` must be integers", dtype=found.dtype.name)
    if found.shape != shape:
        raise value_error(
            "`labels` must have the shape of `scores`",
            labels=found.shape,
            scores=shape,
        )
    if found.min() < 0 or found.max() >= num_classes:
        raise value_error(
            "`labels` must be classes of `target_prior`, in [0, num_classes)",
            minimum=int(found.min()),
            maximum=int(found.max()),
            num_classes=num_classes,
        )
    return found.astype("int64")
