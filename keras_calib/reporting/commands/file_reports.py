"""What `keras-calib report` does: from files of predictions to a report."""

import datetime
import itertools
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of
from keras_calib.calibrators import (
    Calibrator,
    CalibratorChoice,
    TemperatureScaling,
    choose_calibrator,
)
from keras_calib.exporting.answer_threshold import (
    bounded_log_odds,
    calibrated_confidence,
    calibrator_facts,
    told_calibrator,
)
from keras_calib.functional.groups import grouping
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.options import ReadOptions
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import to_logits
from keras_calib.reporting.commands.terminal import Progress, blamed
from keras_calib.reporting.entry_points import BLOCK, report_of_batches
from keras_calib.reporting.html import Report
from keras_calib.reporting.prediction_files.reader import (
    PredictionFile,
    Rows,
    join_rows,
)
from keras_calib.reporting.prediction_files.repeated_samples import (
    check_apart,
    check_ids_apart,
    row_keys,
)
from keras_calib.selection import SelectiveClassifier

__all__ = ["ConfidenceCalibrator", "report_of_files"]

# Calibrators of the confidence alone, and of all classes.
_OF_LOGS = "affine", "beta", "temperature"
_OF_LOGITS = "choose", "temperature"
# Rows that are read at a time of data to fit on.
_ROWS = 4096
# What the page calls the file of a flag.
_FILE_NOTES = {
    "--predictions": "Data file",
    "--calibration": "Calibration file",
    "--selection": "Selection file",
}


class ConfidenceCalibrator:
    """A calibrator of the confidence of the predicted class alone."""

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts

    def __call__(self, confidence: np.ndarray) -> np.ndarray:
        return calibrated_confidence(self.facts, confidence)

    def __str__(self) -> str:
        return f"{self.facts['name']} map of the confidence"


def report_of_files(
    given: Namespace, paths: list[tuple[str, str]], progress: Progress
) -> Report:
    """The report that the arguments of the command ask for.

    `paths` has the flag and the path of each file, predictions first.
    """
    files = _opened(given, paths)
    models = dict(itertools.islice(files.items(), len(given.predictions)))
    others = {k: file for k, file in files.items() if k not in models}
    _check_alike("top1", files)
    _check_alike("num_classes", files)
    _check_alike("from_logits", models)
    reading = {"ignore_class": given.ignore_class, "votes": given.votes}
    first, names = next(iter(models.values())), _names(given.predictions)
    keys, ids, held_out = _read_held_out(others, reading, progress)
    # Early, before anything is fitted; `_batches` checks the predictions.
    check_apart(keys)
    calibrator, selector = _fitted(held_out, given, progress, first.top1)
    told = {}
    if isinstance(calibrator, ConfidenceCalibrator):
        told["Calibrator"] = told_calibrator(calibrator.facts)
    with blamed(" and ".join(models)):
        return report_of_batches(
            names,
            _batches(models, keys, ids, progress),
            ReadOptions(
                first.from_logits,
                ignore_class=given.ignore_class,
                labels="votes" if given.votes else "classes",
            ),
            calibrator=calibrator,
            selector=selector,
            class_names=None if first.top1 else first.class_names,
            num_bins=given.num_bins,
            title=given.title,
            kind="scores" if first.top1 else "classes",
            notes=given.notes or _file_notes(paths, names, held_out) | told,
        )


def _opened(
    given: Namespace, paths: list[tuple[str, str]]
) -> dict[str, PredictionFile]:
    """Files by their flags; the first names the classes of all."""
    options, classes, files = vars(given), given.class_names, {}
    for flag, text in paths:
        # Groups are compared on the predictions alone.
        groups = given.groups if flag == "--predictions" else ()
        own = {**options, "groups": groups, "class_names": classes}
        with blamed(flag := f"{flag}={text}"):
            files[flag] = file = PredictionFile(text, **own)
        if not file.top1:
            classes = file.class_names
    count = len(given.predictions)
    if count > 1 and all(file.top1 for file in files.values()):
        raise ValueError(
            "Records of the predicted class alone need one file of "
            f"--predictions. Received: {count}"
        )
    return files


