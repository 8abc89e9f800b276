"""What `python -m keras_calib` does."""

import argparse
import contextlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.calibrators import TemperatureScaling
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.options import ReadOptions
from keras_calib.inputs.readers import standardize_predictions
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import to_logits
from keras_calib.plots.display import printable
from keras_calib.predictions.batches import with_progress
from keras_calib.reporting.document import check_html
from keras_calib.reporting.entry_points import BLOCK
from keras_calib.reporting.entry_points import check_num_bins
from keras_calib.reporting.entry_points import report_of_batches
from keras_calib.reporting.given_files import GivenFile
from keras_calib.reporting.given_files import blamed
from keras_calib.reporting.given_files import check_alike
from keras_calib.reporting.given_files import check_apart
from keras_calib.reporting.given_files import open_given
from keras_calib.reporting.given_files import row_keys
from keras_calib.reporting.prediction_files import Rows
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
# What arguments of Python are called here.
_FLAGS = {
    "y_true": "labels",
    "y_pred": "predictions",
    "risk": "--risk",
    "delta": "--delta",
    "ignore_class": "--ignore-class",
    "num_bins": "--bins",
}
# And how files say `from_logits`.
_KINDS = {
    "True": "the array `logits` or columns `logit_0`, ...",
    "False": "the array `probs` or columns `prob_0`, ...",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code.

    Args:
        arguments: Those of the command line, or None for the process' own.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    _check_together(parser, given)
    try:
        with _plain_warnings():
            _report(given)
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        print("error: there is not enough memory", file=sys.stderr)
        return 1
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {printable(_flagged(str(error)))}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m keras_calib",
        description="Calibration of classifiers, from the command line.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    parser_of_report = commands.add_parser(
        "report",
        help="an HTML report from a file of predictions",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser_of_report.add_argument
    add(
        "--predictions",
        required=True,
        action="append",
        metavar="FILE",
        help="labels with logits or probabilities; again for each further "
        "model, named by its file",
    )
    add(
        "--out",
        required=True,
        type=_checked(_output),
        metavar="FILE",
        help="the .html file to write; - for standard output",
    )
    add("--calibration", metavar="FILE", help="predictions to fit on")
    add("--selection", metavar="FILE", help="predictions to choose with")
    add(
        "--risk",
        type=_checked(_share),
        metavar="SHARE",
        help="share of wrong among the accepted, between 0 and 1",
    )
    add(
        "--delta",
        type=_checked(_share),
        default=0.05,
        metavar="SHARE",
        help="chance that the guarantee fails (%(default)s)",
    )
    add(
        "--ignore-class",
        type=int,
        metavar="ID",
        help="class id that does not count",
    )
    add(
        "--bins",
        type=_checked(_count),
        default=15,
        metavar="N",
        help="of the ECE, at most as many as predictions (%(default)s)",
    )
    add("--title", default="Calibration report", help="of the page")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """For argparse, which keeps the words of its own errors only."""

    def read_or_refuse(text: str) -> Any:
        try:
            return read(text)
        except (ValueError, TypeError) as error:
            words = _flagged(re.sub(r"^`\w+` ", "", str(error)))
            raise argparse.ArgumentTypeError(printable(words)) from error

    return read_or_refuse


def _output(text: str) -> str:
    return text if text == "-" else str(check_html(text))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = float("nan")
    if not 0.0 < share < 1.0:
        rule = "must be a number between 0 and 1, such as 0.05"
        raise ValueError(f"{rule}. Received: {text}")
    return share


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"must be a whole number. Received: {text}")
    check_num_bins(int(text))
    return int(text)


def _check_together(parser: Any, given: argparse.Namespace) -> None:
    """Leaves with code 2 where arguments do not go with each other."""
    if given.selection is None and given.risk is not None:
        parser.error("--risk needs --selection, the data to choose with")
    if given.selection is not None and given.risk is None:
        parser.error("--selection needs --risk, the risk to choose for")
    several = len(given.predictions) > 1
    if several and (given.calibration or given.selection):
        parser.error(
            "--calibration and --selection need one file of --predictions, "
            f"not {len(given.predictions)}"
        )
    seen = {}
    for flag, text in _paths(given):
        # Links and other spellings of a path too.
        place = Path(text).resolve()
        if place in seen:
            parser.error(
                f"{seen[place]} and {flag} must be different data. "
                f"Received: {printable(text)} for both"
            )
        seen[place] = flag


def _paths(given: argparse.Namespace) -> list[tuple[str, str]]:
    paths = [("--predictions", text) for text in given.predictions]
    for flag in ("calibration", "selection"):
        if getattr(given, flag) is not None:
            paths.append((f"--{flag}", getattr(given, flag)))
    return paths


