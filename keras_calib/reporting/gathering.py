"""Rows of models or of predictions, read once by what evaluates each model.

A batch is a dict of arrays of the same rows: `"labels"`, and `"weight"`,
`"units"` and `"inputs"`, which may be None, `("outputs", k)` of each model, and
`("groups", name)` of each attribute.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.progress import with_progress
from keras_calib.calibrators import CalibratorChoice
from keras_calib.functional.groups import Grouping, groupings
from keras_calib.inputs.options import ReadOptions, check_reading
from keras_calib.labels.calibrator import MultiLabelCalibrator
from keras_calib.labels.columns import check_class_names
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.plots.display import by_model
from keras_calib.predictions.batches import merged
from keras_calib.predictions.collect import together
from keras_calib.predictions.options import check_uncalibrated
from keras_calib.predictions.outputs import from_logits_of
from keras_calib.predictions.predictions import Predictions
from keras_calib.reporting.evaluation import ClassEvaluation, ScoreEvaluation
from keras_calib.reporting.labels import LabelEvaluation

# What evaluates each kind of predictions.
_EVALUATIONS: dict[str, Any] = {
    "classes": ClassEvaluation,
    "votes": ClassEvaluation,
    "records": ScoreEvaluation,
    "labels": LabelEvaluation,
}
# Fitted parts of several labels at once, and how they are made.
_OF_LABELS = {
    "calibrator": (
        MultiLabelCalibrator,
        "MultiLabel(TemperatureScaling()).fit(labels, logits)",
    ),
    "selector": (
        MultiLabelSelector,
        "MultiLabel(SelectiveClassifier()).fit(labels, logits, coverage=0.9)",
    ),
}
# A block is full with so many outputs, or bytes of inputs to show: beyond,
# the work of a block is much more than what each costs.
_OUTPUTS = 2**16
_BYTES = 2**24


def gathered(
    predictions: Any,
    data: Any,
    options: dict[str, Any],
    parts: dict[str, Any],
    *,
    num_bins: int,
    num_mistakes: int = 0,
    measured: Callable[[str], dict[str, Any]] = lambda kind: {},
) -> tuple[list[Any], dict[str, CalibratorChoice]]:
    """Evaluations of each model that hold all rows, and choices by name.

    Args:
        predictions, data, options: As in `report`.
        parts: Its `calibrator` and `selector`.
        num_bins: Number of bins of the calibration errors.
        num_mistakes: How many of the surest mistakes to keep.
        measured: What a `ClassEvaluation` measures of a kind of predictions,
            if it is not what the page has.
    """
    models: dict[Any, Any] = by_model(predictions, "model")
    _check_kinds(models, data)
    fitted = {
        what: _by_model(what, given, [*models]) for what, given in parts.items()
    }
    choices = {
        name: x
        for name, x in fitted["calibrator"].items()
        if type(x) is CalibratorChoice
    }
    fitted["calibrator"] = (
        {
            name: getattr(x, "calibrator", None)
            for name, x in fitted["selector"].items()
        }
        | fitted["calibrator"]
        | {name: x.calibrator for name, x in choices.items()}
    )
    for name, part in fitted["selector"].items():
        own, given = getattr(part, "calibrator", None), fitted["calibrator"]
        if part is not None and given.get(name) is not own:
            raise value_error(
                "`calibrator` must be that of `selector`, whose threshold is "
                "for its logits; leave `calibrator` out",
                calibrator=type(given.get(name)).__name__,
                selector_calibrator=type(own).__name__,
            )
    for part in (*fitted["selector"].values(), *fitted["calibrator"].values()):
        getattr(part, "check_fitted", bool)()
        if groups := getattr(part, "groups", ()):
            raise value_error(
                "`selector` must have one threshold for all, as a report does "
                "not tell those of groups apart: make one of each group, or "
                "`by_group(p, accept=selector(p.outputs, "
                'from_logits=p.from_logits, groups=p.groups[name])["accept"])`',
                groups=groups[:4],
            )
    if data is None:
        given, batches = _of_predictions(models, options)
    else:
        given, batches = _of_models(models, data, options, fitted)
    first = next(iter(given.values()))
    for what, (kind, such_as) in _OF_LABELS.items():
        for part in fitted[what].values() if first.multi_label else ():
            if not isinstance(part, kind | None):
                raise type_error(
                    f"`{what}` must be a `{kind.__name__}` for several "
                    "labels at once: fit `MultiLabel(part)`, such as "
                    f"`{such_as}`",
                    **{what: type(part).__name__},
                )
    reading = _read_alike(given)
    named = (p.class_names for p in given.values() if p.class_names)
    class_names, own = next(named, None), measured(first.kind)
    evaluations: list[Any] = []
    for name in given:
        both = [fitted[x].get(name) for x in ("calibrator", "selector")]
        for part in both:
            check_uncalibrated(given[name], part)
        names: Any = class_names
        if first.multi_label:
            known = [getattr(part, "class_names", None) for part in both]
            names = check_class_names(
                names or next(filter(None, known), None), None
            )
        told = name, *both, reading, num_bins, num_mistakes, names
        evaluation = _EVALUATIONS[first.kind](*told, **own)
        if first.run is not None:
            drawn = first.run.reading.pixels_per_image
            evaluation.is_drawn = drawn is not None
        evaluations.append(evaluation)
    for batch in merged(map(_batch, batches), fullness):
        groups = _groups(batch, first)
        for k, evaluation in enumerate(evaluations):
            rows = batch["labels"], batch["outputs", k], batch["weight"]
            evaluation.add(*rows, batch["inputs"], groups, batch["units"])
    num_classes = {x.num_classes for x in evaluations}
    if 0 in num_classes:
        what = "labels" if first.multi_label else "samples"
        raise value_error(f"`labels` must have {what} that count", **{what: 0})
    if class_names is not None and num_classes != {len(class_names)}:
        raise value_error(
            "`class_names` must have a name for each class",
            names=len(class_names),
            num_classes=num_classes,
        )
    return evaluations, choices


def _check_kinds(models: Mapping[Any, Any], data: Any) -> None:
    """Raises TypeError for what is neither predictions nor models with data."""
    kinds = [isinstance(x, Predictions) for x in models.values()]
    if data is not None and any(kinds):
        raise type_error(
            "`data` must be left out beside `Predictions`: give several as a "
            "list or a dict of them, and fitted parts by `calibrator=` or "
            "`selector=`",
            data=type(data).__name__,
        )
    for x, is_read in zip(models.values(), kinds, strict=True):
        is_model = callable(x) or hasattr(x, "predict")
        if not (is_read if data is None else is_model):
            raise type_error(
                "`predictions` must be `Predictions`, or a list or a dict of "
                "them, or models with their `data`; arrays become "
                "`Predictions(labels, outputs)`",
                predictions=type(x).__name__,
            )


def _by_model(what: str, parts: Any, names: list[str]) -> dict[str, Any]:
    """Fitted parts by the name of their model."""
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
    return dict(parts)


def _of_predictions(
    given: dict[str, Any], options: dict[str, Any]
) -> tuple[dict[str, Predictions], Iterable]:
    """Predictions with outputs of one form, and their rows in parts."""
    verbose = options.pop("verbose", "auto")
    if options:
        raise type_error(
            f"`{min(options)}` must be told to the `Predictions`, or to "
            "models with their `data`",
            arguments=sorted(options),
        )
    if len({p.from_logits for p in given.values()}) > 1:
        # A calibrator gives logits, also for a model of probabilities.
        given = {name: p.as_logits() for name, p in given.items()}
    first, *others = given.values()
    if not others:
        parts: Any = ([part] for part in first.batches())
        return given, with_progress(parts, None, verbose)
    lengths = {name: len(p) for name, p in given.items()}
    if len({*lengths.values()}) > 1:
        raise value_error("`predictions` must be of the same rows", **lengths)
    size = min(p.rows_of_part() for p in given.values())
    parts = zip(*(p.batches(size) for p in given.values()), strict=True)
    return given, with_progress(parts, -(-len(first) // size), verbose)


def _of_models(
    models: dict[str, Any],
    data: Any,
    options: dict[str, Any],
    fitted: dict[str, dict[str, Any]],
) -> tuple[dict[str, Predictions], Iterable]:
    """What models say of data, which are read once as they are run.

    Fitted parts know what a silent model returns.
    """
    parts = [x for found in fitted.values() for x in found.values()]
    kinds = tuple(kind for kind, _ in _OF_LABELS.values())
    if any(isinstance(x, kinds) for x in parts):
        options.setdefault("multi_label", True)
    told = options.get("from_logits"), options.get("output")
    given = {
        name: Predictions.of_model(
            model,
            data,
            **{**options, "from_logits": from_logits_of(model, *told, *parts)},
        )
        for name, model in models.items()
    }
    runs: list[Any] = [p.run for p in given.values()]
    return given, (
        [p.part(x) for p, x in zip(given.values(), each, strict=True)]
        for each in together(runs)
    )


def _read_alike(given: Mapping[str, Predictions]) -> ReadOptions:
    """How all models are read; ValueError if they are read differently."""
    for fact in ("kind", "from_logits", "ignore_class"):
        told = {name: getattr(p, fact) for name, p in given.items()}
        if len({*told.values()}) > 1:
            raise value_error(f"models must agree on `{fact}`", **told)
    first = next(iter(given.values()))
    reading = ReadOptions(
        first.from_logits,
        ignore_class=first.ignore_class,
        labels="votes" if first.votes else "classes",
        names=("labels", "outputs"),
    )
    check_reading(-1, reading.ignore_class, labels=reading.labels)
    return reading


def _batch(parts: Iterable[Predictions]) -> dict[Any, Any]:
    """The same rows of all models, as arrays by what they are."""
    first, *others = parts = [*parts]
    weight = first.sample_weight
    for part in others:
        if not np.array_equal(part.labels, first.labels):
            raise value_error(
                "models must have the same labels in the same order",
                rows=len(first.labels),
            )
        if not np.array_equal(weight, part.sample_weight):  # type: ignore[arg-type]  # None is equal to None
            masked = [x.sample_weight for x in parts]
            raise value_error(
                "models must mask the same rows, and weigh them alike: report "
                "on each alone",
                masked=[
                    None if x is None else int(np.size(x) - np.count_nonzero(x))
                    for x in masked
                ],
            )
    shown = [x for part in parts for x in (part.inputs, part.ids)]
    groups = next((x.groups for x in parts if x.groups), {})
    batch: dict[Any, Any] = {
        "labels": first.labels,
        "weight": weight,
        "inputs": next((x for x in shown if hasattr(x, "shape")), None),
        "units": next((x.units for x in parts if x.units is not None), None),
        **{("outputs", k): x.outputs for k, x in enumerate(parts)},
        **{("groups", name): x for name, x in groups.items()},
    }
    return {k: None if x is None else np.asarray(x) for k, x in batch.items()}


def _groups(
    batch: dict[Any, Any], first: Predictions
) -> dict[str, Grouping] | None:
    """Names and codes of the groups of a batch, by their attribute."""
    groups = {k[1]: x for k, x in batch.items() if k[0] == "groups"}
    if not groups:
        return None
    if first.multi_label:
        raise value_error(
            "`groups` must be left out of a report of several labels at "
            "once: report one label as two classes",
            groups=[*groups],
        )
    shape = batch["outputs", 0].shape
    return groupings(groups, shape[: len(shape) - (first.kind != "records")])


def fullness(batch: dict) -> float:
    num_outputs = max(x.size for k, x in batch.items() if k[0] == "outputs")
    inputs = batch["inputs"]
    num_bytes = 0 if inputs is None else inputs.nbytes
    return max(num_outputs / _OUTPUTS, num_bytes / _BYTES)
