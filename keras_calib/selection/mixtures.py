"""One threshold for all groups that holds for every mixture of them.

Derivation: docs/derivations.md, 'Other priors and mixtures' and
'Families of claims'.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import safe_divide
from keras_calib.selection.choice import Choice, choose
from keras_calib.selection.claims import (
    Claim,
    check_risk_and_delta,
    first_rank,
    starts_at,
)
from keras_calib.selection.families import alone
from keras_calib.selection.ladder import (
    counts_at,
    fixed_thresholds,
    grouped_outcomes,
    in_log_odds,
    of_grid,
    tenth_of,
    tenth_sizes,
)


class _Counts(NamedTuple):
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
        names = outcomes.names
        counts = self.counts(outcomes)
        chosen = choose(
            # Samples count, with a weight of 1.
            of_grid(outcomes._replace(weight=None), counts.threshold),
            lambda risk: self.certified(counts, risk),
            self.risk,
            self.delta,
            log_odds=log_odds,
            refusal=lambda: self._refusal(counts, names),
            kind="mixtures",
            method="binomial",
            group=names,
        )
        accept = outcomes.score >= chosen.threshold
        accept &= np.isfinite(outcomes.score)
        kept, lost = outcomes.group[accept], outcomes.loss[accept]
        sizes = np.bincount(outcomes.group, minlength=len(names))
        every = np.bincount(kept, minlength=len(names))
        coverage = every / sizes
        risk = np.bincount(kept, lost, len(names)) / every
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

    def counts(self, outcomes: Outcomes) -> _Counts:
        """Counts of each group at thresholds of a random tenth."""
        number = len(outcomes.names)
        sizes = np.bincount(outcomes.group, minlength=number)
        self._check_sizes(sizes, outcomes.names)
        tenth = tenth_of(outcomes.group, self.seed)
        first, rest = outcomes.part(tenth), outcomes.part(~tenth)
        threshold, coverage = fixed_thresholds(first)
        guess = counts_at(first.score, first.group, number, threshold)
        share = np.where(
            guess[-1] > 0, safe_divide(guess, guess[-1]), coverage[:, None]
        )
        cells = rest.score, rest.group, number, threshold
        accepted = counts_at(*cells)
        return _Counts(
            threshold,
            coverage,
            share * accepted[-1],
            accepted,
            counts_at(*cells, rest.loss),
        )

    def certified(self, counts: _Counts, risk: float) -> np.ndarray:
        """Which thresholds are certified in all groups, each at `delta`.

        A mixture's risk is a weighted mean of the groups' risks, so the worst
        group counts.
        """
        first, shares = starts_at(
            counts.expected.min(axis=1),
            counts.coverage,
            lambda level: first_rank(risk, level),
            self.delta,
        )
        # Without accepted samples nothing is known of a group.
        p_values = binomial_p_value(counts.wrong, counts.accepted, risk)
        claim = Claim(p_values.max(axis=1), first, shares)
        return alone(claim, len(counts.threshold))

    def _refusal(self, counts: _Counts, names: tuple) -> dict[str, Any]:
        p_value = binomial_p_value(counts.wrong, counts.accepted, self.risk)
        best = np.argmin(p_value.max(axis=1))
        return {
            "where": " in all groups",
            "advice": (
                "take more data; or drop `one_threshold` for one threshold in "
                "each group"
            ),
            "hardest group": names[int(np.argmax(p_value[best]))],
        }


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
        scores: Scores `(n,)`, higher = surer. Or `Predictions`, as in
            `choose_threshold`.
        correct: 1 for right and 0 for wrong predictions `(n,)`. None with
            `Predictions`.
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
    target = MixtureTarget(risk, delta, seed).check()
    outcomes = grouped_outcomes(scores, correct, groups, None, delta)
    return target.choose(outcomes, in_log_odds(scores))