def _check_alike(fact: str, files: dict[str, PredictionFile]) -> None:
    found = {flag: getattr(file, fact) for flag, file in files.items()}
    if len(set(found.values())) > 1:
        raise ValueError(
            "All files must have predictions of the same classes, or all of "
            "the predicted class alone, and all --predictions logits, or all "
            "probabilities. Received: "
            + ", ".join(f"{fact}={x} in {flag}" for flag, x in found.items())
        )


def _read_held_out(
    files: dict[str, PredictionFile],
    reading: dict[str, Any],
    progress: Progress,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Rows]]:
    """Keys, names and rows of the data to fit on.

    Outputs of all classes become logits, and votes become shares, which
    calibrators are fitted on.
    """
    keys, ids, held_out = {}, {}, {}
    for flag, file in files.items():
        with blamed(flag):
            if flag.startswith("--selection") and file.pixels:
                raise ValueError(
                    "a threshold with a guarantee needs one prediction for "
                    "each sample: pixels of an image are not independent"
                )
            what = f"Reading {flag}"
            parts = progress.rows(file.batches(_ROWS), what, file.num_rows)
            rows = join_rows([*parts])
            keys[flag] = row_keys(rows.outputs)
            if rows.ids is not None:
                ids[flag] = rows.ids
            if not file.top1:
                rows = _rows_of_logits(rows, file.from_logits, reading)
            held_out[flag] = rows
    return keys, ids, held_out


def _rows_of_logits(
    rows: Rows, from_logits: bool, reading: dict[str, Any]
) -> Rows:
    """Predictions to fit on, as logits of every class."""
    read = standardize_arrays(
        rows.labels,
        rows.outputs,
        from_logits=from_logits,
        sample_weight=rows.sample_weight,
        drop=False,
        **reading,
    )
    logits, lead = read.outputs, rows.outputs.shape[:-1]
    if not from_logits:
        logits = to_numpy(to_logits(logits))
    if read.votes:
        rows = rows._replace(labels=read.labels.reshape(*lead, -1))
    return rows._replace(outputs=logits.reshape(*lead, -1))


def _fitted(
    held_out: dict[str, Rows], given: Namespace, progress: Progress, top1: bool
) -> tuple[Any, SelectiveClassifier | None]:
    """A calibrator and a selector, of the data that there are."""
    calibrator: Any = None
    selector = None
    for flag, rows in held_out.items():
        with blamed(flag):
            if flag.startswith("--calibration"):
                calibrator = _calibrator(rows, given, progress, top1)
                continue
            progress.say("Choosing the threshold ...")
            target: dict[str, Any] = {"risk": given.risk, "delta": given.delta}
            if top1:
                selector = _confidence_selector(rows, calibrator, target)
                continue
            layer = calibrator
            if isinstance(layer, CalibratorChoice):
                layer = layer.calibrator
            selector = SelectiveClassifier(calibrator=layer).fit(
                rows.labels,
                rows.outputs,
                sample_weight=rows.sample_weight,
                ignore_class=given.ignore_class,
                **target,
            )
    return calibrator, selector


def _calibrator(
    rows: Rows, given: Namespace, progress: Progress, top1: bool
) -> Calibrator | CalibratorChoice | ConfidenceCalibrator:
    """The calibrator that is asked for, fitted."""
    kind = given.calibrator or ("affine" if top1 else "choose")
    if kind not in (_OF_LOGS if top1 else _OF_LOGITS):
        raise value_error(
            "--calibrator must be affine, beta or temperature for a log of "
            "the confidence alone, and choose or temperature for logits or "
            "probabilities of all classes",
            **{"--calibrator": kind},
        )
    labels, outputs, weight, *_ = rows
    if top1:
        return ConfidenceCalibrator(calibrator_facts(outputs, labels, kind))
    data = {"sample_weight": weight, "ignore_class": given.ignore_class}
    if kind == "choose":
        progress.say("Choosing the calibrator ...")
        return choose_calibrator(labels, outputs, **data)
    progress.say("Fitting the temperature ...")
    return TemperatureScaling().fit(labels, outputs, **data)


