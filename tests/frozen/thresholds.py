"""Thresholds chosen from scores: risks, costs, groups, shifted data, plans."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from frozen.api import kc
from frozen.exact_functions import COST
from frozen.results import read, tried
from frozen.stored import Tolerance

# Exact binomial and betting bounds, found by roots of float64 functions.
TOLERANCE = Tolerance(relative=1e-9, absolute=1e-10)

ALONE = {
    "threshold": "threshold",
    "coverage": "coverage",
    "risk": "risk",
    "size": "num_samples",
    "limit of the risk": "risk_limit",
    "delta": "delta",
    "method": "method",
    "as confidence": "confidence",
}
BY_GROUP = {
    "groups": "group",
    "sizes": "group_samples",
    "thresholds": "threshold",
    "coverages": "group_coverage",
    "risks": "group_risk",
    "coverage": "coverage",
    "risk": "risk",
    "limit of the risk": "limit",
    "delta": "delta",
    "method": "method",
    "least size": "facts.min_count",
    "tested": "facts.tested",
    "answers": "accepts",
}
AT_PRIOR = {
    "threshold": "threshold",
    "coverage": "coverage",
    "risk": "risk",
    "size": "num_samples",
    "limit of the risk": "limit",
    "delta": "delta",
    "method": "method",
    "tested": "facts.num_tested",
    "effective size": "facts.effective_samples",
    "largest weight": "facts.largest_weight",
    "prior": "facts.target_prior",
}
OF_MIXTURES = {
    "threshold": "threshold",
    "coverage": "coverage",
    "risk": "risk",
    "size": "num_samples",
    "limit of the risk": "limit",
    "delta": "delta",
    "method": "method",
    "worst group": "facts.worst_group",
    "worst risk": "facts.worst_risk",
    "worst coverage": "facts.worst_coverage",
    "groups": "group",
    "sizes": "group_samples",
    "coverages": "group_coverage",
    "risks": "group_risk",
}
SEVERAL = {
    "threshold": "threshold",
    "coverage": "coverage",
    "values": "facts.estimates",
    "targets": "facts.limits",
    "delta": "delta",
    "size": "num_samples",
}
PLAN = {
    "target": "risk",
    "size": "samples",
    "low": "low",
    "high": "high",
    "power": "power",
    "delta": "delta",
    "fewest": "fewest",
    "best coverage": "best_coverage",
    "size of the pilot": "pilot_size",
}
BY_COVERAGE = {
    "coverage": "coverage",
    "size": "samples",
    "low": "low",
    "high": "high",
}
BY_SIZE = {
    "size": "samples",
    "power": "power",
    "assurance": "assurance",
    "coverage": "coverage",
    "low": "low",
    "high": "high",
}


def records(seed: int, n: int, *, step: int = 0, errors: float = 1.0):
    """Scores and whether they were right; a step ties scores."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.random(n), 6)
    if step:
        scores = np.round(scores * step) / step
    right = rng.random(n) >= errors * (1.0 - scores) ** 2
    return scores, right.astype("int64")


RECORDS = {
    "records": records(0, 600),
    "tied records": records(1, 500, step=12),
    "few records": records(2, 25, errors=0.5),
    "unsure records": records(3, 400, errors=2.5),
    "right records": (np.linspace(0.1, 0.9, 150), np.ones(150, int)),
    "wrong records": (np.linspace(0.1, 0.9, 50), np.zeros(50, int)),
    "infinite scores": (
        np.where(np.arange(200) % 50 == 0, np.inf, records(4, 200)[0]),
        records(4, 200)[1],
    ),
}
TARGETS = {
    "risk": {"risk": 0.1},
    "risk of none": {"risk": 0.0},
    "coverage": {"coverage": 0.7},
    "certified": {"risk": 0.15, "delta": 0.1},
    "nearly all": {"coverage": 0.97},
}


def chosen(found: Any) -> Any:
    """One threshold and its facts, with those of costs if there are some."""
    if isinstance(found, dict):
        return found
    told = read(found, ALONE)
    told["limit of the cost"] = None
    if found.cost is not None:
        told["limit of the cost"] = found.limit
        told["cost"] = read(found.cost, COST)
    return told


def of_groups(found: Any) -> Any:
    """Thresholds of groups and their facts."""
    return found if isinstance(found, dict) else read(found, BY_GROUP)


def _alone() -> Iterator[tuple[str, Any]]:
    for name, (scores, right) in RECORDS.items():
        for quantity, target in TARGETS.items():
            found = tried(kc.choose_threshold, scores, right, **target)
            yield f"threshold, {quantity}/{name}", chosen(found)
    scores, right = RECORDS["records"]
    for name, weight in {
        "weights": np.arange(600) % 9 / 8,
        "frequency weights": np.arange(600) % 4,
        "mask": (np.arange(600) % 3 > 0).astype(float),
    }.items():
        for quantity, target in TARGETS.items():
            found = tried(
                kc.choose_threshold,
                scores,
                right,
                sample_weight=weight,
                **target,
            )
            yield f"threshold, {quantity}/records, {name}", chosen(found)


