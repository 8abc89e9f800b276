"""Make a report of models or of predictions: from data to the page."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypedDict, Unpack

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.options import ReadOptions, filled
from keras_calib.labels.columns import check_class_names
from keras_calib.predictions.predictions import DataOptions
from keras_calib.reporting.evaluation import ClassEvaluation, ScoreEvaluation
from keras_calib.reporting.html import Report, page_of, template
from keras_calib.reporting.labels import LabelEvaluation
from keras_calib.reporting.model_parts import (
    ModelParts,
    by_name,
    check_contents,
    has_parts_of_labels,
)
from keras_calib.reporting.source import of_models, of_predictions

__all__ = [
    "BLOCK",
    "PageOptions",
    "report",
    "report_of_batches",
]

_EVALUATIONS: dict[str, Any] = {
    "classes": ClassEvaluation,
    "scores": ScoreEvaluation,
    "labels": LabelEvaluation,
}
# So many outputs of a model are worked on at a time, to bound the memory.
BLOCK = 2**20


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
) -> Report:
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
        source = of_models(by_name("models", predictions), data, options)
    return report_of_batches(
        source.names,
        source.batches,
        source.reading,
        calibrator=calibrator,
        selector=selector,
        class_names=source.class_names,
        num_bins=num_bins,
        num_mistakes=num_mistakes,
        kind=source.kind,
        title=title,
        notes=notes,
    )


class PageOptions(TypedDict, total=False):
    """What a page shows, as `report` explains it."""

    class_names: Sequence[str] | None
    num_bins: Annotated[int, 15]
    num_mistakes: Annotated[int, 12]
    title: Annotated[str, "Calibration report"]
    notes: dict[str, str] | None


def report_of_batches(
    names: list[str],
    batches: Iterable[tuple],
    options: ReadOptions,
    *,
    calibrator: Any = None,
    selector: Any = None,
    kind: str = "classes",
    **page: Unpack[PageOptions],
) -> Report:
    """The report of batches as they come; arguments as in `report`.

    A batch is `(labels, outputs of each model, weights or None, samples to
    show mistakes with or None)`, and may have a dict of `Grouping`. `kind` is
    a key of `_EVALUATIONS`. Labels of `"scores"` are correctness, and outputs
    are confidences `(n,)`.
    """
    # Check what can be checked before hours of predictions.
    given = filled("report", page, PageOptions)
    class_names = given.class_names
    template()
    check_contents(given.num_bins, given.num_mistakes, given.notes)
    if isinstance(class_names, str):
        raise type_error(
            "`class_names` must be a sequence of names", class_names=class_names
        )
    parts = ModelParts(names, calibrator, selector)
    several = kind == "labels"
    if several:
        parts.check_of_labels()
    evaluations: list[Any] = []
    for name in names:
        own = parts.of(name)
        told = class_names
        if several:
            known = [getattr(part, "class_names", None) for part in own]
            told = class_names or next(filter(None, known), None)
            told = check_class_names(told, None)
        made = name, *own, options, given.num_bins, given.num_mistakes, told
        evaluations.append(_EVALUATIONS[kind](*made))
    for labels, outputs, *others in batches:
        for evaluation, own in zip(evaluations, outputs, strict=True):
            evaluation.add(labels, own, *others)
    num_classes = {x.num_classes for x in evaluations}
    if 0 in num_classes:
        what = "labels" if several else "samples"
        raise value_error(f"`labels` must have {what} that count", **{what: 0})
    if class_names is not None and num_classes != {len(class_names)}:
        raise value_error(
            "`class_names` must have a name for each class",
            names=len(class_names),
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
                    for k, v in x._asdict().items()
                }
                for x in choice.candidates
            ],
        }
    html = page_of(
        evaluations,
        results,
        title=given.title,
        num_bins=given.num_bins,
        notes=given.notes or {},
    )
    return Report(html, results)
