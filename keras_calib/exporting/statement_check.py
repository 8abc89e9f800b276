"""The check of a statement, by the files and the data that it is of.

It takes NumPy and SciPy alone. Numbers follow from the data that chose the
threshold, by the same procedure; hashes from the files of the model.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import path_of
from keras_calib.exporting.answer_threshold import (
    calibrated_confidence,
    rows_sha256,
)
from keras_calib.exporting.statement import (
    differences_within,
    differing_files,
    read_statement,
    statement_path,
)
from keras_calib.exporting.statement_facts import BY_GROUP, facts_of
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.selection.costs import COST_TESTS, CostTarget
from keras_calib.selection.data_hash import (
    cost_hashes,
    cost_rows,
    data_hashes,
    group_hashes,
)
from keras_calib.selection.ladder import by_group, of_scores
from keras_calib.selection.thresholds import ErrorTarget

__all__ = ["CertificateCheck", "check_certificate"]

# Relative error of numbers that come from another version of SciPy, and of a
# threshold from a confidence, which is rounded.
_CLOSE, _ROUNDED = 1e-9, 1e-3
# What data hold besides scores, by the kind of a certificate.
_OTHER = {
    "errors": "correctness",
    "groups": "correctness or groups",
    "costs": "costs or correctness",
}


class CertificateCheck(NamedTuple):
    """What the check of a certificate found.

    Attributes:
        differences: A sentence for each difference; empty if all agrees.
        checked: What was computed again.
        not_checked: What was not, and why.
        certificate: The certificate.
    """

    differences: tuple[str, ...]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    certificate: dict[str, Any]

    @property
    def holds(self) -> bool:
        """Whether all that was computed again agrees."""
        return not self.differences


def check_certificate(
    path: Any,
    scores: Any = None,
    correct: Any = None,
    *,
    confidence: Any = None,
    groups: Any = None,
    cost: Any = None,
) -> CertificateCheck:
    """Computes the numbers and hashes of a certificate again.

    Use it before you deploy a model that somebody else certified. It reads the
    files of the model, and needs neither Keras nor TensorFlow when run as
    `python -m keras_calib verify`. With the data it chooses the threshold, or
    that of every group, again, by the same procedure with the same guarantee.
    A certificate of Chow's rule has facts alone, and no data.

    What `FileModel.attach` certified it also runs, file and selector, on the
    recorded samples. That needs Keras and what runs the file, and is left out
    where these are not installed. Run only files that you trust.

    It cannot find that a whole certificate was made for a false claim from
    false data. Nor does it check hashes of weights and of the calibrator: the
    hashes of the files cover what is served. Sign the certificate by a tool of
    your own, so that others know who made it.

    Args:
        path: The exported folder or file, or the `.json` file of
            `keras-calib threshold`.
        scores: Scores `(n,)` of the data that chose the threshold, as
            `save_records` writes them; None checks the files alone.
        correct: 1 for right and 0 for wrong predictions `(n,)`.
        confidence: Confidences `(n,)` in (0, 1) instead of scores, if the
            score is in log-odds. The hash of counts then stands for that of
            scores, and the threshold is compared to three digits. For the
            threshold of answers, the confidences of their log.
        groups: Group of each sample `(n,)`, integers or strings, for a
            selector with thresholds by group.
        cost: Cost of each answer `(n,)`, for a selector with costs.

    Returns:
        CertificateCheck.

    Raises:
        ValueError: If there is no certificate, it cannot be read, or the data
            are not of the form above.

    Example:

    >>> check_certificate("no/model")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: `path` must be an exported folder or file. Received: ...

    Reference:
        Angelopoulos et al., Learn then Test, 2021,
        https://arxiv.org/abs/2110.01052
    """
    path = path_of(path)
    if not path.exists():
        raise value_error(
            "`path` must be an exported folder or file", path=str(path)
        )
    found = read_statement(statement_path(path))
    differences = differences_within(found)
    checked = ["digest and statement of the certificate"]
    not_checked = []
    if found["artefact"] is not None:
        differences += differing_files(found, path)
        checked.append("every file of the model")
        what = "weights" if "replay" in found else "weights and calibrator"
        not_checked.append(f"{what} by themselves (needs Keras)")
    elif found["calibrator"] is not None:
        not_checked.append("the fit of the calibrator (needs its own log)")
    if found["kind"] == "chow" and found["costs"]["matrix"] is None:
        not_checked.append("the matrix of costs, of which only a hash is told")
    given = scores, confidence, correct, groups, cost
    if any(x is not None for x in given):
        rows = _read_rows(found, *given)
        differences += _differing_numbers(found, rows)
        checked.append("numbers of the guarantee, from the data")
    elif found["data"]:
        not_checked.append("numbers of the guarantee (needs the data)")
    if "replay" in found:
        what = "answers of file, calibrator and threshold to recorded samples"
        if differences:
            not_checked.append(f"{what}, as something differs already")
        else:
            try:
                differences += _replayed(path, found)
                checked.append(what)
            except ImportError as error:
                not_checked.append(f"{what}: {error}")
            except (LookupError, TypeError, ValueError) as error:
                differences.append(f"replay: it cannot be run: {error}")
    return CertificateCheck(
        tuple(differences), tuple(checked), tuple(not_checked), found
    )


def _replayed(path: Any, found: dict[str, Any]) -> list[str]:
    # Here, as it needs Keras, and what runs the file.
    from keras_calib.exporting.file_model import replayed

    return [*replayed(path, found)]


def _differing_numbers(found: dict[str, Any], rows: "_Rows") -> Iterator[str]:
    count = found["selection"]["num_samples"]
    if rows.place is not None and (rows.place < 0).any():
        yield (
            f"data: {int((rows.place < 0).sum()):,} rows have a group that "
            "the certificate does not have"
        )
        return
    if count != len(rows.score):
        yield (
            f"data: other data than those of the certificate, "
            f"{len(rows.score):,} rows instead of {count:,}"
        )
    else:
        yield from _differing_hashes(found, rows)
    try:
        facts = _again(found, rows)
    except (ValueError, TypeError) as error:
        yield f"guarantee: it does not follow from the data: {error}"
        return
    for part in ("guarantee", "selection"):
        yield from _compared(found[part], facts[part], rows.rounded)


def _differing_hashes(found: dict[str, Any], rows: "_Rows") -> Iterator[str]:
    kind, wanted = found["kind"], found["data"]
    if found["artefact"] is None:
        names = None
        if rows.place is not None:
            names = np.array(_group_names(found))[rows.place]
        told = rows_sha256(rows.given, rows.correct, names)
        if told != wanted["rows_sha256"]:
            yield ("data: another log than that of the file, with other values")
        elif int((rows.correct == 0.0).sum()) != wanted["wrong"]:
            yield f"wrong: certified {wanted['wrong']!r} in the data"
        return
    if kind == "costs":
        of_rows, of_ranking = cost_hashes(
            cost_rows(rows.score, rows.cost, rows.correct),
            {k: x for k, x in found["costs"].items() if k != "matrix"},
        )
    elif kind == "groups":
        names = _group_names(found)
        ladders = by_group(rows.outcomes(names))
        of_rows, of_ranking = group_hashes(names, ladders)
    else:
        of_rows, of_ranking = data_hashes(of_scores(rows.outcomes()))
    if of_ranking != wanted["ranking_sha256"]:
        yield (
            "data: other data than those of the certificate, with other "
            f"scores or other {_OTHER[kind]}"
        )
    elif of_rows != wanted["rows_sha256"] and not rows.rounded:
        differ = "the scores differ"
        if kind == "costs":
            differ = "the scores or the facts of the costs differ"
        yield (
            f"data: {differ}, but not their order nor which are "
            "right: the certificate may be of another scale or rounding"
        )


def _compared(
    stated: dict[str, Any], again: dict[str, Any], rounded: bool, of: str = ""
) -> Iterator[str]:
    """Differences between facts of a certificate and of the data."""
    for name, value in again.items():
        if name == "groups":
            for one, other in zip(stated[name], value, strict=True):
                about = f" of group {other['group']!r}"
                yield from _compared(one, other, rounded, about)
            continue
        close = _CLOSE
        if rounded and name in ("threshold", "confidence"):
            close = _ROUNDED
        if not _same(stated.get(name), value, close):
            yield (
                f"{name}{of}: the data give {value!r}, certified "
                f"{stated.get(name)!r}"
            )
    for name in stated.keys() - again.keys():
        yield f"{name}{of}: no such fact follows from the data"


def _same(stated: Any, value: Any, close: float) -> bool:
    if type(stated) is not type(value):
        return False
    if isinstance(value, float):
        return math.isclose(stated, value, rel_tol=close, abs_tol=1e-12)
    return bool(stated == value)


class _Rows(NamedTuple):
    """Data of a certificate `(n,)`.

    Attributes:
        given: Scores or confidences as they were given.
        score: Scores in float32; of answers in float64, after a calibrator.
        correct: Correctness, 0 or 1, in float64.
        cost: Costs in float64, or None.
        place: Place of each group in the certificate, or None; -1 for a group
            that it does not have.
        rounded: Whether scores come from confidences, which are rounded.
    """

    given: np.ndarray
    score: np.ndarray
    correct: np.ndarray
    cost: Any
    place: Any
    rounded: bool

    def outcomes(self, names: tuple = ()) -> Outcomes:
        """The rows as outcomes, by group if there are names of groups."""
        group = self.place if names else None
        return Outcomes(self.score, self.correct, group=group, names=names)


def _read_rows(
    found: dict[str, Any],
    scores: Any,
    confidence: Any,
    correct: Any,
    groups: Any,
    cost: Any,
) -> _Rows:
    """The data for a certificate; raises ValueError for those of a wrong form.

    Arguments are those of `check_certificate`.
    """
    kind, is_of_model = found["kind"], found["artefact"] is not None
    if not found["data"]:
        raise value_error(
            "`scores` must be left out, as all other data: no data chose the "
            "threshold of this certificate",
            method=found["guarantee"]["method"],
        )
    for argument, column, of in (
        ("groups", groups, BY_GROUP),
        ("cost", cost, ("costs",)),
    ):
        if (kind in of) != (column is not None):
            rule = "given" if kind in of else "left out"
            raise value_error(
                f"`{argument}` must be {rule} for this certificate",
                kind=kind,
            )
    name = "scores" if confidence is None else "confidence"
    values = scores if confidence is None else confidence
    both = scores is not None and confidence is not None
    if values is None or correct is None or both:
        raise value_error(
            "One of `scores` and `confidence` must be given, with `correct`",
            scores=type(scores).__name__,
            confidence=type(confidence).__name__,
            correct=type(correct).__name__,
        )
    given = _column(name, values, np.asarray(correct))
    correct = _column("correct", correct, given)
    _check_rows("correct", (correct == 0) | (correct == 1), "be 0 or 1")
    score = _score(found, name, given)
    _check_rows(name, ~np.isnan(score), "not be NaN")
    places = None if groups is None else _places(found, groups, given)
    if cost is not None:
        cost, largest = _column("cost", cost, given), found["costs"]["largest"]
        rule = f"lie between 0 and the largest of the certificate, {largest:g}"
        _check_rows("cost", (cost >= 0) & (cost <= largest), rule)
        cost = cost.astype("float64")
    return _Rows(
        given,
        score,
        correct.astype("float64"),
        cost,
        places,
        rounded=confidence is not None and is_of_model,
    )


def _score(found: dict[str, Any], name: str, given: np.ndarray) -> np.ndarray:
    """What the threshold is compared with, of scores or of confidences."""
    scale, column = found["score"]["scale"], found["score"]["name"]
    if found["artefact"] is None:
        if name.rstrip("s") != column:
            raise value_error(
                f"`{column}` must be given for this certificate, whose "
                "threshold is for it",
                given=name,
            )
        given = given.astype("float64")
        if column == "confidence":
            inside = (given >= 0) & (given <= 1)
            _check_rows(name, inside, "lie between 0 and 1")
        return calibrated_confidence(found["calibrator"], given)
    if name == "scores":
        return given.astype("float32")
    if scale != "log-odds":
        raise value_error(
            "`confidence` needs a score in log-odds: give `scores`",
            score=column,
        )
    given = given.astype("float64")
    _check_rows(name, (given > 0) & (given < 1), "lie between 0 and 1")
    return (np.log(given) - np.log1p(-given)).astype("float32")


def _places(found: dict[str, Any], groups: Any, like: np.ndarray) -> np.ndarray:
    """The place of each group among those of the certificate, or -1."""
    names = np.array(_group_names(found))
    given = np.asarray(groups)
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
    _column("groups", given, like, kinds="iuU")
    if (given.dtype.kind == "U") != (names.dtype.kind == "U"):
        # A table of text does not tell 3 from "3".
        given, names = given.astype(str), names.astype(str)
    order = np.argsort(names, kind="stable")
    place = np.searchsorted(names[order], given)
    place = order[np.minimum(place, len(names) - 1)]
    return np.where(names[place] == given, place, -1)


def _column(
    name: str, given: Any, like: np.ndarray, kinds: str = "biuf"
) -> np.ndarray:
    """An array `(n,)`, which must be as long as another."""
    given = np.asarray(given)
    if given.ndim != 1 or given.shape != like.shape or not len(given):
        raise value_error(
            f"`{name}` must have the shape `(n,)` of all columns, with n >= 1",
            **{name: given.shape, "others": like.shape},
        )
    if given.dtype.kind not in kinds:
        raise value_error(
            f"`{name}` must hold numbers", **{name: given.dtype.name}
        )
    return given


def _check_rows(name: str, good: np.ndarray, rule: str) -> None:
    if not good.all():
        raise value_error(
            f"`{name}` must {rule}",
            row=int(np.argmin(good)) + 1,
            bad_rows=int((~good).sum()),
        )


def _group_names(found: dict[str, Any]) -> tuple:
    return tuple(x["group"] for x in found["selection"]["groups"])


def _again(found: dict[str, Any], rows: _Rows) -> dict[str, dict[str, Any]]:
    """The facts of the threshold chosen again.

    Raises ValueError if no threshold reaches the target of the certificate.
    """
    claim, kind = found["guarantee"], found["kind"]
    coverage, scale = claim.get("coverage"), found["score"]["scale"]
    known = COST_TESTS if kind == "costs" else ("ltt",)
    if coverage is None and claim["method"] not in known:
        raise value_error(
            "`method` of the certificate must be one that this version can "
            "compute again: use the version that made it",
            method=claim["method"],
            keras_calib=found["keras_calib"],
        )
    if kind == "costs":
        largest = float(found["costs"]["largest"])
        chosen: Any = _by_costs(found, rows, largest)
        return facts_of(kind, chosen, scale, largest_cost=largest)
    target = ErrorTarget(None, coverage, None)
    if coverage is None:
        target = ErrorTarget(claim["risk"], None, claim["delta"])
    names = _group_names(found) if kind in BY_GROUP else ()
    chosen = target.check().choose(rows.outcomes(names), scale == "log-odds")
    return facts_of(kind, chosen, scale, coverage=coverage)


def _by_costs(found: dict[str, Any], rows: _Rows, largest: float) -> Any:
    claim, one = found["guarantee"], found["costs"]["one_cost"]
    if one and not np.all((rows.cost == 0.0) | (rows.cost == largest)):
        raise value_error(
            "every cost must be 0 or the largest one, as certified",
            largest=largest,
        )
    limits = claim["mean_cost"], claim["reject_cost"], None
    target = CostTarget(largest, one, *limits, claim["delta"], claim["method"])
    outcomes = Outcomes(
        rows.score,
        rows.correct,
        rows.cost,
        weight=np.ones(len(rows.cost)),
    )
    return target.check().choose(outcomes)
