"""The file of a certificate: its place, its form, and hashes of files."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.exporting.certificate_facts import contradictions
from keras_calib.exporting.certificate_form import check_form

__all__ = [
    "SCHEMA",
    "artefact_files",
    "canonical",
    "certificate_path",
    "differences_within",
    "digest_of",
    "read_certificate",
    "text_of",
]

# Number of the form of a certificate.
SCHEMA = 1
# In the folder of a SavedModel, where servers ignore it; beside other files.
_INSIDE = "assets.extra/certificate.json"
_BESIDE = ".certificate.json"


def certificate_path(path: Path) -> Path:
    """The place of the certificate of a folder or file.

    Raises ValueError if the path is that of a certificate.
    """
    if path.is_dir():
        return path / _INSIDE
    if path.name.endswith(Path(_INSIDE).name):
        raise value_error(
            "`path` must be the exported folder or file, not its certificate",
            path=str(path),
        )
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


def differences_within(certificate: dict[str, Any]) -> list[str]:
    """A sentence for each fact that the others contradict."""
    told = []
    if digest_of(certificate) != certificate["digest"]:
        told.append("digest: the certificate was changed after it was made")
    return told + contradictions(certificate)


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
    check_form(found)
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
