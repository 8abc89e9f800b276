"""What `python -m keras_calib` does."""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_calib.calibrators import TemperatureScaling
from keras_calib.inputs import read_predictions
from keras_calib.numerics import to_logits
from keras_calib.numerics import to_numpy
from keras_calib.prediction_files import PredictionFile
from keras_calib.prediction_files import Rows
from keras_calib.prediction_files import open_predictions
from keras_calib.reporting.making import BLOCK
from keras_calib.reporting.making import Making
from keras_calib.reporting.making import Progress
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
--predictions. The three files must hold different samples.
"""
_EXAMPLES = """\
examples:
  python -m keras_calib report --predictions=test.parquet --out=report.html
  python -m keras_calib report --predictions=test.npz --calibration=cal.npz \\
      --selection=sel.npz --risk=0.01 --delta=0.05 --out=report.html

exit codes: 0 the report was written; 1 a file or its values are at fault;
2 the arguments are; 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code.

    Args:
        arguments: Those of the command line, or None for the process' own.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.selection is None and given.risk is not None:
        parser.error("--risk needs --selection, the data to choose with")
    if given.selection is not None and given.risk is None:
        parser.error("--selection needs --risk, the risk to choose for")
    try:
        print(_report(given))
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
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
    add("--out", required=True, metavar="FILE", help="the HTML file to write")
    add("--calibration", metavar="FILE", help="predictions to fit on")
    add("--selection", metavar="FILE", help="predictions to choose with")
    add("--risk", type=float, help="share of wrong among the accepted")
    add(
        "--delta",
        type=float,
        default=0.05,
        help="chance that the guarantee fails (%(default)s)",
    )
    add("--ignore-class", type=int, help="class id that does not count")
    add("--bins", type=int, default=15, help="of the ECE (%(default)s)")
    add("--title", default="Calibration report", help="of the page")
    add("--quiet", action="store_true", help="no progress bar")
    return parser


def _report(given: argparse.Namespace) -> Path:
    files = {}
    for text in given.predictions:
        name = Path(text).stem
        files[text if name in files else name] = open_predictions(text)
    first = next(iter(files.values()))
    for name, file in files.items():
        if file.from_logits != first.from_logits:
            raise ValueError(
                "All `--predictions` must hold logits, or all probabilities. "
                f"Received: {name}"
            )
    calibrator = selector = None
    if (given.calibration or given.selection) and len(files) > 1:
        raise ValueError(
            "`--calibration` and `--selection` need one file of "
            f"`--predictions`. Received: {len(files)}"
        )
    if given.calibration:
        rows = _held_out(given.calibration)
        calibrator = TemperatureScaling().fit(
            rows.labels,
            rows.outputs,
            sample_weight=rows.sample_weight,
            ignore_class=given.ignore_class,
        )
    if given.selection:
        rows = _held_out(given.selection)
        selector = SelectiveClassifier(calibrator=calibrator).fit(
            rows.labels,
            rows.outputs,
            risk=given.risk,
            delta=given.delta,
            sample_weight=rows.sample_weight,
            ignore_class=given.ignore_class,
        )
    making = Making(
        list(files),
        calibrator=calibrator,
        selector=selector,
        from_logits=first.from_logits,
        ignore_class=given.ignore_class,
        class_names=first.class_names,
        num_bins=given.bins,
        title=given.title,
    )
    size = _rows_at_a_time(first)
    total = None
    if first.num_rows is not None:
        total = -(-first.num_rows // size)
    progress = Progress(total, verbose=not given.quiet)
    batches = [file.batches(size) for file in files.values()]
    for rows in itertools.zip_longest(*batches):
        for name, other in zip(files, rows, strict=True):
            if other is None or not np.array_equal(
                other.labels, getattr(rows[0], "labels", None)
            ):
                raise ValueError(
                    "All `--predictions` must have the same labels in the "
                    f"same order. Received: {name}"
                )
        making.add(
            rows[0].labels,
            [other.outputs for other in rows],
            rows[0].sample_weight,
        )
        progress.step()
    progress.end()
    return making.report().save(given.out)


def _rows_at_a_time(file: PredictionFile) -> int:
    row = next(file.batches(1), None)
    return 1 if row is None else max(1, BLOCK // max(1, row.outputs.size))


def _held_out(path: str) -> Rows:
    """Predictions to fit on, with logits of every class."""
    file = open_predictions(path)
    rows = file.read()
    outputs = read_predictions(rows.outputs, from_logits=file.from_logits)
    if not file.from_logits:
        outputs = to_logits(outputs)
    return rows._replace(outputs=to_numpy(outputs))
