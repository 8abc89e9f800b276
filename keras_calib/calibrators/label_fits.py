"""Fits of one calibrator to each of several labels."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error
from keras_calib.backend.errors import warn
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.binning import padded
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.fitting_data import one_thread_of_blas
from keras_calib.calibrators.fitting_data import read_samples
from keras_calib.calibrators.folds import unfitted_copy
from keras_calib.calibrators.folds import warn_if_harmful
from keras_calib.inputs.multi_label import LabelColumns
from keras_calib.inputs.rows import check_no_probabilities

__all__ = ["fit_each", "parts_of", "row_of", "stacked", "usable_labels"]

# Most labels that a message names.
_SHOWN = 10


def parts_of(
    columns: LabelColumns, logits: np.ndarray, shared: bool
) -> list[FittingData | None]:
    """The samples of each label, None if it has none; with `shared` all."""
    # All entries are judged at once, as losses and metrics do.
    check_no_probabilities(columns.pooled()[1], "logits")
    every = range(columns.num_labels)
    given = [columns.pooled()] if shared else map(columns.column, every)
    parts = [
        read_samples(*x, refuse_probabilities=None) if len(x[0]) else None
        for x in given
    ]
    # Labels of an example, and of the places of an image, are alike.
    each = int(np.prod(logits.shape[1:-1]))
    size = each * columns.num_labels if shared else each
    if size == 1:
        return parts
    present = columns.present
    entries = np.arange(columns.labels.size if shared else len(columns.labels))
    group = (entries // size).astype("int32")
    for k, part in enumerate(parts):
        if part is None:
            continue
        kept: Any = slice(None)
        if present is not None:
            kept = present.reshape(-1) if shared else present[:, k]
        parts[k] = part._replace(group=group[kept])
    return parts


def usable_labels(
    calibrator: Calibrator,
    parts: Sequence[FittingData | None],
    names: Sequence,
    force: bool,
) -> np.ndarray:
    """Labels that can be fitted; raises for the others without `force`."""
    both = np.array([x is not None and x.has_class().all() for x in parts])
    lacking = [x for x, fits in zip(names, both, strict=True) if not fits]
    if lacking and not (force and both.any()):
        raise value_error(
            "`labels` must hold both outcomes of every label; `force=True` "
            "keeps the logits of a label that lacks one as they are",
            labels=_few(lacking),
        )
    needed = calibrator.num_parameters(2)
    few = [
        name
        for name, part in zip(names, parts, strict=True)
        if part is not None and part.counts().sum() < needed
    ]
    if few and not force:
        raise value_error(
            "`labels` must hold as many samples of each label as its "
            "calibrator has parameters; `force=True` fits all the same",
            labels=_few(few),
            parameters=needed,
        )
    if lacking:
        warn(
            invalid(
                "Labels without both outcomes are not calibrated: their "
                "logits stay as they are",
                labels=_few(lacking),
            )
        )
    return both


def fit_each(
    calibrator: Calibrator,
    parts: Sequence[FittingData | None],
    names: Sequence,
    usable: np.ndarray,
    num_folds: int,
) -> list[Calibrator]:
    """A copy of the calibrator, fitted to each usable label.

    A warning of several fits comes once, with the names of their labels.
    """
    found, told = [], _Told()
    with one_thread_of_blas():
        for name, part, use in zip(names, parts, usable, strict=True):
            if part is None or not use:
                continue
            one = unfitted_copy(calibrator)
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                one.fit_samples(part)
                warn_if_harmful(one, part, num_folds)
            told.add(name, heard)
            found.append(one)
    told.tell(len(parts))
    return found


def stacked(
    fitted: Sequence[Calibrator], usable: np.ndarray
) -> dict[str, np.ndarray]:
    """Fitted values by name, with a row for each label.

    Labels that are not usable get a row of another, which nobody reads.
    """
    rows = np.where(usable, np.cumsum(usable) - 1, 0)
    found = {}
    for name in fitted[0].fitted_values:
        values = [one.fitted_value(name) for one in fitted]
        if values[0].ndim == 2:
            table = padded([value[0] for value in values])
        else:
            table = np.stack(values)
        # One for all labels has no axis of labels.
        single = len(usable) == 1 and values[0].ndim == 0
        found[name] = table[0] if single else table[rows]
    return found


def row_of(calibrator: Calibrator, index: int) -> Calibrator:
    """The calibrator of one label, as a copy: a row of the fitted values."""
    values = {}
    for name in calibrator.fitted_values:
        table = calibrator.fitted_value(name)
        row = table[index : index + 1] if table.ndim else table
        values[name] = row[0] if table.ndim == 1 else row
    found = unfitted_copy(calibrator)
    found.set_fitted(None if table.ndim < 2 else 2, **values)
    return found


class _Told:
    """Warnings of many fits: each rule once, with its labels."""

    def __init__(self) -> None:
        self._labels: dict[tuple, list] = {}
        self._first: dict[tuple, str] = {}

    def add(self, name: Any, heard: Sequence[Any]) -> None:
        """Takes the warnings of the fit of one label."""
        for one in heard:
            text = str(one.message)
            key = one.category, text.split(" Received: ")[0]
            self._labels.setdefault(key, []).append(name)
            self._first.setdefault(key, text)

    def tell(self, count: int) -> None:
        """Warns of each rule; with one label as its own fit would."""
        for (category, _), labels in self._labels.items():
            text = self._first[category, _]
            if count > 1:
                text += f". It holds for the labels {_few(labels)}; the "
                text += "numbers are those of the first"
            if issubclass(category, RuntimeWarning):
                warn(text)
            else:
                warnings.warn(text, category, stacklevel=2)


def _few(labels: Sequence) -> list:
    some = list(labels)
    return some if len(some) <= _SHOWN else [*some[:_SHOWN], "..."]
