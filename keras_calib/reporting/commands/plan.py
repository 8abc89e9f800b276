"""The arguments of `keras-calib plan`, read and checked without Keras."""

import argparse
import contextlib
import io
import json
from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing, write_csv
from keras_calib.reporting.commands.arguments import (
    Command,
    Options,
    check_shares,
    columns,
    flags,
)
from keras_calib.reporting.commands.terminal import (
    Progress,
    load_keras,
    of_arguments,
    picture_of,
)

__all__ = ["COMMAND"]

_DESCRIPTION = """\
Says how many labelled examples it takes until a threshold is certified to have
a risk of at most --risk, and at which coverage. With --ece it plans an interval
of the calibration error instead, with --compare a comparison of two networks.

A pilot is a file of predictions with labels, as `report` reads them: .npz,
.csv, .tsv or .parquet, with logits or probabilities of all classes, or with
`confidence` and `correct`. --compare reads two of them, of the same samples in
the same order, and compares accuracies. Without a pilot, --accuracy assumes a
calibrated network, and --disagreement the share of the samples on which exactly
one of two networks is right.
"""
_EXAMPLES = """\
examples:
  keras-calib plan --pilot=preds.parquet --risk=0.01
  keras-calib plan --accuracy=0.93 --risk=0.01 --delta=0.05 --power=0.9
  keras-calib plan --pilot=preds.csv --ece=0.01 --out=plan.json
  keras-calib plan --pilot=a.npz --pilot=b.npz --compare=0.02
"""
# How errors call the library's arguments here.
_WORDS = {
    **flags("risk", "ece", "compare", "delta", "power", "level", "accuracy"),
    **flags("coverage", "disagreement", "max_samples", "pilot"),
    "path": "--out",
}
_SHARES = {
    "--risk": (None, "largest share of wrong predictions among the accepted"),
    "--ece": (None, "half-width of the interval of the ECE"),
    "--compare": (None, "difference of two accuracies to find"),
    "--accuracy": (None, "that of a calibrated network, in place of a pilot"),
    "--disagreement": (
        None,
        "share of samples on which one of two networks is right",
    ),
    "--delta": (0.05, "probability that the guarantee fails"),
    "--power": (0.8, "probability to reach the target"),
    "--level": (0.95, "level of the interval of --ece or --compare"),
    "--coverage": (1.0, "share of the surest that have this --accuracy"),
}
_OPTIONS: Options = {
    "--pilot FILE": {
        "action": "append",
        "default": [],
        "help": "predictions with labels; twice with --compare",
    },
    **{
        f"{flag} SHARE": {
            "default": value,
            "help": text + " (%(default)s)" * (value is not None),
        }
        for flag, (value, text) in _SHARES.items()
    },
    "--method": {
        "choices": ("ltt", "sgr"),
        "default": "ltt",
        "help": "how the threshold will be certified (%(default)s)",
    },
    "--max-samples N": {
        "default": 100_000,
        "help": "most labels to plan for (%(default)s)",
    },
    "--out FILE": (
        "file to write too: a picture .png or .svg, or .json or .csv"
    ),
}
_COLUMNS = columns(
    *("labels", "logits", "probs", "confidence", "correct", "predicted"),
    logits="columns of logits, as in `report`",
    probs="columns of probabilities, as in `report`",
)
_TARGETS = "risk", "ece", "compare"
_KINDS = ".png", ".svg", ".json", ".csv"


def _check(given: argparse.Namespace) -> None:
    """Raises ValueError if arguments are wrong, alone or together."""
    targets = [x for x in _TARGETS if getattr(given, x) is not None]
    if len(targets) != 1:
        raise value_error(
            "One of --risk, --ece and --compare must be given",
            received=[f"--{x}" for x in targets],
        )
    check_shares(given, [x.removeprefix("--") for x in _SHARES])
    if given.max_samples < 1:
        raise value_error(
            "`max_samples` must be >= 1", max_samples=given.max_samples
        )
    pilots = given.pilot
    wanted = 2 if given.compare is not None else 1
    assumed = "disagreement" if wanted == 2 else "accuracy"
    if (len(pilots) != wanted) if pilots else getattr(given, assumed) is None:
        raise value_error(
            f"--{targets[0]} needs {wanted} --pilot, or --{assumed}",
            **{"--pilot": pilots},
        )
    if pilots and getattr(given, assumed) is not None:
        raise ValueError(f"--pilot and --{assumed} exclude each other")
    if given.out is None:
        return
    if (kind := Path(given.out).suffix.lower()) not in _KINDS:
        raise value_error(
            f"`path` must end in one of {', '.join(_KINDS)}", path=given.out
        )
    if given.risk is None and kind != ".json":
        raise value_error(
            "`path` must end in .json without --risk: there is no table",
            path=given.out,
        )


def _run(given: argparse.Namespace, progress: Progress) -> None:
    """Prints the plan, and writes it where --out says."""
    load_keras(progress)
    from keras_calib.reporting.commands.pilot_files import pilot_of_files
    from keras_calib.selection import plan

    pilot = pilot_of_files(given, progress) if given.pilot else None
    progress.say("Simulating selections ...")
    names = [x.removeprefix("--") for x in _SHARES]
    options = {x: getattr(given, x) for x in (*names, "method", "max_samples")}
    with contextlib.nullcontext() if given.pilot else of_arguments():
        found = plan(pilot=pilot, **options)
    progress.clear()
    if given.out is not None:
        _write(found, Path(given.out))
    print(found)


def _write(found: Any, path: Path) -> None:
    kind = path.suffix.lower()
    if kind == ".json":
        text = json.dumps(_facts(found), indent=2, allow_nan=False)
        content = f"{text}\n".encode()
    elif kind == ".csv":
        table = found.by_samples
        text = io.StringIO()
        write_csv(text, [table._fields, *zip(*table, strict=True)])
        content = text.getvalue().encode()
    else:
        from keras_calib.plots import PlanDisplay

        content = picture_of(PlanDisplay.from_plan(found), path)
    with replacing(path) as file:
        file.write(content)


def _facts(value: Any) -> Any:
    """A plan for JSON, which has no infinity and no NaN: null and text."""
    if hasattr(value, "_asdict"):
        return {name: _facts(x) for name, x in value._asdict().items()}
    if hasattr(value, "tolist"):
        return [_facts(x) for x in value.tolist()]
    if isinstance(value, float):
        if value != value:
            return "never"
        return "more" if value == float("inf") else value
    return value


COMMAND = Command(
    _DESCRIPTION,
    _EXAMPLES,
    _WORDS,
    {"": _OPTIONS, "columns": _COLUMNS},
    _check,
    _run,
    files="pilot",
)
