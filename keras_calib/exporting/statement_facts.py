"""What a statement says of each kind of threshold, and what must agree."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_calib.formulas.costs import upper_bounds_of_means
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.numerics.softmax import sigmoid
from keras_calib.selection.choice import Choice
from keras_calib.selection.costs import COST_TESTS
from keras_calib.selection.data_hash import cost_facts

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
        "is at most {max_cost:g}."
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
BY_GROUP = "groups", "group_coverage"
# Methods of each kind: a guarantee is of one that can be computed again.
METHODS = {
    "errors": ("ltt",),
    "groups": ("ltt",),
    "costs": COST_TESTS,
    "chow": ("chow",),
    "coverage": ("coverage",),
    "group_coverage": ("coverage",),
    "given": ("given",),
}
# What was asked for, which is what is certified.
_CERTIFIED = {"risk": "certified_risk", "max_cost": "certified_cost"}
_COUNTS = "num_samples", "num_accepted", "num_wrong"


def facts_of(
    kind: str,
    chosen: Choice,
    scale: str,
    *,
    coverage: float | None = None,
    largest_cost: float = 1.0,
) -> _Facts:
    """Guarantee and selection of a threshold that data chose.

    The fields of a choice are read here alone. The scale of the score is
    log-odds, confidence, or its own. `coverage` is what it was chosen for, if
    that is no limit.
    """
    size, delta = chosen.num_samples, chosen.delta
    if kind in BY_GROUP:
        # Without a guarantee none is tested.
        tested = chosen.facts["tested"] or (False,) * len(chosen.group)
        rows = zip(
            chosen.group_samples,
            chosen.group_coverage,
            chosen.group_risk,
            chosen.threshold,
            strict=True,
        )
        points = [_point(*row, delta, scale) for row in rows]
        selection = {
            "coverage": chosen.coverage,
            "risk": chosen.risk,
            "min_count": chosen.facts["min_count"],
            "groups": [
                {"group": name, **point, "tested": one}
                for name, point, one in zip(
                    chosen.group, points, tested, strict=True
                )
            ],
        }
    else:
        point = size, chosen.coverage, chosen.risk, chosen.threshold
        selection = _point(*point, delta, scale)
    guarantee: dict[str, Any] = {"method": chosen.method}
    limit, cost = chosen.limit, chosen.cost
    if coverage is not None:
        guarantee = {"method": "coverage", "coverage": coverage}
    elif cost is not None:
        del selection["confidence"]
        selection |= _mean_costs(cost, selection, delta or 0.0, largest_cost)
        guarantee |= {
            "reject_cost": cost.reject_all,
            "delta": delta,
            "certified_cost": limit,
        }
    else:
        guarantee |= {"delta": delta, "certified_risk": limit}
    return _completed(kind, guarantee, selection)


def facts_of_chow(threshold: float) -> _Facts:
    """The facts of Chow's rule, which takes a price and no data."""
    guarantee = {"method": "chow", "reject_cost": 0.0 - threshold}
    return _completed("chow", guarantee, {})


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
    return _completed("given", {"method": "given"}, found)


def told_costs(costs: np.ndarray) -> dict[str, Any]:
    """What is told of a matrix of costs."""
    matrix = None
    if costs.size <= _MOST_COSTS:
        matrix = np.asarray(costs, "float64").tolist()
    return {**cost_facts(costs), "matrix": matrix}


def _completed(
    kind: str, guarantee: dict[str, Any], selection: dict[str, Any]
) -> _Facts:
    """Both with the facts that follow from their others."""
    found = {"guarantee": guarantee, "selection": selection}
    following = _following(kind, found)
    return {part: {**x, **following[part]} for part, x in found.items()}


def _following(kind: str, facts: dict[str, Any]) -> _Facts:
    """What follows from other facts of a statement, by its parts."""
    stated, selection = facts["guarantee"], facts["selection"]
    groups = selection.get("groups") or ()
    chosen: dict[str, Any] = {}
    if kind in BY_GROUP:
        chosen = {x: sum(one[x] for one in groups) for x in _COUNTS}
    if kind == "chow":
        chosen["threshold"] = 0.0 - stated["reject_cost"]
    promised = {x: stated[of] for x, of in _CERTIFIED.items() if of in stated}
    promised["statement"] = _SENTENCES[kind].format(
        **{**stated, **promised},
        total={**selection, **chosen}.get("num_samples"),
        count=len(groups),
    )
    found = {"guarantee": promised, "selection": chosen}
    if "costs" in facts:
        found["score"] = {"name": "expected_cost", "scale": "own"}
        if (matrix := facts["costs"]["matrix"]) is not None:
            found["costs"] = told_costs(np.array(matrix, "float64"))
    return found


