"""How frozen results are stored and compared."""

import gc
import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from frozen.results import flat

_FOLDER = Path(__file__).parent
# Changes that a failure shows, and characters of each side.
_SHOWN, _WIDTH = 25, 160


class Tolerance(NamedTuple):
    """How far a float may be from the stored one: rounding, no more.

    Attributes:
        relative: Relative to the largest magnitude of the array.
        absolute: Added to that.
    """

    relative: float
    absolute: float


@cache
def computed(subject: str) -> dict[str, Any]:
    """The quantities of a subject, as the package gives them now."""
    module = importlib.import_module(f"frozen.{subject}")
    # Keras collects garbage whenever a layer gives an attribute up: it need
    # not search all modules each time.
    gc.freeze()
    gc.disable()
    try:
        return flat(module.quantities())
    finally:
        gc.enable()


def tolerance(subject: str) -> Tolerance:
    """What its module says."""
    return importlib.import_module(f"frozen.{subject}").TOLERANCE


def _files(subject: str) -> tuple[Path, Path]:
    return _FOLDER / f"{subject}.npz", _FOLDER / f"{subject}.json"


def write(subject: str, found: dict[str, Any]) -> None:
    """Stores arrays end to end in one file, and texts in the other."""
    keys = sorted(found)
    numbers = {k: found[k] for k in keys if not isinstance(found[k], str)}
    columns: dict[str, list] = {"floats": [], "integers": []}
    shapes = {}
    for key, value in numbers.items():
        kind = "floats" if value.dtype.kind == "f" else "integers"
        columns[kind].append(value.reshape(-1).astype("float64"))
        shapes[key] = f"{kind[0]}{list(value.shape)}"
    arrays = {k: np.concatenate([np.zeros(0), *x]) for k, x in columns.items()}
    if tolerance(subject).relative >= 1e-6:
        # An overflow would be an error: such numbers need their logarithms.
        with np.errstate(over="raise"):
            arrays["floats"] = arrays["floats"].astype("float32")
    npz, texts = _files(subject)
    npz.unlink(missing_ok=True)
    texts.unlink(missing_ok=True)
    if shapes:
        told = "\n".join(f"{k}\t{x}" for k, x in shapes.items())
        bytes_ = np.frombuffer(told.encode(), "uint8")
        np.savez_compressed(npz, keys=bytes_, **arrays)
    # Texts first, as many keys have the same.
    by_text: dict[str, list[str]] = {}
    for key in keys:
        if isinstance(found[key], str):
            by_text.setdefault(found[key], []).append(key)
    if by_text:
        ordered = dict(sorted(by_text.items()))
        told = json.dumps(ordered, indent=0, ensure_ascii=False)
        texts.write_text(told + "\n", encoding="utf-8")


def read_stored(subject: str) -> dict[str, Any]:
    """What is stored of a subject; nothing if it never was."""
    npz, texts = _files(subject)
    found: dict[str, Any] = {}
    if npz.exists():
        with np.load(npz) as arrays:
            told = arrays["keys"].tobytes().decode()
            columns = {k[0]: arrays[k] for k in ("floats", "integers")}
        begin = dict.fromkeys(columns, 0)
        for line in told.split("\n"):
            key, _, kind = line.partition("\t")
            shape = json.loads(kind[1:])
            end = begin[kind[0]] + int(np.prod(shape))
            values = columns[kind[0]][begin[kind[0]] : end].reshape(shape)
            found[key] = values.astype("int64" if kind[0] == "i" else float)
            begin[kind[0]] = end
    if texts.exists():
        stored = json.loads(texts.read_text(encoding="utf-8"))
        found |= {key: text for text, keys in stored.items() for key in keys}
    return found


def changes(
    stored: dict[str, Any], found: dict[str, Any], allowed: Tolerance
) -> dict[str, str]:
    """What is no longer as stored: keys, and both sides in words."""
    told = {}
    for key in sorted(stored.keys() | found.keys()):
        if key not in found:
            told[key] = f"is missing; stored {_shown(stored[key])}"
        elif key not in stored:
            told[key] = f"is new: {_shown(found[key])}"
        elif not _agree(stored[key], found[key], allowed):
            both = _shown(stored[key]), _shown(found[key])
            away = _distance(stored[key], found[key])
            told[key] = f"stored {both[0]}, found {both[1]}{away}"
    return told


def _agree(stored: Any, found: Any, allowed: Tolerance) -> bool:
    if isinstance(stored, str) or isinstance(found, str):
        return isinstance(found, type(stored)) and stored == found
    if stored.shape != found.shape:
        return False
    if stored.dtype.kind != "f":
        return np.array_equal(stored, found)
    found = found.astype("float64")
    finite = np.isfinite(stored)
    if not np.array_equal(stored[~finite], found[~finite], equal_nan=True):
        return False
    largest = np.abs(stored[finite]).max(initial=0.0)
    error = np.abs(stored[finite] - found[finite]).max(initial=0.0)
    return error <= allowed.absolute + allowed.relative * largest


def _distance(stored: Any, found: Any) -> str:
    """The largest difference of two arrays of one shape, in words."""
    if isinstance(stored, str) or isinstance(found, str):
        return ""
    if stored.shape != found.shape:
        return f", shape {stored.shape} became {found.shape}"
    finite = np.isfinite(stored) & np.isfinite(found)
    away = np.abs(stored[finite] - found.astype("float64")[finite])
    return f", by {away.max():.3g} at most" if away.size else ""


def _shown(value: Any) -> str:
    if not isinstance(value, str):
        shown = np.array2string(
            value, precision=12, threshold=8, edgeitems=3, separator=", "
        )
        value = " ".join(shown.split())
    return value if len(value) <= _WIDTH else value[:_WIDTH] + " ..."


def explained(subject: str, told: dict[str, str]) -> str:
    """A failure in words: what changed, and what to do."""
    lines = [f"{len(told)} frozen results of {subject} changed:"]
    lines += [f"  {key}: {x}" for key, x in list(told.items())[:_SHOWN]]
    if len(told) > _SHOWN:
        lines.append(f"  and {len(told) - _SHOWN} more")
    lines.append(
        "A refactoring changes none of them. Where a change means to change"
        f" these numbers, run `make frozen SUBJECTS={subject}` and name the"
        " file, the keys and the reason in the commit: see 'Frozen results'"
        " in CONTRIBUTING.md."
    )
    return "\n".join(lines)
