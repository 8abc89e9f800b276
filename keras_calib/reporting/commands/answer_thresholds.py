"""What `keras-calib threshold` does: from labelled answers to a threshold."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.calibrators import AffineScaling
from keras_calib.calibrators import BetaCalibration
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import log_odds_of
from keras_calib.numerics.softmax import sigmoid
from keras_calib.reporting.commands.terminal import Progress
from keras_calib.reporting.prediction_files.answer_log import AnswerLog
from keras_calib.reporting.prediction_files.repeated_samples import (
    check_ids_apart,
)
from keras_calib.reporting.prediction_files.threshold_file import (
    write_threshold,
)
from keras_calib.selection import ChosenThreshold
from keras_calib.selection import GroupThresholds
from keras_calib.selection import choose_group_thresholds
from keras_calib.selection import choose_threshold

__all__ = ["threshold_of_logs"]

_COLUMNS = "confidence", "score", "correct", "label", "predicted", "ids"
# Of a confidence of 0 or 1, whose log-odds are infinite.
_LARGEST = 87.0


class _Labelled(NamedTuple):
    """Answers with a label: their values `(n,)`, and how many have none."""

    score: np.ndarray
    correct: np.ndarray
    ids: np.ndarray | None
    group: np.ndarray | None
    column: str
    unlabelled: int


def threshold_of_logs(given: Namespace, progress: Progress) -> str:
    """What to print of the threshold; writes it where --out says."""
    with _blamed(f"--log={given.log}"):
        rows = _read(given.log, given, progress, bool(given.calibration))
    lines, score, facts = [], rows.score, None
    if given.calibration:
        with _blamed(f"--calibration={given.calibration}"):
            names = Namespace(**{**vars(given), "group": None})
            other = _read(given.calibration, names, progress, True)
            if rows.ids is not None and other.ids is not None:
                check_ids_apart({"--log": rows.ids, "--calibration": other.ids})
            progress.say("Fitting the calibrator ...")
            score, facts = _calibrated(score, other, given.calibrator)
        lines.append(_told_calibrator(facts))
    progress.say("Choosing the threshold ...")
    target = {"coverage": given.coverage, "method": given.method}
    if given.risk is not None:
        target |= {"risk": given.risk, "delta": given.delta}
    chosen: ChosenThreshold | GroupThresholds
    with _blamed(f"--log={given.log}"):
        if rows.group is not None:
            chosen = choose_group_thresholds(
                score, rows.correct, rows.group, **target
            )
        else:
            chosen = choose_threshold(score, rows.correct, **target)
    if given.out:
        write_threshold(given.out, chosen, rows.column, facts)
    lines += _told(chosen, rows, bool(facts))
    return "\n".join(lines)


def _read(
    path: str, given: Namespace, progress: Progress, of_confidence: bool
) -> _Labelled:
    """The answers of a log that have a label."""
    columns = {name: getattr(given, name) for name in _COLUMNS}
    log = AnswerLog(path, {**columns, "group": given.group})
    if log.is_empty:
        raise value_error("the log must have answers", rows=0)
    named = given.confidence is not None and given.score is None
    needed: tuple[str, ...] = ("score", "confidence")
    if of_confidence or named:
        needed = ("confidence",)
    log.require(needed, ("correct", "label"))
    if "correct" not in log.has:
        log.require(("predicted",))
    column = next(name for name in needed if name in log.has)
    scores: list[np.ndarray] = []
    correct: list[np.ndarray] = []
    ids: list[np.ndarray] = []
    groups: list[Any] = []
    start = 0
    what = f"Reading {log.path.name}"
    for part in progress.rows(log.parts(), what, log.num_rows):
        values = part.score if column == "score" else part.confidence
        _check_values(column, np.asarray(values), start)
        start += len(part.labels)
        scores.append(np.asarray(values, "float64"))
        correct.append(part.labels)
        ids.append(np.asarray(part.ids or [], object))
        groups.append([] if part.group is None else part.group)
    right = np.concatenate(correct)
    here = right == right
    if not here.any():
        raise value_error("the log must have labels", rows=len(right))
    return _Labelled(
        np.concatenate(scores)[here],
        right[here],
        np.concatenate(ids)[here] if "ids" in log.has else None,
        np.concatenate(groups).astype(str)[here] if given.group else None,
        column,
        int((~here).sum()),
    )


def _check_values(column: str, values: np.ndarray, start: int) -> None:
    """Raises ValueError for the first value that is no confidence or score."""
    if column == "score":
        wrong, rule = np.isnan(values), "must not be NaN"
    else:
        wrong = ~((values >= 0.0) & (values <= 1.0))
        rule = (
            "must be in [0, 1] in every row; give a log-probability or "
            "another number by --score"
        )
    if wrong.any():
        row = int(np.argmax(wrong))
        raise value_error(
            f"`{column}` {rule}", row=start + row + 1, value=float(values[row])
        )


def _calibrated(
    confidence: np.ndarray, other: _Labelled, name: str | None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Calibrated confidences, and what is told of the calibrator."""
    beta = name == "beta"
    layer = BetaCalibration() if beta else AffineScaling()
    layer.fit(other.correct.astype(int), _logits(other.score))
    (fitted,) = to_numpy(layer.coefficients).astype("float64").tolist()
    if max(fitted[:-1]) <= 0.0:
        raise value_error(
            "the confidence must rise with the share of right answers, for a "
            "calibrator to keep its order: take another confidence",
            coefficients=fitted,
        )
    names = ("a", "b", "c0") if beta else ("slope", "intercept")
    facts = {
        "name": "beta" if beta else "affine",
        **dict(zip(names, fitted, strict=True)),
        "num_samples": len(other.score),
    }
    found = to_numpy(layer(_logits(confidence))).reshape(-1)
    return sigmoid(found.astype("float64")), facts


