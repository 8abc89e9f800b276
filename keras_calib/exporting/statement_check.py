"""The check of a statement, by the files and the data that it is of.

It takes NumPy and SciPy alone. Numbers follow from the data that chose the
threshold, by the same procedure; hashes from the files of the model.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

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
from keras_calib.exporting.statement_facts import BY_GROUP, compared, facts_of
from keras_calib.inputs.checks import located
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.results import Result
from keras_calib.numerics.softmax import log_odds_of
from keras_calib.predictions.predictions import Predictions
from keras_calib.predictions.roles import check_present, group_column
from keras_calib.predictions.tables import Table
from keras_calib.selection.costs import CostTarget
from keras_calib.selection.data_hash import cost_hashes, cost_rows, data_hashes
from keras_calib.selection.ladder import (
    by_group,
    named_group,
    of_scores,
    read_outcomes,
)
from keras_calib.selection.thresholds import ErrorTarget

# Relative error of numbers that come from another version of SciPy, and of a
# threshold from a confidence, which is rounded.
_CLOSE, _ROUNDED = 1e-9, 1e-3
# What data hold besides scores, by the kind of a certificate.
_OTHER = {
    "errors": "correctness",
    "groups": "correctness or groups",
    "costs": "costs or correctness",
}


class CertificateCheck(Result):
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

    def _facts(self) -> dict[str, Any]:
        return {"holds": self.holds, **super()._facts()}


def check_certificate(
    path: Any,
    scores: Any = None,
    correct: Any = None,
    *,
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
            `save_records` writes them; None checks the files alone. Or
            `Predictions`: calibrated outputs for a score in log-odds or of
            costs, or a log. For a log the hash of counts stands for that of
            scores, and the threshold is compared to three digits, unless the
            threshold is of answers. Or the path of a file of either: what
            `save_records` writes, or `Predictions.read` reads.
        correct: 1 for right and 0 for wrong predictions `(n,)`. None with
            `Predictions` or a file.
        groups: Group of each sample `(n,)`, integers or strings, for a
            selector with thresholds by group. With `Predictions` also the
            name of a group of theirs, with a file that of a column.
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
        not_checked.append(f"{what} apart from the files, which hold them")
    elif found["calibrator"] is not None:
        not_checked.append("the calibrator's fit: its log is not asked for")
    if found["kind"] == "chow" and found["costs"]["matrix"] is None:
        not_checked.append("the matrix of costs, of which only a hash is told")
    if isinstance(scores, str | os.PathLike):
        scores, correct, groups, cost = _of_file(
            found, scores, correct, groups, cost
        )
    given, is_log = (scores, correct, groups, cost), False
    if isinstance(scores, Predictions):
        scores.arguments(None, {"correct": correct})
        given = _columns_of(found, scores, groups, cost)
        is_log = scores.kind == "records"
    if any(x is not None for x in given):
        rows = _read_rows(found, *given, is_log=is_log)
        rounded = is_log and found["artefact"] is not None
        differences += _differing_numbers(found, rows, rounded)
        checked.append("numbers of the guarantee, from the data")
        if rounded:
            not_checked.append(
                "scores beyond three digits, which confidences do not have: "
                "give `scores` as `save_records` writes them"
            )
    elif found["data"]:
        kind = found["kind"]
        wanted = "`correct`" + " and `groups`" * (kind in BY_GROUP)
        wanted += " and `cost`" * (kind == "costs")
        not_checked.append(
            "numbers of the guarantee: the data that chose the threshold are "
            f"missing. Give `scores` with {wanted}, or in a shell --data"
        )
    if "replay" in found:
        what = "answers of file, calibrator and threshold to recorded samples"
        if differences:
            not_checked.append(f"{what}, as something differs already")
        else:
            try:
                # Here, as it needs Keras, and what runs the file.
                from keras_calib.exporting.file_model import replayed

                differences += replayed(path, found)
                checked.append(what)
            except ImportError as error:
                not_checked.append(f"{what}: {error}")
            except (LookupError, TypeError, ValueError) as error:
                differences.append(f"replay: it cannot be run: {error}")
    return CertificateCheck(
        tuple(differences), tuple(checked), tuple(not_checked), found
    )


def _differing_numbers(
    found: dict[str, Any], rows: Outcomes, rounded: bool
) -> Iterator[str]:
    """`rounded` says that scores come from confidences."""
    count = found["selection"]["num_samples"]
    if rows.names and (rows.group < 0).any():
        yield (
            f"data: {int((rows.group < 0).sum()):,} rows have a group that "
            "the certificate does not have"
        )
        return
    if count != len(rows.score):
        yield (
            f"data: other data than those of the certificate, "
            f"{len(rows.score):,} rows instead of {count:,}"
        )
    elif found["artefact"] is not None:
        yield from _differing_hashes(found, rows, rounded)
    elif rows_sha256(rows) != found["data"]["rows_sha256"]:
        yield "data: another log than that of the file, with other values"
    elif int((rows.correct == 0.0).sum()) != found["data"]["wrong"]:
        yield f"wrong: certified {found['data']['wrong']!r} in the data"
    try:
        facts = _again(found, rows)
    except (ValueError, TypeError) as error:
        yield f"guarantee: it does not follow from the data: {error}"
        return

    def close(name):
        is_rounded = rounded and name in ("threshold", "confidence")
        return _ROUNDED if is_rounded else _CLOSE

    for part in ("guarantee", "selection"):
        yield from compared(found[part], facts[part], "the data give", close)


def _differing_hashes(
    found: dict[str, Any], rows: Outcomes, rounded: bool
) -> Iterator[str]:
    kind, wanted = found["kind"], found["data"]
    differ = "the scores differ"
    if kind == "costs":
        of_rows, of_ranking = cost_hashes(
            cost_rows(rows.score, rows.cost, rows.correct),
            {k: x for k, x in found["costs"].items() if k != "matrix"},
        )
        differ = "the scores or the facts of the costs differ"
    elif kind == "groups":
        of_rows, of_ranking = data_hashes(by_group(rows), rows.names)
    else:
        of_rows, of_ranking = data_hashes([of_scores(rows)])
    if of_ranking != wanted["ranking_sha256"]:
        yield (
            "data: other data than those of the certificate, with other "
            f"scores or other {_OTHER[kind]}"
        )
    elif of_rows != wanted["rows_sha256"] and not rounded:
        yield (
            f"data: {differ}, but not their order nor which are "
            "right: the certificate may be of another scale or rounding"
        )


def _again(found: dict[str, Any], rows: Outcomes) -> dict[str, dict[str, Any]]:
    """The facts of the threshold chosen again.

    Raises ValueError if no threshold reaches the target of the certificate.
    """
    claim, kind = found["guarantee"], found["kind"]
    coverage, scale = claim.get("coverage"), found["score"]["scale"]
    largest = 1.0
    if kind == "costs":
        largest, one = found["costs"]["largest"], found["costs"]["one_cost"]
        if one and not np.all((rows.cost == 0.0) | (rows.cost == largest)):
            raise value_error(
                "every cost must be 0 or the largest one, as certified",
                largest=largest,
            )
        chosen = (
            CostTarget(
                float(largest),
                one,
                claim["max_cost"],
                claim["reject_cost"],
                None,
                claim["delta"],
                claim["method"],
            )
            .check()
            .choose(rows)
        )
    else:
        target = ErrorTarget(claim.get("risk"), coverage, claim.get("delta"))
        chosen = target.check().choose(rows, scale == "log-odds")
    return facts_of(
        kind, chosen, scale, coverage=coverage, largest_cost=float(largest)
    )


def _of_file(
    found: dict[str, Any], path: Any, correct: Any, groups: Any, cost: Any
) -> tuple[Any, ...]:
    """Records of a file, or its `Predictions`, and the data beside them."""
    if correct is not None:
        raise type_error(
            "`correct` must not be given beside a file, which has it",
            correct=type(correct).__name__,
        )
    if groups is None and found["kind"] in BY_GROUP:
        groups = found["data"].get("group") or "group"
    file, is_named = Table(path), isinstance(groups, str)
    values = {"score", "confidence"} & {*file.names}
    if not values or "correct" not in file.names:
        return Predictions.read(path), None, groups, cost
    read = records_of_file(found, file, {"groups": groups} if is_named else {})
    groups = read["groups"] if is_named else groups
    cost = read.get("cost") if cost is None else cost
    return read["scores"], read.get("correct"), groups, cost


def records_of_file(
    found: dict[str, Any], file: Table, names: Mapping[str, str | None]
) -> dict[str, Any]:
    """The arguments of `check_certificate` that a file of records has.

    Args:
        found: The certificate.
        file: The file, with a `score`, or else a `confidence`, for each row.
        names: Columns that have other names than `save_records` gives them:
            `score` or `confidence`, `correct`, `groups`, `cost`.
    """
    kind, values = found["kind"], ("score", "confidence")
    asked = [x for x in values if names.get(x)]
    if found["artefact"] is None:
        asked = [found["score"]["name"]]
    (value, *_) = asked or [x for x in values if x in file.names] or values
    wanted = {x: names.get(x) or x for x in (value, "correct")}
    if kind in BY_GROUP or names.get("groups"):
        group = names.get("groups") or "group"
        wanted["groups"] = group_column(group, file.names)
    if kind == "costs" or names.get("cost"):
        wanted["cost"] = names.get("cost") or "cost"
    check_present(file.path.name, file.names, [*wanted.values()])
    texts = [x for role, x in wanted.items() if role == "groups"]
    numbers = [x for role, x in wanted.items() if role != "groups"]
    parts = [*file.parts(texts, numbers)]
    if not parts:
        raise value_error(
            f"{file.path.name} must have records, not names alone", rows=0
        )
    columns = {
        role: np.concatenate([np.atleast_1d(x[name]) for x in parts])
        for role, name in wanted.items()
    }
    scores: Any = columns.pop(value)
    if value == "confidence":
        correct = columns.pop("correct")
        scores = Predictions(confidence=scores, correct=correct)
    return {"scores": scores, **columns}


def _columns_of(
    found: dict[str, Any], p: Predictions, groups: Any, cost: Any
) -> tuple[Any, ...]:
    """The data that `_read_rows` takes, of the rows that count."""
    if p.kind == "records":
        rows = p.outcomes(every=True)._replace(cost=cost)
    else:
        # Here, as they need Keras.
        from keras_calib.selection.rules import CostRule, ScoreRule
        from keras_calib.selection.tuning import outcomes_of

        matrix = found.get("costs", {}).get("matrix")
        if matrix is None and found["score"]["scale"] != "log-odds":
            raise value_error(
                "`Predictions` need a score in log-odds, or costs of which "
                "the matrix is told: give `scores`",
                score=found["score"]["name"],
            )
        rule = ScoreRule("msp") if matrix is None else CostRule(matrix)
        (rows,), _ = outcomes_of(p, None, [rule])
    group = named_group(p, groups)
    rows = rows._replace(group=group, unit=None).counted()
    return rows.score, rows.correct, rows.group, rows.cost


def _read_rows(
    found: dict[str, Any],
    scores: Any,
    correct: Any,
    groups: Any,
    cost: Any,
    *,
    is_log: bool,
) -> Outcomes:
    """The data for a certificate; raises ValueError for those of a wrong form.

    Scores are in float32; those of answers in float64, after a calibrator, and
    with the confidences of the log.
    """
    kind = found["kind"]
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
                f"`{argument}` must be {rule} for this certificate", kind=kind
            )
    if scores is None or correct is None:
        raise value_error(
            "`scores` must be given with `correct`, or be `Predictions`",
            scores=type(scores).__name__,
            correct=type(correct).__name__,
        )
    given = as_array(scores, "scores")
    if given.ndim != 1:
        told = {"scores.shape": given.shape}
        raise value_error("`scores` must have shape `(n,)`", **told)
    rows = read_outcomes(_score(found, given, is_log), correct)
    if found["artefact"] is None and is_log:
        rows = rows._replace(confidence=given)
    if groups is not None:
        names = tuple(x["group"] for x in found["selection"]["groups"])
        known, places = read_groups(groups, given.shape)
        # A table of text does not tell 3 from "3".
        place = {str(name): k for k, name in enumerate(names)}
        codes = np.array([place.get(str(name), -1) for name in known])
        rows = rows._replace(group=codes[places], names=names)
    if cost is None:
        return rows
    largest = found["costs"]["largest"]
    costs = read_outcomes(rows.score, cost, largest_cost=largest)
    return costs._replace(correct=rows.correct)


def _score(
    found: dict[str, Any], given: np.ndarray, is_log: bool
) -> np.ndarray:
    """What the threshold is compared with, of scores or of confidences."""
    scale, column = found["score"]["scale"], found["score"]["name"]
    if found["artefact"] is None:
        if is_log != (column == "confidence"):
            raise value_error(
                f"`{column}` must be given for this certificate, whose "
                "threshold is for it",
                given="confidence" if is_log else "scores",
            )
        return calibrated_confidence(
            found["calibrator"], given.astype("float64")
        )
    if not is_log:
        return given.astype("float32")
    if scale != "log-odds":
        raise value_error(
            "`Predictions` of a log need a score in log-odds: give `scores`",
            score=column,
        )
    bad = ~((given > 0) & (given < 1))
    if bad.any():
        raise value_error(
            "`confidence` must lie between 0 and 1", **located(bad)
        )
    return log_odds_of(given.astype("float64")).astype("float32")
