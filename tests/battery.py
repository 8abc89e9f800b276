"""Odd inputs, and every public callable that takes predictions.

The callables are found by themselves in the namespaces, by what their
signatures take. What takes no predictions stands in `NO_PREDICTIONS`, with
the reason; a new public name that is neither found nor listed there fails.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from not_in_battery import NO_PREDICTIONS
from public_names import PUBLIC
from report_pages import report_of
from repository_files import options_of

import keras_calib as kc

NUM = 24
NAN, INF = float("nan"), float("inf")

# Every value can be held in bfloat16, and every row sums to 1 exactly.
_ROWS = np.array(
    [[12, 3, 1], [5, 9, 2], [1, 1, 14], [7, 5, 4], [3, 11, 2], [2, 6, 8]]
)
PROBS = np.tile(_ROWS, (4, 1)) / np.float32(16)
LOGITS = np.tile(_ROWS, (4, 1)) / np.float32(4) - 2
WHOLE_PROBS = np.tile(np.eye(3, dtype="int64")[[0, 1, 2, 0, 1, 1]], (4, 1))
WHOLE_LOGITS = np.tile(_ROWS % 7 - 3, (4, 1))
_TRUTH = PROBS.argmax(axis=-1)
LABELS = np.where(np.arange(NUM) % 4 == 3, (_TRUTH + 1) % 3, _TRUTH)
WEIGHT = 1.0 + np.arange(NUM) % 3


@dataclass(frozen=True)
class Entry:
    """One public callable, brought to one form.

    Attributes:
        call: `call(labels, predictions, weight)` to what it returns.
        takes: `"probs"`, `"logits"`, or `"labels"` and nothing more; or
            `"rows"`: logits and soft labels of their shape, whose values a
            pure function does not check.
        labels: Whether labels are those of the caller.
        weights: Whether weights are.
        nothing: Returns what no sample gives; None where that is refused.
        lead: The shape of the class ids.
        classes: How many of the three classes are taken.
        rules: Whether odd values are judged, besides odd arrays.
        every: Only each `every`-th form is tried, of what is slow and
            reads its arrays where others do.
    """

    call: Callable
    takes: str = "probs"
    labels: bool = True
    weights: bool = True
    nothing: Any = None
    lead: tuple = (NUM,)
    classes: int = 3
    rules: bool = True
    every: int = 1


_EDGES = np.array([0.0, 0.5, 1.0])
_REQUIRED = {
    "ClasswiseECE": {"num_classes": 3},
    "CoverageAtAccuracy": {"accuracy": 0.7},
    "CoverageAtRisk": {"risk": 0.3},
    "RiskAtCoverage": {"coverage": 0.5},
    **dict.fromkeys(("L1ACE", "l1_ace"), {"by": "batch"}),
    "mean_cost": {"costs": 1.0 - np.eye(3)},
    "coverage_at_accuracy": {"accuracy": 0.7},
    "coverage_at_risk": {"risk": 0.3},
    "risk_at_coverage": {"coverage": 0.5},
    "adaptive_focal": {"edges": _EDGES, "gammas": np.array([2.0, 1.0])},
    "adaptive_label_smoothing": {"objectness": np.linspace(0, 1, NUM)},
    "objectness_deviation": {"objectness": np.linspace(0, 1, NUM)},
}
_SOFT = kc.LabelSmoothing(alpha=0.1, from_logits=True)


def _weighted(function, name):
    options = _REQUIRED.get(name, {})
    known = inspect.signature(function).parameters
    options = {k: v for k, v in options.items() if k in known}
    takes = "sample_weight" in known or any(
        "sample_weight" in options_of(p.annotation) for p in known.values()
    )

    def call(labels, predictions, weight):
        given = (
            {"sample_weight": weight} if takes and weight is not None else {}
        )
        return function(labels, predictions, **given, **options)

    return call, takes


def _pairs_beside(predictions):
    """Pairs of class id and objectness."""
    pairs = np.stack([LABELS, np.linspace(0, 1, NUM)], axis=-1)
    is_empty = (getattr(predictions, "shape", None) or (NUM,))[0] == 0
    return pairs[:0] if is_empty else pairs


def _loss(cls):
    def call(labels, predictions, weight):
        if cls is kc.AdaptiveLabelSmoothing:
            labels = _pairs_beside(predictions)
        loss = cls(**_REQUIRED.get(cls.__name__, {}))
        return loss(labels, predictions, weight)

    return Entry(
        call,
        labels=cls is not kc.AdaptiveLabelSmoothing,
        nothing=lambda: 0.0,
        every=1 if cls is kc.MbLS else 2,
    )


def _metric(name, cls):
    def call(labels, predictions, weight):
        metric = cls(**_REQUIRED.get(name, {}))
        metric.update_state(labels, predictions, weight)
        return metric.result()

    return Entry(call, nothing=lambda: cls(**_REQUIRED.get(name, {})).result())


def _calibrator(cls):
    def call(labels, predictions, weight):
        made = cls().fit(labels, predictions, weight, num_folds=0, force=True)
        return made(LOGITS)

    return Entry(call, takes="logits")


def _chosen(*data):  # so few samples help no candidate, which warns
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = kc.choose_calibrator(*data, candidates=kc.TemperatureScaling())
    return np.array([x.nll for x in found.candidates])


def _display(cls):
    def call(labels, predictions, weight, **options):
        options["sample_weight"] = weight
        return cls(kc.Predictions(labels, predictions, **options))

    return Entry(call)


def _pairs(labels, predictions, weight):
    metric = kc.ObjectnessDeviation()
    metric.update_state(_pairs_beside(predictions), predictions, weight)
    return metric.result()


def _per_image(labels, predictions, weight):
    metric = kc.PerImage(kc.ECE())
    metric.update_state(labels, predictions)
    return metric.result()


def _of_loss(function):
    def call(labels, predictions, weight):
        return function(_SOFT, labels, predictions)

    return Entry(call, takes="logits", weights=False, rules=False)


def _accepts(labels, predictions, weight):
    selector = kc.SelectiveClassifier()
    selector.fit(labels, predictions, sample_weight=weight, coverage=0.5)
    return selector.threshold


def _corrected(labels, predictions, weight):
    prior = np.full(3, 1 / 3)
    scaling = kc.TemperatureScaling()
    layer = kc.PriorCorrection(prior, prior, calibrator=scaling)
    return layer.fit(labels, predictions, weight, num_folds=0)(LOGITS)


def _normalized(labels, predictions, weight):
    return kc.LogitNormalization().fit(labels, predictions, weight)(LOGITS)


def values_of(predictions, *data, **options):
    found = kc.evaluate(
        predictions, *data, metrics=["ece", "nll"], verbose=0, **options
    )
    return [x["value"] for x in found.results["model"].values()]


_SLOW = {"every": 14}
_IMAGES = {"lead": (4, 2, 3), "weights": False}
# What has a signature of its own.
SPECIAL = {
    "LogitNormalization": Entry(_normalized, takes="logits"),
    "ObjectnessDeviation": Entry(
        _pairs, labels=False, nothing=lambda: 0.0, **_SLOW
    ),
    "PerImage": Entry(_per_image, nothing=lambda: 0.0, **_IMAGES, **_SLOW),
    "RiskCoverageDisplay": Entry(
        lambda y, p, w, **told: kc.RiskCoverageDisplay(
            {"model": kc.Predictions(y, p, sample_weight=w, **told)}
        )
    ),
    "SegmentationDisplay": Entry(
        lambda y, p, w: kc.SegmentationDisplay(kc.Predictions(y, p)),
        lead=(1, 6, 4),
        weights=False,
    ),
    "SelectiveClassifier": Entry(_accepts, takes="logits"),
    "PriorCorrection": Entry(_corrected, takes="logits"),
    "calibration_test": Entry(
        lambda y, p, w: kc.functional.calibration_test(y, p), weights=False
    ),
    "cape_loss": Entry(
        lambda y, z, w: kc.losses.cape_loss(np.linspace(0, 1, NUM), z),
        takes="rows",
        labels=False,
        weights=False,
        classes=2,
    ),
    "cape_targets": Entry(
        lambda y, p, w: kc.losses.cape_targets(y, p, num_bins=2),
        weights=False,
        classes=2,
    ),
    "compare": Entry(
        lambda y, p, w: kc.compare(
            *2 * [kc.Predictions(y, p, sample_weight=w)], kc.ece, num_draws=4
        )
    ),
    "Runs": Entry(
        lambda y, p, w: kc.Runs(
            {"a": [kc.Predictions(y, p, sample_weight=w)]}, ["ece"], num_draws=2
        ).values["ece"]["a"][0]
    ),
    "correctness_ranking": Entry(
        lambda y, z, w: kc.losses.correctness_ranking(
            z, np.linspace(0, 1, NUM)
        ),
        takes="rows",
        labels=False,
        weights=False,
    ),
    "choose_calibrator": Entry(_chosen, takes="logits"),
    "choose_threshold": Entry(
        lambda y, p, w: kc.choose_threshold(
            p, np.asarray(LABELS == _TRUTH, "int32"), coverage=0.5
        ),
        takes="rows",
        labels=False,
        weights=False,
        lead=(),
    ),
    "effective_labels": _of_loss(kc.losses.effective_labels),
    "evaluate": Entry(
        lambda y, p, w: values_of(kc.Predictions(y, p, sample_weight=w)),
        **_SLOW,
    ),
    "estimate_prior": Entry(
        lambda y, p, w: (
            kc.functional.estimate_prior(
                p, np.full(3, 1 / 3), sample_weight=w, num_draws=4
            ).prior
        ),
        labels=False,
    ),
    "objectness_targets": Entry(
        lambda y, z, w: kc.losses.objectness_targets(
            y, np.linspace(0, 1, NUM), 3
        ),
        takes="labels",
        weights=False,
    ),
    "Predictions": Entry(
        lambda y, p, w: kc.Predictions(y, p, sample_weight=w).outcomes()
    ),
    "per_image": Entry(
        lambda y, p, w: kc.functional.per_image(kc.ece, y, p), **_IMAGES
    ),
    "prediction_flips": Entry(
        lambda y, p, w: kc.functional.prediction_flips(p, LOGITS),
        labels=False,
        weights=False,
        rules=False,
    ),
    "regularizer_histogram": _of_loss(kc.losses.regularizer_histogram),
    "report": Entry(
        lambda y, p, w: report_of(y, p, verbose=0).results,
        weights=False,
        **_SLOW,
    ),
    "smooth_ece": Entry(
        lambda y, p, w: kc.functional.smooth_ece(y, p, sample_weight=w), **_SLOW
    ),
    "smooth_labels": Entry(
        lambda y, p, w: kc.losses.smooth_labels(p, alpha=0.75),
        takes="rows",
        labels=False,
        weights=False,
    ),
}


@functools.cache
def _itself():
    """A model whose outputs are its inputs."""
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile(loss=kc.LabelSmoothing(), metrics=[])
    return model


def _fit_on(cls, **options):
    def call(labels, predictions, weight):
        fitted = cls().fit_on(
            _itself(), (predictions, labels), from_logits=True, **options
        )
        return fitted(LOGITS)

    return Entry(call, takes="logits", weights=False)


def _from_model(cls):
    def call(labels, predictions, weight, **options):
        data = predictions, labels
        return cls(kc.Predictions.of_model(_itself(), data, **options))

    return Entry(call, weights=False)


# What predicts with a model first: there the odd comes from data and model.
BY_MODEL = {
    "ClasswiseReliabilityDisplay": _from_model(
        kc.plots.ClasswiseReliabilityDisplay
    ),
    "ConfidenceDisplay": _from_model(kc.plots.ConfidenceDisplay),
    "ReliabilityDisplay": _from_model(kc.ReliabilityDisplay),
    "RiskCoverageDisplay": _from_model(kc.RiskCoverageDisplay),
    "SelectiveClassifier": _fit_on(kc.SelectiveClassifier, coverage=0.5),
    "TemperatureScaling": _fit_on(kc.TemperatureScaling),
    "VectorScaling": _fit_on(kc.VectorScaling, force=True),
    "evaluate": Entry(
        lambda y, p, w, **options: values_of(_itself(), (p, y), **options),
        weights=False,
    ),
    "report": Entry(
        lambda y, p, w, **options: (
            kc.report(_itself(), (p, y), verbose=0, **options).results
        ),
        weights=False,
    ),
}


@functools.cache
def entry_of(name: str) -> Entry | None:
    """How a public name is called; None if it takes no predictions."""
    if name in NO_PREDICTIONS:
        return None
    if name in SPECIAL:
        return SPECIAL[name]
    thing = PUBLIC[name]
    if inspect.isclass(thing):
        if issubclass(thing, kc.losses.PerSampleLoss):
            return _loss(thing)
        if issubclass(thing, kc.metrics.StreamingMetric):
            return _metric(name, thing)
        if issubclass(thing, kc.calibrators.Calibrator):
            return _calibrator(thing)
        return _display(thing)
    first = list(inspect.signature(thing).parameters)
    call, takes = _weighted(thing, name)
    if first[:2] == ["labels", "outputs"]:
        return Entry(call, weights=takes)
    if first[:2] == ["labels", "logits"]:
        return Entry(call, takes="rows", weights=takes)
    if first[0] == "logits":
        return Entry(
            lambda y, z, w: thing(z), takes="rows", labels=False, weights=False
        )
    raise LookupError(f"`{name}` is not in the battery: see NO_PREDICTIONS")


NAMES = [name for name, thing in PUBLIC.items() if callable(thing)]


@functools.cache
def base_of(name: str) -> tuple:
    """Labels, predictions, whole-numbered predictions, weights."""
    entry = entry_of(name)
    probs = entry.takes == "probs"
    outputs = PROBS if probs else LOGITS
    whole = WHOLE_PROBS if probs else WHOLE_LOGITS
    labels, weight = LABELS, WEIGHT
    if entry.classes == 2:
        labels = labels % 2
        parts = [outputs[:, :1], 1 - outputs[:, :1]]
        outputs = np.concatenate(parts, axis=1)
        parts = [whole[:, :1], 1 - whole[:, :1]]
        whole = np.concatenate(parts, axis=1)
    if entry.lead == ():
        outputs, whole = outputs[:, 0], whole[:, 0]
    elif len(entry.lead) > 1:
        labels = labels.reshape(entry.lead)
        outputs = outputs.reshape(*entry.lead, -1)
        whole = whole.reshape(*entry.lead, -1)
    if entry.takes == "rows":
        labels = np.eye(3)[labels].astype("float32")
    return labels, outputs, whole, weight if entry.weights else None