def _logits(confidence: np.ndarray) -> np.ndarray:
    """Finite log-odds `(n, 1)`, the logits of a calibrator of two classes."""
    log_odds = np.clip(log_odds_of(confidence), -_LARGEST, _LARGEST)
    return log_odds[:, None].astype("float32")


def _told_calibrator(facts: dict[str, Any]) -> str:
    count = facts["num_samples"]
    if facts["name"] == "affine":
        formula = (
            f"{facts['slope']:.6g} * log(c / (1 - c)) {facts['intercept']:+.6g}"
        )
    else:
        formula = (
            f"{facts['a']:.6g} * log(c) - {facts['b']:.6g} * log(1 - c) "
            f"{facts['c0']:+.6g}"
        )
    return (
        f"Calibrated on {count:,} answers: log(q / (1 - q)) = {formula}, of "
        "the confidence c."
    )


def _told(
    chosen: ChosenThreshold | GroupThresholds, rows: _Labelled, calibrated: bool
) -> list[str]:
    lines = []
    if rows.unlabelled:
        lines.append(f"{rows.unlabelled:,} answers without a label left out.")
    what = "calibrated confidence" if calibrated else rows.column
    if isinstance(chosen, GroupThresholds):
        return [*lines, f"Thresholds for the {what}:", str(chosen)]
    least = f"a {what} of at least {chosen.threshold:.9g}"
    if chosen.threshold == -np.inf:
        least = "every answer"
    lines.append(
        f"Accept {least}: {chosen.coverage:.2%} of {chosen.num_samples:,} "
        f"answers, of which {chosen.risk:.2%} are wrong."
    )
    if chosen.delta is not None:
        lines.append(
            f"With probability {1.0 - chosen.delta:g} at most "
            f"{chosen.certified_risk:g} of the accepted in use are wrong "
            f"({chosen.method})."
        )
    return lines


@contextlib.contextmanager
def _blamed(flag: str) -> Iterator[None]:
    """Says which file is at fault."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{flag}: {error}") from error
