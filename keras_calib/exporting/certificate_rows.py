"""The data of a certificate, checked, and the threshold chosen again."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.exporting.certificate_facts import (
    facts_of_costs,
    facts_of_errors,
    facts_of_groups,
)
from keras_calib.formulas.outcomes import Outcomes
from keras_calib.selection.costs import COST_TESTS, CostTarget
from keras_calib.selection.data_hash import (
    cost_hashes,
    cost_rows,
    data_hashes,
    group_hashes,
)
from keras_calib.selection.ladder import by_group, of_scores
from keras_calib.selection.thresholds import ErrorTarget

__all__ = ["Rows", "again_of", "read_rows"]


class Rows(NamedTuple):
    """Data of a certificate `(n,)`.

    Attributes:
        score: Scores in float32.
        correct: Correctness, 0 or 1, in float64.
        cost: Costs in float64, or None.
        group: Place of each group in the certificate, or None; -1 for a group
            that it does not have.
        rounded: Whether scores come from confidences, which are rounded.
    """

    score: np.ndarray
    correct: np.ndarray
    cost: np.ndarray | None
    group: np.ndarray | None
    rounded: bool


def read_rows(
    found: dict[str, Any],
    scores: Any,
    confidence: Any,
    correct: Any,
    groups: Any,
    cost: Any,
) -> Rows:
    """The data for a certificate; raises ValueError for those of a wrong form.

    Arguments are those of `check_certificate`.
    """
    kind = found["kind"]
    if kind == "chow":
        raise value_error(
            "`scores` must be left out, as all other data: the certificate is "
            "of Chow's rule, which no data chose",
            method=found["guarantee"]["method"],
        )
    for of, argument, given in (
        ("groups", "groups", groups),
        ("costs", "cost", cost),
    ):
        if (kind == of) != (given is not None):
            rule = "given" if kind == of else "left out"
            raise value_error(
                f"`{argument}` must be {rule} for this certificate",
                kind=kind,
            )
    name = "scores" if confidence is None else "confidence"
    given = scores if confidence is None else confidence
    both = scores is not None and confidence is not None
    if given is None or correct is None or both:
        raise value_error(
            "One of `scores` and `confidence` must be given, with `correct`",
            scores=type(scores).__name__,
            confidence=type(confidence).__name__,
            correct=type(correct).__name__,
        )
    score, correct = np.asarray(given), np.asarray(correct)
    if score.ndim != 1 or score.shape != correct.shape or not len(score):
        raise value_error(
            f"`{name}` and `correct` must have one shape `(n,)`, with n >= 1",
            **{name: score.shape, "correct": correct.shape},
        )
    _check_numbers(**{name: score, "correct": correct})
    _check_rows("correct", (correct == 0) | (correct == 1), "be 0 or 1")
    if confidence is not None:
        score = _log_odds(found, score)
    score = score.astype("float32")
    _check_rows(name, ~np.isnan(score), "not be NaN")
    places = paid = None
    if kind == "groups":
        places = _places(found, groups, score.shape)
    elif kind == "costs":
        paid = _costs(found, cost, score.shape)
    return Rows(
        score, correct.astype("float64"), paid, places, confidence is not None
    )


def _log_odds(found: dict[str, Any], confidence: np.ndarray) -> np.ndarray:
    if found["score"]["scale"] != "log-odds":
        raise value_error(
            "`confidence` needs a score in log-odds: give `scores`",
            score=found["score"]["name"],
        )
    confidence = confidence.astype("float64")
    inside = (confidence > 0) & (confidence < 1)
    _check_rows("confidence", inside, "lie between 0 and 1")
    return np.log(confidence) - np.log1p(-confidence)


def _costs(found: dict[str, Any], cost: Any, shape: tuple) -> np.ndarray:
    cost, largest = np.asarray(cost), found["costs"]["largest"]
    _check_shape("cost", cost, shape)
    _check_numbers(cost=cost)
    rule = f"lie between 0 and the largest of the certificate, {largest:g}"
    _check_rows("cost", (cost >= 0) & (cost <= largest), rule)
    return cost.astype("float64")


def _places(found: dict[str, Any], groups: Any, shape: tuple) -> np.ndarray:
    """The place of each group among those of the certificate, or -1."""
    names = np.array([x["group"] for x in found["selection"]["groups"]])
    given = np.asarray(groups)
    _check_shape("groups", given, shape)
    if given.dtype.kind == "O":
        if not all(isinstance(x, int | str) for x in given.tolist()):
            raise type_error(
                "`groups` must be integers or strings, without NaN and None",
                dtype=given.dtype.name,
            )
        given = given.astype(str)
    if given.dtype.kind == "S":
        given = np.char.decode(given, "utf-8")
    if given.dtype.kind not in "iuU":
        raise type_error(
            "`groups` must be integers or strings", dtype=given.dtype.name
        )
    if (given.dtype.kind == "U") != (names.dtype.kind == "U"):
        # A table of text does not tell 3 from "3".
        given, names = given.astype(str), names.astype(str)
    order = np.argsort(names, kind="stable")
    place = np.searchsorted(names[order], given)
    place = order[np.minimum(place, len(names) - 1)]
    return np.where(names[place] == given, place, -1)


def _check_shape(name: str, given: np.ndarray, shape: tuple) -> None:
    if given.shape != shape:
        raise value_error(
            f"`{name}` must have the shape of `correct`",
            **{name: given.shape, "correct": shape},
        )


def _check_numbers(**arrays: np.ndarray) -> None:
    if any(x.dtype.kind not in "biuf" for x in arrays.values()):
        names = " and ".join(f"`{name}`" for name in arrays)
        raise value_error(
            f"{names} must hold numbers",
            **{name: x.dtype.name for name, x in arrays.items()},
        )


def _check_rows(name: str, good: np.ndarray, rule: str) -> None:
    if not good.all():
        raise value_error(
            f"`{name}` must {rule}",
            row=int(np.argmin(good)) + 1,
            bad_rows=int((~good).sum()),
        )


def again_of(found: dict[str, Any], rows: Rows) -> Iterator[Any]:
    """The hashes of the data, then the facts of the threshold chosen again.

    Raises ValueError if no threshold reaches the target of the certificate.
    """
    claim, kind = found["guarantee"], found["kind"]
    known = COST_TESTS if kind == "costs" else ("ltt",)
    if claim["method"] not in known:
        raise value_error(
            "`method` of the certificate must be one that this version can "
            "compute again: use the version that made it",
            method=claim["method"],
            keras_calib=found["keras_calib"],
        )
    log_odds = found["score"]["scale"] == "log-odds"
    if kind == "costs":
        yield from _costs_again(found, rows)
        return
    outcomes = Outcomes(rows.score, 1.0 - rows.correct)
    target = ErrorTarget(claim["risk"], None, claim["delta"]).check()
    if kind == "groups":
        names = tuple(x["group"] for x in found["selection"]["groups"])
        outcomes = outcomes._replace(group=rows.group, names=names)
        yield group_hashes(names, by_group(outcomes))
        yield facts_of_groups(target.choose(outcomes), log_odds)
        return
    yield data_hashes(of_scores(outcomes))
    yield facts_of_errors(target.choose(outcomes, log_odds))


def _costs_again(found: dict[str, Any], rows: Rows) -> Iterator[Any]:
    claim, costs = found["guarantee"], found["costs"]
    cost = np.asarray(rows.cost)
    largest, one = float(costs["largest"]), costs["one_cost"]
    yield cost_hashes(
        cost_rows(rows.score, cost, rows.correct),
        {name: value for name, value in costs.items() if name != "matrix"},
    )
    if one and not np.all((cost == 0.0) | (cost == largest)):
        raise value_error(
            "every cost must be 0 or the largest one, as certified",
            largest=largest,
        )
    target = CostTarget(
        largest,
        one,
        claim["mean_cost"],
        claim["reject_cost"],
        None,
        claim["delta"],
        claim["method"],
    ).check()
    weight = np.ones(len(cost))
    wrong = rows.correct == 0.0
    outcomes = Outcomes(rows.score, cost, weight, wrong=wrong)
    yield facts_of_costs(target.choose(outcomes), largest)
