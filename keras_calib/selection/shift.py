"""Thresholds that keep their guarantee where the data shift.

Tests of samples that are not draws of one population need thresholds that
these samples did not choose: a random tenth fixes them.
Derivation: docs/derivations.md, 'Other priors and mixtures'.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.intervals import binomial_p_value, check_inside
from keras_calib.formulas.prior import read_prior
from keras_calib.formulas.shifted_risk import (
    class_weights,
    largest_bet,
    log_evidence,
    subsample_of,
)
from keras_calib.inputs.checks import check_in, check_integer, generator
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array, safe_divide
from keras_calib.selection.choice import (
    Choice,
    chosen_alone,
    out_of_reach,
    within_reach,
)
from keras_calib.selection.claims import Claim, errors, first_rank
from keras_calib.selection.families import alone, every_mixture
from keras_calib.selection.ladder import (
    Ladder,
    counts_at,
    of_grid,
    of_scores,
    read_outcomes,
)

__all__ = [
    "MixtureCounts",
    "MixtureTarget",
    "PRIOR_METHODS",
    "PriorTarget",
    "PriorTest",
    "check_risk_and_delta",
    "choose_threshold_for_mixtures",
    "choose_threshold_for_prior",
    "fixed_thresholds",
    "read_classes",
    "starts_at",
    "tenth_of",
    "tenth_sizes",
]

PRIOR_METHODS = "subsampling", "betting"

# What else to ask for.
_LARGER = "a larger `risk` or `delta`"
# Share of the samples that fixes thresholds, and most thresholds.
_SHARE, _MOST = 0.1, 256
# By how much a start may miss what it needs: the tenth estimates coverages.
_MARGIN = 1.2
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
        check_in("method", self.method, (None, *PRIOR_METHODS))
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
        test = self.test(outcomes.score, outcomes.loss, labels)
        certified = test.certified(self.risk)
        count = np.bincount(labels, minlength=len(self.prior))
        weight = class_weights(count, self.prior)
        each = weight[labels]
        ladder = of_grid(outcomes._replace(weight=each), test.threshold)
        if not certified.any():
            raise self._not_reached(ladder, test)
        return chosen_alone(
            ladder,
            certified,
            int(np.flatnonzero(certified)[-1]),
            log_odds,
            kind="prior",
            limit=self.risk,
            delta=self.delta,
            method=test.method,
            facts={
                "target_prior": tuple(self.prior.tolist()),
                "num_tested": test.num_tested,
                "effective_samples": float(each.sum() ** 2 / (each**2).sum()),
                "largest_weight": float(weight.max()),
            },
        )

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
        ladder = of_scores(Outcomes(scores[rows], cost=wrong[rows]))
        level = self.delta * drawn.chance

        def certified(risk: float) -> np.ndarray:
            return alone(errors(ladder, risk, level), len(ladder.threshold))

        return PriorTest(ladder.threshold, certified, len(rows), "subsampling")

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
            p_value = np.exp(-np.maximum(evidence, 0.0))
            return alone(Claim(p_value, first, shares), len(threshold))

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

    def _not_reached(self, ladder: Ladder, test: PriorTest) -> ValueError:
        advice = within_reach(
            test.certified,
            ladder.coverage,
            self.risk,
            where="at the target prior",
        )
        return out_of_reach(
            [ladder],
            "risk",
            self.risk,
            self.delta,
            where=" at `target_prior`",
            advice=f"take more data; or {advice or _LARGER}",
            method=test.method,
            samples=ladder.size,
            tested=test.num_tested,
        )


def choose_threshold_for_prior(
    scores: Any,
    correct: Any,
    labels: Any,
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
        scores: Scores `(n,)`, higher = surer.
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
    outcomes = read_outcomes(scores, correct, None, delta)
    shape = outcomes.score.shape
    classes = read_classes(labels, shape, len(target.prior))
    return target.choose(outcomes._replace(group=classes))


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


class MixtureCounts(NamedTuple):
    """Thresholds, and samples of each group that they accept.

    `expected` is what the tenth that fixed the thresholds leads to expect.
    """

    threshold: np.ndarray
    coverage: np.ndarray
    expected: np.ndarray
    accepted: np.ndarray
    wrong: np.ndarray


class MixtureTarget(NamedTuple):
    """Target of a threshold: a guaranteed risk in each of the groups."""

    risk: float
    delta: float
    seed: int = 0

    def check(self) -> "MixtureTarget":
        """Returns self; raises ValueError for values that are not allowed."""
        check_risk_and_delta(self.risk, self.delta)
        check_integer("seed", self.seed, 0)
        return MixtureTarget(
            float(self.risk), float(self.delta), int(self.seed)
        )

    def choose(self, outcomes: Outcomes, log_odds: bool = False) -> Choice:
        """The best threshold; ValueError if none is certified."""
        scores, places = outcomes.score, outcomes.group
        number = len(outcomes.names)
        sizes = np.bincount(places, minlength=number)
        counts = self.counts(outcomes)
        certified = self.certified(counts, self.risk)
        every = counts_at(scores, places, number, counts.threshold)
        wrong = counts_at(
            scores, places, number, counts.threshold, outcomes.loss
        )
        ladder = Ladder(
            counts.threshold,
            every.sum(axis=1).astype("float64"),
            wrong.sum(axis=1),
            len(scores),
            True,
            never=(float(len(scores) - every[-1].sum()), 0.0),
        )
        if not certified.any():
            raise self._not_reached(ladder, counts, outcomes.names)
        place = int(np.flatnonzero(certified)[-1])
        coverage, risk = every[place] / sizes, wrong[place] / every[place]
        return chosen_alone(
            ladder,
            certified,
            place,
            log_odds,
            kind="mixtures",
            limit=self.risk,
            delta=self.delta,
            method="binomial",
            group=outcomes.names,
            group_samples=tuple(sizes.tolist()),
            group_coverage=tuple(coverage.tolist()),
            group_risk=tuple(risk.tolist()),
            facts={
                "worst_group": outcomes.names[int(np.argmax(risk))],
                "worst_risk": float(risk.max()),
                "worst_coverage": float(coverage.min()),
            },
        )

    def _check_sizes(self, sizes: np.ndarray, names: tuple) -> None:
        """Raises ValueError for a group that nothing could certify."""
        fewest = first_rank(self.risk, self.delta)
        rest = sizes - tenth_sizes(sizes)
        small = np.flatnonzero(rest < fewest)
        if not len(small):
            return
        least = small[np.argmin(sizes[small])]
        needed = fewest
        while needed - tenth_sizes(needed) < fewest:
            needed += 1
        raise value_error(
            f"`groups` must each have at least {needed} samples to certify "
            "this `risk`, even if all are correct: take more data, join "
            "groups, or ask for a larger `risk` or `delta`",
            risk=self.risk,
            delta=self.delta,
            group=names[least],
            samples=int(sizes[least]),
            **{"groups with too few": len(small)},
        )

    def counts(self, outcomes: Outcomes) -> MixtureCounts:
        """Counts of each group at thresholds of a random tenth."""
        scores, places, wrong = outcomes.score, outcomes.group, outcomes.loss
        number = len(outcomes.names)
        self._check_sizes(np.bincount(places, minlength=number), outcomes.names)
        tenth = tenth_of(places, self.seed)
        threshold = fixed_thresholds(scores[tenth], np.ones(tenth.sum()))
        guess = counts_at(scores[tenth], places[tenth], number, threshold)
        total = guess.sum(axis=1)
        coverage = safe_divide(total, total[-1])
        share = np.where(
            guess[-1] > 0, safe_divide(guess, guess[-1]), coverage[:, None]
        )
        rest = scores[~tenth], places[~tenth], number, threshold
        accepted = counts_at(*rest)
        return MixtureCounts(
            threshold,
            coverage,
            share * accepted[-1],
            accepted,
            counts_at(*rest, wrong[~tenth]),
        )

    def certified(self, counts: MixtureCounts, risk: float) -> np.ndarray:
        """Which thresholds are certified in all groups."""
        first, shares = starts_at(
            counts.expected.min(axis=1),
            counts.coverage,
            lambda level: first_rank(risk, level),
            self.delta,
        )
        # Without accepted samples nothing is known of a group.
        p_values = binomial_p_value(counts.wrong, counts.accepted, risk)
        return every_mixture(p_values, first, shares)

    def _not_reached(
        self, ladder: Ladder, counts: MixtureCounts, names: tuple
    ) -> ValueError:
        """The error for a risk out of reach, which names one within reach."""
        p_value = binomial_p_value(counts.wrong, counts.accepted, self.risk)
        best = int(np.argmin(p_value.max(axis=1)))
        advice = within_reach(
            lambda x: self.certified(counts, x), ladder.coverage, self.risk
        )
        return out_of_reach(
            [ladder],
            "risk",
            self.risk,
            self.delta,
            where=" in all groups",
            advice=(
                f"take more data; or {advice or _LARGER}"
                "; or drop `one_threshold` for one threshold in each group"
            ),
            samples=ladder.size,
            **{"hardest group": names[int(np.argmax(p_value[best]))]},
        )


def choose_threshold_for_mixtures(
    scores: Any,
    correct: Any,
    groups: Any,
    *,
    risk: float,
    delta: float,
    seed: int = 0,
) -> Choice:
    """One threshold for all groups, guaranteed for every mixture of them.

    Use it when the shares of the groups in use are unknown or change: regions,
    devices, customers. With it,

    P(any mixture of the groups has a true risk above `risk`) <= `delta`

    The risk of a mixture is a weighted mean of the groups' risks, so this is a
    guarantee for the worst group. The threshold is the same for all, and needs
    no group when served.

    Args:
        scores: Scores `(n,)`, higher = surer.
        correct: 1 for right and 0 for wrong predictions `(n,)`.
        groups: Group of each sample `(n,)`, integers or strings.
        risk: Largest allowed share of errors among the accepted, in (0, 1).
        delta: Probability that the guarantee may fail, in (0, 1). It needs
            samples that are independent within each group and chose nothing
            else. Groups do not share it.
        seed: Seed of the random tenth that fixes the thresholds, >= 0.

    Returns:
        A `Choice`.

    Raises:
        ValueError: If no threshold can be certified, a group has too few
            samples, or values are out of range.
        TypeError: If groups are neither integers nor strings.

    Example:

    >>> n = np.arange(400)
    >>> groups = np.where(n % 2, "north", "south")
    >>> chosen = choose_threshold_for_mixtures(
    ...     -n, n < 390, groups, risk=0.1, delta=0.05)
    >>> chosen.coverage, chosen.facts["worst_group"]
    (1.0, 'north')

    Reference:
        Berger, Multiparameter Hypothesis Testing and Acceptance Sampling,
        Technometrics 24, 1982,
        https://doi.org/10.1080/00401706.1982.10487790
    """
    from keras_calib.selection.served_groups import read_groups

    target = MixtureTarget(risk, delta, seed).check()
    outcomes = read_outcomes(scores, correct, None, delta)
    names, places = read_groups(groups, outcomes.score.shape)
    return target.choose(outcomes._replace(group=places, names=names))


def fixed_thresholds(scores: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Thresholds between scores, at most 256, even in coverage, descending.

    Tests of samples that are not draws of one population need thresholds that
    these samples did not choose: another share of the data fixes them. The
    last accepts all.
    """
    found = of_scores(
        Outcomes(scores, cost=np.zeros(len(scores)), weight=weight)
    )
    wanted = np.arange(1, _MOST + 1) / _MOST - 1e-9
    places = np.searchsorted(found.coverage, wanted)
    places = np.minimum(places, len(found.threshold) - 1)
    return found.threshold[np.unique(places)]


