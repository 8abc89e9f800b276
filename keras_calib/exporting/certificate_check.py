"""Certificates of exported models, and their check without Keras.

A certificate is a JSON file. Its numbers follow from the data that chose the
threshold, its hashes from the files of the model.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of
from keras_calib.exporting.certificate_file import (
    artefact_files,
    certificate_path,
    differences_within,
    read_certificate,
)
from keras_calib.exporting.certificate_rows import Rows, again_of, read_rows

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
    found = read_certificate(certificate_path(path))
    differences = [*differences_within(found), *_differing_files(found, path)]
    checked = [
        "digest and statement of the certificate",
        "every file of the model",
    ]
    not_checked = ["weights and calibrator by themselves (needs Keras)"]
    if found["kind"] == "chow" and found["costs"]["matrix"] is None:
        not_checked.append("the matrix of costs, of which only a hash is told")
    given = scores, confidence, correct, groups, cost
    if all(x is None for x in given):
        if found["kind"] != "chow":
            not_checked.append("numbers of the guarantee (needs the data)")
    else:
        rows = read_rows(found, *given)
        differences += _differing_numbers(found, rows)
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


def _differing_numbers(found: dict[str, Any], rows: Rows) -> Iterator[str]:
    count = found["selection"]["num_samples"]
    if rows.group is not None and (rows.group < 0).any():
        yield (
            f"data: {int((rows.group < 0).sum()):,} rows have a group that "
            "the certificate does not have"
        )
        return
    again = again_of(found, rows)
    of_rows, of_ranking = next(again)
    wanted = found["data"]
    if count != len(rows.score):
        yield (
            f"data: other data than those of the certificate, "
            f"{len(rows.score):,} rows instead of {count:,}"
        )
    elif of_ranking != wanted["ranking_sha256"]:
        yield (
            "data: other data than those of the certificate, with other "
            f"scores or other {_OTHER[found['kind']]}"
        )
    elif of_rows != wanted["rows_sha256"] and not rows.rounded:
        differ = "the scores differ"
        if found["kind"] == "costs":
            differ = "the scores or the facts of the costs differ"
        yield (
            f"data: {differ}, but not their order nor which are "
            "right: the certificate may be of another scale or rounding"
        )
    try:
        facts = next(again)
    except (ValueError, TypeError) as error:
        yield f"guarantee: it does not follow from the data: {error}"
        return
    for part in ("guarantee", "selection"):
        yield from _compared(found[part], facts[part], rows.rounded)


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
