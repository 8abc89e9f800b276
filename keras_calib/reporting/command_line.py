"""What `python -m keras_calib` does."""

import argparse
import contextlib
import itertools
import re
import sys
import warnings
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.calibrators import TemperatureScaling
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.options import ReadOptions
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import to_logits
from keras_calib.plots.display import printable
from keras_calib.predictions.batches import with_progress
from keras_calib.reporting.entry_points import BLOCK
from keras_calib.reporting.entry_points import check_num_bins
from keras_calib.reporting.entry_points import report_of_batches
from keras_calib.reporting.html import check_html
from keras_calib.reporting.prediction_files import PredictionFile
from keras_calib.reporting.prediction_files import Rows
from keras_calib.reporting.prediction_files import check_apart
from keras_calib.reporting.prediction_files import row_keys
from keras_calib.selection import SelectiveClassifier

__all__ = ["main"]

_DESCRIPTION = """\
Makes one HTML file that says how far the confidence of a classifier can be
trusted, from predictions of any framework: a verdict in words, metrics with
intervals, pictures, a slider from risk to threshold.

A file of predictions is one of
  .npz      arrays `labels` and `logits` or `probs`;
            may have `sample_weight` and `class_names`
  .csv      columns `label` and `logit_0`, `logit_1`, ... or `prob_0`, ...
  .parquet  the same columns, or lists in one column `logits` or `probs`

With --calibration, predictions on other data, a temperature is fitted on these
and the report has every number before and after. With --selection, again on
other data, a threshold is chosen for --risk, so that with probability
1 - --delta the true risk is not above it, and the report says what it does on
--predictions. The three files must hold different samples: a file that
repeats a fifth or more of another one, rounded or not, is refused.
"""
_EXAMPLES = """\
examples:
  python -m keras_calib report --predictions=test.parquet --out=report.html
  python -m keras_calib report --predictions=test.npz --calibration=cal.npz \\
      --selection=sel.npz --risk=0.05 --delta=0.05 --out=report.html

exit codes: 0 the report was written; 1 a file or its values are at fault;
2 the arguments are; 130 interrupted
"""
_ARGUMENTS = {
    "--predictions": {
        "required": True,
        "action": "append",
        "metavar": "FILE",
        "help": "labels with logits or probabilities; again for each further "
        "model, named by its file",
    },
    "--out": {
        "required": True,
        "metavar": "FILE",
        "help": "the .html file to write; - for standard output",
    },
    "--calibration": {"metavar": "FILE", "help": "predictions to fit on"},
    "--selection": {"metavar": "FILE", "help": "predictions to choose with"},
    "--risk": {
        "type": float,
        "metavar": "SHARE",
        "help": "share of wrong among the accepted, between 0 and 1",
    },
    "--delta": {
        "type": float,
        "default": 0.05,
        "metavar": "SHARE",
        "help": "chance that the guarantee fails (%(default)s)",
    },
    "--ignore-class": {
        "type": int,
        "metavar": "ID",
        "help": "class id that does not count",
    },
    "--bins": {
        "type": int,
        "default": 15,
        "metavar": "N",
        "help": "of the ECE, at most 1000 (%(default)s)",
    },
    "--title": {"default": "Calibration report", "help": "of the page"},
    "--quiet": {"action": "store_true", "help": "no progress bar"},
}
# What arguments of Python are called here.
_FLAGS = {
    "risk": "--risk",
    "delta": "--delta",
    "ignore_class": "--ignore-class",
    "num_bins": "--bins",
    "path": "--out",
    "y_true": "labels",
    "y_pred": "predictions",
    "from_logits=True": "the array `logits` or columns `logit_0`, ...",
    "from_logits=False": "the array `probs` or columns `prob_0`, ...",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code.

    Args:
        arguments: Those of the command line, or None for the process' own.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_calib",
        description="Calibration of classifiers, from the command line.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    command = commands.add_parser(
        "report",
        help="an HTML report from a file of predictions",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for flag, options in _ARGUMENTS.items():
        command.add_argument(flag, **options)
    given = parser.parse_args(arguments)
    try:
        _check(given)
    except ValueError as error:
        command.error(_flagged(error))
    try:
        with warnings.catch_warnings():
            # Without the code that they are from.
            warnings.showwarning = lambda x, *_, **__: _tell("warning", x)
            _report(given)
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        return _tell("error", "there is not enough memory")
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _tell("error", error)
    return 0


def _tell(kind: str, message: Any) -> int:
    print(f"{kind}: {_flagged(message)}", file=sys.stderr)
    return 1


def _flagged(message: Any) -> str:
    """Words of the library with the names that arguments have here."""
    names = "|".join(_FLAGS)

    def flag(found: re.Match) -> str:
        return _FLAGS[found[1] or found[3]] + (found[2] or "")

    pattern = rf"`({names})(=[^`]*)?`|\b({names})(?==)"
    return printable(re.sub(pattern, flag, str(message)))


def _check(given: argparse.Namespace) -> None:
    """Raises ValueError if arguments are wrong, alone or together."""
    check_num_bins(given.bins)
    if given.out != "-":
        check_html(given.out)
    for name in ("risk", "delta"):
        share = getattr(given, name)
        if share is not None and not 0.0 < share < 1.0:
            raise value_error(
                f"`{name}` must be a number between 0 and 1, such as 0.05",
                **{name: share},
            )
    if (given.selection is None) != (given.risk is None):
        raise ValueError(
            "--selection, the data to choose with, and --risk, the risk to "
            "choose for, need each other"
        )
    several = len(given.predictions) > 1
    if several and (given.calibration or given.selection):
        raise ValueError(
            "--calibration and --selection need one file of --predictions, "
            f"not {len(given.predictions)}"
        )
    # Links and other spellings of a path too.
    places = [Path(text).resolve() for _, text in _paths(given)]
    if len({*places}) < len(places):
        raise ValueError(
            "--predictions, --calibration and --selection must be different "
            f"data. Received: {', '.join(map(str, places))}"
        )


def _paths(given: argparse.Namespace) -> list[tuple[str, str]]:
    paths = [("--predictions", text) for text in given.predictions]
    for name in ("calibration", "selection"):
        if getattr(given, name) is not None:
            paths.append((f"--{name}", getattr(given, name)))
    return paths


def _report(given: argparse.Namespace) -> None:
    files = {}
    for flag, text in _paths(given):
        with _blamed(flag := f"{flag}={text}"):
            files[flag] = PredictionFile(text)
    models = dict(itertools.islice(files.items(), len(given.predictions)))
    _check_alike("num_classes", files)
    _check_alike("from_logits", models)
    first = next(iter(models.values()))
    keys, held_out = {}, {}
    for flag, file in files.items():
        if flag in models:
            continue
        with _blamed(flag):
            if flag.startswith("--selection") and file.pixels:
                raise ValueError(
                    "a threshold with a guarantee needs one prediction for "
                    "each sample: pixels of an image are not independent"
                )
            rows = file.read()
            keys[flag] = row_keys(rows.outputs, file.from_logits)
            logits = _logits_of(rows, file.from_logits, given.ignore_class)
            held_out[flag] = rows._replace(outputs=logits)
    check_apart(keys)
    calibrator = selector = None
    for flag, (labels, logits, weight) in held_out.items():
        data = {"sample_weight": weight, "ignore_class": given.ignore_class}
        with _blamed(flag):
            if flag.startswith("--calibration"):
                calibrator = TemperatureScaling().fit(labels, logits, **data)
                continue
            selector = SelectiveClassifier(calibrator=calibrator).fit(
                labels, logits, risk=given.risk, delta=given.delta, **data
            )
    with _blamed(" and ".join(models)):
        report = report_of_batches(
            _names(given.predictions),
            _batches(models, keys, given.quiet or given.out == "-"),
            ReadOptions(first.from_logits, ignore_class=given.ignore_class),
            calibrator=calibrator,
            selector=selector,
            class_names=first.class_names,
            num_bins=given.bins,
            title=given.title,
        )
    if given.out == "-":
        sys.stdout.buffer.write(report.html.encode("utf-8"))
        sys.stdout.buffer.flush()
    else:
        print(printable(str(report.save(given.out))))


def _names(paths: Sequence[str]) -> list[str]:
    """Names of the models: those of the files, or paths where these repeat."""
    stems = [Path(text).stem for text in paths]
    return [
        text if stems.count(stem) > 1 else stem
        for text, stem in zip(paths, stems, strict=True)
    ]


@contextlib.contextmanager
def _blamed(flag: str) -> Iterator[None]:
    """Says which file is at fault."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{flag}: {error}") from error


def _check_alike(fact: str, files: dict[str, PredictionFile]) -> None:
    found = {flag: getattr(file, fact) for flag, file in files.items()}
    if len(set(found.values())) > 1:
        raise ValueError(
            "All files must have predictions of the same classes, and all "
            "--predictions logits, or all probabilities. Received: "
            + ", ".join(f"{fact}={x} in {flag}" for flag, x in found.items())
        )


def _batches(
    models: dict[str, PredictionFile], keys: dict[str, np.ndarray], quiet: bool
) -> Iterator[tuple]:
    """Batches of all predictions, which must be apart from other data."""
    first = next(iter(models.values()))
    row = next(first.batches(1))
    size = max(1, BLOCK // max(1, row.outputs.size))
    total = None if first.num_rows is None else -(-first.num_rows // size)
    batches = [file.batches(size) for file in models.values()]
    parts = itertools.zip_longest(*batches)
    seen = []
    for rows in with_progress(parts, total, verbose=int(not quiet)):
        labels = getattr(rows[0], "labels", None)
        for flag, other in zip(models, rows, strict=True):
            if other is None or not np.array_equal(other.labels, labels):
                raise ValueError(
                    "all --predictions must have the same labels in the "
                    f"same order. Received: other ones in {flag}"
                )
        if keys:
            seen.append(row_keys(rows[0].outputs, first.from_logits))
        outputs = [other.outputs for other in rows]
        yield labels, outputs, rows[0].sample_weight, None
    if keys:
        # Before the page, which takes longest.
        check_apart({**keys, "--predictions": np.concatenate(seen)})


def _logits_of(
    rows: Rows, from_logits: bool, ignore_class: int | None
) -> np.ndarray:
    """Predictions to fit on, as logits of every class."""
    read = standardize_arrays(
        rows.labels,
        rows.outputs,
        from_logits=from_logits,
        sample_weight=rows.sample_weight,
        ignore_class=ignore_class,
        drop=False,
    ).outputs
    logits = read if from_logits else to_numpy(to_logits(read))
    return logits.reshape(*rows.outputs.shape[:-1], -1)
