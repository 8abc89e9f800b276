"""The certificate of an exported model: what was guaranteed, and of what."""

import hashlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import invalid
from keras_calib.backend.errors import value_error
from keras_calib.exporting.certificate_file import SCHEMA
from keras_calib.exporting.certificate_file import artefact_files
from keras_calib.exporting.certificate_file import canonical
from keras_calib.exporting.certificate_file import digest_of
from keras_calib.exporting.certificate_file import facts_of
from keras_calib.exporting.records import check_certified_kind
from keras_calib.exporting.served_model import ServedModel
from keras_calib.numerics.arrays import to_numpy
from keras_calib.selection import ChosenThreshold
from keras_calib.selection.guarantees import METHODS
from keras_calib.version import __version__

__all__ = ["certificate_of", "check_certifiable"]

# Facts of a threshold that have a place of their own in a certificate.
_KNOWN = (
    *("threshold", "coverage", "risk", "num_samples", "certified_risk"),
    *("delta", "method", "confidence", "data_sha256", "ranking_sha256"),
)
# Larger configurations of calibrators are told by their hash alone.
_MOST_CHARACTERS = 2000


def check_certifiable(selector: Any) -> ChosenThreshold:
    """The facts to certify; raises unless `fit` guaranteed the threshold."""
    check_certified_kind(selector, "`certificate=True`")
    chosen = getattr(selector, "chosen", None)
    if chosen is None or chosen.delta is None or chosen.data_sha256 is None:
        raise value_error(
            "`certificate=True` needs a `selector` that was fitted with "
            "`risk` and `delta`, which guarantee something",
            chosen=chosen,
        )
    if chosen.method not in METHODS:
        raise value_error(
            "`certificate=True` needs a method that can be computed again "
            f"from scores and correctness, one of {sorted(METHODS)}",
            method=chosen.method,
        )
    if np.float32(chosen.threshold) != np.float32(selector.threshold):
        raise RuntimeError(
            invalid(
                "The threshold must be the one that `fit` chose: fit again",
                threshold=selector.threshold,
                chosen=chosen.threshold,
            )
        )
    return chosen


def certificate_of(
    served: ServedModel, path: Path, format: str
) -> dict[str, Any]:
    """The certificate of a model, whose files are at the path."""
    selector = served.selector
    chosen = check_certifiable(selector)
    score = selector.score
    if not isinstance(score, str):
        score = getattr(score, "__name__", type(score).__name__)
    further = {
        name: value
        for name, value in chosen._asdict().items()
        if name not in _KNOWN and value is not None
    }
    certificate = {
        "certificate": SCHEMA,
        "keras_calib": __version__,
        **facts_of(chosen),
        "score": {
            "name": score,
            "scale": "own" if chosen.confidence is None else "log-odds",
        },
        "calibrator": _calibrator_facts(selector.calibrator),
        "data": {
            "rows_sha256": chosen.data_sha256,
            "ranking_sha256": chosen.ranking_sha256,
        },
        "further": _plain(further),
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
