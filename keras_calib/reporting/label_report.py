"""A report of several labels at once: from batches to the page."""

from collections.abc import Iterable, Sequence
from typing import Any

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.options import ReadOptions
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.columns import check_label_names
from keras_calib.labels.loss import MultiLabelLoss
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.predictions.outputs import (
    choose_output,
    has_several_labels,
    loss_of,
)
from keras_calib.reporting.html import Report, template
from keras_calib.reporting.label_evaluation import LabelEvaluation
from keras_calib.reporting.label_page import label_page_of
from keras_calib.reporting.model_parts import ModelParts, check_contents

__all__ = ["are_several_labels", "report_of_label_batches"]

_PARTS = MultiLabelCalibrator, MultiLabelSelector


def are_several_labels(
    multi_label: Any,
    label_names: Any,
    parts: Iterable,
    *,
    models: Iterable = (),
    from_logits: bool | None = None,
    output: Any = None,
) -> bool:
    """Whether each output is a label of its own, not one of several classes.

    Args:
        multi_label: What the user says, or None to take it from the others.
        label_names: Names of labels, or None.
        parts: Calibrators and selectors, or dicts of them.
        models: Models whose compiled losses tell it.
        from_logits: What the user says of them. With a bool a binary
            cross-entropy tells nothing, as its outputs may be classes.
        output: Output of the models to read.
    """
    flat = [x for p in parts for x in (p.values() if type(p) is dict else [p])]
    told = label_names is not None or any(isinstance(x, _PARTS) for x in flat)
    if multi_label is None:
        return told or any(
            _has_labels(model, from_logits, output) for model in models
        )
    check_flag("multi_label", multi_label)
    if told and not multi_label:
        raise value_error(
            "`multi_label` must be True or None for `label_names` and parts of "
            "`MultiLabel`",
            multi_label=multi_label,
        )
    return bool(multi_label)


def report_of_label_batches(
    names: list[str],
    batches: Iterable[tuple],
    options: ReadOptions,
    *,
    calibrator: Any = None,
    selector: Any = None,
    label_names: Sequence[str] | None = None,
    class_names: Any = None,
    groups: Any = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    title: str = "Calibration report",
    notes: dict[str, str] | None = None,
) -> Report:
    """The report of batches as they come; arguments as in `report`.

    A batch is `(labels, outputs of each model, weights or None, examples to
    show mistakes with or None)`.
    """
    template("label_page.html.jinja")
    check_contents(num_bins, num_mistakes, notes)
    refused = {"groups": groups, "class_names": class_names}
    for name, value in {**refused, "votes": options.votes or None}.items():
        if value is not None:
            instead = "`label_names`" if name == "class_names" else "None"
            raise value_error(
                f"`{name}` must be left out of a report of several labels at "
                f"once: use {instead}, or report one label as two classes",
                **{name: value},
            )
    parts = ModelParts(names, calibrator, selector)
    found = {"calibrator": parts.calibrators, "selector": parts.selectors}
    for (what, own), kind in zip(found.items(), _PARTS, strict=True):
        for part in own.values():
            if not isinstance(part, kind | None):
                raise type_error(
                    f"`{what}` must be a `{kind.__name__}`, which "
                    "`MultiLabel(part)` makes, for several labels at once",
                    **{what: type(part).__name__},
                )
    evaluations = []
    for name in names:
        own = parts.calibrators.get(name), parts.selectors.get(name)
        known = [getattr(part, "label_names", None) for part in own]
        given = label_names or next(filter(None, known), None)
        evaluations.append(
            LabelEvaluation(
                name,
                *own,
                options,
                num_bins,
                num_mistakes,
                check_label_names(given, None),
            )
        )
    for labels, outputs, *others in batches:
        for evaluation, own in zip(evaluations, outputs, strict=True):
            evaluation.add(labels, own, *others[:2])
    if not all(x.num_labels for x in evaluations):
        raise value_error("`labels` must have labels that count", labels=0)
    results = {x.name: x.results() for x in evaluations}
    html = label_page_of(
        evaluations, results, title=title, num_bins=num_bins, notes=notes or {}
    )
    return Report(html, results)


def _has_labels(model: Any, from_logits: bool | None, output: Any) -> bool:
    """Whether the loss of a model tells that its outputs are labels."""
    if isinstance(loss_of(model, choose_output(model, output)), MultiLabelLoss):
        return True
    # With either of these a binary loss may be of classes.
    said = from_logits, getattr(model, "returns_logits", None)
    if any(isinstance(x, bool) for x in said):
        return False
    return has_several_labels(model, output)
