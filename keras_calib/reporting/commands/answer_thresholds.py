"""What `keras-calib threshold` does: from labelled answers to a threshold."""

from argparse import Namespace
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.numerics.arrays import to_numpy
from keras_calib.reporting.answer_thresholds import (
    bounded_log_odds,
    calibrated_confidence,
)
from keras_calib.reporting.commands.terminal import Progress, blamed
from keras_calib.reporting.prediction_files.answer_log import AnswerLog
from keras_calib.reporting.prediction_files.repeated_samples import (
    check_ids_apart,
)
from keras_calib.reporting.prediction_files.threshold_file import (
    rows_sha256,
    threshold_facts,
    write_threshold,
)
from keras_calib.selection import (
    Choice,
    choose_group_thresholds,
    choose_threshold,
)

__all__ = [
    "LabelledAnswers",
    "calibrator_facts",
    "chosen_for",
    "data_facts",
    "labelled_answers",
    "threshold_of_logs",
    "told_calibrator",
]


class LabelledAnswers(NamedTuple):
    """Answers with a label: their values `(n,)`, and how many have none."""

    score: np.ndarray
    correct: np.ndarray
    ids: np.ndarray | None
    group: np.ndarray | None
    column: str
    unlabelled: int


def threshold_of_logs(given: Namespace, progress: Progress) -> str:
    """What to print of the threshold; writes it where --out says."""
    with blamed(f"--log={given.log}"):
        rows = labelled_answers(
            given.log, given, progress, bool(given.calibration)
        )
    lines, score = [], rows.score
    facts: dict[str, Any] | None = None
    if given.calibration:
        with blamed(f"--calibration={given.calibration}"):
            names = Namespace(**{**vars(given), "groups": None})
            other = labelled_answers(given.calibration, names, progress, True)
            if rows.ids is not None and other.ids is not None:
                check_ids_apart({"--log": rows.ids, "--calibration": other.ids})
            progress.say("Fitting the calibrator ...")
            facts = calibrator_facts(
                other.score, other.correct, given.calibrator or "affine"
            )
            score = calibrated_confidence(facts, score)
        lines.append(told_calibrator(facts))
    progress.say("Choosing the threshold ...")
    target = _target(given)
    with blamed(f"--log={given.log}"):
        chosen = chosen_for(score, rows, target)
    if given.out:
        told = threshold_facts(
            chosen,
            column=rows.column,
            calibrator=facts,
            target=target,
            data=data_facts(rows, given.groups),
        )
        write_threshold(given.out, told)
    lines += _told(chosen, rows, bool(facts))
    return "\n".join(lines)


def _target(given: Namespace) -> dict[str, Any]:
    """What the threshold is chosen for."""
    delta = None if given.risk is None else given.delta
    return {
        "risk": given.risk,
        "coverage": given.coverage,
        "delta": delta,
    }


def _told(
    chosen: Choice,
    rows: LabelledAnswers,
    calibrated: bool,
) -> list[str]:
    lines = []
    if rows.unlabelled:
        lines.append(f"{rows.unlabelled:,} answers without a label left out.")
    what = "calibrated confidence" if calibrated else rows.column
    if isinstance(chosen.threshold, tuple):
        return [
            *lines,
            f"Thresholds for the {what}:",
            str(chosen).removeprefix("Choice: "),
        ]
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
            f"{chosen.limit:g} of the accepted in use are wrong "
            f"({chosen.method})."
        )
    return lines


def labelled_answers(
    path: str, given: Namespace, progress: Progress, of_confidence: bool
) -> LabelledAnswers:
    """The answers of a log that have a label."""
    log = AnswerLog(path, vars(given))
    empty = value_error("the log must have answers", rows=0)
    if log.is_empty:
        raise empty
    named = given.confidence is not None and given.score is None
    needed: tuple[str, ...] = ("score", "confidence")
    if of_confidence or named:
        needed = ("confidence",)
    log.require(needed, ("correct", "labels"))
    if "correct" not in log.has:
        log.require(("predicted",))
    column = next(name for name in needed if name in log.has)
    kept: list[tuple] = []
    start = 0
    what = f"Reading {log.path.name}"
    for part in progress.rows(log.parts(), what, log.num_rows):
        values = np.asarray(getattr(part, column))
        _check_values(column, values, start)
        start += len(part.labels)
        ids = np.asarray(part.ids or [], object)
        group = [] if part.group is None else part.group
        kept.append((values.astype("float64"), part.labels, ids, group))
    if not start:
        raise empty
    scores, right, ids, groups = map(np.concatenate, zip(*kept, strict=True))
    here = right == right
    if not here.any():
        raise value_error("the log must have labels", rows=len(right))
    if "ids" in log.has:
        _check_once(ids)
    return LabelledAnswers(
        scores[here],
        right[here],
        ids[here] if "ids" in log.has else None,
        groups.astype(str)[here] if given.groups else None,
        column,
        int((~here).sum()),
    )


def _check_once(ids: np.ndarray) -> None:
    """Raises ValueError for an id that two rows have."""
    names, first, counts = np.unique(ids, return_index=True, return_counts=True)
    if len(names) < len(ids):
        place = np.argmax(counts > 1)
        raise value_error(
            "every `id` must be there once, as the guarantee is for answers "
            "that are independent; --ids gives another column",
            row=int(first[place]) + 1,
            id=str(names[place]),
            times=int(counts[place]),
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


def chosen_for(
    score: np.ndarray, rows: LabelledAnswers, target: dict[str, Any]
) -> Choice:
    """The threshold of these scores for a target, or that of each group."""
    known = "risk", "coverage", "delta"
    target = {x: target[x] for x in known if target.get(x) is not None}
    if rows.group is not None:
        return choose_group_thresholds(
            score, rows.correct, rows.group, **target
        )
    return choose_threshold(score, rows.correct, **target)


def data_facts(rows: LabelledAnswers, group: str | None) -> dict[str, Any]:
    """What a file of a threshold says of its log."""
    return {
        "group": group,
        "wrong": int((rows.correct == 0.0).sum()),
        "rows_sha256": rows_sha256(rows.score, rows.correct, rows.group),
    }


def calibrator_facts(
    confidence: np.ndarray, correct: np.ndarray, name: str
) -> dict[str, Any]:
    """What is told of a calibrator that is fitted to labelled answers.

    A temperature is told as the affine map with its slope.
    """
    # Fits are those of layers, which alone need Keras here.
    from keras_calib.calibrators import (
        AffineScaling,
        BetaCalibration,
        TemperatureScaling,
    )

    log_odds = bounded_log_odds(confidence)[:, None].astype("float32")
    labels = correct.astype(int)
    if name == "temperature":
        layer = TemperatureScaling().fit(labels, log_odds)
        facts = {"name": "affine", "slope": 1.0 / layer.temperature}
        facts["intercept"] = 0.0
        return {**facts, "num_samples": len(labels)}
    beta = name == "beta"
    layer = BetaCalibration() if beta else AffineScaling()
    layer.fit(labels, log_odds)
    (fitted,) = to_numpy(layer.coefficients).astype("float64").tolist()
    if max(fitted[:-1]) <= 0.0:
        raise value_error(
            "the confidence must rise with the share of right answers, for a "
            "calibrator to keep its order: take another confidence",
            coefficients=fitted,
        )
    names = ("a", "b", "c0") if beta else ("slope", "intercept")
    return {
        "name": "beta" if beta else "affine",
        **dict(zip(names, fitted, strict=True)),
        "num_samples": len(labels),
    }


def told_calibrator(facts: dict[str, Any]) -> str:
    """A sentence with the formula of a calibrator."""
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
