"""The form of a certificate: which facts there are, and of what type."""

import math
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error

__all__ = ["KINDS", "check_form"]

_HASHES = "rows_sha256", "ranking_sha256"
_COUNTS = "num_samples", "num_accepted", "num_wrong", "coverage", "risk"
_OF_ERRORS = "method", "risk", "delta", "certified_risk", "statement"
# Facts that each part of a certificate must have, by its kind.
_PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "errors": {
        "guarantee": _OF_ERRORS,
        "selection": (*_COUNTS, "threshold"),
        "data": _HASHES,
    },
    "groups": {
        "guarantee": _OF_ERRORS,
        "selection": (*_COUNTS, "min_samples", "groups"),
        "data": _HASHES,
    },
    "costs": {
        "guarantee": (
            *("method", "mean_cost", "reject_cost", "delta"),
            *("certified_cost", "statement"),
        ),
        "selection": (*_COUNTS, "threshold", "accepted_cost"),
        "data": _HASHES,
    },
    "chow": {
        "guarantee": ("method", "reject_cost", "statement"),
        "selection": ("threshold",),
        "data": (),
    },
}
_COSTS = "num_classes", "largest", "one_cost", "matrix", "sha256"
_ALWAYS: dict[str, tuple[str, ...]] = {
    "score": ("name", "scale"),
    "artefact": ("format", "files"),
    "weights": ("sha256", "variables"),
}
_OTHERS = {"certificate", "kind", "keras_calib", "calibrator", "digest"}
_GROUP = (
    *("group", "num_samples", "num_accepted", "num_wrong", "coverage"),
    *("risk", "upper_bound", "threshold", "confidence", "tested"),
)
KINDS = tuple(_PARTS)


def check_form(found: dict[str, Any]) -> None:
    """Raises ValueError unless all facts that others follow from are there."""
    kind = found.get("kind")
    wanted = {**_ALWAYS}
    if isinstance(kind, str) and kind in _PARTS:
        wanted |= _PARTS[kind]
        wanted |= {"costs": _COSTS} if kind in ("costs", "chow") else {}
    parts = {
        name: {*facts} - found[name].keys()
        for name, facts in wanted.items()
        if isinstance(found.get(name), dict)
    }
    missing = sorted({*wanted} - {*parts})
    missing += sorted(f"{k}.{x}" for k, names in parts.items() for x in names)
    missing += sorted(_OTHERS - found.keys())
    unknown = sorted(found.keys() - _OTHERS - {*wanted})
    if missing or unknown or len(wanted) == len(_ALWAYS):
        raise value_error(
            "The certificate must have the facts of its form",
            kind=kind,
            missing=missing,
            unknown=unknown,
        )
    _check_files(found["artefact"]["files"])
    _check_numbers(found)
    if kind == "groups":
        _check_groups(found["selection"]["groups"])
    if "costs" in wanted:
        _check_costs(found["costs"])


def _check_files(files: Any) -> None:
    for name, facts in files.items() if isinstance(files, dict) else [("", 0)]:
        if not isinstance(facts, dict) or type(facts.get("bytes")) is not int:
            raise value_error(
                "The certificate must have size and hash of each file",
                file=name,
            )


def _check_numbers(found: dict[str, Any]) -> None:
    guarantee, selection = found["guarantee"], found["selection"]
    if not isinstance(guarantee["method"], str):
        raise value_error(
            "`method` of the certificate must be a name",
            method=guarantee["method"],
        )
    for name in ("risk", "delta", "certified_risk"):
        if name in guarantee:
            _check_number(name, guarantee[name], 1.0)
    for name in ("mean_cost", "certified_cost", "reject_cost"):
        no_price = found["kind"] == "costs" and name == "reject_cost"
        value = guarantee.get(name, 0.0)
        if value is not None or not no_price:
            _check_number(name, value)
    for name in ("num_samples", "num_accepted", "num_wrong"):
        if name in selection:
            _check_count(name, selection[name])
    for name in ("coverage", "risk"):
        if name in selection:
            _check_number(name, selection[name], 1.0)
    if "threshold" in selection:
        _check_threshold(selection["threshold"])


def _check_groups(groups: Any) -> None:
    rows = groups if isinstance(groups, list) else []
    if not rows or not all(
        isinstance(one, dict) and {*_GROUP} == {*one} for one in rows
    ):
        raise value_error(
            "`groups` of the certificate must have the facts of each group",
            facts=_GROUP,
        )
    for one in rows:
        for name in ("num_samples", "num_accepted", "num_wrong"):
            _check_count(name, one[name])
        _check_threshold(one["threshold"])
    names = [one["group"] for one in rows]
    types = {type(name) for name in names}
    if types not in ({int}, {str}) or names != sorted({*names}):
        raise value_error(
            "`groups` of the certificate must be integers or strings, each "
            "once and ascending",
            groups=names[:20],
        )


def _check_costs(costs: dict[str, Any]) -> None:
    _check_count("num_classes", costs["num_classes"])
    _check_number("largest", costs["largest"])
    matrix = costs["matrix"]
    right = costs["largest"] > 0 and type(costs["one_cost"]) is bool
    if matrix is not None and right:
        rows: list[Any] = matrix if isinstance(matrix, list) else [None]
        right = len(rows) == costs["num_classes"] > 0 and all(
            isinstance(row, list) and len(row) == len(rows) for row in rows
        )
        for cost in [x for row in rows for x in row] if right else []:
            _check_number("cost", cost)
    if not right:
        raise value_error(
            "`costs` of the certificate must have a square matrix or none, "
            "and its largest entry",
            largest=costs["largest"],
            one_cost=costs["one_cost"],
        )


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise value_error(
            f"`{name}` of the certificate must be an integer >= 0",
            **{name: value},
        )


def _check_number(name: str, value: Any, most: float = math.inf) -> None:
    largest = float(np.finfo("float64").max)
    number = type(value) in (int, float)
    if not number or not 0 <= value <= min(most, largest):
        ends = "in [0, 1]" if most == 1.0 else ">= 0"
        raise value_error(
            f"`{name}` of the certificate must be a number {ends}",
            **{name: value},
        )


def _check_threshold(value: Any) -> None:
    if value not in ("inf", "-inf") and type(value) is not float:
        raise value_error(
            "`threshold` of the certificate must be a number",
            threshold=value,
        )
