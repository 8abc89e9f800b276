"""Texts of the errors that public callables give to odd inputs.

The callables and inputs are those of the battery and of the bad calls in
`tests/inputs`. A few callables, one of each kind, are given all odd inputs,
the others a share of them, another share for each: they read them by one
door.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from battery import base_of, entry_of
from inputs.test_bad_arguments import HYPERPARAMETERS
from inputs.test_bad_data import DATA, DOORS
from inputs.test_refused_calls import MISTAKEN, NOT_FITTED
from laws.test_battery import CALLED, odd_calls
from odd_inputs import is_error, outcome
from shaped import SHAPED

from frozen.stored import Tolerance

TOLERANCE = Tolerance(relative=0.0, absolute=0.0)
# Keys go on under the first name: public names of today that had another.
RENAMED = {
    "NAURC": "NormalizedAURC",
    "aece": "adaptive_ece",
    "choose_threshold, by cost": "choose_threshold_by_cost",
    "choose_threshold, by group": "choose_group_thresholds",
    "naurc": "normalized_aurc",
}
# Who is given all odd inputs: a loss, a metric, a function, a fit.
ALL = {"MbLS", "ECE", "ece", "TemperatureScaling"}
EVERY = 17
# Each call fits a posterior, or makes a page.
SLOW = "GaussianProcessCalibration", "report"


def _told(call: Callable, name: str) -> str:
    """The error and warnings of a call, without the callable's own name."""
    found, warned = outcome(call)
    lines = [f"warning: {text}" for text in warned]
    if is_error(found):
        lines.insert(0, f"{type(found).__name__}: {found}")
    text = "\n".join(lines) or "no error"
    # Where things lie in memory.
    text = re.sub(r"0x[0-9a-f]+", "0x...", text)
    return re.sub(rf"\b{re.escape(name)}\b", "<name>", text)


def _key(name: str) -> str:
    if name in RENAMED:
        return RENAMED[name]
    first, *rest = re.split(r"\b", name, maxsplit=2)[1:]
    return "".join([RENAMED.get(first, first), *rest])


def _some(calls: list, name: str) -> list:
    """All calls or a share, which does not depend on the other names."""
    key = _key(name)
    first = zlib.crc32(key.encode()) % EVERY
    return calls if key in ALL else calls[first::EVERY]


def _battery() -> Iterator[tuple[str, Any]]:
    for name in CALLED:
        if name in SLOW:
            continue
        entry, base = entry_of(name), base_of(name)
        calls = list(odd_calls(name))
        for kind, (*given, place), _ in _some(calls, name):
            given[place] = given[place](base[(0, 1, 3)[place]])
            told = _told(partial(entry.call, *given), name)
            yield f"{_key(name)}/{kind}", told


def _shaped() -> Iterator[tuple[str, Any]]:
    for name, case in SHAPED.items():
        first = name.partition(",")[0]
        for kind, arrays in _some(list(case.calls()), name):
            told = _told(partial(case.call, **arrays), first)
            yield f"{_key(name)}/{kind}", told


def _bad_calls() -> Iterator[tuple[str, Any]]:
    for case in (*HYPERPARAMETERS, *NOT_FITTED):
        name = case.id.split()[0]
        yield f"bad call/{_key(case.id)}", _told(case.call, name)
    for i, case in enumerate(MISTAKEN):
        yield f"bad call/{case.id}, {i}", _told(case.call, "fit")
    for data in DATA:
        for name, reader in data.readers.items():
            if name in DOORS or len(data.readers) < 4:
                call = partial(
                    reader, data.labels, data.predictions, **data.options
                )
                key = f"bad data/{data.id}/{_key(name)}"
                yield key, _told(call, name)


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    yield from _bad_calls()
    yield from _battery()
    yield from _shaped()
