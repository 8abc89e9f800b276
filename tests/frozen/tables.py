"""Tables of groups, comparisons, priors, and monitors of answers in use."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.data_sets import CLASSES, GROUPS
from frozen.results import read, tried
from frozen.stored import Tolerance
from frozen.thresholds import RECORDS
from frozen.words import WORDS, neutral

# Confidences in float32 in cells; intervals by roots.
TOLERANCE = Tolerance(relative=1e-6, absolute=1e-7)

COMPARISON = {
    "of one": "a",
    "of the other": "b",
    "difference": "value",
    "low": "low",
    "high": "high",
    "p value": "p_value",
}
PRIOR = {
    "prior": "prior",
    "steps": "iterations",
    "converged": "converged",
}
ALARM = {
    "outcomes": "num_outcomes",
    "limit": "limit",
    "message": "message",
}
# Today's names of what a monitor watches and counts.
WATCHED = {
    "risk": "risk",
    "coverage": "coverage",
    "calibration": "calibration",
    "answers": "answers",
    "accepted": "accepted",
    "labelled": "labelled",
    "accepted_labelled": "accepted with a label",
    "accepted_wrong": "accepted and wrong",
    "confidence": "sum of confidences",
    "correct": "right",
    "expired": "expired",
    "waiting": "waiting",
}


def _table(found: Any) -> Any:
    """All that a table of groups tells."""
    if isinstance(found, dict):
        return found
    told = neutral(found.to_dict())
    told["metrics"] = [WORDS[x] for x in told["metrics"]]
    for one in told["largest difference"]:
        one["metric"] = WORDS[one["metric"]]
    return told


def _groups() -> Iterator[tuple[str, Any]]:
    data = CLASSES["groups"]
    two = {"site": GROUPS, "part": np.arange(len(GROUPS)) % 2}
    args, few = (data.labels, data.probs), {"num_draws": 60}
    sums = (
        "accuracy",
        "mean_confidence",
        "confidence_gap",
        "ece",
        "mce",
        "rmsce",
    )
    for quantity, given in {
        "usual": {"groups": GROUPS},
        "two attributes": {"groups": two, "metrics": sums, "min_count": 5},
        "their intersections": {
            "groups": two,
            "intersections": True,
            "metrics": ("accuracy", "nll"),
            "simultaneous": True,
            "level": 0.9,
        },
        "accepted": {
            "groups": GROUPS,
            "accept": data.probs.max(axis=-1) > 0.6,
            "metrics": ("accuracy", "brier_score"),
        },
        "ranked": {
            "groups": np.arange(len(GROUPS)) // 340,
            "metrics": ("aurc",),  # Its intervals are bootstraps.
            "statistic": None,
        },
        "tested by draws": {
            "groups": GROUPS,
            "metrics": ("ece",),
            "statistic": "ece",
        },
    }.items():
        found = tried(kc.by_group, *args, **given, **few)
        yield f"table of groups, {quantity}/groups", _table(found)
    for name in (
        *("weights", "ignored class", "votes", "pixels"),
        "on edges of bins",
    ):
        data = CLASSES[name]
        place = np.arange(len(data.labels)) % 2
        statistic = None if data.weight is not None else "count"
        found = tried(
            kc.by_group,
            data.labels,
            data.probs,
            groups=place,
            statistic=statistic,
            min_count=5,
            **few,
            **data.options,
        )
        yield f"table of groups, usual/{name}", _table(found)
    for name in ("records", "tied records", "few records"):
        confidence, right = RECORDS[name]
        place = np.arange(len(right)) % 3
        for weight in (None, np.arange(len(right)) % 4):
            found = tried(
                kc.by_group,
                kc.Predictions(
                    correct=right, confidence=confidence, sample_weight=weight
                ),
                groups=place,
                accept=confidence > 0.4,
                statistic="count" if weight is None else None,
                min_count=4,
            )
            key = f"table of groups, weights {weight is not None}/{name}"
            yield key, _table(found)


def _comparisons() -> Iterator[tuple[str, Any]]:
    for name in ("weights", "votes"):
        data = CLASSES[name]
        other = 0.5 * data.probs + 0.5 / data.num_classes
        for quantity, metric in {
            "negative log-likelihood": kc.nll,
            "by bin": kc.ece,
            "area under risk and coverage": kc.aurc,
        }.items():
            found = tried(
                kc.compare,
                *(
                    kc.Predictions(data.labels, x, **data.options)
                    for x in (data.probs, other)
                ),
                metric,
                num_draws=15,
                seed=1,
                level=0.9,
            )
            if not isinstance(found, dict):
                found = read(found, COMPARISON)
            yield f"comparison, {quantity}/{name}", found


def _priors() -> Iterator[tuple[str, Any]]:
    for name in ("ten classes", "calibrated", "frequency weights"):
        data = CLASSES[name]
        source = np.arange(1.0, data.num_classes + 1.0)
        found = kc.functional.estimate_prior(
            data.probs,
            source / source.sum(),
            sample_weight=data.weight,
            num_draws=20,
            seed=2,
        )
        told = {"interval": np.stack([found.low, found.high], axis=-1)}
        yield f"prior of the data/{name}", read(found, PRIOR) | told


def _monitors() -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(80)
    n = 3000
    confidence = np.round(1 - 10 ** -rng.uniform(0.4, 3.0, n), 6)
    accepted = confidence > 0.8
    for name, errors, share in (("as before", 1.0, 1.0), ("worse", 4.0, 0.6)):
        right = rng.random(n) >= errors * (1 - confidence)
        taken = accepted & (rng.random(n) < share)
        made = kc.Monitor(risk=0.03, coverage=(0.6, 0.9), delta=0.1)
        half = n // 2
        made.update(confidence[:half], taken[:half], right[:half])
        ids = np.arange(half, n)
        made.update(confidence[half:], taken[half:], ids=ids)
        made.update_labels(ids[::-1], right[half:][::-1])
        other = kc.Monitor(risk=0.03, coverage=(0.6, 0.9), delta=0.1)
        for part in (slice(1000), slice(1000, n)):
            sums = other.sums(confidence[part], taken[part], right[part])
            other.add_sums(sums)
        merged = kc.Monitor.merge([made, other])
        for kind, one in {
            "single": made,
            "sums": other,
            "merged": merged,
        }.items():
            yield (
                f"monitor, {kind}/{name}",
                {
                    "evidence": _watched(one.evidence, np.log),
                    "counts": _watched(one.counts),
                    "limits": _watched(one.limits),
                    "alarms": {
                        WATCHED[alarm.name]: read(alarm, ALARM)
                        | {"evidence": np.log(alarm.evidence)}
                        for alarm in one.alarms
                    },
                },
            )


def _watched(values: dict[str, float], change: Any = float) -> Any:
    """Numbers of a monitor, under the names of what they are of.

    Evidence is a product of thousands of factors, and needs its logarithm.
    """
    return {WATCHED[name]: change(value) for name, value in values.items()}


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    yield from _groups()
    yield from _comparisons()
    yield from _priors()
    yield from _monitors()
