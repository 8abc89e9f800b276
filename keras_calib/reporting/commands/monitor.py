"""The arguments of `keras-calib monitor`, read and checked without Keras."""

import argparse
import math
from typing import Any

from keras_calib.backend.errors import value_error, warn
from keras_calib.reporting.commands.arguments import (
    FORM,
    Command,
    Options,
    columns,
    flags,
    refused,
)
from keras_calib.reporting.commands.terminal import Found, Progress, load_keras

_DESCRIPTION = """\
Watches a model in use by its log: the share of wrong answers among the
accepted, the calibration of their confidence, and the accepted share. It may
look as often as you like: while all holds, the probability that it ever raises
an alarm is at most --delta. An alarm ends the command with exit code 3.

A log has one row for each answer, in their order:
  id          of the answer; needed for --late-labels. Without it, --state
              cannot refuse a log that was read before
  confidence  of the predicted class, in [0, 1]; or, as `threshold` reads
              them, `label` with logits or probabilities of all classes
  accepted    1 or 0, true or false. Without it, --threshold says what is
              accepted, by the column `score`, or else by the confidence. A
              file of `threshold` calibrates the confidence of any log first
  correct     1 or 0, nothing without a label; or `label` and `predicted`
  time        may be there; it must not go back
Files are .npz, .csv, .tsv, .parquet, or .jsonl with one JSON object in each
line. Labels that came later are in a second file with `id` and `correct`, or
`id`, `label` and `predicted`, in the order in which they came.

With --state, the next run goes on where this one ended. Give each run the
answers and labels that are new: an id that came before is refused, and nothing
is counted then. The last --max-waiting ids are remembered. A run that fails
leaves the state as it was.
"""
_EXAMPLES = """\
examples:
  keras-calib monitor --log=answers.parquet --risk=0.01
  keras-calib monitor --log=monday.jsonl --late-labels=labels.csv --risk=0.01 \\
      --coverage=0.6,0.8 --state=monitor.npz --out=monitor.html
  keras-calib monitor --log=answers.parquet --threshold=threshold.json
  keras-calib monitor --state=monitor.npz --late-labels=late.csv --unknown=skip
  keras-calib monitor --state=monitor.npz --restart=risk
"""
# How errors call the library's arguments here.
_WORDS = {
    **flags("risk", "coverage", "delta", "tolerance", "selector"),
    **flags("max_waiting"),
    'unknown="skip"': "--unknown=skip",
}
_NAMES = ("risk", "calibration", "coverage")
_OF_LABELS = "correct", "labels", "predicted"


def _numbers(text: str, count: int) -> list[float]:
    """Numbers with commas between them, NaN if they are not so many."""
    try:
        found = [*map(float, text.split(","))]
    except ValueError:
        found = []
    return found if len(found) == count else [math.nan] * count


def _threshold(text: str) -> float | str:
    """A number, or the path of a file."""
    if text.lower().endswith(".json"):
        return text
    (number,) = _numbers(text, 1)
    if math.isnan(number):
        raise refused(
            "must be a number, or the .json file of `threshold`", text
        )
    return number


def _coverage(text: str) -> tuple[float, float]:
    low, high = _numbers(text, 2)
    if not 0.0 <= low <= high <= 1.0:
        raise refused(
            "must be two shares with a comma between them, such as 0.6,0.8",
            text,
        )
    return low, high


def _tolerance(text: str) -> float | str:
    if text == "none":
        return text
    (gap,) = _numbers(text, 1)
    if not 0.0 <= gap < 1.0:
        raise refused("must be a number in [0, 1), or none", text)
    return gap


def _restarted(text: str) -> list[str]:
    names = [] if text == "all" else text.split(",")
    if not {*names} <= {*_NAMES}:
        raise refused(f"must be all, or of {', '.join(_NAMES)}", text)
    return names


