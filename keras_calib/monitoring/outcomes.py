"""Answers and labels that come into a monitor, and their sums so far."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import Stored
from keras_calib.inputs.checks import check_independent, located
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.predictions.options import check_uncalibrated
from keras_calib.predictions.predictions import Predictions

# Bits of the hash of an answer that are summed.
_BITS = 16
# Of sums of factors, relative.
_ROUNDING = 1e-6
# Answers between two points of the history, at first, and most points.
PIECE = 200
_MOST_POINTS = 512
_TOTALS = (
    "answers",
    "accepted",
    "accepted_labelled",
    "accepted_wrong",
    "labelled",
    "correct",
    "confidence",
)
_CLOCKS = [_TOTALS.index("answers"), _TOTALS.index("labelled")]
# Log of the largest evidence that is shown: floats cannot hold more.
MOST_LOG = 700.0


def read_answers(
    confidence: Any, accepted: Any, correct: Any, holds: Iterable[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidence, acceptance and correctness `(n,)`, NaN without a label."""
    accepted = as_array(accepted, "accepted", "float64")
    correct = np.nan if correct is None else correct
    correct = as_array(correct, "correct", "float64")
    if confidence is None:
        if "calibration" in holds:
            raise value_error(
                "`confidence` must be given: calibration is watched; "
                "`tolerance=None` leaves it out",
                confidence=confidence,
            )
        # No number that depends on it is shown.
        confidence = np.zeros(accepted.shape or correct.shape or (1,))
    confidence = np.atleast_1d(as_array(confidence, "confidence", "float64"))
    shape = confidence.shape
    if len(shape) != 1:
        raise value_error(
            "`confidence` must have shape (n,)", **{"confidence.shape": shape}
        )
    bad = ~((confidence >= 0.0) & (confidence <= 1.0))
    if bad.any():
        raise value_error("`confidence` must lie in [0, 1]", **located(bad))
    found = []
    for name, x in (("accepted", accepted), ("correct", correct)):
        if x.shape not in ((), shape):
            raise value_error(
                f"`{name}` must have the shape of `confidence`",
                **{f"{name}.shape": x.shape, "confidence.shape": shape},
            )
        if x.shape != shape:
            x = np.full(shape, x)
        _check_binary(x, name=name, allow_nan=name == "correct")
        found.append(x)
    return confidence, found[0] > 0.5, found[1]


def columns_of(
    given: Any, accepted: Any, correct: Any, ids: Any = None
) -> tuple[tuple[Any, Any, Any], Any]:
    """Confidence, acceptance and correctness; and ids: given, or told.

    `Predictions` tell them. What they do not count, of weight 0 or the ignored
    class, has no label.
    `accepted` may be a selector or a threshold, which answers then.
    """
    if not isinstance(given, Predictions):
        return (given, accepted, correct), ids
    given.arguments(None, {"correct": correct, "ids": ids})
    check_independent("A `Monitor`", given.shape, given.units)
    weight = given.sample_weight
    no_labels = weight is not None and not np.any(weight)
    known = given
    if no_labels:
        # All rows, as if class 0 were true.
        labels = np.zeros(given.shape, "int64")
        known = given.with_columns({"labels": labels, "sample_weight": None})
    rows = known.outcomes(every=True)
    confidence, correct = rows.confidence, rows.correct
    if hasattr(accepted, "facts"):
        # An `AnswerThreshold`, which knows confidence alone.
        answers = accepted(given)
        confidence, accepted = (
            answers[x].reshape(-1) for x in ("confidence", "accept")
        )
    elif callable(accepted):
        check_uncalibrated(given, accepted)
        true = known.class_ids.reshape(-1)
        answers = accepted(given.outputs, from_logits=given.from_logits)
        confidence, accepted, label = (
            to_numpy(answers[x]).reshape(-1)
            for x in ("confidence", "accept", "label")
        )
        # Costs or a calibrator may prefer another class than the model.
        correct = label == true
    if no_labels:
        correct = np.full(len(confidence), np.nan)
    elif rows.weight is not None:
        correct = np.where(rows.weight > 0.0, correct, np.nan)
    return (confidence, accepted, correct), given.ids


def labels_of(ids: Any, correct: Any) -> tuple[Any, np.ndarray]:
    """Ids, and correctness `(n,)` of answers that all have a label."""
    if isinstance(ids, Predictions):
        (_, _, correct), ids = columns_of(ids, None, correct)
        if ids is None:
            raise value_error(
                "`Predictions` must have the ids of their answers", ids=None
            )
        ids, correct = ids[correct == correct], correct[correct == correct]
    correct = np.atleast_1d(as_array(correct, "correct", "float64"))
    if correct.ndim != 1:
        raise value_error(
            "`correct` must have shape (n,)", **{"correct.shape": correct.shape}
        )
    _check_binary(correct, name="correct", allow_nan=False)
    return ids, correct


def sums_of(
    outcomes: Sequence[np.ndarray], holds: Mapping[str, Any], marks: np.ndarray
) -> np.ndarray:
    """The array of `Monitor.sums`, of what `read_answers` returns.

    It ends with `marks`, which tell the arguments of a monitor, once for each
    answer. Before them are bits of a hash, of which a half of sums has halves.
    It has none if each confidence is there an even number of times.
    """
    confidence, accepted, correct = outcomes
    labelled = [x[~np.isnan(correct)] for x in outcomes]
    parts, totals = read_by(holds, accepted, labelled)
    hashed = confidence.view("uint64") * np.uint64(0x9E3779B97F4A7C15)
    bits = hashed[:, None] >> np.arange(64 - _BITS, 64, dtype="uint64") & 1
    factors = [x.sum(axis=0) for x, _ in parts.values()]
    ends = bits.sum(axis=0), len(confidence) * marks
    return np.concatenate([*factors, totals, *ends])


