"""The three hypotheses of a monitor, and the alternatives they are tested by.

Each class has the `prior` of its alternatives, `log_factors` and `facts` of
outcomes, and the `message` of an alarm. Its `extremes` are the least and the
largest log factors of an outcome of 0 and of 1, `(2, num_alternatives)` each.
"""

import numpy as np
from scipy.special import logit

from keras_calib.formulas.evidence import CLOSEST, log_factors, moved
from keras_calib.formulas.intervals import clopper_pearson

__all__ = ["CalibrationHolds", "CoverageHolds", "RiskHolds"]

_OUTCOMES = np.array([0.0, 1.0])
# By how much odds change under an alternative.
_ODDS = np.log([1.25, 1.5, 2.0, 3.0, 5.0])
# Alternatives for all confidences: the network became surer or less sure.
_TEMPERATURES = np.array([0.5, 0.7, 0.85, 1.2, 1.4, 1.7, 2.5])
_SHIFTS = np.array([-1.0, -0.5, -0.25, 0.25, 0.5, 1.0])
# Alternatives for the confidences of one range.
_RANGES = np.array([0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999])
_RANGE_SHIFTS = np.array([-1.0, -0.4, 0.4, 1.0])


class _ShareHolds:
    """A share of outcomes is from `low` to `high`, whatever the confidence."""

    def __init__(self, low: float, high: float, *away: np.ndarray):
        alternatives = np.concatenate(away, axis=1)
        num = alternatives.shape[1]
        self.prior = np.full(num, 1.0 / num)
        ends = np.full(2, low), np.full(2, high)
        self._factors = log_factors(_OUTCOMES, *ends, alternatives)
        self.extremes = self._factors, self._factors

    def log_factors(self, outcomes: np.ndarray) -> np.ndarray:
        """Log of the factors `(n, num_alternatives)` of outcomes `(n,)`."""
        return self._factors[outcomes.astype("int64")]

    def facts(self, outcomes: np.ndarray) -> np.ndarray:
        """What is summed since a start `(n, 2)`: outcomes of 1."""
        return np.array([outcomes, np.zeros(len(outcomes))]).T


class RiskHolds(_ShareHolds):
    """At most a share `risk` of the accepted answers is wrong."""

    def __init__(self, risk: float):
        self.risk = risk
        super().__init__(0.0, risk, moved(np.full(2, risk), _ODDS))

    def message(self, _: int, before: int, facts: np.ndarray) -> str:
        """An alarm in words."""
        return (
            f"The accepted risk is above {self.risk:.3g}. The change most "
            f"likely began after {before:,} labelled accepted answers; since "
            f"then {_share(facts)} are wrong. Accept less, or fit calibrator "
            "and threshold on new labels, and restart the monitor."
        )


class CoverageHolds(_ShareHolds):
    """The accepted share is from `low` to `high`."""

    def __init__(self, low: float, high: float):
        self.low, self.high = low, high
        away = moved(np.full(2, low), -_ODDS), moved(np.full(2, high), _ODDS)
        super().__init__(low, high, *away)

    def message(self, place: int, before: int, facts: np.ndarray) -> str:
        """An alarm in words."""
        rule = f"below {self.low:.3g}"
        if place >= len(_ODDS):
            rule = f"above {self.high:.3g}"
        return (
            f"The accepted share is {rule}. The change most likely began "
            f"after {before:,} answers; since then {_share(facts)} are "
            "accepted. The inputs have changed: look at what is new in them, "
            "and get labels."
        )


class CalibrationHolds:
    """Answers of confidence c are right with probability c, but for a gap.

    Half of the prior is for alternatives of all confidences, temperatures and
    shifts of the log-odds; half for shifts in one range of confidence.
    """

    def __init__(self, tolerance: float):
        self.tolerance = tolerance
        num_all = len(_TEMPERATURES) + len(_SHIFTS)
        num_ranges = (len(_RANGES) + 1) * len(_RANGE_SHIFTS)
        parts = [np.full(n, 0.5 / n) for n in (num_all, num_ranges)]
        self.prior = np.concatenate(parts)
        ones, zeros = np.ones_like(_SHIFTS), np.zeros_like(_TEMPERATURES)
        self._temperature = np.concatenate(
            [_TEMPERATURES, ones, np.ones_like(_RANGE_SHIFTS)]
        )
        self._shift = np.concatenate([zeros, _SHIFTS, _RANGE_SHIFTS])
        # log p is no steeper than the log-odds of p.
        most = logit(1.0 - CLOSEST) * np.abs(1.0 / self._temperature - 1.0)
        most += np.abs(self._shift)
        ranged = np.tile(most[num_all:], len(_RANGES) + 1)
        most = np.tile(np.concatenate([most[:num_all], ranged]), (2, 1))
        self.extremes = -most, most

    def log_factors(
        self, confidence: np.ndarray, correct: np.ndarray
    ) -> np.ndarray:
        """Log of the factors `(n, num_alternatives)` of answers `(n,)`."""
        found = log_factors(
            correct,
            np.clip(confidence - self.tolerance, 0.0, 1.0),
            np.clip(confidence + self.tolerance, 0.0, 1.0),
            moved(confidence, self._shift, self._temperature),
        )
        here = len(_RANGE_SHIFTS)
        place = np.searchsorted(_RANGES, confidence, side="right")
        everywhere = found.shape[1] - here
        factors = np.zeros((len(found), len(self.prior)))
        factors[:, :everywhere] = found[:, :everywhere]
        columns = everywhere + here * place[:, None] + np.arange(here)
        rows = np.arange(len(found))[:, None]
        factors[rows, columns] = found[:, everywhere:]
        return factors

    def facts(self, confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
        """What is summed since a start `(n, 2)`: correct, and confidence."""
        return np.array([correct, confidence]).T

    def message(self, place: int, before: int, facts: np.ndarray) -> str:
        """An alarm in words."""
        where = "at all confidences"
        ranged = place - len(_TEMPERATURES) - len(_SHIFTS)
        if ranged >= 0:
            ends = np.r_[0.0, _RANGES, 1.0]
            at = ranged // len(_RANGE_SHIFTS)
            where = f"at confidences of {ends[at]:g} to {ends[at + 1]:g}"
        mean = facts[2] / max(facts[0], 1.0)
        return (
            f"Confidence and accuracy differ by more than {self.tolerance:g}, "
            f"mostly {where}. The change most likely began after {before:,} "
            f"labelled answers; since then {_share(facts)} are right, with a "
            f"mean confidence of {mean:.3f}. Fit the calibrator on new "
            "labels, and restart the monitor."
        )


def _share(facts: np.ndarray) -> str:
    """A share since a start, with its interval."""
    count = max(facts[0], 1.0)
    low, high = clopper_pearson(facts[1], count)
    share = facts[1] / count
    return (
        f"{share:.2%} of {facts[0]:,.0f} ({low:.2%} to {high:.2%} at 95 %, "
        "as if the start were known)"
    )
