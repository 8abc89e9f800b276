"""What a statement says of each kind of threshold, and its sentence."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_calib.formulas.costs import upper_bounds_of_means
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.data_hash import cost_facts

__all__ = [
    "contradictions",
    "facts_of_chow",
    "facts_of_costs",
    "facts_of_errors",
    "facts_of_given",
    "facts_of_groups",
    "told_costs",
]

# Larger matrices of costs are told by their hash alone.
_MOST_COSTS = 400

_Facts = dict[str, dict[str, Any]]

# What is promised by each kind of threshold, of its facts, the number of
# samples and that of groups.
_SENTENCES = {
    "errors": (
        "With probability at least 1 - {delta:g} over draws of {total} "
        "independent samples, the true share of errors among accepted "
        "predictions is at most {risk:g}."
    ),
    "groups": (
        "With probability at least 1 - {delta:g} over draws of {total} "
        "samples, independent within each of {count} groups, no group "
        "has a true share of errors among its accepted predictions above "
        "{risk:g}."
    ),
    "costs": (
        "With probability at least 1 - {delta:g} over draws of {total} "
        "independent samples, the true mean cost of accepted predictions "
        "is at most {mean_cost:g}."
    ),
    "chow": (
        "Nothing is guaranteed, as no data chose the threshold. A "
        "prediction is accepted if its expected cost, by the model's own "
        "probabilities, is at most {reject_cost:g}."
    ),
    "coverage": (
        "Nothing is guaranteed: the threshold was chosen to accept a share of "
        "at least {coverage:g} of {total} samples."
    ),
    "group_coverage": (
        "Nothing is guaranteed: the thresholds were chosen to accept a share "
        "of at least {coverage:g} of each of {count} groups, {total} samples."
    ),
    "given": "Nothing is guaranteed: the threshold was given.",
}
# What was asked for is what is certified.
_CERTIFIED = {"risk": "certified_risk", "mean_cost": "certified_cost"}
# Methods of kinds that have no other.
_METHODS = {
    "chow": "chow",
    "coverage": "coverage",
    "group_coverage": "coverage",
    "given": "given",
}


def facts_of_errors(chosen: Any, coverage: float | None = None) -> _Facts:
    """Guarantee and facts of one threshold on the share of errors.

    `coverage` is what it was chosen for, if that is not a risk.
    """
    told = chosen._asdict()
    total = told["num_samples"]
    return {
        "guarantee": _of_shares(told, total, coverage),
        "selection": {
            "num_samples": total,
            **_counted(total, told["coverage"], told["risk"], told["delta"]),
            "threshold": _told(told["threshold"]),
            "confidence": told["confidence"],
        },
    }


def facts_of_groups(
    chosen: Any, log_odds: bool, coverage: float | None = None
) -> _Facts:
    """Guarantee and facts by group; `log_odds` is that of `choose`."""
    told = chosen._asdict()
    delta, total = told["delta"], sum(told["num_samples"])
    # Without a guarantee none is tested.
    tested = told["tested"] or (False,) * len(told["group"])
    groups = []
    columns = "group", "num_samples", "threshold", "group_coverage"
    rows = zip(
        *(told[x] for x in (*columns, "group_risk")), tested, strict=True
    )
    for name, count, threshold, share, risk, one in rows:
        cut = None
        if log_odds and threshold < np.inf:
            cut = float(sigmoid(np.float64(threshold)))
        groups.append(
            {
                "group": name,
                "num_samples": count,
                **_counted(count, share, risk, delta),
                "threshold": _told(threshold),
                "confidence": cut,
                "tested": one,
            }
        )
    return {
        "guarantee": _of_shares(told, total, coverage, len(groups)),
        "selection": {
            "num_samples": total,
            "num_accepted": sum(one["num_accepted"] for one in groups),
            "num_wrong": sum(one["num_wrong"] for one in groups),
            "coverage": told["coverage"],
            "risk": told["risk"],
            "min_samples": told["min_samples"],
            "groups": groups,
        },
    }


def facts_of_costs(chosen: Any, largest: float) -> _Facts:
    """Guarantee and facts of a mean cost; no cost is above `largest`."""
    told = chosen._asdict()
    total, delta, cost = told["num_samples"], told["delta"], told["cost"]
    if cost is None:
        raise TypeError("`chosen` must be of a fit with costs")
    counted = _counted(total, told["coverage"], told["risk"], delta)
    accepted = counted["num_accepted"]
    bound = largest * upper_bounds_of_means(
        np.asarray(cost.accepted * accepted / largest),
        np.asarray(float(accepted)),
        level=1.0 - float(delta or 0.0),
    )
    limit = told["certified_cost"]
    guarantee = {
        "method": told["method"],
        "mean_cost": limit,
        "reject_cost": cost.reject_all,
        "delta": delta,
        "certified_cost": limit,
    }
    return {
        "guarantee": _with_sentence("costs", guarantee, total),
        "selection": {
            "num_samples": total,
            **counted,
            # Of the mean cost, by Hoeffding and Bentkus.
            "upper_bound": float(bound),
            "threshold": _told(told["threshold"]),
            "mean_cost": cost.value,
            "mean_cost_low": cost.low,
            "mean_cost_high": cost.high,
            "accepted_cost": cost.accepted,
            "accept_all_cost": cost.accept_all,
        },
    }


def facts_of_chow(threshold: float) -> _Facts:
    """The facts of Chow's rule, which takes a price and no data."""
    guarantee = {"method": "chow", "reject_cost": 0.0 - threshold}
    return {
        "guarantee": _with_sentence("chow", guarantee),
        "selection": {"threshold": threshold},
    }


