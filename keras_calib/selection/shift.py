"""Thresholds that keep their guarantee on data of other shares.

A known prior of the classes, or any mixture of the groups. Samples that are not
draws of one population must not choose the thresholds that they test: a random
tenth fixes them.
Derivation: docs/derivations.md, 'Other priors and mixtures' and
'Families of claims'.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import binom

from keras_calib.backend.errors import type_error, value_error
from keras_calib.formulas.intervals import binomial_p_value
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
    in_log_odds,
    of_grid,
    of_scores,
    read_outcomes,
)

# Share of the samples that fixes thresholds, and most thresholds.
_SHARE, _MOST = 0.1, 256
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
    # By threshold and group, of mixtures.
    p_values: Any = None


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
    outcomes = read_outcomes(scores, correct, None, delta, classes=classes)
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
        names, number = outcomes.names, len(outcomes.names)
        test = self.test(outcomes)

        def refusal() -> dict[str, Any]:
            p_value = test.p_values(self.risk)
            best = np.argmin(p_value.max(axis=1))
            return {
                "where": " in all groups",
                "advice": (
                    "take more data; or drop `one_threshold` for one "
                    "threshold in each group"
                ),
                "hardest group": names[int(np.argmax(p_value[best]))],
            }

        chosen = choose(
            # Samples count, with a weight of 1.
            of_grid(outcomes._replace(weight=None), test.threshold),
            test.certified,
            self.risk,
            self.delta,
            log_odds=log_odds,
            refusal=refusal,
            kind="mixtures",
            method=test.method,
            group=names,
        )
        cut = np.array([chosen.threshold])
        at = outcomes.score, outcomes.group, number, cut
        every, lost = counts_at(*at)[0], counts_at(*at, outcomes.loss)[0]
        sizes = np.bincount(outcomes.group, minlength=number)
        coverage, risk = every / sizes, lost / every
        return replace(
            chosen,
            group_samples=tuple(sizes.tolist()),
            group_coverage=tuple(coverage.tolist()),
            group_risk=tuple(risk.tolist()),
            facts={
                "worst_group": names[int(np.argmax(risk))],
                "worst_risk": float(risk.max()),
                "worst_coverage": float(coverage.min()),
            },
        )

    def test(self, outcomes: Outcomes) -> _Test:
        """The test of all groups, each at `delta`.

        A mixture's risk is a weighted mean of the groups' risks, so the worst
        group counts.
        """
        number = len(outcomes.names)
        sizes = np.bincount(outcomes.group, minlength=number)
        self._check_sizes(sizes, outcomes.names)
        tenth = tenth_of(outcomes.group, self.seed)
        first, rest = outcomes.part(tenth), outcomes.part(~tenth)
        threshold, coverage = fixed_thresholds(first)
        cells = rest.score, rest.group, number, threshold
        accepted, wrong = counts_at(*cells), counts_at(*cells, rest.loss)
        # What the tenth leads to expect.
        guess = counts_at(first.score, first.group, number, threshold)
        share = np.where(
            guess[-1] > 0, safe_divide(guess, guess[-1]), coverage[:, None]
        )
        expected = (share * accepted[-1]).min(axis=1)

        def p_values(risk: float) -> np.ndarray:
            # Without accepted samples nothing is known of a group.
            return binomial_p_value(wrong, accepted, risk)

        def certified(risk: float) -> np.ndarray:
            starts = starts_at(
                expected, coverage, lambda x: first_rank(risk, x), self.delta
            )
            claim = Claim(p_values(risk).max(axis=1), *starts)
            return alone(claim, len(threshold))

        size = len(rest.score)
        return _Test(threshold, certified, size, "binomial", p_values)

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


def choose_threshold_for_mixtures(
    scores: Any,
    correct: Any = None,
    groups: Any = None,
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
        scores, correct: `(n,)`, as in `choose_threshold`.
        groups: Group of each sample `(n,)`, integers or strings, or the name
            of a group of the `Predictions`.
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
    if groups is None:
        raise value_error(
            "`groups` must have a group for each sample", groups=None
        )
    target = MixtureTarget(risk, delta, seed).check()
    outcomes = read_outcomes(scores, correct, None, delta, groups=groups)
    return target.choose(outcomes, in_log_odds(scores))


def fixed_thresholds(outcomes: Outcomes) -> tuple[np.ndarray, np.ndarray]:
    """Thresholds between scores, at most 256, and the coverage of each.

    They are even in coverage, strictest first; the last accepts all.
    """
    found = of_scores(outcomes)
    wanted = np.arange(1, _MOST + 1) / _MOST - 1e-9
    places = np.searchsorted(found.coverage, wanted)
    places = np.unique(np.minimum(places, len(found.threshold) - 1))
    accepted = found.accepted[places]
    return found.threshold[places], safe_divide(accepted, accepted[-1])


def tenth_of(kind: np.ndarray, seed: int) -> np.ndarray:
    """Mask of a random tenth of each kind (class or group) `(n,)`, >= 1 row."""
    wanted = tenth_sizes(np.bincount(kind))
    if not wanted.any():
        wanted[kind.min()] = 1
    return drawn_of_each(kind, wanted, generator(seed))


def drawn_of_each(
    kind: np.ndarray, wanted: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Mask `(n,)` of so many random rows of each kind."""
    order = rng.permutation(len(kind))
    order = order[np.argsort(kind[order], kind="stable")]
    sizes = np.bincount(kind)
    place = np.arange(len(kind)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mask = np.zeros(len(kind), bool)
    mask[order] = place < wanted[kind[order]]
    return mask


def tenth_sizes(sizes: Any) -> np.ndarray:
    """How many of so many samples fix the thresholds."""
    return np.rint(_SHARE * np.asarray(sizes)).astype(int)
