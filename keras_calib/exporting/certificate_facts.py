"""What a certificate says of each kind of threshold, and its sentence."""

import math
from typing import Any

import numpy as np

from keras_calib.formulas.costs import upper_bounds_of_means
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.choice import Choice
from keras_calib.selection.data_hash import cost_facts

__all__ = [
    "contradictions",
    "facts_of_chow",
    "facts_of_costs",
    "facts_of_errors",
    "facts_of_groups",
    "told_costs",
]

# Larger matrices of costs are told by their hash alone.
_MOST_COSTS = 400

_Facts = dict[str, dict[str, Any]]


def facts_of_errors(chosen: Choice) -> _Facts:
    """Guarantee and facts of one threshold on the share of errors."""
    total = chosen.num_samples
    guarantee = _of_errors(chosen.method, chosen.delta, chosen.limit, total)
    return {
        "guarantee": guarantee,
        "selection": {
            "num_samples": total,
            **_counted(total, chosen.coverage, chosen.risk, chosen.delta),
            "threshold": _told(chosen.threshold),
            "confidence": chosen.confidence,
        },
    }


def facts_of_groups(chosen: Choice, log_odds: bool) -> _Facts:
    """Guarantee and facts by group; `log_odds` is that of `choose`."""
    delta, total = chosen.delta, chosen.num_samples
    groups = []
    columns = (
        *(chosen.group, chosen.group_samples, chosen.threshold),
        *(chosen.group_coverage, chosen.group_risk, chosen.facts["tested"]),
    )
    for name, count, threshold, coverage, risk, tested in zip(
        *columns, strict=True
    ):
        cut = None
        if log_odds and threshold < np.inf:
            cut = float(sigmoid(np.float64(threshold)))
        groups.append(
            {
                "group": name,
                "num_samples": count,
                **_counted(count, coverage, risk, delta),
                "threshold": _told(threshold),
                "confidence": cut,
                "tested": tested,
            }
        )
    accepted = sum(one["num_accepted"] for one in groups)
    return {
        "guarantee": _of_groups(
            chosen.method, delta, chosen.limit, total, len(groups)
        ),
        "selection": {
            "num_samples": total,
            "num_accepted": accepted,
            "num_wrong": sum(one["num_wrong"] for one in groups),
            "coverage": chosen.coverage,
            "risk": chosen.risk,
            "min_samples": chosen.facts["min_samples"],
            "groups": groups,
        },
    }


def facts_of_costs(chosen: Choice, largest: float) -> _Facts:
    """Guarantee and facts of a mean cost; no cost is above `largest`."""
    total, cost = chosen.num_samples, chosen.cost
    if cost is None:
        raise TypeError("`chosen` must be of a fit with costs")
    counted = _counted(total, chosen.coverage, chosen.risk, chosen.delta)
    accepted = counted["num_accepted"]
    bound = largest * upper_bounds_of_means(
        np.asarray(cost.accepted * accepted / largest),
        np.asarray(float(accepted)),
        level=1.0 - float(chosen.delta or 0.0),
    )
    return {
        "guarantee": _of_costs(
            chosen.method,
            chosen.delta,
            chosen.limit,
            cost.reject_all,
            total,
        ),
        "selection": {
            "num_samples": total,
            **counted,
            # Of the mean cost, by Hoeffding and Bentkus.
            "upper_bound": float(bound),
            "threshold": _told(chosen.threshold),
            "mean_cost": cost.value,
            "mean_cost_low": cost.low,
            "mean_cost_high": cost.high,
            "accepted_cost": cost.accepted,
            "accept_all_cost": cost.accept_all,
        },
    }


def facts_of_chow(threshold: float) -> _Facts:
    """The facts of Chow's rule, which takes a price and no data."""
    return {
        "guarantee": _of_chow(0.0 - threshold),
        "selection": {"threshold": threshold},
    }


def told_costs(costs: np.ndarray) -> dict[str, Any]:
    """What is told of a matrix of costs."""
    matrix = None
    if costs.size <= _MOST_COSTS:
        matrix = np.asarray(costs, "float64").tolist()
    return {**cost_facts(costs), "matrix": matrix}


