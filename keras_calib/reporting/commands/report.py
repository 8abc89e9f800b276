"""The arguments of `keras-calib report`, read and checked without Keras."""

import argparse
import sys
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
    opened,
)
from keras_calib.reporting.commands.conditions import (
    FAILED,
    check_metrics,
    conditions,
    failures,
    told,
)
from keras_calib.reporting.commands.terminal import (
    Found,
    Progress,
    load_keras,
    of_arguments,
)

_DESCRIPTION = """\
Says how far the confidence of a classifier can be trusted, from predictions of
any framework: a verdict and numbers with intervals on the terminal, and with
--out one HTML file that has pictures and a slider from risk to threshold too.

A file of predictions is one of
  .npz        arrays `labels` and `logits` or `probs`;
              may have `sample_weight` and `class_names`
  .csv, .tsv  columns `label` and `logit_0`, `logit_1`, ... or `prob_0`, ...;
              in place of numbers there may be names of classes
  .parquet    the same columns, or lists in one column `logits` or `probs`
  .jsonl      the same, one JSON object in each line
Labels are class ids from 0, or names of classes. Rows of votes of several
annotators, counts or shares, are an array or lists `votes`, or columns
`votes_0`, `votes_1`, ...; several labels at once, each 0 or 1, are so
`multi_label`. A log of the predicted class alone has `confidence`, and
`correct` or `predicted` and `label`; its report leaves out NLL and Brier score.
There may be `id`, `sample_weight`, `unit`, and groups to compare: `group`, or
`group_` and the name of each attribute. `Predictions.write` makes such files.
The options below give columns of other names. Errors count rows from 1, without
the line of names.

With --calibration, cross-validation on the predictions of this file chooses a
calibrator, and the report has every number before and after. With --selection
and --risk, a threshold is chosen on the predictions of that file: with
probability 1 - --delta its true risk is at most --risk. The report says what
the threshold does on --predictions. The three files must hold different
samples: a file that repeats a fifth or more of the rows of another one is
refused, and so are --ids that are in two of them.
"""
_EXAMPLES = """\
examples:
  keras-calib report test.parquet --out=report.html
  keras-calib report test.parquet --fail-if='ece > 0.02'
  keras-calib report --predictions=test.csv --labels=species --probs='p_*' \\
      --decimal=, --out=report.html
  keras-calib report --predictions=test.npz --calibration=cal.npz \\
      --selection=sel.npz --risk=0.05 --delta=0.05 --out=report.html
  keras-calib report --predictions=test.npz --votes --labels=counts \\
      --out=report.html
"""
# How errors call the library's arguments here.
_WORDS = {
    **flags("risk", "delta", "ignore_class", "num_bins", "class_names"),
    "path": "--out",
    "outputs": "predictions",
    "from_logits=True": "the array `logits` or columns `logit_0`, ...",
    "from_logits=False": "the array `probs` or columns `prob_0`, ...",
}
_FILES: Options = {
    "--predictions FILE": {
        "action": "append",
        "default": [],
        "help": (
            "labels with logits or probabilities; repeat it for each further "
            "model, which is named by its file"
        ),
    },
    "--out FILE": (
        "the .html file to write, - for standard output; without it the "
        "terminal alone shows verdict and numbers"
    ),
    "--calibration FILE": "predictions on other data, to fit a calibrator on",
    "--calibrator": {
        "choices": ("choose", "temperature", "affine", "beta"),
        "help": (
            "what to fit on them: the best of several by cross-validation, or "
            "a temperature (choose); for logs of the confidence alone affine, "
            "beta or temperature, as `threshold` (affine)"
        ),
    },
    "--selection FILE": "predictions on other data, to choose a threshold on",
}
_COLUMNS: Options = {
    "--labels NAME": (
        "column of class ids or names of classes; with --votes what --logits "
        "may be"
    ),
    "--votes": {
        "action": "store_true",
        "help": (
            "labels are rows of annotators' votes, counts or shares: a "
            "prediction is right by its share of them, and calibrators are "
            "fitted on shares"
        ),
    },
    "--multi-label": {
        "action": "store_true",
        "help": "each output is a label of its own, and labels are 0 or 1",
    },
    **columns(
        *("logits", "probs", "confidence", "correct", "predicted"),
        *("sample_weight", "units"),
        confidence=(
            "column of the probability of the predicted class, for logs that "
            "hold no other"
        ),
        predicted="column of the predicted class, to compare with the label",
    ),
    "--ids NAME": (
        "column of identifiers, shown with the surest mistakes; the same in "
        "all --predictions, and others in the other files"
    ),
    "--groups NAMES": (
        "columns of groups to compare, such as site,sex: the page says of each "
        "how often it is right and how sure"
    ),
    **FORM,
}
_CONTENT: Options = {
    "--risk SHARE": (
        "largest share of wrong predictions among the accepted, between 0 and 1"
    ),
    **DELTA,
    "--num-bins N": {
        "default": 15,
        "help": "number of bins of the ECE, at most 1000 (%(default)s)",
    },
    "--fail-if CONDITIONS": {
        "type": conditions,
        "action": "extend",
        "default": [],
        "help": (
            "end with exit code 4 if one holds, such as 'ece > 0.02, accuracy "
            "< 0.9': metrics of what users get, after calibration if there is "
            "any; another name is refused with a list of all"
        ),
    },
    "--title": {"default": "Calibration report", "help": "title of the page"},
    "--notes NAME=TEXT": {
        "action": "append",
        "help": (
            "note for readers, such as 'Data set=CIFAR-10 test'; repeat it for "
            "further notes; by default the names and dates of the files"
        ),
    },
}
_GROUPS = {"files": _FILES, "columns": _COLUMNS, "content": _CONTENT}


