"""Rows of models or of predictions, read once by what evaluates each model."""

from collections.abc import Callable, Mapping
from typing import Any

from keras_calib.backend.errors import type_error, value_error
from keras_calib.labels.columns import check_class_names
from keras_calib.reporting.evaluation import ClassEvaluation, ScoreEvaluation
from keras_calib.reporting.labels import LabelEvaluation
from keras_calib.reporting.model_parts import (
    ModelParts,
    by_name,
    has_parts_of_labels,
)
from keras_calib.reporting.source import Source, of_models, of_predictions

_EVALUATIONS: dict[str, Any] = {
    "classes": ClassEvaluation,
    "scores": ScoreEvaluation,
    "labels": LabelEvaluation,
}


def gathered(
    predictions: Any,
    data: Any,
    options: dict[str, Any],
    parts: dict[str, Any],
    *,
    num_bins: int,
    num_mistakes: int = 0,
    measured: Callable[[Source], dict[str, Any]] = lambda source: {},
) -> tuple[list[Any], ModelParts]:
    """Evaluations of each model that hold all rows, and fitted parts.

    Args:
        predictions, data, options: As in `report`.
        parts: Its `calibrator` and `selector`.
        num_bins: Number of bins of the calibration errors.
        num_mistakes: How many of the surest mistakes to keep.
        measured: What a `ClassEvaluation` measures of a source, if it is not
            what the page has.
    """
    source = _source(predictions, data, options, [*parts.values()])
    fitted = ModelParts(source.names, **parts)
    if source.kind == "labels":
        fitted.check_of_labels()
    own, evaluations = measured(source), []
    for name in source.names:
        both, names = fitted.of(name), source.class_names
        if source.kind == "labels":
            known = [getattr(part, "class_names", None) for part in both]
            names = names or next(filter(None, known), None)
            names = check_class_names(names, None)
        given = name, *both, source.reading, num_bins, num_mistakes, names
        evaluations.append(_EVALUATIONS[source.kind](*given, **own))
    for labels, outputs, *others in source.batches:
        for evaluation, rows in zip(evaluations, outputs, strict=True):
            evaluation.add(labels, rows, *others)
    num_classes = {x.num_classes for x in evaluations}
    if 0 in num_classes:
        what = "labels" if source.kind == "labels" else "samples"
        raise value_error(f"`labels` must have {what} that count", **{what: 0})
    names = source.class_names
    if names is not None and num_classes != {len(names)}:
        raise value_error(
            "`class_names` must have a name for each class",
            names=len(names),
            num_classes=num_classes,
        )
    return evaluations, fitted


def _source(
    predictions: Any, data: Any, options: dict[str, Any], parts: list[Any]
) -> Source:
    """The rows of `Predictions`, or of models that are run over data."""
    if data is None:
        verbose = options.pop("verbose", "auto")
        if options:
            raise type_error(
                f"`{min(options)}` must be told to the `Predictions`, or to "
                "models with their `data`",
                arguments=sorted(options),
            )
        return of_predictions(by_name("predictions", predictions), verbose)
    if has_parts_of_labels(parts):
        options.setdefault("multi_label", True)
    fitted = [
        part
        for x in parts
        for part in (x.values() if isinstance(x, Mapping) else [x])
    ]
    return of_models(by_name("models", predictions), data, options, fitted)
