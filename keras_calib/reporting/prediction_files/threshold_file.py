"""The file of a threshold that `keras-calib threshold` chose for answers."""

import hashlib
import json
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of, replacing
from keras_calib.exporting.certificate_file import digest_of
from keras_calib.reporting.answer_thresholds import KEY, SCHEMA, load_threshold
from keras_calib.selection import Choice
from keras_calib.version import __version__

__all__ = [
    "is_threshold_file",
    "read_threshold",
    "rows_sha256",
    "threshold_facts",
    "write_threshold",
]

_FACTS = "coverage", "risk", "delta", "method"


def threshold_facts(
    chosen: Choice,
    *,
    column: str,
    calibrator: dict[str, Any] | None,
    target: dict[str, Any],
    data: dict[str, Any],
) -> dict[str, Any]:
    """What a file says of a threshold, for programs in any language.

    Args:
        chosen: The threshold, or those of groups.
        column: What it is for, `"confidence"` or `"score"`.
        calibrator: What the confidence goes through first, or None.
        target: What it was chosen for: risk, coverage, delta, method.
        data: Columns and hash of the log.
    """
    facts: dict[str, Any] = {
        KEY: SCHEMA,
        "keras_calib": __version__,
        "column": column,
        "calibrator": calibrator,
        "threshold": None,
        **{name: getattr(chosen, name) for name in _FACTS},
        "certified_risk": chosen.limit,
        "num_samples": chosen.num_samples,
        "target": target,
        "data": data,
    }
    if isinstance(chosen.threshold, tuple):
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
                chosen.group_samples,
                chosen.group_coverage,
                chosen.group_risk,
                strict=True,
            )
        ]
    else:
        facts["threshold"] = _plain(chosen.threshold, column)
    return {**facts, "digest": digest_of(facts)}


def write_threshold(path: Any, facts: dict[str, Any]) -> None:
    """Writes the facts of a threshold as JSON; the file is replaced whole."""
    text = json.dumps(facts, indent=2, allow_nan=False)
    with replacing(path) as file:
        file.write(f"{text}\n".encode())


def rows_sha256(
    values: np.ndarray, correct: np.ndarray, group: np.ndarray | None
) -> str:
    """SHA-256 of labelled answers, in whatever order they are.

    It is that of the sorted rows of value and correctness in float64, with the
    group before them where there is one.
    """
    names = np.zeros(len(values), str) if group is None else group.astype(str)
    order = np.lexsort((correct, values, names))
    hashed = hashlib.sha256()
    if group is not None:
        hashed.update("\0".join(names[order].tolist()).encode())
    # -0.0 is 0.0.
    rows = np.stack([values[order], correct[order]], axis=-1) + 0.0
    hashed.update(rows.astype("<f8").tobytes())
    return hashed.hexdigest()


def is_threshold_file(path: Any) -> bool:
    """Whether a file is one that `write_threshold` made."""
    try:
        found = json.loads(path_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and KEY in found


def read_threshold(path: Any) -> Choice:
    """The threshold of a file; ValueError for thresholds by group."""
    facts = load_threshold(path).facts
    if facts.get("threshold") is None:
        raise value_error(
            "The file must have one threshold, not one for each group: watch "
            "each group by itself, with --risk and --coverage",
            groups=[one["group"] for one in facts.get("groups", ())][:20],
        )
    try:
        found = {name: facts[name] for name in ("num_samples", *_FACTS)}
        limit = facts["certified_risk"]
        return Choice(float(facts["threshold"]), limit=limit, **found)
    except (KeyError, TypeError, ValueError) as error:
        raise value_error(
            "The file of a threshold must be as `keras-calib threshold` "
            "writes it",
            file=str(path),
            error=repr(error),
        ) from error


def _plain(threshold: float, column: str) -> float | str:
    """JSON has no infinity: it becomes a text, as in certificates.

    A confidence of 0 accepts every answer too.
    """
    threshold = float(threshold)
    if threshold == -float("inf") and column == "confidence":
        return 0.0
    return threshold if abs(threshold) < float("inf") else str(threshold)