def _groups() -> Iterator[tuple[str, Any]]:
    for name, (scores, right) in RECORDS.items():
        place = np.arange(len(scores)) ** 2 % 7 % 3
        names = np.array(["b", "a", "c"])[place]
        for quantity, target in TARGETS.items():
            found = tried(
                kc.choose_threshold,
                scores,
                right,
                names if quantity != "risk" else 5 * place - 3,
                **target,
            )
            yield f"thresholds of groups, {quantity}/{name}", of_groups(found)
    scores, right = RECORDS["records"]
    uneven = np.where(np.arange(600) < 12, "few", "many")
    for quantity, target in TARGETS.items():
        found = tried(
            kc.choose_threshold,
            scores,
            right,
            uneven,
            **target,
        )
        yield f"thresholds of groups, {quantity}/uneven", of_groups(found)
        found = tried(
            kc.choose_threshold,
            scores,
            right,
            uneven,
            sample_weight=np.arange(600) % 9 / 8,
            **target,
        )
        yield f"thresholds of groups, {quantity}/weights", of_groups(found)


def _costs() -> Iterator[tuple[str, Any]]:
    targets = {
        "coverage": {"coverage": 0.6},
        "mean": {"max_cost": 0.4},
        "mean, certified": {"max_cost": 0.5, "delta": 0.1},
        "mean, certified otherwise": {
            "max_cost": 0.5,
            "delta": 0.1,
            "method": "hoeffding_bentkus",
        },
        "price": {"reject_cost": 0.5},
        "price, certified": {
            "reject_cost": 0.9,
            "max_cost": 0.6,
            "delta": 0.1,
        },
        "price, empirical": {"reject_cost": 0.5, "method": "empirical"},
    }
    for name in ("records", "tied records", "unsure records"):
        scores, right = RECORDS[name]
        kinds = np.arange(len(scores)) % 4 + 1.0
        for kind, cost in {
            "several costs": (1 - right) * kinds,
            "one cost": 2.0 * (1 - right),
        }.items():
            for quantity, target in targets.items():
                found = tried(
                    kc.choose_threshold,
                    scores,
                    cost=cost,
                    largest_cost=4.0 if kind == "several costs" else 2.0,
                    **target,
                )
                key = f"threshold by {kind}, {quantity}/{name}"
                yield key, chosen(found)
        for price in (None, 0.25):
            weight = np.arange(len(scores)) % 3
            found = kc.functional.mean_cost(
                kc.Predictions(
                    correct=right, confidence=scores, sample_weight=weight
                ),
                costs=2.0,
                reject_cost=price,
                level=0.9,
            )
            key = f"mean cost of records, rejected at {price}/{name}"
            yield key, read(found, COST)


def _shifted() -> Iterator[tuple[str, Any]]:
    prior = [0.5, 0.3, 0.2]
    for name in ("records", "tied records", "unsure records"):
        scores, right = RECORDS[name]
        kinds = np.arange(len(scores)) ** 2 % 7 % 3
        for risk in (0.15, 0.3):
            for method in ("subsampling", "betting", None):
                found = tried(
                    kc.selection.choose_threshold_for_prior,
                    scores,
                    right,
                    kinds,
                    target_prior=prior,
                    risk=risk,
                    delta=0.1,
                    method=method,
                    seed=1,
                )
                if not isinstance(found, dict):
                    found = read(found, AT_PRIOR)
                yield f"at a prior, {risk}, {method}/{name}", found
            found = tried(
                kc.selection.choose_threshold_for_mixtures,
                scores,
                right,
                kinds,
                risk=risk,
                delta=0.1,
                seed=1,
            )
            if not isinstance(found, dict):
                found = read(found, OF_MIXTURES)
            yield f"of every mixture, {risk}/{name}", found


def _several() -> Iterator[tuple[str, Any]]:
    targets = {
        "precision and recall": {"precision": 0.8, "recall": 0.5},
        "risk and coverage": {"risk": 0.2, "coverage": 0.3},
        "false positives": {"false_positive_rate": 0.8, "precision": 0.75},
        "out of reach": {"precision": 0.999, "recall": 0.9},
    }
    for name in ("records", "tied records"):
        scores, right = RECORDS[name]
        own = np.round((1 - scores) * (np.arange(len(scores)) % 3) / 2, 3)
        for quantity, target in targets.items():
            for prefer in ("coverage", "precision"):
                found = tried(
                    kc.selection.control_risks,
                    scores,
                    right,
                    target,
                    delta=0.1,
                    prefer=prefer,
                )
                key = f"several targets, {quantity}, {prefer}/{name}"
                yield key, _of_several(found)
        found = tried(
            kc.selection.control_risks,
            scores,
            right,
            {"own": 0.4, "coverage": 0.2},
            delta=0.1,
            losses={"own": own},
        )
        yield f"several targets, own loss/{name}", _of_several(found)


def _of_several(found: Any) -> Any:
    if isinstance(found, dict):
        return found
    p_values = {k: x[::9] for k, x in found.facts["p_values"].items()}
    return read(found, SEVERAL) | {
        "tried": found.table().threshold[::9],
        "kept": found.table().certified,
        "p values": p_values,
    }


def planned(found: Any) -> Any:
    """A plan and its tables."""
    if isinstance(found, dict):
        return found
    return read(found, PLAN) | {
        "by coverage": read(found.by_coverage, BY_COVERAGE),
        "by size": read(found.by_samples, BY_SIZE),
    }


def _plans() -> Iterator[tuple[str, Any]]:
    few = {"max_samples": 500, "coverages": (0.3, 0.8), "seed": 1}
    pilot = RECORDS["records"]
    for quantity, given in {
        "risk": {"risk": 0.15, "pilot": pilot, **few},
        "risk at an accuracy": {
            "risk": 0.1,
            "accuracy": 0.9,
            **few,
        },
    }.items():
        yield f"plan, {quantity}/records", planned(tried(kc.plan, **given))


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    yield from _alone()
    yield from _groups()
    yield from _costs()
    yield from _shifted()
    yield from _several()
    yield from _plans()
