"""Certificates of exports, and the records of the data that they are of."""

import hashlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import invalid, type_error, value_error
from keras_calib.exporting.statement import artefact_files, canonical, stated
from keras_calib.exporting.statement_facts import (
    METHODS,
    facts_of,
    facts_of_chow,
    facts_of_given,
    told_costs,
)
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.writer import write_columns
from keras_calib.selection import SelectiveClassifier
from keras_calib.selection.data_hash import cost_rows, rows_of

# Larger configurations of calibrators are told by their hash alone.
_MOST_CHARACTERS = 2000


def check_certifiable(selector: Any, what: str = "`certificate=True`") -> str:
    """The kind of the certificate; raises unless there is something to certify.

    That is a guarantee of `fit`, or Chow's rule. `what` names the caller.
    """
    if isinstance(selector, MultiLabelSelector):
        raise value_error(
            f"{what} needs a `SelectiveClassifier`: certificates "
            "are not for several labels",
            selector=type(selector).__name__,
        )
    _check_like_fit(selector, what)
    chosen = getattr(selector, "chosen", None)
    with_costs = getattr(selector, "costs", None) is not None
    kind = "costs" if with_costs else "errors"
    if getattr(chosen, "kind", None) == "groups":
        kind = "groups"
    if with_costs and (chosen is None or chosen.method == "chow"):
        kind, price = "chow", -selector.threshold
        if not 0.0 <= price < np.inf:
            raise value_error(
                f"{what} needs a `selector` whose threshold is "
                "minus the price of a rejection, with costs",
                threshold=-price,
            )
    elif chosen is None or None in (chosen.delta, chosen.data_sha256):
        limit = "max_cost" if with_costs else "risk"
        raise value_error(
            f"{what} needs a `selector` that was fitted with "
            f"`{limit}` and `delta`, which guarantee something",
            chosen=chosen,
        )
    elif chosen.method not in METHODS[kind]:
        raise value_error(
            f"{what} needs a threshold that can be chosen again "
            f"from its data alone, by one of {sorted(METHODS[kind])}",
            method=chosen.method,
        )
    if chosen is not None and not np.array_equal(
        np.float32(chosen.threshold), np.float32(selector.threshold)
    ):
        raise RuntimeError(
            invalid(
                "The threshold must be the one that `fit` chose: fit again",
                threshold=selector.threshold,
                chosen=chosen.threshold,
            )
        )
    return kind


