"""The file of a threshold that `keras-calib threshold` chose for answers."""

import json
from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.selection import ChosenThreshold
from keras_calib.selection import GroupThresholds
from keras_calib.version import __version__

__all__ = ["is_threshold_file", "read_threshold", "write_threshold"]

# Number of the form of the file.
_SCHEMA = 1
_KEY = "answer_threshold"
_FACTS = "coverage", "risk", "certified_risk", "delta", "method"


def write_threshold(
    path: Any,
    chosen: ChosenThreshold | GroupThresholds,
    column: str,
    calibrator: dict[str, Any] | None,
) -> None:
    """Writes a threshold as JSON, for programs in any language.

    Args:
        path: The file, which is replaced as a whole.
        chosen: The threshold, or those of groups.
        column: What it is for, `"confidence"` or `"score"`.
        calibrator: What the confidence goes through first, or None.
    """
    facts: dict[str, Any] = {
        _KEY: _SCHEMA,
        "keras_calib": __version__,
        "column": column,
        "calibrator": calibrator,
        "threshold": None,
        **{name: getattr(chosen, name) for name in _FACTS},
    }
    if isinstance(chosen, GroupThresholds):
        facts["num_samples"] = sum(chosen.num_samples)
        facts["groups"] = [
            {
                "group": name,
                "threshold": _plain(threshold, column),
                "num_samples": count,
                "coverage": coverage,
                "risk": risk,
            }
            for name, threshold, count, coverage, risk in zip(
                chosen.group,
                chosen.threshold,
                chosen.num_samples,
                chosen.group_coverage,
                chosen.group_risk,
                strict=True,
            )
        ]
    else:
        facts["num_samples"] = chosen.num_samples
        facts["threshold"] = _plain(chosen.threshold, column)
    text = json.dumps(facts, indent=2, allow_nan=False)
    with replacing(Path(path)) as file:
        file.write(f"{text}\n".encode())


def is_threshold_file(path: Any) -> bool:
    """Whether a file is one that `write_threshold` made."""
    return _KEY in (_read(path) or {})


def read_threshold(path: Any) -> ChosenThreshold:
    """The threshold of a file; ValueError for thresholds by group."""
    facts = _read(path) or {}
    if facts.get(_KEY) != _SCHEMA:
        raise value_error(
            "The threshold must be of a form that this version knows: use the "
            "version of keras-calib that made it",
            answer_threshold=facts.get(_KEY),
            known=_SCHEMA,
        )
    if facts.get("threshold") is None:
        raise value_error(
            "The file must have one threshold, not one for each group: watch "
            "each group by itself, with --risk and --coverage",
            groups=[one["group"] for one in facts.get("groups", ())][:20],
        )
    try:
        return ChosenThreshold(
            threshold=float(facts["threshold"]),
            coverage=float(facts["coverage"]),
            risk=float(facts["risk"]),
            num_samples=int(facts["num_samples"]),
            certified_risk=facts["certified_risk"],
            delta=facts["delta"],
            method=facts["method"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise value_error(
            "The file of a threshold must be as `keras-calib threshold` "
            "writes it",
            file=str(path),
            error=repr(error),
        ) from error


def _read(path: Any) -> dict[str, Any] | None:
    """The facts of a file of JSON; None if it holds something else."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _plain(threshold: float, column: str) -> float | str:
    """JSON has no infinity: it becomes a text, as in certificates.

    A confidence of 0 accepts every answer too.
    """
    threshold = float(threshold)
    if threshold == -float("inf") and column == "confidence":
        return 0.0
    return threshold if abs(threshold) < float("inf") else str(threshold)
