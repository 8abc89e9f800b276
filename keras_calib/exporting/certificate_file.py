"""The file of a certificate: its place, its form, and hashes of files."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.selection.thresholds import ChosenThreshold

__all__ = [
    "SCHEMA",
    "artefact_files",
    "canonical",
    "certificate_path",
    "differences_within",
    "digest_of",
    "facts_of",
    "read_certificate",
    "text_of",
]

# Number of the form of a certificate.
SCHEMA = 1
# In the folder of a SavedModel, where servers ignore it; beside other files.
_INSIDE = "assets.extra/certificate.json"
_BESIDE = ".certificate.json"
# Parts of a certificate with the facts that each must have.
_PARTS: dict[str, tuple[str, ...]] = {
    "guarantee": ("method", "risk", "delta", "certified_risk", "statement"),
    "selection": ("num_samples", "coverage", "risk", "threshold"),
    "score": ("name", "scale"),
    "data": ("rows_sha256", "ranking_sha256"),
    "artefact": ("format", "files"),
    "weights": ("sha256", "variables"),
    "further": (),
}
_NAMES = {"certificate", "keras_calib", "calibrator", "digest", *_PARTS}


def certificate_path(path: Path) -> Path:
    """The place of the certificate of a folder or file."""
    if path.is_dir():
        return path / _INSIDE
    return path.with_name(path.name + _BESIDE)


def artefact_files(path: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file but the certificate.

    A file that is the whole model is called "model", so that it may be renamed.
    """
    if not path.is_dir():
        return {"model": _file_facts(path)}
    found = {}
    for folder, folders, names in os.walk(path):
        # A link to a folder is not followed, and no part of any export.
        links = [x for x in folders if (Path(folder) / x).is_symlink()]
        for name in [*names, *links]:
            file = Path(folder) / name
            told = file.relative_to(path).as_posix()
            if told != _INSIDE:
                found[told] = _file_facts(file)
    return dict(sorted(found.items()))


def _file_facts(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {"bytes": 0, "sha256": "no regular file"}
    with open(file, "rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": sha256}


def canonical(facts: Any) -> bytes:
    """JSON without spaces, sorted: the bytes that hashes are of."""
    text = json.dumps(
        facts, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text.encode("ascii")


def digest_of(certificate: dict[str, Any]) -> str:
    """SHA-256 of all but the digest itself."""
    rest = {k: v for k, v in certificate.items() if k != "digest"}
    return hashlib.sha256(canonical(rest)).hexdigest()


def text_of(certificate: dict[str, Any]) -> str:
    """The text of the file, the only one for these facts."""
    return json.dumps(certificate, indent=2, allow_nan=False) + "\n"


def facts_of(chosen: ChosenThreshold) -> dict[str, dict[str, Any]]:
    """What a certificate says of a threshold and its guarantee."""
    total = chosen.num_samples
    accepted = round(chosen.coverage * total)
    wrong = round(chosen.risk * accepted)
    delta = float(chosen.delta or 0.0)
    bound = binomial_upper_bound(wrong, accepted, level=1.0 - delta)
    threshold: Any = float(chosen.threshold)
    # JSON has no infinity.
    threshold = "-inf" if threshold == -float("inf") else threshold
    cut = chosen.confidence
    return {
        "guarantee": _guarantee_of(
            chosen.method, chosen.delta, chosen.certified_risk, total
        ),
        "selection": {
            "num_samples": total,
            "num_accepted": accepted,
            "num_wrong": wrong,
            "coverage": chosen.coverage,
            "risk": chosen.risk,
            # Of this threshold alone, as if it had been chosen in advance.
            "upper_bound": float(bound),
            "threshold": threshold,
            "confidence": cut,
        },
    }


def _guarantee_of(
    method: Any, delta: Any, risk: Any, total: int
) -> dict[str, Any]:
    return {
        "method": method,
        "risk": risk,
        "delta": delta,
        "certified_risk": risk,
        "statement": (
            f"With probability at least 1 - {delta:g} over draws of {total} "
            f"independent samples, the true share of errors among accepted "
            f"predictions is at most {risk:g}."
        ),
    }


def differences_within(certificate: dict[str, Any]) -> list[str]:
    """A sentence for each fact that the others contradict."""
    told = []
    if digest_of(certificate) != certificate["digest"]:
        told.append("digest: the certificate was changed after it was made")
    stated = certificate["guarantee"]
    wanted = _guarantee_of(
        stated["method"],
        stated["delta"],
        stated["certified_risk"],
        certificate["selection"]["num_samples"],
    )
    told += [
        f"{name}: other facts of the certificate give {value!r}, certified "
        f"{stated[name]!r}"
        for name, value in wanted.items()
        if stated[name] != value
    ]
    return told


def read_certificate(path: Path, check: bool = False) -> dict[str, Any]:
    """The certificate in a file; ValueError if there is none or it is broken.

    Its bytes must be those that its facts are written as. With `check` its
    facts must also agree with each other.
    """
    if not path.is_file():
        raise value_error(
            "There must be a certificate: export with `certificate=True`, or "
            "copy the certificate along",
            certificate=str(path),
        )
    data = path.read_bytes()
    try:
        found = json.loads(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise value_error(
            "The certificate must be complete JSON",
            certificate=str(path),
            error=str(error),
        ) from error
    schema = found.get("certificate") if isinstance(found, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        raise value_error(
            "The certificate must be of a form that this version knows: "
            "use the version of keras-calib that made it",
            certificate=schema,
            known=SCHEMA,
        )
    _check_parts(found)
    try:
        same = text_of(found).encode("ascii") == data
    except ValueError:
        same = False
    if not same:
        raise value_error(
            "The certificate must be unchanged: its text is not the one that "
            "its facts are written as",
            certificate=str(path),
        )
    if check and (differences := differences_within(found)):
        raise value_error(
            "The certificate must be unchanged since it was made",
            certificate=str(path),
            differences=differences,
        )
    return found


def _check_parts(found: dict[str, Any]) -> None:
    parts = {
        name: {*facts} - found[name].keys()
        for name, facts in _PARTS.items()
        if isinstance(found.get(name), dict)
    }
    missing = sorted({*_PARTS} - {*parts})
    missing += sorted(f"{k}.{x}" for k, names in parts.items() for x in names)
    unknown = sorted(found.keys() - _NAMES)
    missing += sorted(_NAMES - {*_PARTS} - found.keys())
    wrong = [
        name
        for name, kind in (("files", dict),)
        if not missing and not isinstance(found["artefact"][name], kind)
    ]
    if missing or unknown or wrong:
        raise value_error(
            "The certificate must have the facts of its form",
            missing=missing,
            unknown=unknown,
            wrong=wrong,
        )
    for name, facts in found["artefact"]["files"].items():
        if not isinstance(facts, dict) or type(facts.get("bytes")) is not int:
            raise value_error(
                "The certificate must have size and hash of each file",
                file=name,
            )
    if type(found["selection"]["num_samples"]) is not int:
        raise value_error(
            "`num_samples` of the certificate must be an integer",
            num_samples=found["selection"]["num_samples"],
        )
    for name in ("delta", "certified_risk"):
        value = found["guarantee"][name]
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise value_error(
                f"`{name}` of the certificate must be a number in [0, 1]",
                **{name: value},
            )
