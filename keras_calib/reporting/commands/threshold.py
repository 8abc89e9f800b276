"""The arguments of `keras-calib threshold`, read and checked without Keras."""

import argparse
import functools
import math
from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.reporting.commands.arguments import (
    DELTA,
    FORM,
    Command,
    Options,
    columns,
    flags,
    share,
)
from keras_calib.reporting.commands.terminal import (
    Found,
    Progress,
    blamed,
    load_keras,
)

_DESCRIPTION = """\
Chooses the least confidence to accept, from answers of any model that were
found right or wrong. With probability 1 - --delta at most --risk of the
accepted answers in use are wrong. That holds for answers like those of the
log, which are independent and chose nothing else.

A log has one row for each answer, as `monitor` reads it:
  confidence  in [0, 1]; or `score`, any number that is higher for surer answers
  correct     1 or 0, true or false; or `label` and `predicted`. Rows without a
              label are left out
  id          may be there: then --calibration must hold other answers
  unit        may be there: rows of one unit depend on each other, and --risk
              needs one row of each
Or it has `label` with logits or probabilities of all classes, as `report` reads
them; the confidence is the largest probability. Files are .npz, .csv, .tsv,
.parquet, or .jsonl with one JSON object in each line.

With --calibration, answers of a second log first fit a calibrator of the
confidence c: log(q / (1 - q)) = slope * log(c / (1 - c)) + intercept (affine),
the same with an intercept of 0 (temperature), or a log(c) - b log(1 - c) + c0
(beta). The threshold is then for q. Of several classes it maps the largest
probability alone: a temperature of all their logits, as `report` and
TemperatureScaling in Python fit it, is another one.

In Python, keras_calib.exporting.load_threshold(FILE) makes a function of the
file of --out. It calibrates confidences and says which answers to accept.
`keras-calib verify FILE --data=LOG` chooses the threshold again.
"""
_EXAMPLES = """\
examples:
  keras-calib threshold --log=answers.parquet --risk=0.05 --out=threshold.json
  keras-calib threshold --log=answers.jsonl --calibration=first.jsonl \\
      --risk=0.1 --delta=0.1 --out=threshold.json
  keras-calib threshold --log=answers.parquet --risk=0.1 --groups=task
  keras-calib threshold answers.csv --coverage=0.8
"""
# How errors call the library's arguments here.
_WORDS = {**flags("risk", "coverage", "delta", "groups"), "path": "--out"}
_FILES: Options = {
    "--log FILE": "labelled answers, to choose the threshold on",
    "--calibration FILE": "other labelled answers, to fit a calibrator on",
    "--calibrator": {
        "choices": ("affine", "beta", "temperature"),
        "help": "what to fit on them (affine)",
    },
    "--out FILE.json": "the file to write too",
}
_TARGET: Options = {
    "--risk SHARE": "largest share of wrong answers among the accepted",
    "--coverage SHARE": {
        "type": functools.partial(share, most=True),
        "help": "least share to accept, instead of --risk; no guarantee",
    },
    **DELTA,
}
_COLUMNS = columns(
    *("confidence", "score", "logits", "probs", "correct", "labels"),
    *("predicted", "sample_weight", "ids", "units", "groups"),
    score="column of the score; the threshold is for it, if there is",
    groups="column of groups, such as tasks: a threshold for each",
)
_GROUPS = {"files": _FILES, "target": _TARGET, "columns": {**_COLUMNS, **FORM}}


def _check(given: argparse.Namespace) -> None:
    if (given.risk is None) == (given.coverage is None):
        raise value_error(
            "One of --risk and --coverage must be given",
            **{"--risk": given.risk, "--coverage": given.coverage},
        )
    if given.calibrator is not None and given.calibration is None:
        raise ValueError(
            "--calibrator needs --calibration, the answers to fit it on"
        )
    if given.calibration is not None:
        if given.score is not None:
            raise ValueError(
                "--score and --calibration exclude each other: calibrators "
                "are for a confidence"
            )
        if Path(given.calibration).resolve() == Path(given.log).resolve():
            raise value_error(
                "--log and --calibration must be different answers",
                **{"--log": given.log},
            )


def _open(given: argparse.Namespace, flag: str, path: str) -> Any:
    from keras_calib.reporting.commands.answer_log import LabelledLog

    columns = vars(given)
    if flag == "--calibration":
        columns = {**columns, "groups": None, "risk": None}
    return LabelledLog(path, columns, given.calibration is not None)


def _run(given: argparse.Namespace, progress: Progress) -> Found:
    """The threshold, which is written where --out says."""
    if given.calibration is not None:
        # A calibrator is fitted, as a layer.
        load_keras(progress)
    from keras_calib.exporting.answer_threshold import (
        answer_statement,
        calibrated_confidence,
        calibrator_facts,
        told_calibrator,
    )
    from keras_calib.exporting.statement import write_statement
    from keras_calib.reporting.commands.repeated_samples import check_ids_apart
    from keras_calib.selection.ladder import counted
    from keras_calib.selection.thresholds import ErrorTarget

    files = {flag: found for flag, _, found in given.opened}
    with blamed(f"--log={given.log}"):
        log, ids = files["--log"].read(progress)
    lines, score = [], log.score
    facts: dict[str, Any] | None = None
    if given.calibration:
        with blamed(f"--calibration={given.calibration}"):
            other, others = files["--calibration"].read(progress)
            check_ids_apart({"--log": ids, "--calibration": others})
            progress.say("Fitting the calibrator ...")
            kind = given.calibrator or "affine"
            facts = calibrator_facts(other.score, other.correct, kind)
            score = calibrated_confidence(facts, score)
        lines.append(told_calibrator(facts))
        if not files["--calibration"].is_top1:
            lines.append(
                "It maps the largest probability alone: a temperature of the "
                "logits of all classes is another one."
            )
    progress.say("Choosing the threshold ...")
    delta = None if given.risk is None else given.delta
    with blamed(f"--log={given.log}"):
        target = ErrorTarget(given.risk, given.coverage, delta).check()
        chosen = target.choose(counted(log._replace(score=score)))
    told = answer_statement(
        chosen,
        log,
        calibrator=facts,
        coverage=given.coverage,
        group=given.groups,
    )
    if given.out:
        write_statement(given.out, told)
    what = "score" if log.confidence is None else "confidence"
    lines += _told(chosen, f"calibrated {what}" if facts else what)
    return Found("\n".join(lines), told)


def _told(chosen: Any, what: str) -> list[str]:
    from keras_calib.selection.choice import told_apart

    if isinstance(chosen.threshold, tuple):
        text = str(chosen).removeprefix("Choice: ")
        return [f"Thresholds for the {what}:", text]
    (told,) = told_apart([chosen.threshold], 9, chosen.tables)
    least = f"a {what} of at least {told}"
    if chosen.threshold == -math.inf:
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


COMMAND = Command(
    _DESCRIPTION, _EXAMPLES, _WORDS, _GROUPS, _check, _open, _run, files="log"
)
