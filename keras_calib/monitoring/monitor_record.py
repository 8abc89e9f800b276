"""Sums and history of a monitor, in fixed memory."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import Stored

__all__ = [
    "MOST_LOG",
    "PIECE",
    "Record",
    "TOTALS",
    "are_counts",
    "named",
    "totals_of",
]

# Answers between two points of the history, at first, and most points.
PIECE = 200
_MOST_POINTS = 512
TOTALS = (
    "answers",
    "accepted",
    "accepted_labelled",
    "accepted_wrong",
    "labelled",
    "correct",
    "confidence",
)
_CLOCKS = [TOTALS.index("answers"), TOTALS.index("labelled")]
# Log of the largest evidence that is shown: floats cannot hold more.
MOST_LOG = 700.0


class Record:
    """Totals, and their past with that of the evidence.

    Args:
        names: Hypotheses under watch.
    """

    def __init__(self, names: Iterable[str]):
        self._names = tuple(f"evidence_{name}" for name in names)
        self.totals = np.zeros(len(TOTALS))
        self._rows: list[np.ndarray] = []
        self._piece = PIECE

    def note(self, totals: np.ndarray, logs: list[float]) -> None:
        """Adds totals, and at times a point of the history.

        Args:
            totals: To add `(num_totals,)`.
            logs: Log of the evidence now against each hypothesis.
        """
        self.totals = self.totals + totals
        last = self._rows[-1] if self._rows else np.zeros(len(self.totals))
        grown = self.totals[_CLOCKS] - last[_CLOCKS]
        if self._rows and grown.max() < self._piece:
            return
        self._rows.append(np.concatenate([self.totals, logs]))
        if len(self._rows) > _MOST_POINTS:
            self._rows = self._rows[1::2]
            self._piece *= 2

    def history(self, logs: list[float]) -> dict[str, np.ndarray]:
        """Past totals and evidence by name `(num_points,)`, and those now."""
        rows = [*self._rows, np.concatenate([self.totals, logs])]
        columns = np.stack(rows, axis=1)
        found = dict(zip(TOTALS + self._names, columns, strict=True))
        for name in self._names:
            found[name] = np.exp(np.minimum(found[name], MOST_LOG))
        return found

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state as arrays, by name."""
        columns = len(TOTALS) + len(self._names)
        return {
            "totals": self.totals.copy(),
            "rows": np.array(self._rows).reshape(-1, columns),
            "piece": np.array(self._piece),
        }

    def stored(self) -> dict[str, Stored]:
        """What the arrays of a state must be, by name."""
        columns = len(TOTALS) + len(self._names)
        return {
            "totals": Stored("f", (len(TOTALS),), 0.0, 2.0**53),
            "rows": Stored("f", (-_MOST_POINTS, columns), high=1e300),
            "piece": Stored("iu", (), PIECE, 2**62),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the state; ValueError for totals that no answers make."""
        rows = np.array(state["rows"])
        past = np.vstack([rows[:, : len(TOTALS)], state["totals"]])
        if not are_counts(past).all() or (np.diff(past, axis=0) < 0.0).any():
            raise value_error(
                "`state` must have counts that answers make, which grow",
                **named(state["totals"]),
            )
        self.totals = past[-1]
        self._rows = [*rows]
        self._piece = int(state["piece"])


def named(totals: np.ndarray) -> dict[str, float]:
    """Totals by name."""
    return dict(zip(TOTALS, totals.tolist(), strict=True))


def are_counts(totals: np.ndarray) -> np.ndarray:
    """Whether answers make totals `(..., num_totals)`: a bool `(...)`."""
    answers, accepted, known_accepted, wrong, known, right, confidence = (
        np.moveaxis(totals, -1, 0)
    )
    unknown = accepted - known_accepted
    # Accepted and rejected answers: right, wrong, and without a label.
    cells = [known_accepted - wrong, wrong, right - known_accepted + wrong]
    cells += [known - right - wrong, unknown, answers - known - unknown]
    found = np.all([(x >= 0.0) & (x % 1.0 == 0.0) for x in cells], axis=0)
    return found & (confidence >= 0.0) & (confidence <= known * (1.0 + 1e-9))


def totals_of(
    accepted: np.ndarray,
    confidence: np.ndarray,
    labelled_accepted: np.ndarray,
    correct: np.ndarray,
) -> np.ndarray:
    """Totals of answers: `accepted` of all, the others of the labelled."""
    of_accepted = correct[labelled_accepted]
    found = (
        len(accepted),
        accepted.sum(),
        len(of_accepted),
        len(of_accepted) - of_accepted.sum(),
        len(correct),
        correct.sum(),
        confidence.sum(),
    )
    return np.array(found, "float64")