def certificate_of(
    selector: SelectiveClassifier,
    variables: list[Any],
    path: Path,
    format: str,
    replay: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The certificate of a model, whose files are at the path.

    `variables` are those of its network. With `replay`, the selector and
    samples to run again, a threshold may be one that nothing guarantees.
    """
    chosen: Any = selector.chosen
    score = selector.score
    kind = "given"
    is_promised = getattr(chosen, "delta", None) is not None
    if replay is None or is_promised or selector.costs is not None:
        what = "`certificate=True`" if replay is None else "`attach`"
        kind = check_certifiable(selector, what)
    scale = "log-odds" if isinstance(score, str) and score == "msp" else "own"
    if not isinstance(score, str):
        score = getattr(score, "__name__", type(score).__name__)
    others: dict[str, Any] = {} if replay is None else {"replay": replay}
    largest, data = 1.0, {}
    if selector.costs is not None:
        others["costs"] = told_costs(selector.costs)
        largest = others["costs"]["largest"]
    if kind == "given":
        facts = facts_of_given(selector.threshold, selector.groups)
    elif kind == "chow":
        facts = facts_of_chow(selector.threshold)
    else:
        facts = facts_of(kind, chosen, scale, largest_cost=largest)
        data = {
            "rows_sha256": chosen.data_sha256,
            "ranking_sha256": chosen.ranking_sha256,
        }
    return stated(
        kind,
        facts,
        score={"name": score, "scale": scale},
        calibrator=_calibrator_facts(selector.calibrator),
        data=data,
        weights=_weight_facts([*variables, *selector.variables]),
        artefact={"format": format, "files": artefact_files(path)},
        **others,
    )


def _calibrator_facts(calibrator: Any) -> dict[str, Any] | None:
    if calibrator is None:
        return None
    config = plain(keras.saving.serialize_keras_object(calibrator)["config"])
    hashed = hashlib.sha256(canonical(config))
    for variable in calibrator.variables:
        hashed.update(_bytes_of(variable))
    short = len(canonical(config)) <= _MOST_CHARACTERS
    return {
        "name": type(calibrator).__name__,
        "config": config if short else None,
        "sha256": hashed.hexdigest(),
    }


def _weight_facts(variables: list[Any]) -> dict[str, Any]:
    """Hash of each variable, in the order of the model, and of all."""
    told = []
    for variable in {id(v): v for v in variables}.values():
        if not hasattr(variable, "shape"):
            continue
        told.append(
            {
                "path": variable.path,
                "shape": [*variable.shape],
                "dtype": keras.backend.standardize_dtype(variable.dtype),
                "sha256": hashlib.sha256(_bytes_of(variable)).hexdigest(),
            }
        )
    rest = [{k: v for k, v in x.items() if k != "path"} for x in told]
    # Paths have numbers that differ between processes.
    sha256 = hashlib.sha256(canonical(rest)).hexdigest()
    return {"sha256": sha256, "variables": told}


def _bytes_of(variable: Any) -> bytes:
    array = to_numpy(variable)
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def plain(value: Any) -> Any:
    """The same of JSON alone, which has no infinity and no NaN."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return {"number": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def save_records(selector: SelectiveClassifier, path: Any) -> Path:
    """Writes the score and correctness of each sample that chose a threshold.

    Use it to give an auditor what `python -m keras_calib verify --data` reads.
    Rows are sorted by group and score, so that they do not tell which sample is
    which.

    Args:
        selector: A selective classifier that was fitted in this process.
        path: File that ends in `.npz`, `.csv`, `.tsv`, `.parquet` or
            `.jsonl`. Its columns are `score` (float32) and `correct` (0 or
            1); also `group` after a fit with groups, and `cost` (float64)
            after one with costs.

    Returns:
        The path.

    Raises:
        ValueError: If the path has another ending, or the samples have weights.
        RuntimeError: If the selector was loaded, or not fitted.
        ImportError: If pyarrow is missing, which parquet needs.

    Example:

    >>> import tempfile
    >>> selector = SelectiveClassifier(score="logit_margin")
    >>> logits = [[4.0, 0.0], [0.0, 3.0], [2.0, 0.0]]
    >>> selector = selector.fit([0, 1, 1], logits, risk=0.0)
    >>> save_records(selector, tempfile.mkdtemp() + "/records.npz").name
    'records.npz'

    Reference:
        https://parquet.apache.org
    """
    if not isinstance(selector, SelectiveClassifier):
        raise type_error(
            "`selector` must be a SelectiveClassifier",
            selector=type(selector).__name__,
        )
    _check_like_fit(selector, "`save_records`")
    columns = _columns(selector)
    return write_columns(path, columns, [columns])


def _check_like_fit(selector: Any, what: str) -> None:
    """Raises ValueError if the guarantee is for other data than the fit's.

    `what` names the caller in the error.
    """
    chosen = getattr(selector, "chosen", None)
    if chosen is not None and chosen.kind in ("prior", "mixtures"):
        raise value_error(
            f"{what} needs a `selector` whose guarantee is for data like those "
            "of its fit: certificates are not for `target_prior` and "
            "`one_threshold`",
            kind=chosen.kind,
        )


def _columns(selector: SelectiveClassifier) -> dict[str, Any]:
    """The columns of the records by name, in canonical order."""
    chosen = selector.chosen
    ladders = [] if chosen is None else [one for one, *_ in chosen.tables]
    if chosen is None or not ladders:
        raise RuntimeError(
            invalid(
                "`selector` must have its data, which loaded layers do not "
                "keep: call this after `fit`",
                fitted=selector.fitted,
            )
        )
    some = [one for one in ladders if one is not None]
    if not all(one.counts for one in some):
        raise value_error(
            "`selector` must be fitted on samples without weights", counts=False
        )
    if chosen.cost_rows is not None:
        score, cost, correct = cost_rows(*chosen.cost_rows)
        return {"score": score, "cost": cost, "correct": correct}
    parts = [rows_of(one) for one in some]
    score, correct = (np.concatenate(x) for x in zip(*parts, strict=True))
    found = {"score": score, "correct": correct}
    if not selector.groups:
        return found
    named = zip(selector.groups, ladders, strict=True)
    sizes = [len(x) for x, _ in parts]
    names = np.array([name for name, one in named if one is not None])
    return {"group": np.repeat(names, sizes), **found}
