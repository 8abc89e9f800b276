"""What `keras-calib threshold` does: from labelled answers to a threshold."""

from argparse import Namespace
from typing import Any

import numpy as np

from keras_calib.exporting.answer_threshold import (
    answer_statement,
    calibrated_confidence,
)
from keras_calib.exporting.statement import write_statement
from keras_calib.reporting.commands.confidence_maps import (
    calibrator_facts,
    told_calibrator,
)
from keras_calib.reporting.commands.labelled_answers import (
    LabelledAnswers,
    chosen_for,
    data_facts,
    labelled_answers,
)
from keras_calib.reporting.commands.terminal import Progress, blamed
from keras_calib.reporting.prediction_files.repeated_samples import (
    check_ids_apart,
)
from keras_calib.selection import ChosenThreshold, GroupThresholds

__all__ = ["threshold_of_logs"]


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
            names = Namespace(**{**vars(given), "group": None})
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
        told = answer_statement(
            chosen,
            column=rows.column,
            calibrator=facts,
            coverage=given.coverage,
            data=data_facts(rows, given.group),
        )
        write_statement(given.out, told)
    lines += _told(chosen, rows, bool(facts))
    return "\n".join(lines)


def _target(given: Namespace) -> dict[str, Any]:
    """What the threshold is chosen for."""
    delta = None if given.risk is None else given.delta
    return {
        "risk": given.risk,
        "coverage": given.coverage,
        "delta": delta,
        "method": given.method,
    }


def _told(
    chosen: ChosenThreshold | GroupThresholds,
    rows: LabelledAnswers,
    calibrated: bool,
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
