"""What users gave a report: its kind, and parts by the name of their model."""

from collections.abc import Iterable
from typing import Any

from keras_calib.backend.errors import type_error, value_error
from keras_calib.calibrators import CalibratorChoice
from keras_calib.inputs.checks import check_at_most, check_integer
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.selector import MultiLabelSelector

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


def has_parts_of_labels(parts: Iterable) -> bool:
    """Whether calibrators or selectors, or dicts of them, are of labels."""
    flat = [x for p in parts for x in (p.values() if type(p) is dict else [p])]
    return any(isinstance(x, tuple(_OF_LABELS.values())) for x in flat)


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
