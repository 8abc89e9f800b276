"""The certificate of an exported model: what was guaranteed, and of what."""

import hashlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import invalid, value_error
from keras_calib.exporting.certificate_facts import (
    facts_of_chow,
    facts_of_costs,
    facts_of_errors,
    facts_of_groups,
    told_costs,
)
from keras_calib.exporting.certificate_file import (
    SCHEMA,
    artefact_files,
    canonical,
    digest_of,
)
from keras_calib.exporting.records import check_like_fit
from keras_calib.exporting.served_model import ServedModel
from keras_calib.labels.selector import MultiLabelSelector
from keras_calib.numerics.arrays import to_numpy
from keras_calib.selection.costs import COST_TESTS
from keras_calib.version import __version__

__all__ = ["certificate_of", "check_certifiable"]

# Larger configurations of calibrators are told by their hash alone.
_MOST_CHARACTERS = 2000


def check_certifiable(selector: Any) -> str:
    """The kind of the certificate; raises unless there is something to certify.

    That is a guarantee of `fit`, or Chow's rule.
    """
    if isinstance(selector, MultiLabelSelector):
        raise value_error(
            "`certificate=True` needs a `SelectiveClassifier`: certificates "
            "are not for several labels",
            selector=type(selector).__name__,
        )
    check_like_fit(selector, "`certificate=True`")
    chosen = getattr(selector, "chosen", None)
    with_costs = getattr(selector, "costs", None) is not None
    if with_costs and (chosen is None or chosen.method == "chow"):
        price = -selector.threshold
        if not 0.0 <= price < np.inf:
            raise value_error(
                "`certificate=True` needs a `selector` whose threshold is "
                "minus the price of a rejection, with costs",
                threshold=-price,
            )
        _check_threshold(selector, chosen)
        return "chow"
    kind = "costs" if with_costs else "errors"
    if chosen is not None and chosen.kind == "groups":
        kind = "groups"
    if chosen is None or chosen.delta is None or chosen.data_sha256 is None:
        limit = "mean_cost" if with_costs else "risk"
        raise value_error(
            "`certificate=True` needs a `selector` that was fitted with "
            f"`{limit}` and `delta`, which guarantee something",
            chosen=chosen,
        )
    methods = COST_TESTS if with_costs else ("ltt",)
    if chosen.method not in methods:
        raise value_error(
            "`certificate=True` needs a threshold that can be chosen again "
            f"from its data alone, by one of {sorted(methods)}",
            method=chosen.method,
        )
    _check_threshold(selector, chosen)
    return kind


def _check_threshold(selector: Any, chosen: Any) -> None:
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


def certificate_of(
    served: ServedModel, path: Path, format: str
) -> dict[str, Any]:
    """The certificate of a model, whose files are at the path."""
    selector = served.selector
    kind = check_certifiable(selector)
    chosen: Any = selector.chosen
    score = selector.score
    log_odds = isinstance(score, str) and score == "msp"
    data = {}
    if kind != "chow":
        data = {
            "rows_sha256": chosen.data_sha256,
            "ranking_sha256": chosen.ranking_sha256,
        }
    if not isinstance(score, str):
        score = getattr(score, "__name__", type(score).__name__)
    costs = None if selector.costs is None else told_costs(selector.costs)
    if kind == "groups":
        facts = facts_of_groups(chosen, log_odds)
    elif costs is None:
        facts = facts_of_errors(chosen)
    elif kind == "costs":
        facts = {**facts_of_costs(chosen, costs["largest"]), "costs": costs}
    else:
        facts = {**facts_of_chow(selector.threshold), "costs": costs}
    certificate = {
        "certificate": SCHEMA,
        "kind": kind,
        "keras_calib": __version__,
        **facts,
        "score": {"name": score, "scale": "log-odds" if log_odds else "own"},
        "calibrator": _calibrator_facts(selector.calibrator),
        "data": data,
        "weights": _weight_facts(
            [*served.network.variables, *selector.variables]
        ),
        "artefact": {"format": format, "files": artefact_files(path)},
    }
    return {**certificate, "digest": digest_of(certificate)}


def _calibrator_facts(calibrator: Any) -> dict[str, Any] | None:
    if calibrator is None:
        return None
    config = _plain(keras.saving.serialize_keras_object(calibrator)["config"])
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


def _plain(value: Any) -> Any:
    """The same of plain JSON: numbers that it lacks become texts."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)