def compared(
    stated: dict[str, Any],
    again: dict[str, Any],
    source: str,
    close: Callable[[str], float] = lambda name: 0.0,
    of: str = "",
) -> Iterator[str]:
    """A sentence for each fact that `source` gives otherwise.

    `close` gives the relative error of a fact that may be rounded.
    """
    for name, value in again.items():
        if name == "groups":
            for one, other in zip(stated[name], value, strict=True):
                about = f" of group {other['group']!r}"
                yield from compared(one, other, source, close, about)
        elif not _same(stated[name], value, close(name)):
            yield (
                f"{name}{of}: {source} {value!r}, certified {stated[name]!r}"
            )


def _same(stated: Any, value: Any, close: float) -> bool:
    if type(stated) is not type(value):
        return False
    if isinstance(value, float):
        least = 1e-12 if close else 0.0
        return math.isclose(stated, value, rel_tol=close, abs_tol=least)
    return bool(stated == value)


def contradictions(statement: dict[str, Any]) -> Iterator[str]:
    """A sentence for each fact that other facts contradict."""
    for part, facts in _following(statement["kind"], statement).items():
        source = "other facts of the certificate give"
        yield from compared(statement[part], facts, source)
    costs, selection = statement.get("costs"), statement["selection"]
    few = costs and costs["num_classes"] ** 2 <= _MOST_COSTS
    if costs and few and costs["matrix"] is None:
        yield "costs: the matrix is missing"
    if "replay" in statement:
        groups = selection.get("groups") or ()
        cuts = [one["threshold"] for one in groups] or selection["threshold"]
        config = statement["replay"]["selector"].get("config")
        own = config.get("threshold") if isinstance(config, dict) else None
        if not _are_equal(own, cuts):
            yield (
                f"threshold: that of the selector is {own!r}, certified "
                f"{cuts!r}"
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


def _point(
    total: int,
    coverage: float,
    risk: float,
    threshold: float,
    delta: float | None,
    scale: str,
) -> dict[str, Any]:
    """Counts and shares of the accepted, and the bound of their errors."""
    accepted = round(coverage * total)
    wrong = round(risk * accepted)
    bound = cut = None
    if accepted and delta is not None:
        level = 1.0 - float(delta)
        bound = float(binomial_upper_bound(wrong, accepted, level=level))
    if scale == "log-odds" and threshold < np.inf:
        cut = float(sigmoid(np.float64(threshold)))
    if scale == "confidence":
        # A confidence of 0 accepts every answer too.
        threshold = max(threshold, 0.0)
    return {
        "num_samples": total,
        "num_accepted": accepted,
        "num_wrong": wrong,
        "coverage": coverage,
        "risk": risk,
        # Of this threshold alone, as if it had been chosen in advance.
        "upper_bound": bound,
        "threshold": _told(threshold),
        "confidence": cut,
    }


def _mean_costs(
    cost: Any, selection: dict[str, Any], delta: float, largest: float
) -> dict[str, Any]:
    """What decisions cost, with a bound of it by Hoeffding and Bentkus."""
    accepted = float(selection["num_accepted"])
    bound = largest * upper_bounds_of_means(
        np.asarray(cost.accepted * accepted / largest),
        np.asarray(accepted),
        level=1.0 - float(delta),
    )
    return {
        "upper_bound": float(bound),
        "mean_cost": cost.value,
        "mean_cost_low": cost.low,
        "mean_cost_high": cost.high,
        "accepted_cost": cost.accepted,
        "accept_all_cost": cost.accept_all,
    }


def _told(threshold: float) -> Any:
    """A threshold in JSON, which has no infinity."""
    return float(threshold) if math.isfinite(threshold) else f"{threshold:f}"