def tenth_of(kind: np.ndarray, seed: int) -> np.ndarray:
    """Mask of a random tenth of each kind (class or group) `(n,)`, >= 1 row."""
    count = len(kind)
    order = generator(seed).permutation(count)
    order = order[np.argsort(kind[order], kind="stable")]
    sizes = np.bincount(kind)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(count, bool)
    mask[order] = np.arange(count) - first < tenth_sizes(sizes)[kind[order]]
    if not mask.any():
        mask[order[0]] = True
    return mask


def tenth_sizes(sizes: Any) -> np.ndarray:
    """How many of so many samples fix the thresholds."""
    return np.rint(_SHARE * np.asarray(sizes)).astype(int)


def starts_at(
    capacity: np.ndarray,
    coverage: np.ndarray,
    needed: Callable[[float], float],
    level: float,
) -> tuple[np.ndarray, np.ndarray]:
    """As `starts`, among given thresholds: their places, and the shares.

    The coverage doubles from one start to the next. There is none if the last
    threshold could not pass even without errors.

    Args:
        capacity: What each threshold could show without errors
            `(num_thresholds,)`, ascending; estimated, but for the last.
        coverage: Estimated coverage, ascending.
        needed: The capacity that a level takes.
        level: What the starts share.
    """
    last = len(capacity) - 1
    first = np.searchsorted(capacity, _MARGIN * needed(level / 2.0))
    wanted, places = float("inf"), []
    if first <= last:
        wanted = coverage[first]
    while wanted <= coverage[-1]:
        places.append(int(np.searchsorted(coverage, wanted)))
        wanted *= 2.0
    places = sorted(set(places))
    if len(places) > 1:
        shares = np.full(len(places), level / 2.0 / (len(places) - 1))
        shares[0] = level / 2.0
        return np.array(places), shares
    if capacity[-1] < needed(level):
        return np.zeros(0, int), np.zeros(0)
    first = np.searchsorted(capacity, _MARGIN * needed(level))
    return np.array([min(first, last)]), np.array([level])


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
