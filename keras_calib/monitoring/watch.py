"""The three hypotheses of a monitor, and each under watch, block by block.

A hypothesis has the `prior` of the alternatives that it is tested by,
`log_factors` and `facts` of outcomes, and the `message` of an alarm. Its
`extremes` are the least and the largest log factors of an outcome of 0 and of
1, `(2, num_alternatives)` each.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import logit

from keras_calib.backend.files import Stored
from keras_calib.formulas.evidence import (
    CLOSEST,
    log_evidence,
    log_factors,
    moved,
    start_mass,
    with_block,
)
from keras_calib.formulas.intervals import clopper_pearson

# Outcomes in a block; a change is taken to begin with a block.
BLOCK = 50
# The prior of a change: flat on a log scale from about the first of these
# counts of outcomes to the second.
SCALE = 1_000.0
HORIZON = 1_000_000.0
# Least and largest value of each part of the state.
_COUNT, _LOG = (0.0, 1e300), (-np.inf, 1e300)
_STATE = {
    "_wealth": _LOG,
    "_settled": _COUNT,
    "_spent": (0.0, 1.0 + 1e-9),
    "_planned": _COUNT,
    "_mass": (0.0, 1.0),
    "_open": (-1e300, 1e300),
    "_open_count": _COUNT,
    "_open_facts": _COUNT,
    "_best": _LOG,
    "_since": _COUNT,
    "_facts": _COUNT,
    "highest": _COUNT,
    "alarm_at": (-1.0, 1e300),
    "_alarm": _COUNT,
}
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


class Watch:
    """Evidence against one hypothesis, in fixed memory.

    `prior` has the weights of the alternatives `(num_alternatives,)`, and
    `log_limit` is the log of the evidence that raises the alarm.
    """

    def __init__(self, prior: np.ndarray, log_limit: float):
        self._prior = prior
        self.log_limit = log_limit
        # Log wealth with the mass of the open block.
        self._opened: np.ndarray
        self.reset()

    def reset(self) -> None:
        """Forgets all outcomes."""
        num = len(self._prior)
        self._wealth = np.full(num, -np.inf)
        self._settled = 0
        # Mass of the starts so far, with that of the open block, and the
        # count of outcomes up to which mass is spent. The mass of a block is
        # fixed when it opens: otherwise a look could choose it.
        self._spent = 0.0
        self._planned = 0
        self._mass = 0.0
        # The block that is not full yet: factors, count and facts.
        self._open = np.zeros(num)
        self._open_count = 0
        self._open_facts = np.zeros(2)
        # Log wealth of the best start of each alternative, the outcomes
        # before it, and the number of outcomes and their facts since.
        self._best = np.full(num, -np.inf)
        self._since = np.zeros(num, "int64")
        self._facts = np.zeros((num, 3))
        # Log of the largest evidence so far.
        self.highest = 0.0
        # Number of outcomes at the alarm; -1 without one. What was likeliest
        # then: the alternative, the outcomes before, and three facts.
        self.alarm_at = -1
        self._alarm = np.zeros(5)
        self._remember()

    @property
    def count(self) -> int:
        """Number of outcomes."""
        return self._settled + self._open_count

    @property
    def log_evidence(self) -> float:
        """Log of the evidence now; 0 at the start."""
        return self._now

    def add(self, log_factors: np.ndarray, facts: np.ndarray) -> None:
        """Adds outcomes in order, and looks after each.

        They have factors `(n, num_alternatives)`, and two numbers of each are
        summed from a start on `(n, 2)`.
        """
        start = 0
        while start < len(log_factors):
            if not self._open_count:
                self._plan(BLOCK)
            stop = start + BLOCK - self._open_count
            sums = self._open + np.cumsum(log_factors[start:stop], axis=0)
            self._look(sums, facts[start:stop])
            self._open = sums[-1]
            self._open_count += len(sums)
            self._open_facts = self._open_facts + facts[start:stop].sum(axis=0)
            if self._open_count >= BLOCK:
                self.settle()
            start = stop

    def add_sum(
        self, log_factor: np.ndarray, count: int, facts: np.ndarray
    ) -> None:
        """Adds the sum of the factors of `count` outcomes, in any order.

        A change is taken to begin before or after them, and between them
        nobody looks. Their number must not depend on what they are.
        """
        if not count:
            return
        if count >= BLOCK:
            self.settle()
        if not self._open_count:
            self._plan(max(count, BLOCK))
        self._look((self._open + log_factor)[None], facts[None], count)
        self._open = self._open + log_factor
        self._open_count += count
        self._open_facts = self._open_facts + facts
        if self._open_count >= BLOCK:
            self.settle()

    def settle(self) -> None:
        """Closes the open block."""
        if not self._open_count:
            return
        mass = math.log(self._mass) if self._mass else -math.inf
        new = self._best <= mass
        self._best = np.maximum(self._best, mass) + self._open
        self._since = np.where(new, self._settled, self._since)
        # Arrays are replaced and never changed: copies share them.
        before = np.where(new[:, None], 0.0, self._facts)
        self._facts = before + (self._open_count, *self._open_facts)
        self._wealth = self._opened + self._open
        self._settled = self.count
        self._mass = 0.0
        self._opened = self._wealth
        self._open = np.zeros(len(self._open))
        self._open_count = 0
        self._open_facts = np.zeros(2)

    def likeliest(self) -> tuple[int, int, np.ndarray]:
        """The alternative with the most wealth, and its start.

        They are its index, the number of outcomes before the start, and the
        number of outcomes and their facts since `(3,)`.
        """
        found = copy.copy(self)
        found.settle()
        best = int(np.argmax(found._best + np.log(self._prior)))
        return best, int(found._since[best]), found._facts[best]

    def at_alarm(self) -> tuple[int, int, np.ndarray]:
        """What `likeliest` was at the alarm; no later outcome changes it."""
        place, before, *facts = self._alarm.tolist()
        return int(place), int(before), np.array(facts)

    @classmethod
    def mean(cls, watches: Sequence["Watch"]) -> "Watch":
        """One that holds the mean evidence of streams.

        It is valid if the hypothesis holds given the past of all. Its likeliest
        start is that of the stream with the most wealth.
        """
        parts = [copy.copy(watch) for watch in watches]
        for part in parts:
            part.settle()
        made = copy.copy(parts[0])
        most = np.argmax([part._best for part in parts], axis=0)
        each = np.arange(len(most))
        for name in ("_best", "_since", "_facts"):
            stacked = np.stack([getattr(part, name) for part in parts])
            setattr(made, name, stacked[most, each])
        wealth = np.stack([part._wealth for part in parts])
        made._wealth = np.logaddexp.reduce(wealth) - np.log(len(parts))
        made._settled = sum(part._settled for part in parts)
        # Where the streams differ, what starts have left is at least this.
        made._spent = float(np.mean([part._spent for part in parts]))
        made._planned = sum(part._planned for part in parts)
        made.highest, made.alarm_at = 0.0, -1
        made._remember()
        made._look(made._open[None], np.zeros((1, 2)), 0)
        return made

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state as arrays, by name."""
        return {n.strip("_"): np.array(getattr(self, n)) for n in _STATE}

    def stored(self) -> dict[str, Stored]:
        """What the arrays of a state must be, by name."""
        now = self.state_dict()
        return {
            key: Stored("iu" if x.dtype.kind == "i" else "f", x.shape, *limits)
            for (key, x), limits in zip(
                now.items(), _STATE.values(), strict=True
            )
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the state."""
        for name in _STATE:
            value = np.array(state[name.strip("_")])
            setattr(self, name, value if value.ndim else value.item())
        self._remember()

    def _plan(self, count: int) -> None:
        """Gives a block its mass before its first outcome."""
        end = max(self._planned, self._settled + count)
        self._mass = start_mass(
            self._planned, end, scale=SCALE, horizon=HORIZON
        )
        self._planned = end
        self._spent += self._mass
        self._opened = with_block(self._wealth, np.zeros(1), self._mass)

    def _remember(self) -> None:
        """Works out what follows from the state and is needed at each look."""
        self._opened = with_block(self._wealth, np.zeros(1), self._mass)
        wealth = self._opened + self._open
        self._now = float(log_evidence(wealth, self._prior, self._spent))

    def _look(
        self, sums: np.ndarray, facts: np.ndarray, count: int = 1
    ) -> None:
        """Looks at the open block as it grows, `(n, num_alternatives)`.

        `facts` are those of the outcomes that it grows by `(n, 2)`.
        """
        found = log_evidence(self._opened + sums, self._prior, self._spent)
        self._now = float(found[-1])
        most = float(found.max())
        self.highest = max(self.highest, most)
        if self.alarm_at < 0 and most >= self.log_limit:
            first = int(np.argmax(found >= self.log_limit))
            then = copy.copy(self)
            then._open = sums[first]
            then._open_count += count + first
            then._open_facts = then._open_facts + facts[: first + 1].sum(axis=0)
            place, before, since = then.likeliest()
            self._alarm = np.array([place, before, *since])
            self.alarm_at = then.count
