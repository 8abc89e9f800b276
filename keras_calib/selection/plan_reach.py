"""Which risks are within reach of a plan, and what to ask for if none is."""

import math

import numpy as np
from scipy.stats import norm

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import (
    binomial_p_value,
    binomial_upper_bound,
)
from keras_calib.selection.certification import certified_coverage
from keras_calib.selection.claims import first_rank
from keras_calib.selection.population import Population

__all__ = ["Reach", "rounded_up"]

# Draws that check an advice, steps by which it grows, and how many of them.
_NUM_DRAWS, _STEP, _MOST_STEPS = 400, 1.1, 40
_MOST_RISK = 0.99
# Probability at which errors of a pilot in excess of a risk are no chance.
_IMPROBABLE = 0.05
# Samples, over the fewest of a certificate, that tell whether a risk is met.
_ENOUGH = 3


class Reach:
    """What a population allows to certify.

    A threshold counts if the pilot has as many samples above it as a
    certificate takes at least. Fewer say nothing: by luck some are right.
    """

    def __init__(
        self,
        of: Population,
        risk: float,
        delta: float,
        power: float,
        method: str,
    ):
        self.of, self.risk = of, risk
        self.delta, self.power, self.method = delta, power, method
        self._fewest = first_rank(risk, delta)
        self._known = self._counting(self._fewest)
        within = np.flatnonzero(self._known & (of.risk <= risk))
        # The largest coverage whose error rate is within the risk, or 0.
        self.best_coverage = (
            float(of.coverage[within[-1]]) if len(within) else 0.0
        )

    def never(self, max_samples: int) -> ValueError:
        """The error of a risk that no threshold has."""
        of, advice = self.of, self._advice(max_samples)
        enough = _ENOUGH * self._fewest
        known = self._counting(enough)
        if of.num_samples:
            accepted = of.num_samples * of.coverage[known]
            # Less the error that is added after the last.
            wrong = np.maximum(accepted * of.risk[known] - 1.0, 0.0)
            chance = binomial_p_value(np.floor(wrong), accepted, self.risk)
            if (chance < 1.0 - _IMPROBABLE).any():
                more = max(enough, 2 * of.num_samples)
                return value_error(
                    "`pilot` is too small to tell whether this `risk` is "
                    f"within reach: take one of {more} samples or more, or "
                    f"ask for a larger `risk`, such as {advice:g}",
                    risk=self.risk,
                    samples=of.num_samples,
                )
        best = np.flatnonzero(known)[np.argmin(of.risk[known])]
        return value_error(
            "`risk` is below that of every threshold, so that no number of "
            f"labels certifies it: ask for `risk={advice:g}` or more",
            risk=self.risk,
            **{
                "lowest risk": float(of.risk[best]),
                "at coverage": float(of.coverage[best]),
            },
        )

    def too_many(self, max_samples: int, probability: float) -> ValueError:
        """The error of a risk that takes more than `max_samples` labels."""
        return value_error(
            "`max_samples` labels do not certify any threshold with "
            "probability `power`: raise it, or ask for "
            f"`risk={self._advice(max_samples):g}` or more",
            risk=self.risk,
            power=self.power,
            max_samples=max_samples,
            probability=probability,
        )

    def _counting(self, fewest: int) -> np.ndarray:
        """Thresholds with that many samples of the pilot, or with all."""
        if not self.of.num_samples:
            return np.ones(len(self.of.mass), bool)
        accepted = np.rint(self.of.num_samples * self.of.coverage)
        return accepted >= min(fewest, self.of.num_samples)

    def _advice(self, max_samples: int) -> float:
        """A risk of two digits that `max_samples` labels certify.

        If the pilot's errors are as improbable as the upper end of their
        interval, the risk is still within reach. Simulation has the last word.
        """
        of, rates = self.of, self.of.risk
        if of.num_samples:
            accepted = np.maximum(np.rint(of.num_samples * of.coverage), 1.0)
            wrong = np.clip(accepted * rates - 1.0, 0.0, accepted)
            rates = binomial_upper_bound(wrong, accepted)
            rates = np.maximum(rates, of.risk)[self._known]
        spread = math.sqrt(2.0 * math.log(2.0 / self.delta))
        spread += max(float(norm.ppf(self.power)), 0.0)
        error = np.sqrt(rates / (max_samples * of.coverage[self._known]))
        limit = float((rates + spread * error).min())
        fewest = -math.log(self.delta / 2.0) / max_samples
        limit = min(max(limit, fewest, 1.01 * self.risk), _MOST_RISK)
        rng = np.random.default_rng(0)
        for _ in range(_MOST_STEPS):
            limit = min(rounded_up(limit), _MOST_RISK)
            options = limit, self.delta, self.method, _NUM_DRAWS, rng
            found = certified_coverage(of, max_samples, *options)
            if limit == _MOST_RISK or (found > 0).mean() > self.power:
                break
            limit *= _STEP
        return limit


def rounded_up(value: float) -> float:
    """At most two digits, not below the value."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    # A number of two digits stays.
    return round(math.ceil(round(value / unit, 9)) * unit, 12)
