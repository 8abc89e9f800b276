"""Statements: what was promised of a threshold, in a file of one form.

The certificate of an export and the file of `keras-calib threshold` are
statements, with and without a model. Their form is a table of facts: their
names, and what their values must be. It takes NumPy and SciPy alone to read
them.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import each_once, replacing
from keras_calib.exporting.statement_facts import METHODS, contradictions
from keras_calib.version import __version__

# Number of the form.
_SCHEMA = 1
# In the folder of a SavedModel, where servers ignore it; beside other files.
_INSIDE = "assets.extra/certificate.json"
_BESIDE = ".certificate.json"


class _Rule(NamedTuple):
    """What a value must be, in words and as a test."""

    told: str
    holds: Callable[[Any], bool]

    def or_none(self) -> "_Rule":
        """The same, or None."""
        return _Rule(
            f"{self.told}, or null", lambda x: x is None or self.holds(x)
        )


# Rules, or forms within a form, by the names of facts.
_Form = dict[str, Any]
_LARGEST = float(np.finfo("float64").max)


def _is_number(value: Any, most: float = _LARGEST) -> bool:
    return type(value) in (int, float) and 0 <= value <= most


_ANY = _Rule("there", lambda x: True)
_TEXT = _Rule("a text", lambda x: isinstance(x, str))
_FLAG = _Rule("true or false", lambda x: type(x) is bool)
_COUNT = _Rule("an integer >= 0", lambda x: type(x) is int and 0 <= x < 2**63)
_SHARE = _Rule("a number in [0, 1]", lambda x: _is_number(x, 1.0))
_AMOUNT = _Rule("a number >= 0", _is_number)
_ABOVE_0 = _Rule("a number > 0", lambda x: _is_number(x) and x > 0)
_REAL = _Rule(
    "a number", lambda x: type(x) in (int, float) and abs(x) <= _LARGEST
)
# JSON has no infinity, which is a text.
_CUT = _Rule(
    "a number",
    lambda x: x in ("inf", "-inf") or (type(x) is float and math.isfinite(x)),
)
_NAME = _Rule("an integer or a text", lambda x: type(x) in (int, str))
_FACTS = _Rule("facts by name", lambda x: isinstance(x, dict))
_NONE = _Rule("null", lambda x: x is None)


def _table(rule: _Rule, *names: str) -> _Form:
    return dict.fromkeys(names, rule)


_COUNTED = {
    **_table(_COUNT, "num_samples", "num_accepted", "num_wrong"),
    **_table(_SHARE, "coverage", "risk"),
}
_BOUNDED = {**_COUNTED, "upper_bound": _AMOUNT.or_none()}
_ONE = {**_BOUNDED, "threshold": _CUT, "confidence": _SHARE.or_none()}
_GROUP = {"group": _NAME, **_ONE, "tested": _FLAG}
_BY_GROUP = {
    **_COUNTED,
    "min_count": _COUNT,
    "groups": _Rule(
        f"groups, each once and ascending, with {', '.join(_GROUP)}",
        lambda x: _are_rows(x, _GROUP),
    ),
}
_RISKS = _table(_SHARE, "risk", "delta", "certified_risk")
_OF_PRICES = "mean_cost", "mean_cost_low", "mean_cost_high"
# Facts of the guarantee, besides its method and its sentence, and of the
# selection, by kind.
_OF_KINDS: dict[str, tuple[_Form, _Form]] = {
    "errors": (_RISKS, _ONE),
    "groups": (_RISKS, _BY_GROUP),
    "coverage": ({"coverage": _SHARE}, _ONE),
    "group_coverage": ({"coverage": _SHARE}, _BY_GROUP),
    "costs": (
        {
            **_table(_AMOUNT, "max_cost", "certified_cost"),
            "reject_cost": _AMOUNT.or_none(),
            "delta": _SHARE,
        },
        {
            **_BOUNDED,
            "threshold": _CUT,
            # Without a price nothing is told of all answers.
            **_table(_AMOUNT.or_none(), *_OF_PRICES),
            **_table(_AMOUNT, "accepted_cost", "accept_all_cost"),
        },
    ),
    "chow": ({"reject_cost": _AMOUNT}, {"threshold": _CUT}),
    "given": (
        {},
        {
            "threshold": _CUT.or_none(),
            "groups": _Rule(
                "groups, each once and ascending, with their thresholds",
                lambda x: _are_rows(x, {"group": _NAME, "threshold": _CUT}),
            ).or_none(),
        },
    ),
}
_COSTS = {
    "num_classes": _COUNT,
    "largest": _ABOVE_0,
    "one_cost": _FLAG,
    "matrix": _Rule(
        "a square of numbers >= 0", lambda x: _is_square(x)
    ).or_none(),
    "sha256": _TEXT,
}
_NO_DATA = "chow", "given"
_HEAD = {
    "certificate": _COUNT,
    **_table(_TEXT, "kind", "keras_calib", "digest"),
    "score": _table(_TEXT, "name", "scale"),
}
# What is told of a model, and of answers without one.
_OF_MODEL = {
    "data": _table(_TEXT, "rows_sha256", "ranking_sha256"),
    "weights": {"sha256": _TEXT, "variables": _ANY},
    "artefact": {
        "format": _TEXT,
        "files": _Rule("facts of files by name", lambda x: _are_files(x)),
    },
}
_OF_ANSWERS = {
    "data": {"rows_sha256": _TEXT, "group": _TEXT.or_none(), "wrong": _COUNT},
    **_table(_NONE, "weights", "artefact"),
}
# What is run again: a file, then a selector of Keras, on recorded samples.
_REPLAY = {
    "output": _TEXT,
    "from_logits": _FLAG,
    "batch_size": _COUNT.or_none(),
    **_table(_FACTS, "selector", "inputs", "outputs", "answers"),
    "groups": _FACTS.or_none(),
}
_LAYER = {"name": _TEXT, "config": _FACTS.or_none(), "sha256": _TEXT}
# Maps of the confidence of answers; one that falls would turn their order.
_MAPS: dict[str, _Form] = {
    "affine": {"slope": _ABOVE_0, "intercept": _REAL},
    "beta": {**_table(_AMOUNT, "a", "b"), "c0": _REAL},
}


def _are_rows(value: Any, form: _Form) -> bool:
    """Whether these are groups, each once, ascending, with these facts."""
    if not isinstance(value, list) or not value:
        return False
    for one in value:
        if not isinstance(one, dict) or one.keys() != form.keys():
            return False
        if not all(form[name].holds(x) for name, x in one.items()):
            return False
    names = [one["group"] for one in value]
    if len({type(x) for x in names}) > 1:
        return False
    known: list = sorted({*names})
    if all(isinstance(x, str) and x.isdecimal() for x in known):
        # In the order of their numbers, as groups are read.
        known.sort(key=lambda x: (len(x), x))
    return names == known


def _is_square(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list)
        and len(row) == len(value)
        and all(map(_is_number, row))
        for row in value or [None]
    )


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(x, dict) and type(x.get("bytes")) is int
        for x in value.values()
    )


def check_form(found: dict[str, Any]) -> None:
    """Raises ValueError unless all facts are there, and of their form."""
    kind, calibrator = found.get("kind"), found.get("calibrator")
    if not isinstance(kind, str) or kind not in _OF_KINDS:
        raise value_error(
            "The certificate must have the facts of its form, and a kind that "
            "this version knows",
            kind=kind,
            known=[*_OF_KINDS],
        )
    guarantee, selection = _OF_KINDS[kind]
    method = _Rule(
        f"{' or '.join(METHODS[kind])}, which this version can compute again: "
        "use the version that made it",
        lambda x: x in [*METHODS[kind]],
    )
    form = {
        **_HEAD,
        "guarantee": {"method": method, **guarantee, "statement": _TEXT},
        "selection": selection,
        "calibrator": _NONE,
    }
    is_of_model = found.get("artefact") is not None
    form |= _OF_MODEL if is_of_model else _OF_ANSWERS
    if kind in _NO_DATA:
        form["data"] = {}
    if is_of_model and "replay" in found:
        form["replay"] = _REPLAY
    if kind in ("costs", "chow"):
        form["costs"] = _COSTS
    if calibrator is not None:
        form["calibrator"] = _LAYER if is_of_model else _form_of_map(calibrator)
    if not is_of_model:
        # A map is for a confidence.
        columns = ("confidence", "score")[: 1 + (calibrator is None)]
        form["score"] = _Rule(
            f"that of the column {' or '.join(columns)}",
            lambda x: x in [*map(score_of_column, columns)],
        )
    _check("", found, form)


def _form_of_map(calibrator: Any) -> _Form:
    name = calibrator.get("name") if isinstance(calibrator, dict) else None
    known = _Rule(f"one of {', '.join(_MAPS)}", lambda x: x in [*_MAPS])
    found = _MAPS.get(name, {}) if isinstance(name, str) else {}
    if name == "beta" and not calibrator.get("b"):
        found = {**found, "a": _ABOVE_0}
    return {"name": known, **found, "num_samples": _COUNT}


def _check(name: str, value: Any, form: Any) -> None:
    if isinstance(form, _Rule):
        if not form.holds(value):
            raise value_error(
                f"`{name}` of the certificate must be {form.told}",
                **{name: value},
            )
        return
    given = value.keys() if isinstance(value, dict) else ()
    missing, unknown = sorted({*form} - {*given}), sorted({*given} - {*form})
    if missing or unknown or not isinstance(value, dict):
        raise value_error(
            "The certificate must have the facts of its form",
            part=name or "all",
            missing=missing,
            unknown=unknown,
        )
    for key, rule in form.items():
        _check(key, value[key], rule)


def statement_path(path: Path) -> Path:
    """The place of the statement of a folder or file, or of answers.

    Raises ValueError if the path is that of a certificate of a model.
    """
    if path.is_dir():
        return path / _INSIDE
    if path.name.endswith(Path(_INSIDE).name):
        raise value_error(
            "`path` must be the exported folder or file, not its certificate",
            path=str(path),
        )
    if path.suffix.lower() == ".json":
        return path
    return path.with_name(path.name + _BESIDE)


def artefact_files(path: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file but the statement.

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


def differing_files(found: dict[str, Any], path: Path) -> Iterator[str]:
    """A sentence for each file that is not the one of the statement."""
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


def canonical(facts: Any) -> bytes:
    """JSON without spaces, sorted: the bytes that hashes are of."""
    text = json.dumps(
        facts, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return text.encode("ascii")


def digest_of(statement: dict[str, Any]) -> str:
    """SHA-256 of all but the digest itself."""
    rest = {k: v for k, v in statement.items() if k != "digest"}
    return hashlib.sha256(canonical(rest)).hexdigest()


def text_of(statement: dict[str, Any]) -> str:
    """The text of the file, the only one for these facts."""
    return json.dumps(statement, indent=2, allow_nan=False) + "\n"


def stated(kind: str, facts: dict[str, Any], **others: Any) -> dict[str, Any]:
    """A whole statement, with its digest."""
    made = {
        "certificate": _SCHEMA,
        "kind": kind,
        "keras_calib": __version__,
        **facts,
        **others,
    }
    return {**made, "digest": digest_of(made)}


def write_statement(path: Any, statement: dict[str, Any]) -> None:
    """Writes a statement; a file that is there is replaced whole."""
    with replacing(path, text=True) as file:
        file.write(text_of(statement))


def differences_within(statement: dict[str, Any]) -> list[str]:
    """A sentence for each fact that the others contradict."""
    told = []
    if digest_of(statement) != statement["digest"]:
        told.append("digest: the certificate was changed after it was made")
    return told + [*contradictions(statement)]


def read_statement(path: Path, check: bool = False) -> dict[str, Any]:
    """The statement in a file; ValueError if there is none or it is broken.

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
        found = json.loads(data.decode("utf-8"), object_pairs_hook=each_once)
    except (ValueError, RecursionError) as error:
        raise value_error(
            "The certificate must be complete JSON",
            certificate=str(path),
            error=str(error),
        ) from error
    schema = found.get("certificate") if isinstance(found, dict) else None
    if type(schema) is not int or schema != _SCHEMA:
        raise value_error(
            "The certificate must be of a form that this version knows: use "
            "the version of keras-calib that made it",
            certificate=schema,
            known=_SCHEMA,
        )
    check_form(found)
    try:
        is_same = text_of(found).encode("ascii") == data
    except ValueError:
        is_same = False
    if not is_same:
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


def score_of_column(column: Any) -> dict[str, Any]:
    """What the threshold of answers is for: their confidence or a score."""
    scale = "confidence" if column == "confidence" else "own"
    return {"name": column, "scale": scale}
