"""The arguments of `keras-calib plan`, read and checked without Keras."""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing, write_csv
from keras_calib.reporting.commands.arguments import (
    FORM,
    Command,
    Options,
    columns,
    flags,
    opened,
    share,
)
from keras_calib.reporting.commands.terminal import (
    Found,
    Progress,
    blamed,
    for_json,
    load_keras,
    of_arguments,
)

_DESCRIPTION = """\
Says how many labelled examples it takes until a threshold is certified to have
a risk of at most --risk, and at which coverage.

A pilot is a file of predictions with labels, as `report` reads them: .npz,
.csv, .tsv, .parquet or .jsonl, with logits or probabilities of all classes, or
with `confidence` and `correct`. Without a pilot, --accuracy assumes a
calibrated network.
"""
_EXAMPLES = """\
examples:
  keras-calib plan --pilot=preds.parquet --risk=0.01
  keras-calib plan --accuracy=0.93 --risk=0.01 --delta=0.05 --power=0.9
  keras-calib plan --pilot=preds.csv --risk=0.05 --out=plan.json
"""
# How errors call the library's arguments here.
_WORDS = {
    **flags("risk", "delta", "power", "accuracy", "coverage"),
    **flags("max_samples", "pilot"),
    "path": "--out",
}
_SHARES = {
    "--risk": (None, "largest share of wrong predictions among the accepted"),
    "--accuracy": (None, "that of a calibrated network, in place of a pilot"),
    "--delta": (0.05, "probability that the guarantee fails"),
    "--power": (0.8, "probability to certify the risk"),
    "--coverage": (None, "share of the surest with this --accuracy (1)"),
}
_OPTIONS: Options = {
    "--pilot FILE": "predictions with labels",
    **{
        f"{flag} SHARE": {
            "type": functools.partial(share, most=flag == "--coverage"),
            "default": value,
            "help": text + " (%(default)s)" * (value is not None),
        }
        for flag, (value, text) in _SHARES.items()
    },
    "--max-samples N": {
        "default": 100_000,
        "help": "most labels to plan for (%(default)s)",
    },
    "--out FILE.png|.svg|.json|.csv": "picture or table to write too",
}
_COLUMNS = {
    **columns(
        *("labels", "logits", "probs", "confidence", "correct", "predicted"),
        *("sample_weight", "units", "ids", "groups"),
        groups="refused: plan for the rows of each group alone",
    ),
    **FORM,
}


def _check(given: argparse.Namespace) -> None:
    if given.risk is None:
        raise ValueError("--risk must be given")
    if given.max_samples < 1:
        raise value_error(
            "`max_samples` must be >= 1", max_samples=given.max_samples
        )
    if given.pilot is None and given.accuracy is None:
        raise ValueError("One of --pilot and --accuracy must be given")
    if given.pilot is not None:
        for name in ("accuracy", "coverage"):
            if getattr(given, name) is not None:
                raise ValueError(
                    f"--pilot and --{name} exclude each other: the pilot "
                    "tells it, and the plan has a line for each coverage"
                )
    if given.groups is not None:
        raise value_error(
            "a plan is for one threshold: give the rows of each group as a "
            "pilot of their own, with --delta over the number of groups",
            **{"--groups": given.groups},
        )


def _open(given: argparse.Namespace, _: str, path: str) -> Any:
    return opened(path, vars(given))


def _run(given: argparse.Namespace, progress: Progress) -> Found:
    """The plan, which is written where --out says."""
    load_keras(progress)
    from keras_calib.inputs.checks import check_independent
    from keras_calib.selection import plan

    pilot = None
    if given.pilot:
        progress.say(f"Reading {given.pilot} ...")
        with blamed(f"--pilot={given.pilot}"):
            pilot = given.opened[0][2].read()
            check_independent("A plan", pilot.shape, pilot.units)
    progress.say("Simulating selections ...")
    names = [x.removeprefix("--") for x in _SHARES]
    options = {x: getattr(given, x) for x in (*names, "max_samples")}
    options["coverage"] = given.coverage or 1.0
    at_fault = blamed(f"--pilot={given.pilot}") if pilot else of_arguments()
    with at_fault:
        found = plan(pilot=pilot, **options)
    if given.out is not None:
        _write(found, Path(given.out))
    return Found(str(found), _facts(found))


def _write(found: Any, path: Path) -> None:
    kind = path.suffix.lower()
    if kind not in (".json", ".csv"):
        from keras_calib.plots import PlanDisplay

        PlanDisplay(found).save(path)
        return
    with replacing(path, text=True) as file:
        if kind == ".csv":
            table = vars(found.by_samples)
            write_csv(file, [table, *zip(*table.values(), strict=True)])
        else:
            text = json.dumps(_facts(found), indent=2, allow_nan=False)
            file.write(f"{text}\n")


def _facts(found: Any) -> Any:
    return for_json(found, nan="never", infinity="more")


COMMAND = Command(
    _DESCRIPTION,
    _EXAMPLES,
    _WORDS,
    {"": _OPTIONS, "columns": _COLUMNS},
    _check,
    _open,
    _run,
    files="pilot",
    may_do_without=True,
)