_FILES: Options = {
    "--log FILE": {
        "action": "append",
        "default": [],
        "help": "answers; repeat it for further files, in their order",
    },
    "--late-labels FILE": {
        "action": "append",
        "default": [],
        "help": "labels of answers of this log, or of the logs before",
    },
    "--state FILE.npz": "the file to go on from and to write",
    "--out FILE.png|.svg|.html": "a picture, in .html with the text",
}
_WATCHED: Options = {
    "--risk SHARE": "largest share of wrong answers among the accepted",
    "--coverage LOW,HIGH": {
        "type": _coverage,
        "help": "least and largest accepted share that are as expected",
    },
    "--selector FILE.keras|.json": (
        "a model with a fitted selector, or the file of a certificate or of "
        "`threshold`: gives risk and coverage"
    ),
    "--delta SHARE": "probability of a false alarm, at any time (0.05)",
    "--tolerance GAP": {
        "type": _tolerance,
        "help": (
            "gap between confidence and accuracy that is no cause for an "
            "alarm, or `none` to leave calibration out (0.01)"
        ),
    },
    "--restart NAMES": {
        "type": _restarted,
        "nargs": "?",
        "const": "all",
        "help": (
            "after a repair, forget the evidence of the state: all, or those "
            "of risk, calibration and coverage that are named"
        ),
    },
}
_COLUMNS: Options = {
    "--threshold SCORE": {
        "type": _threshold,
        "help": (
            "least score to accept, where the log has no `accepted`; or the "
            ".json file of `threshold`, for answers as in its log, which gives "
            "risk and coverage too"
        ),
    },
    "--unknown": {
        "choices": ("raise", "skip"),
        "default": "raise",
        "help": (
            "labels of unknown answers, and second ones: refuse the file, or "
            "leave them out and count them (%(default)s)"
        ),
    },
    "--max-waiting N": (
        "number of answers that may wait for labels, and whose ids are "
        "remembered (100000)"
    ),
    **columns(
        *("ids", "confidence", "score", "accepted", "correct", "labels"),
        *("predicted", "time", "logits", "probs"),
        score="column of the score that --threshold is for",
    ),
    **FORM,
}
_GROUPS = {"files": _FILES, "what is watched": _WATCHED, "columns": _COLUMNS}


def _check(given: argparse.Namespace) -> None:
    further = given.late_labels or given.restart is not None
    if not given.log and not (given.state and further):
        raise ValueError(
            "--log, the answers, must be given; or --state with --late-labels, "
            "or with --restart"
        )
    if given.restart is not None and not given.state:
        raise ValueError("--restart needs --state, what to restart")
    if given.max_waiting is not None and given.max_waiting < 0:
        raise value_error(
            "`max_waiting` must be >= 0", max_waiting=given.max_waiting
        )


def _open(given: argparse.Namespace, flag: str, path: str) -> Any:
    from keras_calib.reporting.commands.answer_log import AnswerLog

    columns, log = vars(given), None
    if flag == "--log":
        # What the late labels have, the log need not.
        free = _OF_LABELS if given.late_labels else ()
        log = AnswerLog(path, columns, free)
        if not log.is_empty:
            _check_log(log, given)
    elif flag == "--late-labels":
        own = "ids", *_OF_LABELS, "separator", "decimal"
        log = AnswerLog(path, {k: columns[k] for k in own})
        if not log.is_empty:
            log.require(("ids",))
            log.require_labels()
    return log


def _check_log(log: Any, given: argparse.Namespace) -> None:
    if not given.state and given.tolerance != "none":
        check_confidence(log)
    if given.threshold is None and "accepted" not in log.has:
        raise value_error(
            f"{log.path.name} must have a column `accepted`; --accepted gives "
            "another name, and --threshold the least score to accept, or the "
            "file of `threshold`",
            columns=log.names,
        )
    if "accepted" not in log.has:
        log.require(("score", "confidence"))
    if "labels" in log.has:
        log.require_labels()
    if "ids" in log.has:
        return
    if given.late_labels:
        log.require(("ids",))
    if given.state:
        warn(
            f"{log.path.name} has no column `id`: if it is given again, its "
            "answers count twice"
        )


def check_confidence(log: Any) -> None:
    """Raises ValueError for a log without what calibration is watched by."""
    if "confidence" not in log.has:
        raise value_error(
            f"{log.path.name} must have a column `confidence`; without it, "
            "`tolerance=none` leaves calibration out",
            columns=log.names,
        )


def _run(given: argparse.Namespace, progress: Progress) -> Found:
    """Watches the log; the code is 3 with an alarm, else 0."""
    selector, out = given.selector or "", given.out
    if out is not None or selector.lower().endswith(".keras"):
        load_keras(progress)
    from keras_calib.reporting.commands.watched_logs import watch_logs

    return watch_logs(given, progress)


COMMAND = Command(
    _DESCRIPTION, _EXAMPLES, _WORDS, _GROUPS, _check, _open, _run, files="log"
)
