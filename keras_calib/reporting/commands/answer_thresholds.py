"""What `keras-calib threshold` does: from labelled answers to a threshold."""

from argparse import Namespace
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.exporting.answer_threshold import (
    answer_statement,
    bounded_log_odds,
    calibrated_confidence,
)
from keras_calib.exporting.statement import write_statement
from keras_calib.formulas.outcomes import Outcomes
from keras_calib.inputs.groups import read_groups
from keras_calib.numerics.arrays import to_numpy
from keras_calib.reporting.commands.terminal import Progress, blamed
from keras_calib.reporting.prediction_files.answer_log import AnswerLog
from keras_calib.reporting.prediction_files.repeated_samples import (
    check_ids_apart,
)
from keras_calib.selection.choice import Choice
from keras_calib.selection.ladder import read_outcomes
from keras_calib.selection.thresholds import ErrorTarget

__all__ = [
    "calibrator_facts",
    "labelled_answers",
    "threshold_of_logs",
    "told_calibrator",
]


def threshold_of_logs(given: Namespace, progress: Progress) -> str:
    """What to print of the threshold; writes it where --out says."""
    with blamed(f"--log={given.log}"):
        log, unlabelled = labelled_answers(
            given.log, given, progress, bool(given.calibration)
        )
    lines, score = [], log.score
    facts: dict[str, Any] | None = None
    if given.calibration:
        with blamed(f"--calibration={given.calibration}"):
            names = Namespace(**{**vars(given), "groups": None})
            other, _ = labelled_answers(given.calibration, names, progress)
            if log.unit is not None and other.unit is not None:
                ids = {"--log": log.unit, "--calibration": other.unit}
                check_ids_apart(ids)
            progress.say("Fitting the calibrator ...")
            kind = given.calibrator or "affine"
            facts = calibrator_facts(other.score, other.correct, kind)
            score = calibrated_confidence(facts, score)
        lines.append(told_calibrator(facts))
    progress.say("Choosing the threshold ...")
    delta = None if given.risk is None else given.delta
    with blamed(f"--log={given.log}"):
        target = ErrorTarget(given.risk, given.coverage, delta).check()
        groups = {"group": log.group, "names": log.names}
        chosen = target.choose(read_outcomes(score, log.correct, **groups))
    if given.out:
        told = answer_statement(
            chosen,
            log,
            calibrator=facts,
            coverage=given.coverage,
            group=given.groups,
        )
        write_statement(given.out, told)
    if unlabelled:
        lines.append(f"{unlabelled:,} answers without a label left out.")
    what = "score" if log.confidence is None else "confidence"
    lines += _told(chosen, f"calibrated {what}" if facts else what)
    return "\n".join(lines)


def _told(chosen: Choice, what: str) -> list[str]:
    if isinstance(chosen.threshold, tuple):
        text = str(chosen).removeprefix("Choice: ")
        return [f"Thresholds for the {what}:", text]
    least = f"a {what} of at least {chosen.threshold:.9g}"
    if chosen.threshold == -np.inf:
        least = "every answer"
    lines = [
        f"Accept {least}: {chosen.coverage:.2%} of {chosen.num_samples:,} "
        f"answers, of which {chosen.risk:.2%} are wrong."
    ]
    if chosen.delta is not None:
        lines.append(
            f"With probability {1.0 - chosen.delta:g} at most "
            f"{chosen.limit:g} of the accepted in use are wrong "
            f"({chosen.method})."
        )
    return lines


def labelled_answers(
    path: str,
    given: Namespace,
    progress: Progress,
    of_confidence: bool = True,
) -> tuple[Outcomes, int]:
    """The answers of a log that have a label, and how many have none.

    The score is what the log has: a score or, with `of_confidence` or where
    it has no score, the confidence.
    """
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
        values = np.asarray(getattr(part.outcomes, column))
        _check_values(column, values, start)
        start += len(values)
        others = part.outcomes.loss, part.outcomes.unit, part.group
        columns = values.astype("float64"), *others
        kept.append(tuple(() if x is None else x for x in columns))
    if not start:
        raise empty
    score, loss, ids, groups = map(np.concatenate, zip(*kept, strict=True))
    here = loss == loss
    if not here.any():
        raise value_error("the log must have labels", rows=start)
    rows = Outcomes(score=score[here], loss=loss[here])
    if column == "confidence":
        rows = rows._replace(confidence=rows.score)
    if "ids" in log.has:
        _check_once(ids)
        rows = rows._replace(unit=ids[here])
    if given.groups:
        own = groups[here].astype(str)
        names, places = read_groups(own, own.shape)
        rows = rows._replace(group=places, names=names)
    return rows, int((~here).sum())


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
