"""Certificates of exported models, and their check without Keras.

A certificate is a JSON file. Its numbers follow from the data that chose the
threshold, its hashes from the files of the model.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.exporting.certificate_file import artefact_files
from keras_calib.exporting.certificate_file import certificate_path
from keras_calib.exporting.certificate_file import differences_within
from keras_calib.exporting.certificate_file import facts_of
from keras_calib.exporting.certificate_file import read_certificate
from keras_calib.selection.candidates import ranked_candidates
from keras_calib.selection.data_hash import data_hashes
from keras_calib.selection.guarantees import METHODS
from keras_calib.selection.thresholds import ChosenThreshold
from keras_calib.selection.thresholds import Target
from keras_calib.selection.thresholds import choose

__all__ = ["CertificateCheck", "check_certificate"]

# Relative error of numbers that come from another version of SciPy, and of a
# threshold from a confidence, which is rounded.
_CLOSE, _ROUNDED = 1e-9, 1e-3


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
) -> CertificateCheck:
    """Computes the numbers and hashes of a certificate again.

    Use it before you deploy a model that somebody else certified. It reads the
    files of the model, and needs neither Keras nor TensorFlow when run as
    `python -m keras_calib verify`. With the data it chooses the threshold
    again, by the same procedure with the same guarantee.

    It cannot find that a whole certificate was made for a false claim from
    false data. Nor does it check hashes of weights and of the calibrator: the
    hashes of the files cover what is served. Sign the certificate by a tool of
    your own, so that others know who made it.

    Args:
        path: The exported folder or file.
        scores: Scores `(n,)` of the data that chose the threshold, as
            `save_records` writes them; None checks the files alone.
        correct: 1 for right and 0 for wrong predictions `(n,)`.
        confidence: Confidences `(n,)` in (0, 1) instead of scores, if the
            score is in log-odds. The hash of counts then stands for that of
            scores, and the threshold is compared to three digits.

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
    path = Path(path).expanduser()
    if not path.exists():
        raise value_error(
            "`path` must be an exported folder or file", path=str(path)
        )
    found = read_certificate(certificate_path(path))
    differences = [*differences_within(found), *_differing_files(found, path)]
    checked = [
        "digest and statement of the certificate",
        "every file of the model",
    ]
    not_checked = ["weights and calibrator by themselves (needs Keras)"]
    if found["further"]:
        not_checked.append(f"further facts: {', '.join(found['further'])}")
    if scores is None and correct is None and confidence is None:
        not_checked.append("numbers of the guarantee (needs the data)")
    else:
        rounded = confidence is not None
        rows = _read_rows(found, scores, confidence, correct)
        differences += _differing_numbers(found, *rows, rounded)
        checked.append("numbers of the guarantee, from the data")
    return CertificateCheck(
        tuple(differences), tuple(checked), tuple(not_checked), found
    )


def _differing_files(found: dict[str, Any], path: Path) -> Iterator[str]:
    wanted, files = found["artefact"]["files"], artefact_files(path)
    if not set(wanted) & set(files):
        yield (
            f"files: {path.name} is another kind of model than that of the "
            f"certificate ({found['artefact']['format']})"
        )
        return
    for name in sorted({*wanted, *files}):
        if name not in files:
            yield f"files: {name} is missing"
        elif name not in wanted:
            yield f"files: {name} is not in the certificate"
        elif wanted[name] != files[name]:
            yield (
                f"files: {name} has other content ({files[name]['bytes']:,} "
                f"bytes, certified {wanted[name]['bytes']:,})"
            )


def _read_rows(
    found: dict[str, Any], scores: Any, confidence: Any, correct: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Scores in float32 and correctness, checked."""
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
    if score.dtype.kind not in "biuf" or correct.dtype.kind not in "biuf":
        raise value_error(
            f"`{name}` and `correct` must hold numbers",
            **{name: score.dtype.name, "correct": correct.dtype.name},
        )
    _check_rows("correct", (correct == 0) | (correct == 1), "be 0 or 1")
    if confidence is not None:
        if found["score"]["scale"] != "log-odds":
            raise value_error(
                "`confidence` needs a score in log-odds: give `scores`",
                score=found["score"]["name"],
            )
        score = score.astype("float64")
        inside = (score > 0) & (score < 1)
        _check_rows("confidence", inside, "lie between 0 and 1")
        score = np.log(score) - np.log1p(-score)
    score = score.astype("float32")
    _check_rows(name, ~np.isnan(score), "not be NaN")
    return score, correct.astype("float64")


def _check_rows(name: str, good: np.ndarray, rule: str) -> None:
    if not good.all():
        raise value_error(
            f"`{name}` must {rule}",
            row=int(np.argmin(good)) + 1,
            bad_rows=int((~good).sum()),
        )


def _differing_numbers(
    found: dict[str, Any],
    score: np.ndarray,
    correct: np.ndarray,
    rounded: bool,
) -> Iterator[str]:
    claim = found["guarantee"]
    if claim["method"] not in METHODS:
        raise value_error(
            "`method` of the certificate must be one that this version can "
            "compute again: use the version that made it",
            method=claim["method"],
            keras_calib=found["keras_calib"],
        )
    candidates = ranked_candidates(score, 1.0 - correct, np.ones(len(score)))
    rows, ranking = data_hashes(candidates)
    wanted = found["data"]
    count = found["selection"]["num_samples"]
    if count != len(score):
        yield (
            f"data: other data than those of the certificate, {len(score):,} "
            f"rows instead of {count:,}"
        )
    elif ranking != wanted["ranking_sha256"]:
        yield (
            "data: other data than those of the certificate, with other "
            "scores or other correctness"
        )
    elif rows != wanted["rows_sha256"] and not rounded:
        yield (
            "data: the scores differ, but not their order nor which are "
            "right: the certificate may be of another scale or rounding"
        )
    target = Target(claim["risk"], None, claim["delta"], claim["method"])
    log_odds = found["score"]["scale"] == "log-odds"
    try:
        chosen = choose(candidates, target.check(), log_odds)[0]
    except (ValueError, TypeError) as error:
        yield f"guarantee: it does not follow from the data: {error}"
        return
    yield from _compared(found, chosen, rounded)


def _compared(
    found: dict[str, Any], chosen: ChosenThreshold, rounded: bool
) -> Iterator[str]:
    """Differences between a certificate and the threshold chosen again."""
    again = facts_of(chosen)
    for part in ("guarantee", "selection"):
        for name, value in again[part].items():
            close = _CLOSE
            if rounded and name in ("threshold", "confidence"):
                close = _ROUNDED
            stated = found[part].get(name)
            if not _same(stated, value, close):
                yield f"{name}: the data give {value!r}, certified {stated!r}"
        for name in found[part].keys() - again[part].keys():
            yield f"{name}: no such fact follows from the data"


def _same(stated: Any, value: Any, close: float) -> bool:
    if isinstance(stated, bool) or type(stated) is not type(value):
        return False
    if isinstance(value, float):
        return math.isclose(stated, value, rel_tol=close, abs_tol=1e-12)
    return bool(stated == value)
