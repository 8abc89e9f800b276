"""What `keras-calib report` does: from files of predictions to a report."""

import datetime
import functools
import itertools
from argparse import Namespace
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
from keras_calib.inputs.checks import check_independent
from keras_calib.predictions import Predictions
from keras_calib.reporting.commands.repeated_samples import (
    check_apart,
    check_ids_apart,
)
from keras_calib.reporting.commands.terminal import Progress, blamed
from keras_calib.reporting.html import ReportPage, report
from keras_calib.selection import SelectiveClassifier

# Calibrators of the confidence alone, and of all classes.
_OF_LOGS = "affine", "beta", "temperature"
_OF_LOGITS = "choose", "temperature"
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


def report_of_files(given: Namespace, progress: Progress) -> ReportPage:
    """The report that the arguments of the command ask for."""
    files: dict[str, Predictions] = {}
    for name, text, reader in given.opened:
        with blamed(flag := f"{name}={text}"):
            watched = functools.partial(progress.rows, what=f"Reading {flag}")
            files[flag] = reader.read(watched)
    for fact in ("kind", "num_classes"):
        _check_alike(fact, files)
    models = dict(itertools.islice(files.items(), len(given.predictions)))
    _check_alike("from_logits", models)
    held_out = {k: p for k, p in files.items() if k not in models}
    first = next(iter(models.values()))
    # Those of the files, or paths where these repeat.
    stems = [Path(text).stem for text in given.predictions]
    pairs = zip(given.predictions, stems, strict=True)
    names = [text if stems.count(x) > 1 else x for text, x in pairs]
    for flag, p in models.items():
        if not np.array_equal(first.ids, p.ids):  # type: ignore[arg-type]  # None is equal to None
            raise ValueError(
                "all --predictions must have the same ids in the same order. "
                f"Received: other ones in {flag}"
            )
    if len(models) > 1 and first.kind == "records":
        raise ValueError(
            "Records of the predicted class alone need one file of "
            f"--predictions. Received: {len(models)}"
        )
    if first.votes and given.selection:
        raise ValueError(
            "Votes and --selection exclude each other: the guarantee of a "
            "threshold is for one class of each sample. Choose it on class ids"
        )
    if first.multi_label and held_out:
        raise ValueError(
            "Several labels at once are reported as they are: leave out "
            f"{' and '.join(held_out)}"
        )
    if held_out:
        # Before anything is fitted.
        apart = {"--predictions": first, **held_out}
        check_apart(apart)
        check_ids_apart({flag: p.ids for flag, p in apart.items()})
    calibrator, selector = _fitted(held_out, given, progress)
    # What the page says of the files: names without folders, and dates. Of
    # held-out data it has no other place to say how many they are.
    notes, named = {}, iter(names)
    for flag, text, _ in given.opened:
        what, said = _FILE_NOTES[flag], [Path(text).name]
        if flag == "--predictions" and len(names) > 1:
            what += f" of {next(named)}"
        if (p := held_out.get(f"{flag}={text}")) is not None:
            said.append(f"{len(p):,} samples")
        changed = datetime.datetime.fromtimestamp(path_of(text).stat().st_mtime)
        said.append(f"last changed {changed.isoformat(' ', 'minutes')}")
        notes[what] = ", ".join(said)
    if isinstance(calibrator, ConfidenceCalibrator):
        notes["Calibrator"] = told_calibrator(calibrator.facts)
    progress.say("Measuring and drawing the page ...")
    with blamed(" and ".join(models)):
        return report(
            dict(zip(names, models.values(), strict=True)),
            calibrator=calibrator,
            selector=selector,
            num_bins=given.num_bins,
            title=given.title,
            notes=given.notes or notes,
            verbose=0,
        )


def _check_alike(fact: str, files: dict[str, Predictions]) -> None:
    found = {flag: getattr(p, fact) for flag, p in files.items()}
    if len(set(found.values())) > 1:
        raise ValueError(
            "All files must have predictions of one kind and of the same "
            "classes, and all --predictions logits, or all probabilities. "
            "Received: "
            + ", ".join(f"{fact}={x} in {flag}" for flag, x in found.items())
        )


def _fitted(
    held_out: dict[str, Predictions], given: Namespace, progress: Progress
) -> tuple[Any, SelectiveClassifier | None]:
    """A calibrator and a selector, of the data that there are."""
    calibrator: Any = None
    selector = None
    for flag, p in held_out.items():
        with blamed(flag):
            if flag.startswith("--calibration"):
                calibrator = _calibrator(p, given, progress)
                continue
            check_independent(flag, p.shape, p.units)
            progress.say("Choosing the threshold ...")
            target: dict[str, Any] = {"risk": given.risk, "delta": given.delta}
            # A choice has a calibrator.
            layer = getattr(calibrator, "calibrator", calibrator)
            selector = SelectiveClassifier(calibrator=layer)
            if p.kind != "records":
                selector.fit(p, **target)
                continue
            confidence = p.confidence if layer is None else layer(p.confidence)
            selector.fit_scores(
                bounded_log_odds(confidence),
                p.correct,
                sample_weight=p.sample_weight,
                **target,
            )
    return calibrator, selector


def _calibrator(
    p: Predictions, given: Namespace, progress: Progress
) -> Calibrator | CalibratorChoice | ConfidenceCalibrator:
    is_log = p.kind == "records"
    kind = given.calibrator or ("affine" if is_log else "choose")
    if kind not in (_OF_LOGS if is_log else _OF_LOGITS):
        raise value_error(
            "--calibrator must be affine, beta or temperature for a log of "
            "the confidence alone, and choose or temperature for logits or "
            "probabilities of all classes",
            **{"--calibrator": kind},
        )
    progress.say("Fitting the calibrator ...")
    if is_log:
        rows = p.outcomes()
        facts = calibrator_facts(rows.confidence, rows.correct, kind)
        return ConfidenceCalibrator(facts)
    if kind == "choose":
        return choose_calibrator(p)
    return TemperatureScaling().fit(p)
