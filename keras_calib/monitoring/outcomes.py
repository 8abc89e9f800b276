"""Answers and labels that come into a monitor, checked."""

import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.values import located
from keras_calib.monitoring.monitor_record import TOTALS
from keras_calib.monitoring.monitor_record import totals_of
from keras_calib.numerics.arrays import as_array

__all__ = [
    "by_hypothesis",
    "read_answers",
    "read_labels",
    "read_sums",
    "sums_of",
]

# Bits of the hash of an answer that are summed.
_BITS = 16


def read_answers(
    confidence: Any, accepted: Any, correct: Any, *, calibration: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Confidence, acceptance and correctness `(n,)`, NaN without a label."""
    if confidence is None:
        if calibration:
            raise value_error(
                "`confidence` must be given: calibration is watched; "
                "`tolerance=None` leaves it out",
                confidence=confidence,
            )
        accepted = _numbers(accepted, "accepted")
        shape = accepted.shape
        if not shape and correct is not None:
            shape = _numbers(correct, "correct").shape
        # No number that depends on it is shown.
        confidence = np.zeros(shape or (1,))
    confidence = np.atleast_1d(_numbers(confidence, "confidence"))
    shape = confidence.shape
    if len(shape) != 1:
        raise value_error(
            "`confidence` must have shape (n,)", **{"confidence.shape": shape}
        )
    bad = ~((confidence >= 0.0) & (confidence <= 1.0))
    if bad.any():
        raise value_error("`confidence` must lie in [0, 1]", **located(bad))
    correct = np.nan if correct is None else correct
    found = []
    for name, x in (("accepted", accepted), ("correct", correct)):
        x = _numbers(x, name)
        if x.shape not in ((), shape):
            raise value_error(
                f"`{name}` must have the shape of `confidence`",
                **{f"{name}.shape": x.shape, "confidence.shape": shape},
            )
        if x.shape != shape:
            x = np.full(shape, x)
        _check_binary(x, name=name, allow_nan=name == "correct")
        found.append(x)
    return confidence, found[0] > 0.5, found[1]


def read_labels(correct: Any) -> np.ndarray:
    """Correctness `(n,)` of answers that all have a label."""
    correct = np.atleast_1d(_numbers(correct, "correct"))
    if correct.ndim != 1:
        raise value_error(
            "`correct` must have shape (n,)", **{"correct.shape": correct.shape}
        )
    _check_binary(correct, name="correct", allow_nan=False)
    return correct


def read_sums(
    sums: Any, sizes: Mapping[str, int], marks: np.ndarray
) -> list[np.ndarray]:
    """The parts of an array of `Monitor.sums`, and the totals.

    Args:
        sums: The array.
        sizes: Number of alternatives of each hypothesis.
        marks: What tells the arguments of the monitor from others.
    """
    sums = as_array(sums, "sums", "float64")
    lengths = [
        *(x + 3 for x in sizes.values()),
        len(TOTALS),
        _BITS + len(marks),
    ]
    shape = (sum(lengths),)
    if sums.shape != shape or not np.isfinite(sums).all():
        raise value_error(
            f"`sums` must be finite and have shape {shape}, of `sums` of a "
            "monitor with the same arguments",
            **{"sums.shape": sums.shape},
        )
    *parts, totals, seal = np.split(sums, np.cumsum(lengths[:-1]))
    told = dict(zip(TOTALS, totals.tolist(), strict=True))
    if (seal[_BITS:] != told["answers"] * marks).any():
        raise value_error(
            "`sums` must be of monitors with the same arguments as this one",
            answers=told["answers"],
        )
    facts = _facts_of(told)
    same = all(
        np.allclose(part[-3:], facts[name], rtol=1e-9, atol=1e-6)
        for name, part in zip(sizes, parts, strict=True)
    )
    if not same or not _are_counts(told, seal[:_BITS]):
        raise value_error(
            "`sums` must be counts of answers, as `sums` returns them, or a "
            "sum of such arrays",
            **told,
        )
    return [*parts, totals]


def sums_of(
    outcomes: Sequence[np.ndarray], holds: Mapping[str, Any], marks: np.ndarray
) -> np.ndarray:
    """The array of `Monitor.sums`, of what `read_answers` returns."""
    labelled = [x[~np.isnan(outcomes[2])] for x in outcomes]
    values = by_hypothesis(outcomes[1], *labelled)
    found: list[Any] = []
    for name, each in holds.items():
        found.append(each.log_factors(*values[name]).sum(axis=0))
        found.append([len(values[name][0])])
        found.append(each.facts(*values[name]).sum(axis=0))
    found.append(totals_of(outcomes[1], *labelled))
    return np.concatenate([*found, _seal_of(outcomes[0], marks)])


def _seal_of(confidence: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """What sums of answers `(n,)` have besides, which adds as they do.

    Halves of sums are no sums: they show in bits of hashes, of which about
    every second has an odd sum. And each answer has the marks of the arguments.
    """
    hashed = confidence.view("uint64") * np.uint64(0x9E3779B97F4A7C15)
    bits = hashed[:, None] >> np.arange(64 - _BITS, 64, dtype="uint64") & 1
    return np.concatenate([bits.sum(axis=0), len(confidence) * marks])


def _facts_of(told: Mapping[str, float]) -> dict[str, tuple[float, ...]]:
    """Number of outcomes and their facts by hypothesis, of the totals."""
    of_accepted = told["accepted_labelled"], told["accepted_wrong"], 0.0
    of_labelled = told["labelled"], told["correct"], told["confidence"]
    of_all = told["answers"], told["accepted"], 0.0
    return {
        "risk": of_accepted,
        "calibration": of_labelled,
        "coverage": of_all,
    }


def _are_counts(told: Mapping[str, float], bits: np.ndarray) -> bool:
    """Whether totals can be those of answers."""
    known, right = told["labelled"], told["correct"]
    accepted, wrong = told["accepted_labelled"], told["accepted_wrong"]
    unknown = told["accepted"] - accepted
    # Right and wrong accepted answers, right and wrong rejected ones, and
    # accepted and rejected ones without a label.
    cells = [accepted - wrong, wrong, right - accepted + wrong]
    cells += [known - right - wrong, unknown, told["answers"] - known - unknown]
    cells += bits.tolist()
    whole = all(x >= 0 and x == math.floor(x) for x in cells)
    return whole and 0.0 <= told["confidence"] <= known * (1.0 + 1e-9)


def by_hypothesis(
    accepted: np.ndarray,
    confidence: np.ndarray,
    labelled_accepted: np.ndarray,
    correct: np.ndarray,
) -> dict[str, tuple[np.ndarray, ...]]:
    """Outcomes by hypothesis: `accepted` of all, the others of labelled."""
    return {
        "risk": (1.0 - correct[labelled_accepted],),
        "calibration": (confidence, correct),
        "coverage": (accepted,),
    }


def _numbers(x: Any, name: str) -> np.ndarray:
    # The usual kinds need no search for tensors, which takes longer than all
    # that the monitor does with one answer.
    usual = isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "bf"
    if usual or isinstance(x, bool | float):
        return np.asarray(x, "float64")
    return as_array(x, name, "float64")


def _check_binary(x: np.ndarray, *, name: str, allow_nan: bool) -> None:
    bad = (x != 0.0) & (x != 1.0)
    if allow_nan:
        bad &= ~np.isnan(x)
    if bad.any():
        rule = " or 1, or NaN without a label" if allow_nan else " or 1"
        raise value_error(f"`{name}` must be 0{rule}", **located(bad))
