"""Selectors fitted for every target: facts, tables, and what they answer."""

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from frozen.api import kc
from frozen.data_sets import CLASSES, GROUPS, drawn
from frozen.results import read, tried
from frozen.stored import Tolerance
from frozen.thresholds import AT_PRIOR, OF_MIXTURES, chosen, of_groups

# Scores in float32, thresholds midway between two of them.
TOLERANCE = Tolerance(relative=5e-6, absolute=5e-6)

TABLE = {
    "threshold": "threshold",
    "coverage": "coverage",
    "risk": "risk",
    "limit": "upper_bound",
    "certified": "certified",
}
COSTS = np.array([[0, 1, 1], [5, 0, 1], [1, 2, 0]], "float64")
TARGETS = {
    "risk": {"risk": 0.15},
    "coverage": {"coverage": 0.6},
    "certified": {"risk": 0.2, "delta": 0.1},
}
WITH_COSTS = {
    "price": {"reject_cost": 0.5},
    "price, empirical": {"reject_cost": 0.5, "method": "empirical"},
    "mean": {"max_cost": 0.3},
    "mean, certified": {"max_cost": 0.5, "delta": 0.1},
    "mean, certified otherwise": {
        "max_cost": 0.5,
        "delta": 0.1,
        "method": "hoeffding_bentkus",
        "reject_cost": 1.0,
    },
    "coverage": {"coverage": 0.5},
}


@functools.cache
def _data() -> Any:
    """300 rows of three classes, and their groups."""
    labels, logits = drawn(50, 300, 3, sharpness=2.0)
    return labels, logits, np.array(["b", "a"])[np.arange(300) ** 2 % 5 % 2]


def _known(value: float = 2.0) -> Any:
    return kc.TemperatureScaling(temperature=value)


def _answers(made: Any, logits: Any, **given: Any) -> Any:
    """What the fitted layer answers to some rows."""
    answer = made(logits[:10], **given)
    return {
        "class": answer["label"],
        "accepted": answer["accept"],
        "confidence": answer["confidence"],
        "score": answer["score"],
    } | (
        {"expected cost": answer["expected_cost"]}
        if "expected_cost" in answer
        else {}
    )


