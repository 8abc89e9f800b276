"""What `keras-calib verify` does: it checks a certificate without Keras."""

import argparse
from typing import Any

from keras_calib.reporting.commands.arguments import (
    FORM,
    Command,
    Options,
    columns,
)
from keras_calib.reporting.commands.terminal import Found, Progress

_DESCRIPTION = """\
Checks the certificate of an exported model: hashes of every file and, with the
data that chose the threshold, every number of the guarantee. It needs neither
Keras nor TensorFlow. It checks the .json file of `keras-calib threshold --out`
too: there --data is the log of answers, in any form that `threshold` reads.
Where Keras and the runtime of the file are installed, it also runs a file that
`FileModel.attach` certified on the samples that were recorded.

--data is a .npz, .csv, .tsv, .parquet or .jsonl file with a row for each
sample: its `score`, and whether the prediction was `correct` (0 or 1), as
`save_records` writes it. Without a score there may be a `confidence`. A
selector with thresholds by group needs also the `group` of each sample, and one
with costs the `cost` of each answer. The order of rows does not matter.

The exit code is 0 if all agrees, and 1 if anything differs. A certificate says
nothing about who made it: sign it with a tool of your own.
"""
_EXAMPLES = """\
examples:
  keras-calib verify serving/1
  keras-calib verify serving/1 --data=selection.parquet
  keras-calib verify model.tflite --data=log.csv --score=margin
  keras-calib verify threshold.json --data=answers.parquet
  keras-calib verify threshold.json --data=logits.csv --labels=truth --logits=z
"""
# How errors call the library's arguments here.
_WORDS = {
    "scores": "--score",
    "confidence": "--confidence",
    "groups": "--groups",
    "cost": "--cost",
}
# Of a log, as `threshold` reads it; an exported model has records.
_OF_LOG = "logits", "probs", "labels", "predicted", "ids"
_READ = "score", "confidence", "correct", *_OF_LOG, "groups", "cost"
_OF_CLASSES = "logits", "probs"

_OPTIONS: Options = {
    "path FILE": "the exported folder or file, or the file of a threshold",
    "--data FILE": "records of the data that chose the threshold",
    **columns(
        *_READ,
        confidence="column of confidences, instead of scores",
        groups="column of groups, for thresholds by group (group)",
        cost="column of costs of answers, with costs (cost)",
    ),
    **FORM,
}


def _check(given: argparse.Namespace) -> None:
    if given.score is not None and given.confidence is not None:
        raise ValueError("--score and --confidence exclude each other")
    read = *_READ, "separator"
    used = [f"--{x}" for x in read if getattr(given, x) is not None]
    if used and given.data is None:
        raise ValueError(f"{', '.join(used)} needs --data, the records to read")


def _open(given: argparse.Namespace, flag: str, path: str) -> None:
    from keras_calib.predictions.roles import check_present, group_column
    from keras_calib.predictions.tables import Table

    if flag == "--data":
        table = Table(path, given.separator, given.decimal)
        single = [getattr(given, x) for x in _READ if x not in _OF_CLASSES]
        asked = [group_column(x, table.names) for x in single if x]
        check_present(table.path.name, table.names, asked)


def _run(given: argparse.Namespace, progress: Progress) -> Found:
    """What was checked; an error if anything differs."""
    from keras_calib.exporting.statement_check import check_certificate

    data: dict[str, Any] = {}
    if given.data is not None:
        progress.say(f"Reading {given.data} ...")
        data = _records(given, progress)
    progress.say("Checking ...")
    found = check_certificate(given.path, **data)
    statement = found.certificate["guarantee"]["statement"]
    lines = [f"The certificate says: {statement}"]
    lines += [f"checked: {text}" for text in found.checked]
    lines += [f"not checked: {text}" for text in found.not_checked]
    lines += [f"differs: {text}" for text in found.differences]
    error = None
    if not found.holds:
        count = len(found.differences)
        error = (
            f"the certificate does not hold: {count} "
            f"{'difference' if count == 1 else 'differences'}"
        )
    elif not found.certificate["data"]:
        lines.append("The facts agree, and the files are unchanged.")
    elif given.data is not None:
        lines.append("The certificate holds.")
    else:
        lines.append("The files are unchanged.")
    facts = {
        "statement": statement,
        "holds": found.holds,
        "checked": found.checked,
        "not_checked": found.not_checked,
        "differences": found.differences,
    }
    return Found("\n".join(lines), facts, int(not found.holds), error)


def _records(given: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """What the kind of certificate needs, from the file."""
    import numpy as np

    from keras_calib.backend.files import path_of
    from keras_calib.exporting.statement import read_statement, statement_path
    from keras_calib.exporting.statement_check import records_of_file
    from keras_calib.predictions.predictions import Predictions
    from keras_calib.predictions.tables import Table
    from keras_calib.reporting.commands.answer_log import LabelledLog

    facts = read_statement(statement_path(path_of(given.path)))
    if facts["artefact"] is not None:
        if wrong := [f"--{x}" for x in _OF_LOG if getattr(given, x)]:
            raise ValueError(
                f"{', '.join(wrong)}: for the file of a threshold; the data of "
                "a model have scores or confidences, and what is correct"
            )
        file = Table(given.data, given.separator, given.decimal)
        return records_of_file(facts, file, vars(given))
    column, group = facts["score"]["name"], facts["data"].get("group")
    names = {**vars(given), "groups": group and (given.groups or group)}
    if column == "score":
        # A log may have both.
        names["score"] = given.score or column
    log, _ = LabelledLog(given.data, names, column != "score").read(progress)
    found: dict[str, Any] = {"scores": log.score, "correct": log.correct}
    if column == "confidence":
        right = found.pop("correct")
        found["scores"] = Predictions(confidence=log.score, correct=right)
    if log.names:
        found["groups"] = np.array(log.names)[log.group]
    return found


_GROUPS = {"": _OPTIONS}
COMMAND = Command(_DESCRIPTION, _EXAMPLES, _WORDS, _GROUPS, _check, _open, _run)