def facts_of_given(threshold: Any, group: tuple = ()) -> _Facts:
    """The facts of a threshold, or of one by group, of which no data tell."""
    found: dict[str, Any] = {"threshold": None, "groups": None}
    if group:
        found["groups"] = [
            {"group": name, "threshold": _told(one)}
            for name, one in zip(group, threshold, strict=True)
        ]
    else:
        found["threshold"] = _told(threshold)
    return {
        "guarantee": _with_sentence("given", {"method": "given"}),
        "selection": found,
    }


def told_costs(costs: np.ndarray) -> dict[str, Any]:
    """What is told of a matrix of costs."""
    matrix = None
    if costs.size <= _MOST_COSTS:
        matrix = np.asarray(costs, "float64").tolist()
    return {**cost_facts(costs), "matrix": matrix}


def contradictions(statement: dict[str, Any]) -> Iterator[str]:
    """A sentence for each fact that other facts contradict."""
    kind, stated = statement["kind"], statement["guarantee"]
    selection = statement["selection"]
    groups = selection.get("groups") or ()
    if kind in ("groups", "group_coverage"):
        for name in ("num_samples", "num_accepted", "num_wrong"):
            added = sum(one[name] for one in groups)
            if added != selection[name]:
                yield (
                    f"{name}: the groups give {added!r}, certified "
                    f"{selection[name]!r}"
                )
    if kind == "chow" and selection["threshold"] != -stated["reject_cost"]:
        yield (
            "threshold: Chow's rule gives minus the price, "
            f"{-stated['reject_cost']!r}, certified {selection['threshold']!r}"
        )
    wanted = {
        **stated,
        **{k: stated[of] for k, of in _CERTIFIED.items() if of in stated},
        **({"method": _METHODS[kind]} if kind in _METHODS else {}),
    }
    total = selection.get("num_samples")
    for name, value in _with_sentence(kind, wanted, total, len(groups)).items():
        if stated[name] != value or type(stated[name]) is not type(value):
            yield (
                f"{name}: other facts of the certificate give {value!r}, "
                f"certified {stated[name]!r}"
            )
    if kind in ("costs", "chow"):
        yield from _within_costs(statement["costs"], statement["score"])
    if "replay" in statement:
        cuts = [one["threshold"] for one in groups] or selection["threshold"]
        own = statement["replay"]["selector"].get("config", {})
        if not _are_equal(own.get("threshold"), cuts):
            yield (
                f"threshold: that of the selector is {own.get('threshold')!r}, "
                f"certified {cuts!r}"
            )


def _within_costs(
    costs: dict[str, Any], score: dict[str, Any]
) -> Iterator[str]:
    if (score["name"], score["scale"]) != ("expected_cost", "own"):
        yield "score: it must be the expected cost, on its own scale"
    if costs["matrix"] is None:
        if costs["num_classes"] ** 2 <= _MOST_COSTS:
            yield "costs: the matrix is missing"
        return
    for name, value in told_costs(np.array(costs["matrix"], "float64")).items():
        if costs[name] != value:
            yield (
                f"costs: the matrix gives {name} {value!r}, certified "
                f"{costs[name]!r}"
            )


def _are_equal(own: Any, told: Any) -> bool:
    """Whether thresholds of a selector, float32, are those that are told."""
    if isinstance(own, list) and isinstance(told, list):
        return len(own) == len(told) and all(map(_are_equal, own, told))
    if isinstance(own, dict):
        own = own.get("number")
    try:
        return bool(np.float32(own) == np.float32(told))
    except (TypeError, ValueError):
        return False


def _of_shares(
    told: dict[str, Any],
    total: int,
    coverage: float | None,
    count: int | None = None,
) -> dict[str, Any]:
    """The guarantee of a share of errors, or the coverage that was asked."""
    if coverage is not None:
        kind = "coverage" if count is None else "group_coverage"
        facts = {"method": "coverage", "coverage": coverage}
        return _with_sentence(kind, facts, total, count)
    limit = told["certified_risk"]
    facts = {
        "method": told["method"],
        "risk": limit,
        "delta": told["delta"],
        "certified_risk": limit,
    }
    kind = "errors" if count is None else "groups"
    return _with_sentence(kind, facts, total, count)


def _with_sentence(
    kind: str,
    guarantee: dict[str, Any],
    total: int | None = None,
    count: int | None = None,
) -> dict[str, Any]:
    sentence = _SENTENCES[kind].format(**guarantee, total=total, count=count)
    return {**guarantee, "statement": sentence}


def _counted(total: int, coverage: float, risk: float, delta: Any) -> dict:
    """Counts and shares of the accepted, and the bound of their errors."""
    accepted = round(coverage * total)
    wrong = round(risk * accepted)
    bound = None
    if accepted and delta is not None:
        level = 1.0 - float(delta)
        bound = float(binomial_upper_bound(wrong, accepted, level=level))
    return {
        "num_accepted": accepted,
        "num_wrong": wrong,
        "coverage": coverage,
        "risk": risk,
        # Of this threshold alone, as if it had been chosen in advance.
        "upper_bound": bound,
    }


def _told(threshold: float) -> Any:
    """A threshold in JSON, which has no infinity."""
    return float(threshold) if math.isfinite(threshold) else f"{threshold:f}"
