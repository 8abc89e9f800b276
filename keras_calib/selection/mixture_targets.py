"""One threshold whose risk is guaranteed for every mixture of groups.

Derivation: docs/derivations.md, 'Other priors and mixtures'.
"""

from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import binomial_p_value
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.candidates import Candidates
from keras_calib.selection.fixed_thresholds import (
    counts_at,
    fixed_thresholds,
    starts_at,
    tenth_of,
    tenth_sizes,
)
from keras_calib.selection.guarantees import first_rank, walk
from keras_calib.selection.prior_targets import check_risk_and_delta
from keras_calib.selection.reach import advice_on_risk
from keras_calib.selection.shifted_facts import MixtureThreshold

__all__ = ["MixtureCounts", "MixtureTarget"]


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
    """Target of a threshold: a guaranteed risk in each of the groups.

    Derivation: docs/derivations.md, 'Other priors and mixtures'.
    """

    group: tuple
    risk: float
    delta: float
    seed: int

    @classmethod
    def of(cls, group: tuple, risk: Any, delta: Any, seed: Any) -> Any:
        """Checks the arguments."""
        check_risk_and_delta(risk, delta)
        check_integer("seed", seed, 0)
        return cls(group, float(risk), float(delta), int(seed))

    def choose(
        self,
        scores: np.ndarray,
        correct: np.ndarray,
        places: np.ndarray,
        log_odds: bool = False,
    ) -> tuple[Candidates, MixtureThreshold, np.ndarray]:
        """All candidates, the best threshold, and which are certified.

        Takes scores, correctness and places of groups `(n,)`. Raises
        ValueError if no threshold is certified.
        """
        wrong = 1.0 - np.asarray(correct, "float64")
        sizes = np.bincount(places, minlength=len(self.group))
        counts = self.counts(scores, wrong, places)
        certified = self.certified(counts, self.risk)
        every = counts_at(scores, places, len(sizes), counts.threshold)
        errors = counts_at(scores, places, len(sizes), counts.threshold, wrong)
        found = Candidates(
            counts.threshold,
            every.sum(axis=1).astype("float64"),
            errors.sum(axis=1),
            len(scores),
            True,
            never=(float(len(scores) - every[-1].sum()), 0.0),
        )
        if not certified.any():
            raise self._not_reached(found, counts)
        place = int(np.flatnonzero(certified)[-1])
        facts = found.at(place)
        coverage, risk = every[place] / sizes, errors[place] / every[place]
        worst = int(np.argmax(risk))
        chosen = MixtureThreshold(
            *facts,
            len(scores),
            self.risk,
            self.delta,
            "binomial",
            self.group[worst],
            float(risk[worst]),
            float(coverage.min()),
            self.group,
            tuple(sizes.tolist()),
            tuple(coverage.tolist()),
            tuple(risk.tolist()),
            float(sigmoid(np.float64(facts[0]))) if log_odds else None,
        )
        return found, chosen, certified

    def _check_sizes(self, sizes: np.ndarray) -> None:
        """Raises ValueError for a group that nothing could certify."""
        fewest = first_rank(self.risk, self.delta)
        rest = sizes - tenth_sizes(sizes)
        small = np.flatnonzero(rest < fewest)
        if not len(small):
            return
        least = small[np.argmin(sizes[small])]
        needed = fewest
        while needed - tenth_sizes(np.array(needed)) < fewest:
            needed += 1
        raise value_error(
            f"`groups` must each have at least {needed} samples to certify "
            "this `risk`, even if all are correct: take more data, join "
            "groups, or ask for a larger `risk` or `delta`",
            risk=self.risk,
            delta=self.delta,
            group=self.group[least],
            samples=int(sizes[least]),
            **{"groups with too few": len(small)},
        )

    def counts(
        self, scores: np.ndarray, wrong: np.ndarray, places: np.ndarray
    ) -> MixtureCounts:
        """Counts of each group `(n,)` at thresholds of a random tenth."""
        self._check_sizes(np.bincount(places, minlength=len(self.group)))
        tenth = tenth_of(places, self.seed)
        number = len(self.group)
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
        p_value = _p_values(counts, risk).max(axis=1)
        first, shares = starts_at(
            counts.expected.min(axis=1),
            counts.coverage,
            lambda level: first_rank(risk, level),
            self.delta,
        )
        return walk(p_value, first, shares)

    def _not_reached(
        self, found: Candidates, counts: MixtureCounts
    ) -> ValueError:
        """The error for a risk out of reach, which names one within reach."""
        p_value = _p_values(counts, self.risk)
        best = int(np.argmin(p_value.max(axis=1)))
        worst = int(np.argmax(p_value[best]))
        advice = advice_on_risk(
            lambda x: self.certified(counts, x), self.risk, found.coverage
        )
        return value_error(
            "No threshold is certified to have this `risk` in all groups: "
            f"take more data; or {advice}; or drop `one_threshold` for one "
            "threshold in each group",
            risk=self.risk,
            delta=self.delta,
            **{"hardest group": self.group[worst]},
            samples=found.num_samples,
        )


def _p_values(counts: MixtureCounts, risk: float) -> np.ndarray:
    """P-values `(num_thresholds, num_groups)`; 1 for a group without samples.

    Without accepted samples nothing is known of a group.
    """
    return binomial_p_value(counts.wrong, counts.accepted, risk)