def _report(given: argparse.Namespace) -> None:
    opened = [open_given(flag, text) for flag, text in _paths(given)]
    predictions = opened[: len(given.predictions)]
    first = predictions[0]
    check_alike(opened, predictions)
    if first.file.num_rows is not None and not first.pixels:
        check_num_bins(given.bins, first.file.num_rows)
    held_out, keys = {}, {}
    for part in opened[len(predictions) :]:
        with blamed(part.flag):
            rows = part.file.read()
            keys[part.flag] = row_keys(rows.outputs, part.file.from_logits)
            held_out[part.flag] = _with_logits(
                rows, part.file.from_logits, given.ignore_class
            )
    check_apart(keys)
    calibrator = selector = None
    for flag, rows in held_out.items():
        options = {
            "sample_weight": rows.sample_weight,
            "ignore_class": given.ignore_class,
        }
        with blamed(flag):
            if flag.startswith("--calibration"):
                calibrator = TemperatureScaling().fit(
                    rows.labels, rows.outputs, **options
                )
                continue
            selector = SelectiveClassifier(calibrator=calibrator).fit(
                rows.labels,
                rows.outputs,
                risk=given.risk,
                delta=given.delta,
                **options,
            )
    with blamed(" and ".join(part.flag for part in predictions)):
        report = report_of_batches(
            _names(given.predictions),
            _batches(predictions, keys, given.quiet or given.out == "-"),
            ReadOptions(
                first.file.from_logits, ignore_class=given.ignore_class
            ),
            calibrator=calibrator,
            selector=selector,
            class_names=first.file.class_names,
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


def _batches(
    opened: list[GivenFile], keys: dict[str, np.ndarray], quiet: bool
) -> Iterator[tuple]:
    """Batches of all predictions, which must be apart from other data."""
    first = opened[0].file
    row = next(first.batches(1))
    size = max(1, BLOCK // max(1, row.outputs.size))
    total = None if first.num_rows is None else -(-first.num_rows // size)
    parts = itertools.zip_longest(*[part.file.batches(size) for part in opened])
    seen = []
    for rows in with_progress(parts, total, verbose=int(not quiet)):
        labels = getattr(rows[0], "labels", None)
        for part, other in zip(opened, rows, strict=True):
            if other is None or not np.array_equal(other.labels, labels):
                raise ValueError(
                    "all --predictions must have the same labels in the "
                    f"same order. Received: other ones in {part.flag}"
                )
        if keys:
            seen.append(row_keys(rows[0].outputs, first.from_logits))
        outputs = [other.outputs for other in rows]
        yield labels, outputs, rows[0].sample_weight, None
    if keys:
        # Before the page, which takes longest.
        check_apart({**keys, opened[0].flag: np.concatenate(seen)})


def _with_logits(
    rows: Rows, from_logits: bool, ignore_class: int | None
) -> Rows:
    """Predictions to fit on, with logits of every class."""
    if from_logits:
        outputs = standardize_predictions(rows.outputs, from_logits=True)
        return rows._replace(outputs=to_numpy(outputs))
    probs = standardize_arrays(
        rows.labels,
        rows.outputs,
        sample_weight=rows.sample_weight,
        ignore_class=ignore_class,
        drop=False,
    ).outputs
    shape = (*rows.outputs.shape[:-1], probs.shape[-1])
    return rows._replace(outputs=to_numpy(to_logits(probs)).reshape(shape))


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Warnings as lines of their own, without the code that they are from."""

    usual = warnings.formatwarning

    def line(message: Any, *_: Any, **__: Any) -> str:
        return f"warning: {printable(_flagged(str(message)))}\n"

    warnings.formatwarning = line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _flagged(text: str) -> str:
    """Words of the library with the names that arguments have here."""

    def kind(found: re.Match) -> str:
        return ("use " if found[1] else "") + _KINDS[found[2]]

    def flag(found: re.Match) -> str:
        name, value = found.groups()
        return _FLAGS[name] + value if name in _FLAGS else found[0]

    def fact(found: re.Match) -> str:
        return found[1] + _FLAGS.get(found[2], found[2])

    text = re.sub(r"(pass )?`from_logits=(True|False)`", kind, text)
    text = re.sub(r"`(\w+)(|=[^`]*)`", flag, text)
    rule, received, facts = text.rpartition("Received: ")
    # There is no flag for it.
    facts = facts.replace(", method='ltt'", "")
    return rule + received + re.sub(r"(^|, )(\w+)(?==)", fact, facts)