def _told(made: Any, logits: Any, **given: Any) -> Any:
    """Facts, table and answers of a fitted selector."""
    if isinstance(made, dict):
        return made
    facts = made.chosen
    if facts.kind == "groups":
        told = of_groups(facts)
    elif facts.kind == "mixtures":
        told = read(facts, OF_MIXTURES)
    elif facts.kind == "prior":
        told = read(facts, AT_PRIOR)
    else:
        told = chosen(facts)
        table = read(made.chosen.table(), TABLE)
        told["table"] = {k: x[:: len(x) // 12 + 1] for k, x in table.items()}
    return {"facts": told, "answers": _answers(made, logits, **given)}


def _errors() -> Iterator[tuple[str, Any]]:
    labels, logits, _ = _data()
    for score in ("msp", "logit_margin", "neg_entropy"):
        for quantity, target in TARGETS.items():
            made = kc.SelectiveClassifier(calibrator=_known(), score=score)
            made = tried(made.fit, labels, logits, **target)
            yield f"{score}, {quantity}/three classes", _told(made, logits)
    for name in ("ties", "binary column", "ignored class", "votes", "few rows"):
        data = CLASSES[name]
        shares = data.labels
        if "votes" in data.options:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        for quantity, target in TARGETS.items():
            made = tried(
                kc.SelectiveClassifier(calibrator=_known()).fit,
                shares,
                data.logits,
                ignore_class=data.options.get("ignore_class"),
                **target,
            )
            yield f"msp, {quantity}/{name}", _told(made, data.logits)
    for name in ("weights", "frequency weights", "masked", "tokens", "pixels"):
        data = CLASSES[name]
        for quantity in ("risk", "coverage"):
            made = tried(
                kc.SelectiveClassifier().fit,
                data.labels,
                data.logits,
                sample_weight=data.weight,
                ignore_class=data.options.get("ignore_class"),
                **TARGETS[quantity],
            )
            some = data.logits.reshape(-1, data.logits.shape[-1])
            yield f"msp, {quantity}/{name}", _told(made, some)


def _costs() -> Iterator[tuple[str, Any]]:
    labels, logits, names = _data()
    ones = 2.0 * (1.0 - np.eye(3))
    for kind, costs in {"costs": COSTS, "one cost": ones}.items():
        for quantity, target in WITH_COSTS.items():
            made = kc.SelectiveClassifier(calibrator=_known(), costs=costs)
            made = tried(made.fit, labels, logits, **target)
            yield f"by {kind}, {quantity}/three classes", _told(made, logits)
    made = kc.SelectiveClassifier(calibrator=_known(), costs=COSTS)
    made = tried(made.fit, labels, logits, groups=names, max_cost=0.5)
    yield "by costs, groups/three classes", _told(made, logits)


def _groups() -> Iterator[tuple[str, Any]]:
    labels, logits, names = _data()
    own = CLASSES["groups"]
    for name, (y, z, groups) in {
        "three classes": (labels, logits, names),
        "groups": (own.labels, own.logits, GROUPS),
    }.items():
        for quantity, target in TARGETS.items():
            made = kc.SelectiveClassifier(calibrator=_known())
            made = tried(made.fit, y, z, groups=groups, **target)
            found = _told(made, z, groups=groups[:10].tolist())
            yield f"groups, {quantity}/{name}", found
        target = TARGETS["certified"] | {"one_threshold": True, "seed": 3}
        made = kc.SelectiveClassifier(calibrator=_known())
        made = tried(made.fit, y, z, groups=groups, **target)
        yield f"every mixture/{name}", _told(made, z)
    for method in (None, "subsampling", "betting"):
        made = kc.SelectiveClassifier(calibrator=_known())
        made = tried(
            made.fit,
            labels,
            logits,
            target_prior=[0.5, 0.3, 0.2],
            risk=0.25,
            delta=0.1,
            method=method,
            seed=2,
        )
        yield f"at a prior, {method}/three classes", _told(made, logits)


def _tuned() -> Iterator[tuple[str, Any]]:
    """What chooses scores or fits a calibrator on a share of the rows."""
    labels, logits, names = _data()
    for quantity, parts in {
        "calibrator": {"calibrator": kc.TemperatureScaling()},
        "scores": {"score": ["msp", "max_logit", "neg_entropy"]},
        "norm": {"score": kc.LogitNormalization(p=3.0)},
    }.items():
        made = kc.SelectiveClassifier(**parts)
        target = {"tune_fraction": 0.4, "seed": 5, **TARGETS["risk"]}
        made = tried(made.fit, labels, logits, **target)
        yield f"tuned, {quantity}/three classes", _told(made, logits)
    made = kc.LogitNormalization().fit(labels, logits)
    yield "norm that ranks best/three classes", made.p
    yield "score by that norm/three classes", made(logits[:10])
    made = kc.SelectiveClassifier()
    scores = made.score_of(logits)
    right = logits.argmax(axis=-1) == labels
    for quantity, given in {
        "alone": {},
        "groups": {"groups": names},
        "every mixture": {"groups": names, "one_threshold": True},
        "prior": {"target_prior": [0.5, 0.3, 0.2], "labels": labels},
    }.items():
        made = kc.SelectiveClassifier()
        target = {"risk": 0.25, "delta": 0.1, **given}
        made = tried(made.fit_scores, scores, right, **target)
        given = {"groups": names[:10].tolist()} if quantity == "groups" else {}
        found = _told(made, logits, **given)
        yield f"of scores, {quantity}/three classes", found
    made = kc.SelectiveClassifier(calibrator=_known(), threshold=0.5)
    found = _answers(made, np.abs(np.tanh(logits)), from_logits=True)
    yield "known threshold/three classes", found


def _by_model() -> Iterator[tuple[str, Any]]:
    """Fits on what a model answers."""
    labels, logits, _ = _data()
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    data = (logits, labels)
    options = {"from_logits": True, "verbose": 0}
    made = kc.SelectiveClassifier(calibrator=_known())
    made.fit_on(model, data, risk=0.15, **options)
    yield "of a model, risk/three classes", _told(made, logits)
    made = kc.TemperatureScaling().fit_on(model, data, num_folds=0, **options)
    yield "of a model, temperature/three classes", made(logits[:4])


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    yield from _errors()
    yield from _costs()
    yield from _groups()
    yield from _tuned()
    yield from _by_model()