def _check(given: argparse.Namespace) -> None:
    if not 1 <= given.num_bins <= 1000:
        bound = ">= 1" if given.num_bins < 1 else "<= 1000"
        raise value_error(
            f"`num_bins` must be {bound}", num_bins=given.num_bins
        )
    if not given.predictions:
        raise ValueError("--predictions, the file to report on, must be given")
    check_metrics(given.fail_if)
    if given.out not in (None, "-"):
        out = Path(given.out)
        if out.suffix.lower() not in (".html", ".htm") or out.is_dir():
            raise value_error(
                "--out must be a file that ends in .html",
                **{"--out": given.out},
            )
    elif given.out and given.json:
        raise ValueError("--json and --out=- exclude each other")
    if (given.selection is None) != (given.risk is None):
        raise ValueError(
            "--selection, the data to choose with, and --risk, the risk to "
            "choose for, need each other"
        )
    if given.votes and given.selection:
        raise ValueError(
            "--votes and --selection exclude each other: choose the threshold "
            "on class ids"
        )
    if given.calibrator is not None and given.calibration is None:
        raise ValueError(
            "--calibrator needs --calibration, the data to fit it on"
        )
    several = len(given.predictions) > 1
    if several and (given.calibration or given.selection):
        raise ValueError(
            "--calibration and --selection need one file of --predictions, "
            f"not {len(given.predictions)}"
        )
    # Resolved, as links and spellings give one file several paths.
    places = [Path(text).resolve() for _, text in COMMAND.read(given)]
    if len({*places}) < len(places):
        raise ValueError(
            "--predictions, --calibration and --selection must be different "
            f"data. Received: {', '.join(map(str, places))}"
        )
    given.groups = given.groups.split(",") if given.groups else []
    if given.notes is not None:
        pairs = [text.partition("=") for text in given.notes]
        notes = {name.strip(): note.strip() for name, _, note in pairs}
        if len(notes) < len(pairs) or "" in {*notes, *notes.values()}:
            raise value_error(
                "--notes must be NAME=TEXT, each name once",
                **{"--notes": given.notes[:20]},
            )
        given.notes = notes


def _open(given: argparse.Namespace, flag: str, path: str) -> Any:
    is_first = flag == "--predictions"
    # Groups are compared on the predictions alone.
    reader = opened(path, vars(given), given.groups if is_first else ())
    # The first file names the classes of all.
    given.class_names = reader.class_names or given.class_names
    with of_arguments():
        check_metrics(given.fail_if, reader.roles.kind)
    return reader


def _run(given: argparse.Namespace, progress: Progress) -> Found:
    """Writes the report; its path, its verdict and its numbers."""
    load_keras(progress)
    from keras_calib.plots.display import printable
    from keras_calib.reporting.commands.file_reports import report_of_files

    report = report_of_files(given, progress)
    failed = failures(report.results, given.fail_if)
    error = f"--fail-if: {'; '.join(failed)}" if failed else None
    facts = {"out": given.out, "models": report.results, "failed": failed}
    text = ""
    if given.out == "-":
        progress.clear()
        sys.stdout.buffer.write(report.html.encode("utf-8"))
        sys.stdout.buffer.flush()
    else:
        if given.out is not None:
            text = facts["out"] = str(report.save(given.out))
        text = printable(f"{text}\n{told(report.results)}".lstrip())
    return Found(text, facts, FAILED if failed else 0, error)


COMMAND = Command(
    _DESCRIPTION,
    _EXAMPLES,
    _WORDS,
    _GROUPS,
    _check,
    _open,
    _run,
    files="predictions",
)
