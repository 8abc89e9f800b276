"""Make a report of models or of predictions: from data to the page."""

from collections.abc import Mapping
from typing import Any, Unpack

from keras_calib.backend.errors import type_error, value_error
from keras_calib.labels.columns import check_class_names
from keras_calib.predictions.predictions import DataOptions
from keras_calib.reporting.evaluation import ClassEvaluation, ScoreEvaluation
from keras_calib.reporting.html import ReportPage, page_of, template
from keras_calib.reporting.labels import LabelEvaluation
from keras_calib.reporting.model_parts import (
    ModelParts,
    by_name,
    check_contents,
    has_parts_of_labels,
)
from keras_calib.reporting.source import Source, of_models, of_predictions

__all__ = ["report"]

_EVALUATIONS: dict[str, Any] = {
    "classes": ClassEvaluation,
    "scores": ScoreEvaluation,
    "labels": LabelEvaluation,
}


def report(
    predictions: Any,
    data: Any = None,
    *,
    calibrator: Any = None,
    selector: Any = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    title: str = "Calibration report",
    notes: dict[str, str] | None = None,
    **options: Unpack[DataOptions],
) -> ReportPage:
    """A page that says how far the confidence of models can be trusted.

    Use it to show others whether confidence holds, what a calibrator repairs,
    and how much can be automated. The data are read once for all models, in
    memory that does not grow with the data.

    Args:
        predictions: `Predictions` of test data, which chose nothing, or a dict
            of them by the name of the model, of the same rows. With `data`, a
            Keras model, or a dict of models.
        data: Test data of the models, as in `Predictions.of_model`.
        calibrator: Fitted calibrator of the model's logits, or a dict of
            them by the name of the model; by default that of the selector.
            Models of probabilities give it log-probabilities. It may be the
            result of `choose_calibrator`, whose table the page then shows.
        selector: Fitted `SelectiveClassifier`, or a dict of them.
        num_bins: Number of bins of the calibration errors, at most 1000.
        num_mistakes: How many of the surest mistakes to show, with the
            images if the inputs are images.
        title: Title of the page.
        notes: What readers must know of the data, by name, such as
            `{"Data set": "CIFAR-10 test"}`; shown as plain text.
        **options: With `data`: how the models are run and what is known of
            the rows, as in `Predictions.of_model`, such as `groups` and
            `class_names`. Without: `verbose` alone, 0 for no progress bar.

    Returns:
        The page and its numbers; `save(path)` writes it.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
        RuntimeError: If a calibrator or selector is not fitted.
        TypeError: If a model has several outputs and none is named, or
            predictions are told an option again.
        ValueError: If shapes or names do not fit, there are no data, or it
            is not known what the models return.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1, 1], [[0.9, 0.1]] * 3)
    >>> page = keras_calib.report(p, verbose=0)
    >>> page.results["model"]["verdict"]["headline"]
    'Too few errors to say'

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """
    if data is None:
        verbose = options.pop("verbose", "auto")
        if options:
            raise type_error(
                f"`{min(options)}` must be told to the `Predictions`, or to "
                "models with their `data`",
                arguments=sorted(options),
            )
        source = of_predictions(by_name("predictions", predictions), verbose)
    else:
        if has_parts_of_labels((calibrator, selector)):
            options.setdefault("multi_label", True)
        fitted = [
            part
            for x in (calibrator, selector)
            for part in (x.values() if isinstance(x, Mapping) else [x])
        ]
        models = by_name("models", predictions)
        source = of_models(models, data, options, fitted)
    # Check what can be checked before hours of predictions.
    template()
    check_contents(num_bins, num_mistakes, notes)
    parts = ModelParts(source.names, calibrator, selector)
    evaluations = _evaluations(source, parts, num_bins, num_mistakes)
    for labels, outputs, *others in source.batches:
        for evaluation, own in zip(evaluations, outputs, strict=True):
            evaluation.add(labels, own, *others)
    num_classes, names = (
        {x.num_classes for x in evaluations},
        source.class_names,
    )
    if 0 in num_classes:
        what = "labels" if source.kind == "labels" else "samples"
        raise value_error(f"`labels` must have {what} that count", **{what: 0})
    if names is not None and num_classes != {len(names)}:
        raise value_error(
            "`class_names` must have a name for each class",
            names=len(names),
            num_classes=num_classes,
        )
    results = {x.name: x.results() for x in evaluations}
    for name, choice in parts.choices.items():
        results[name]["choice"] = {
            "name": choice.name,
            "reason": choice.reason,
            "candidates": [
                # A candidate that was not tried has no numbers.
                {
                    k: v if not x.note or k in ("name", "note") else None
                    for k, v in x.to_dict().items()
                }
                for x in choice.candidates
            ],
        }
    html = page_of(
        evaluations,
        results,
        title=title,
        num_bins=num_bins,
        notes=notes or {},
    )
    return ReportPage(html, results)


def _evaluations(
    source: Source, parts: ModelParts, num_bins: int, num_mistakes: int
) -> list[Any]:
    """What gathers the results of each model."""
    several, made = source.kind == "labels", []
    if several:
        parts.check_of_labels()
    for name in source.names:
        own, names = parts.of(name), source.class_names
        if several:
            known = [getattr(part, "class_names", None) for part in own]
            names = names or next(filter(None, known), None)
            names = check_class_names(names, None)
        given = name, *own, source.reading, num_bins, num_mistakes, names
        made.append(_EVALUATIONS[source.kind](*given))
    return made