def _confidence_selector(
    rows: Rows, calibrator: Any, target: dict[str, Any]
) -> SelectiveClassifier:
    """A selector by the log-odds of the confidence."""
    confidence = rows.outputs
    if calibrator is not None:
        confidence = calibrator(confidence)
    return SelectiveClassifier(calibrator=calibrator).fit_scores(
        bounded_log_odds(confidence),
        rows.labels,
        sample_weight=rows.sample_weight,
        **target,
    )


def _names(paths: Sequence[str]) -> list[str]:
    """Names of the models: those of the files, or paths where these repeat."""
    stems = [Path(text).stem for text in paths]
    return [
        text if stems.count(stem) > 1 else stem
        for text, stem in zip(paths, stems, strict=True)
    ]


def _batches(
    models: dict[str, PredictionFile],
    keys: dict[str, np.ndarray],
    ids: dict[str, np.ndarray],
    progress: Progress,
) -> Iterator[tuple]:
    """Batches of all models; at the end, checks that no other file has them."""
    first = next(iter(models.values()))
    row = next(first.batches(1))
    size = max(1, BLOCK // max(4, row.outputs.size))
    what = f"Reading {next(iter(models))}" + " ..." * (len(models) > 1)
    batches = [file.batches(size) for file in models.values()]
    batches[0] = progress.rows(batches[0], what, first.num_rows)
    seen, seen_ids = [], []
    for rows in itertools.zip_longest(*batches):
        for flag, other in zip(models, rows, strict=True):
            _check_same_samples(rows[0], other, flag)
        if keys:
            seen.append(row_keys(rows[0].outputs))
            seen_ids += [] if rows[0].ids is None else [rows[0].ids]
        outputs = [other.outputs for other in rows]
        # The page shows what it is given as samples: here, their names.
        own = rows[0]
        grouped = _groups_of(own, first.group_names)
        yield own.labels, outputs, own.sample_weight, own.ids, grouped
    if keys:
        # Here rather than at the end, as drawing the page takes longest.
        check_apart({**keys, "--predictions": np.concatenate(seen)})
        if seen_ids:
            own = {"--predictions": np.concatenate(seen_ids)}
            check_ids_apart({**ids, **own})
    progress.say("Computing intervals and drawing the page ...")


def _groups_of(rows: Rows, names: Sequence[str]) -> dict | None:
    """Groups of the samples by the names of their columns."""
    if rows.groups is None:
        return None
    lead = rows.groups.shape[:1]
    return {
        name: grouping(rows.groups[:, k], lead, name)
        for k, name in enumerate(names)
    }


def _check_same_samples(
    first: Rows | None, other: Rows | None, flag: str
) -> None:
    for what in ("labels", "ids"):
        arrays: list[Any] = [getattr(x, what, None) for x in (first, other)]
        one, two = arrays
        absent = what == "labels" and (one is None or two is None)
        if absent or not np.array_equal(one, two):
            raise ValueError(
                f"all --predictions must have the same {what} in the "
                f"same order. Received: other ones in {flag}"
            )


def _file_notes(
    paths: list[tuple[str, str]], names: list[str], held_out: dict[str, Rows]
) -> dict[str, str]:
    """What the page says of the files: names without folders, and dates.

    Of `held_out` data the page has no other place to say how many they are.
    """
    notes, models = {}, iter(names)
    for flag, text in paths:
        what, said = _FILE_NOTES[flag], [Path(text).name]
        if flag == "--predictions" and len(names) > 1:
            what += f" of {next(models)}"
        if (rows := held_out.get(f"{flag}={text}")) is not None:
            said.append(f"{len(rows.labels):,} samples")
        changed = datetime.datetime.fromtimestamp(path_of(text).stat().st_mtime)
        said.append(f"last changed {changed.isoformat(' ', 'minutes')}")
        notes[what] = ", ".join(said)
    return notes