def read_sums(
    sums: Any, holds: Mapping[str, Any], marks: np.ndarray
) -> tuple[dict[str, tuple], np.ndarray]:
    """What `sums_of` was given: by hypothesis the sum of the factors, number
    of outcomes and sums of their facts; and the totals.
    """
    sums = as_array(sums, "sums", "float64")
    lengths = [*(len(x.prior) for x in holds.values()), len(_TOTALS), _BITS]
    shape = (sum(lengths) + len(marks),)
    if sums.shape != shape or not np.isfinite(sums).all():
        raise value_error(
            f"`sums` must be finite and have shape {shape}, of `sums` of a "
            "monitor with the same arguments",
            **{"sums.shape": sums.shape},
        )
    *factors, totals, bits, found = np.split(sums, np.cumsum(lengths))
    answers, accepted, known_accepted, wrong, known, right, confidence = totals
    is_whole = (bits >= 0.0) & (bits <= answers) & (bits % 1.0 == 0.0)
    if (found != answers * marks).any():
        raise value_error(
            "`sums` must be of monitors with the same arguments as this one",
            answers=answers,
        )
    if not are_counts(totals) or not is_whole.all():
        raise value_error(
            "`sums` must be counts of answers, as `sums` returns them, or a "
            "sum of such arrays",
            **named(totals),
        )
    facts = {
        "risk": (known_accepted, wrong, 0.0),
        "calibration": (known, right, confidence),
        "coverage": (answers, accepted, 0.0),
    }
    parts = {}
    for (name, each), factor in zip(holds.items(), factors, strict=True):
        count, *rest = facts[name]
        outcomes = np.array([count - rest[0], rest[0]])
        least, most = (outcomes @ x for x in each.extremes)
        room = _ROUNDING * (outcomes @ np.abs(each.extremes).max(axis=0))
        if ((factor < least - room) | (factor > most + room)).any():
            raise value_error(
                "`sums` must have the factors that so many answers make, as "
                "`sums` returns them, or a sum of such arrays",
                hypothesis=name,
                outcomes=count,
                largest=np.abs(factor).max(),
            )
        parts[name] = factor, int(count), np.array(rest)
    return parts, totals


def read_by(
    holds: Mapping[str, Any],
    accepted: np.ndarray,
    labelled: Sequence[np.ndarray],
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Log factors and facts by hypothesis, and totals, of `accepted` of all
    answers and the outcomes of `labelled` ones.
    """
    confidence, accepted_too, correct = labelled
    wrong = 1.0 - correct[accepted_too]
    outcomes: dict[str, tuple[np.ndarray, ...]] = {
        "risk": (wrong,),
        "calibration": (confidence, correct),
        "coverage": (accepted,),
    }
    parts = {
        name: (each.log_factors(*outcomes[name]), each.facts(*outcomes[name]))
        for name, each in holds.items()
    }
    totals = (
        len(accepted),
        accepted.sum(),
        len(wrong),
        wrong.sum(),
        len(correct),
        correct.sum(),
        confidence.sum(),
    )
    return parts, np.array(totals, "float64")


def _check_binary(x: np.ndarray, *, name: str, allow_nan: bool) -> None:
    bad = (x != 0.0) & (x != 1.0)
    if allow_nan:
        bad &= ~np.isnan(x)
    if bad.any():
        rule = " or 1, or NaN without a label" if allow_nan else " or 1"
        raise value_error(f"`{name}` must be 0{rule}", **located(bad))


class Record:
    """Totals, and their past with that of the evidence against hypotheses."""

    def __init__(self, names: Iterable[str]):
        self._names = tuple(f"evidence_{name}" for name in names)
        self.totals = np.zeros(len(_TOTALS))
        self._rows: list[np.ndarray] = []
        self._piece = PIECE

    def note(self, totals: np.ndarray, logs: list[float]) -> None:
        """Adds totals `(num_totals,)`, and at times a point of the history.

        `logs` are those of the evidence now against each hypothesis.
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
        found = dict(zip(_TOTALS + self._names, columns, strict=True))
        for name in self._names:
            found[name] = np.exp(np.minimum(found[name], MOST_LOG))
        return found

    def state_dict(self) -> dict[str, np.ndarray]:
        """The state as arrays, by name."""
        columns = len(_TOTALS) + len(self._names)
        return {
            "totals": self.totals.copy(),
            "rows": np.array(self._rows).reshape(-1, columns),
            "piece": np.array(self._piece),
        }

    def stored(self) -> dict[str, Stored]:
        """What the arrays of a state must be, by name."""
        columns = len(_TOTALS) + len(self._names)
        return {
            "totals": Stored("f", (len(_TOTALS),), 0.0, 2.0**53),
            "rows": Stored("f", (-_MOST_POINTS, columns), high=1e300),
            "piece": Stored("iu", (), PIECE, 2**62),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the state; ValueError for totals that no answers make."""
        rows = np.array(state["rows"])
        past = np.vstack([rows[:, : len(_TOTALS)], state["totals"]])
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
    return dict(zip(_TOTALS, totals.tolist(), strict=True))


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
