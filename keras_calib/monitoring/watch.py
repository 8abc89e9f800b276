"""One hypothesis under watch: its evidence, block by block."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.files import Stored
from keras_calib.formulas.evidence import log_evidence, start_mass, with_block

__all__ = ["BLOCK", "HORIZON", "SCALE", "Watch"]

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


class Watch:
    """Evidence against one hypothesis, in fixed memory.

    Args:
        prior: Weights of the alternatives `(num_alternatives,)`, which sum to
            1.
        log_limit: Log of the evidence that raises the alarm.
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

        Args:
            log_factors: Their factors `(n, num_alternatives)`.
            facts: Two numbers of each to sum from a start on `(n, 2)`.
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
        """The start and the alternative with the most wealth.

        Returns:
            Index of the alternative, number of outcomes before the start, and
            the number of outcomes and their facts since `(3,)`.
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
