"""A report while its data come in, batch by batch."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

from keras_calib.backend.errors import invalid
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.options import check_reading
from keras_calib.reporting.document import Report
from keras_calib.reporting.document import facts_of
from keras_calib.reporting.document import results_of
from keras_calib.reporting.evaluation import ModelEvaluation
from keras_calib.reporting.evaluation import Options
from keras_calib.reporting.html import page_of
from keras_calib.reporting.html import template

__all__ = [
    "BLOCK",
    "Progress",
    "ReportBuilder",
    "check_num_bins",
]

# Numbers of predictions of a model that are worked on at a time.
BLOCK = 2**20
# Bins that a picture can show, and those that few predictions may have.
_MOST_BINS, _FEW_BINS = 1000, 100


class ReportBuilder:
    """Takes batches of labels and of what each model predicts.

    Args:
        names: Of the models.
        calibrator: As in `report`.
        selector: As in `report`.
        from_logits: As in `report`.
        ignore_class: As in `report`.
        class_names: As in `report`.
        num_bins: As in `report`.
        num_mistakes: As in `report`.
        title: As in `report`.
    """

    def __init__(
        self,
        names: list[str],
        *,
        calibrator: Any = None,
        selector: Any = None,
        from_logits: bool = False,
        ignore_class: int | None = None,
        class_names: Sequence[str] | None = None,
        num_bins: int = 15,
        num_mistakes: int = 12,
        title: str = "Calibration report",
    ):
        # Before hours of predictions, not after.
        template()
        check_reading(-1, ignore_class)
        check_num_bins(num_bins)
        check_integer("num_mistakes", num_mistakes, 0)
        if isinstance(class_names, str):
            raise TypeError(
                invalid(
                    "`class_names` must be a sequence of names",
                    class_names=class_names,
                )
            )
        if class_names is not None:
            class_names = [str(name) for name in class_names]
        self._class_names = class_names
        self._title = title
        self._options = Options(
            from_logits, ignore_class, num_bins, num_mistakes
        )
        selectors = _by_model("selector", selector, names)
        calibrators = _by_model("calibrator", calibrator, names)
        for part in (*selectors.values(), *calibrators.values()):
            check = getattr(part, "check_fitted", None)
            if check is not None:
                check()
        self._gatherings = [
            ModelEvaluation(
                name,
                calibrators.get(
                    name, getattr(selectors.get(name), "calibrator", None)
                ),
                selectors.get(name),
                self._options,
            )
            for name in names
        ]

    def add(
        self,
        labels: Any,
        outputs: Sequence,
        sample_weight: Any = None,
        inputs: Any = None,
    ) -> None:
        """Adds a batch.

        Args:
            labels: Class ids `(batch, ...)`, one-hot or soft labels.
            outputs: Of each model `(batch, ..., num_classes)`.
            sample_weight: Weights, or None.
            inputs: Samples `(batch, ...)` to show mistakes with, or None.
        """
        for gathering, own in zip(self._gatherings, outputs, strict=True):
            gathering.add(labels, own, sample_weight, inputs)

    def report(self) -> Report:
        """The report of all batches.

        Raises:
            ValueError: If there were none, or `class_names` do not fit.
        """
        if not any(g.num_classes for g in self._gatherings):
            raise ValueError(
                invalid("`labels` must have samples that count", samples=0)
            )
        check_num_bins(self._options.num_bins, self._gatherings[0].num_samples)
        names = self._class_names
        for gathering in self._gatherings:
            count = gathering.num_classes
            if names is not None and len(names) != count:
                raise ValueError(
                    invalid(
                        "`class_names` must have a name for each class",
                        names=len(names),
                        num_classes=count,
                    )
                )
        html = page_of(
            self._gatherings,
            title=self._title,
            class_names=names,
            facts=facts_of(self._gatherings, self._options),
        )
        return Report(html, {g.name: results_of(g) for g in self._gatherings})


def check_num_bins(num_bins: Any, num_samples: int | None = None) -> None:
    """Raises unless a report can have so many bins.

    Args:
        num_bins: Number of bins.
        num_samples: Number of predictions, if it is known yet.

    Raises:
        TypeError: If it is no whole number.
        ValueError: If it is less than 1, or too large.
    """
    check_integer("num_bins", num_bins, 1)
    most = _MOST_BINS
    if num_samples is not None:
        most = min(most, max(num_samples, _FEW_BINS))
    if num_bins > most:
        facts = {"num_bins": num_bins}
        if num_samples is not None:
            facts["predictions"] = num_samples
        raise ValueError(
            invalid(
                f"`num_bins` must be <= {_MOST_BINS}, which a picture can "
                f"show, and at most the number of predictions or {_FEW_BINS}",
                **facts,
            )
        )


class Progress:
    """Keras' bar of so many steps, or nothing.

    Args:
        total: Number of steps, or None if unknown.
        verbose: 0 for nothing.
    """

    def __init__(self, total: int | None, verbose: int):
        self._bar = keras.utils.Progbar(total) if verbose else None
        self._count = 0

    def step(self) -> None:
        """One step more."""
        self._count += 1
        if self._bar is not None:
            self._bar.update(self._count, finalize=False)

    def end(self) -> None:
        """That was all."""
        if self._bar is not None and self._count:
            self._bar.update(self._count, finalize=True)


def _by_model(what: str, parts: Any, names: list[str]) -> dict[str, Callable]:
    if parts is None:
        return {}
    if not isinstance(parts, dict):
        if len(names) > 1:
            raise ValueError(
                invalid(
                    f"`{what}` of several models must be a dict by their names",
                    models=names,
                    **{what: type(parts).__name__},
                )
            )
        return {names[0]: parts}
    unknown = sorted(set(parts) - set(names))
    if unknown:
        raise ValueError(
            invalid(
                f"`{what}` must be for models that are there",
                models=names,
                unknown=unknown,
            )
        )
    return parts