def contradictions(certificate: dict[str, Any]) -> list[str]:
    """A sentence for each fact that other facts contradict."""
    kind, stated = certificate["kind"], certificate["guarantee"]
    selection = certificate["selection"]
    total = selection.get("num_samples")
    told = []
    if kind == "errors":
        wanted = _of_errors(
            stated["method"], stated["delta"], stated["certified_risk"], total
        )
    elif kind == "groups":
        groups = selection["groups"]
        wanted = _of_groups(
            *(stated["method"], stated["delta"], stated["certified_risk"]),
            *(total, len(groups)),
        )
        for name in ("num_samples", "num_accepted", "num_wrong"):
            added = sum(one[name] for one in groups)
            if added != selection[name]:
                told.append(
                    f"{name}: the groups give {added!r}, certified "
                    f"{selection[name]!r}"
                )
    elif kind == "costs":
        wanted = _of_costs(
            *(stated["method"], stated["delta"], stated["certified_cost"]),
            *(stated["reject_cost"], total),
        )
    else:
        wanted = _of_chow(stated["reject_cost"])
        if selection["threshold"] != -stated["reject_cost"]:
            told.append(
                "threshold: Chow's rule gives minus the price, "
                f"{-stated['reject_cost']!r}, certified "
                f"{selection['threshold']!r}"
            )
    told += [
        f"{name}: other facts of the certificate give {value!r}, certified "
        f"{stated[name]!r}"
        for name, value in wanted.items()
        if stated[name] != value or type(stated[name]) is not type(value)
    ]
    if kind in ("costs", "chow"):
        told += _within_costs(certificate["costs"], certificate["score"])
    return told


def _within_costs(costs: dict[str, Any], score: dict[str, Any]) -> list[str]:
    told = []
    if (score["name"], score["scale"]) != ("expected_cost", "own"):
        told.append("score: it must be the expected cost, on its own scale")
    if costs["matrix"] is None:
        if costs["num_classes"] ** 2 <= _MOST_COSTS:
            told.append("costs: the matrix is missing")
        return told
    again = told_costs(np.array(costs["matrix"], "float64"))
    told += [
        f"costs: the matrix gives {name} {value!r}, certified {costs[name]!r}"
        for name, value in again.items()
        if costs[name] != value
    ]
    return told


def _of_errors(
    method: Any, delta: Any, risk: Any, total: Any
) -> dict[str, Any]:
    return {
        "method": method,
        "risk": risk,
        "delta": delta,
        "certified_risk": risk,
        "statement": (
            f"With probability at least 1 - {delta:g} over draws of {total} "
            f"independent samples, the true share of errors among accepted "
            f"predictions is at most {risk:g}."
        ),
    }


def _of_groups(
    method: Any, delta: Any, risk: Any, total: Any, count: int
) -> dict[str, Any]:
    return {
        **_of_errors(method, delta, risk, total),
        "statement": (
            f"With probability at least 1 - {delta:g} over draws of {total} "
            f"samples, independent within each of {count} groups, no group "
            "has a true share of errors among its accepted predictions above "
            f"{risk:g}."
        ),
    }


def _of_costs(
    method: Any, delta: Any, limit: Any, price: Any, total: Any
) -> dict[str, Any]:
    return {
        "method": method,
        "mean_cost": limit,
        "reject_cost": price,
        "delta": delta,
        "certified_cost": limit,
        "statement": (
            f"With probability at least 1 - {delta:g} over draws of {total} "
            "independent samples, the true mean cost of accepted predictions "
            f"is at most {limit:g}."
        ),
    }


def _of_chow(price: Any) -> dict[str, Any]:
    return {
        "method": "chow",
        "reject_cost": price,
        "statement": (
            "Nothing is guaranteed, as no data chose the threshold. A "
            "prediction is accepted if its expected cost, by the model's own "
            f"probabilities, is at most {price:g}."
        ),
    }


def _counted(total: int, coverage: float, risk: float, delta: Any) -> dict:
    """Counts and shares of the accepted, and the bound of their errors."""
    accepted = round(coverage * total)
    wrong = round(risk * accepted)
    bound = None
    if accepted:
        level = 1.0 - float(delta or 0.0)
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
