"""Reports of files of predictions, as the command line asks for them."""

import contextlib
import itertools
from argparse import Namespace
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_calib.calibrators import TemperatureScaling
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.options import ReadOptions
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import to_logits
from keras_calib.reporting.entry_points import BLOCK
from keras_calib.reporting.entry_points import report_of_batches
from keras_calib.reporting.evaluation import EXPLAINED
from keras_calib.reporting.html import Report
from keras_calib.reporting.prediction_columns import Columns
from keras_calib.reporting.prediction_files import PredictionFile
from keras_calib.reporting.prediction_files import Rows
from keras_calib.reporting.prediction_files import join_rows
from keras_calib.reporting.progress import Progress
from keras_calib.reporting.repeated_samples import check_apart
from keras_calib.reporting.repeated_samples import check_ids_apart
from keras_calib.reporting.repeated_samples import row_keys
from keras_calib.selection import SelectiveClassifier

__all__ = ["report_of_files"]

# Those that need no probability but that of the predicted class.
_TOP1_METRICS = tuple(x for x in EXPLAINED if x not in ("nll", "brier"))
# Rows that are read at a time from data to fit on.
_ROWS = 4096


def report_of_files(
    given: Namespace, paths: list[tuple[str, str]], progress: Progress
) -> Report:
    """The report that the arguments of the command ask for."""
    files = _opened(given, paths)
    models = dict(itertools.islice(files.items(), len(given.predictions)))
    _check_alike("top1", files)
    _check_alike("num_classes", files)
    _check_alike("from_logits", models)
    first = next(iter(models.values()))
    keys, ids, held_out = {}, {}, {}
    for flag, file in files.items():
        if flag in models:
            continue
        with _blamed(flag):
            _check_held_out(flag, file)
            what = f"Reading {flag}"
            parts = progress.rows(file.batches(_ROWS), what, file.num_rows)
            rows = join_rows([*parts])
            keys[flag] = row_keys(rows.outputs, file.from_logits)
            ids[flag] = rows.ids
            logits = _logits_of(rows, file.from_logits, given.ignore_class)
            held_out[flag] = rows._replace(outputs=logits)
    check_apart(keys)
    calibrator = selector = None
    for flag, (labels, logits, weight, _) in held_out.items():
        data = {"sample_weight": weight, "ignore_class": given.ignore_class}
        with _blamed(flag):
            if flag.startswith("--calibration"):
                progress.say("Fitting the temperature ...")
                calibrator = TemperatureScaling().fit(labels, logits, **data)
                continue
            progress.say("Choosing the threshold ...")
            selector = SelectiveClassifier(calibrator=calibrator).fit(
                labels, logits, risk=given.risk, delta=given.delta, **data
            )
    with _blamed(" and ".join(models)):
        return report_of_batches(
            _names(given.predictions),
            _batches(models, keys, ids, progress),
            ReadOptions(first.from_logits, ignore_class=given.ignore_class),
            calibrator=calibrator,
            selector=selector,
            class_names=first.class_names,
            num_bins=given.bins,
            title=given.title,
            metrics=_TOP1_METRICS if first.top1 else tuple(EXPLAINED),
        )


def _opened(
    given: Namespace, paths: list[tuple[str, str]]
) -> dict[str, PredictionFile]:
    """Files by their flags; the first names the classes of all."""
    columns = Columns(
        *(getattr(given, x) for x in Columns._fields[:8]),
        given.classes,
        given.ignore_class,
        given.separator,
        given.decimal,
    )
    files = {}
    for flag, text in paths:
        with _blamed(flag := f"{flag}={text}"):
            files[flag] = file = PredictionFile(text, columns)
        if not file.top1:
            columns = columns._replace(class_names=file.class_names)
    if all(file.top1 for file in files.values()):
        if len(given.predictions) > 1:
            raise ValueError(
                "Records of the predicted class alone need one file of "
                f"--predictions. Received: {len(given.predictions)}"
            )
        size = max(file.num_classes for file in files.values())
        for file in files.values():
            file.widen(size)
    return files


def _check_held_out(flag: str, file: PredictionFile) -> None:
    if flag.startswith("--selection") and file.pixels:
        raise ValueError(
            "a threshold with a guarantee needs one prediction for "
            "each sample: pixels of an image are not independent"
        )
    if flag.startswith("--calibration") and file.top1:
        raise ValueError(
            "a temperature cannot be fitted on the confidence of the predicted "
            "class alone: give a file with the logits or probabilities of all "
            "classes"
        )


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
            "All files must have predictions of the same classes, or all of "
            "the predicted class alone, and all --predictions logits, or all "
            "probabilities. Received: "
            + ", ".join(f"{fact}={x} in {flag}" for flag, x in found.items())
        )


def _batches(
    models: dict[str, PredictionFile],
    keys: dict[str, np.ndarray],
    ids: dict[str, np.ndarray | None],
    progress: Progress,
) -> Iterator[tuple]:
    """Batches of all predictions, which must be apart from other data."""
    first = next(iter(models.values()))
    row = next(first.batches(1))
    size = max(1, BLOCK // max(1, row.outputs.size))
    what = f"Reading {next(iter(models))}" + " ..." * (len(models) > 1)
    batches = [file.batches(size) for file in models.values()]
    batches[0] = progress.rows(batches[0], what, first.num_rows)
    seen, seen_ids = [], []
    for rows in itertools.zip_longest(*batches):
        for flag, other in zip(models, rows, strict=True):
            _check_same_samples(rows[0], other, flag)
        if keys:
            seen.append(row_keys(rows[0].outputs, first.from_logits))
            seen_ids.append(rows[0].ids)
        outputs = [other.outputs for other in rows]
        # The page shows what it is given as samples: here, their names.
        yield rows[0].labels, outputs, rows[0].sample_weight, rows[0].ids
    if keys:
        # Before the page, which takes longest.
        check_apart({**keys, "--predictions": np.concatenate(seen)})
        if seen_ids[0] is not None:
            ids = {**ids, "--predictions": np.concatenate(seen_ids)}
            check_ids_apart(ids)
    progress.say("Computing intervals and drawing the page ...")


def _check_same_samples(
    first: Rows | None, other: Rows | None, flag: str
) -> None:
    for what in ("labels", "ids"):
        one, two = (getattr(rows, what, None) for rows in (first, other))
        absent = what == "labels" and (one is None or two is None)
        if absent or not np.array_equal(one, two):
            raise ValueError(
                f"all --predictions must have the same {what} in the "
                f"same order. Received: other ones in {flag}"
            )


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
