"""What users gave a report: its kind, and parts by the name of their model."""

from collections.abc import Iterable
from typing import Any

from keras_calib.backend.errors import type_error, value_error
from keras_calib.calibrators import CalibratorChoice
from keras_calib.inputs.checks import check_at_most, check_flag, check_integer
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.loss import MultiLabelLoss
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.predictions.outputs import (
    choose_output,
    has_several_labels,
    loss_of,
)

__all__ = [
    "ModelParts",
    "are_several_labels",
    "by_name",
    "check_contents",
]

_OF_LABELS = {
    "calibrator": MultiLabelCalibrator,
    "selector": MultiLabelSelector,
}
_SUCH_AS = {
    "calibrator": "MultiLabel(TemperatureScaling()).fit(labels, logits)",
    "selector": "MultiLabel(SelectiveClassifier()).fit(labels, logits, "
    "coverage=0.9)",
}


class ModelParts:
    """Fitted calibrators and selectors by the name of the model.

    Args:
        names: Names of the models.
        calibrator: A calibrator, a choice of one, a dict of them, or None for
            that of the selector.
        selector: A selector, a dict of them, or None.
    """

    def __init__(self, names: list[str], calibrator: Any, selector: Any):
        self.selectors = _by_model("selector", selector, names)
        given = _by_model("calibrator", calibrator, names)
        self.choices = {
            k: x for k, x in given.items() if type(x) is CalibratorChoice
        }
        self.calibrators = {
            name: getattr(part, "calibrator", None)
            for name, part in (*self.selectors.items(), *self.choices.items())
        } | {k: x for k, x in given.items() if k not in self.choices}
        for part in (*self.selectors.values(), *self.calibrators.values()):
            getattr(part, "check_fitted", bool)()

    def of(self, name: str) -> tuple[Any, Any]:
        """Calibrator and selector of a model, None where it has none."""
        return self.calibrators.get(name), self.selectors.get(name)

    def check_of_labels(self) -> None:
        """Raises unless all parts are of several labels at once."""
        found = {"calibrator": self.calibrators, "selector": self.selectors}
        for what, kind in _OF_LABELS.items():
            for part in found[what].values():
                if not isinstance(part, kind | None):
                    raise type_error(
                        f"`{what}` must be a `{kind.__name__}` for several "
                        "labels at once: fit `MultiLabel(part)`, such as "
                        f"`{_SUCH_AS[what]}`",
                        **{what: type(part).__name__},
                    )


def are_several_labels(
    multi_label: Any,
    label_names: Any,
    parts: Iterable,
    of_classes: dict[str, Any],
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
        of_classes: Arguments by name that only classes take, which must then
            be None.
        models: Models whose compiled losses tell it.
        from_logits: What the user says of them. With a bool a binary
            cross-entropy tells nothing, as its outputs may be classes.
        output: Output of the models to read.
    """
    flat = [x for p in parts for x in (p.values() if type(p) is dict else [p])]
    kinds = tuple(_OF_LABELS.values())
    told = label_names is not None or any(isinstance(x, kinds) for x in flat)
    if multi_label is None:
        several = told or any(
            _has_labels(model, from_logits, output) for model in models
        )
    else:
        check_flag("multi_label", multi_label)
        several = bool(multi_label)
    if told and not several:
        raise value_error(
            "`multi_label` must be True or None for `label_names` and parts of "
            "`MultiLabel`",
            multi_label=multi_label,
        )
    for name, value in of_classes.items() if several else ():
        if value is not None:
            instead = "`label_names`" if name == "class_names" else "None"
            raise value_error(
                f"`{name}` must be left out of a report of several labels at "
                f"once: use {instead}, or report one label as two classes",
                **{name: value},
            )
    return several


def check_contents(num_bins: Any, num_mistakes: Any, notes: Any) -> None:
    """Raises unless these can be on a page."""
    check_integer("num_bins", num_bins, 1)
    check_at_most("num_bins", num_bins, 1000)
    check_integer("num_mistakes", num_mistakes, 0)
    if not isinstance(notes, dict | None):
        raise type_error("`notes` must be a dict of texts by name", notes=notes)


def by_name(what: str, given: Any) -> dict[str, Any]:
    """What was given, by the name of its model; a single one is `"model"`."""
    if not isinstance(given, dict):
        return {"model": given}
    if not given:
        raise value_error(
            f"`{what}` must be of at least one model", **{what: given}
        )
    return given


def _by_model(what: str, parts: Any, names: list[str]) -> dict[str, Any]:
    if parts is None:
        return {}
    several = isinstance(parts, dict)
    for part in parts.values() if several else [parts]:
        known = part is None or isinstance(part, CalibratorChoice)
        if isinstance(part, type) or not (known or callable(part)):
            raise type_error(
                f"`{what}` must be a fitted layer, such as "
                "`TemperatureScaling().fit(labels, logits)`",
                **{what: part},
            )
    if not several:
        if len(names) > 1:
            raise value_error(
                f"`{what}` of several models must be a dict by their names",
                models=names,
                **{what: type(parts).__name__},
            )
        return {names[0]: parts}
    if unknown := sorted({*parts} - {*names}):
        raise value_error(
            f"`{what}` must be for models that are there",
            models=names,
            unknown=unknown,
        )
    return parts


def _has_labels(model: Any, from_logits: bool | None, output: Any) -> bool:
    """Whether the loss of a model tells that its outputs are labels."""
    if isinstance(loss_of(model, choose_output(model, output)), MultiLabelLoss):
        return True
    # With either of these a binary loss may be of classes.
    said = from_logits, getattr(model, "returns_logits", None)
    if any(isinstance(x, bool) for x in said):
        return False
    return has_several_labels(model, output)
