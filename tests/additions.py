"""A plugin: the loss, metric, calibrator and promise of CONTRIBUTING.md.

`python -m pytest -p additions tests/laws` runs the laws over these four, as
if they were public and their case had been added as the page says.
"""

import re
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
from paths import ROOT
from public_names import PUBLIC
from scipy.special import softmax

import keras_calib as kc

_BLOCK = re.compile(r"^ *```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_CASES = {"LossCase": "LOSSES", "MetricCase": "METRICS"}


def blocks() -> list[str]:
    """The Python code of CONTRIBUTING.md, block by block."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return [textwrap.dedent(code) for code in _BLOCK.findall(page)]


def _is_module(code: str) -> bool:
    return code.startswith(("import ", "from "))


def defined() -> dict[str, Any]:
    """What the blocks that are whole modules define, by public name."""
    found: dict[str, Any] = {}
    for code in blocks():
        if _is_module(code):
            space: dict[str, Any] = {"__name__": "contributing"}
            exec(compile(code, "CONTRIBUTING.md", "exec"), space)
            found |= {
                name: x
                for name, x in space.items()
                if getattr(x, "__module__", "") == "contributing"
                and not name.startswith("_")
            }
    return found


def cases(names: dict[str, Any]) -> list[Any]:
    """What the other blocks add to the lists of cases, with these names."""
    import cases as lists

    space = {"kc": SimpleNamespace(**names), "np": np, "softmax": softmax}
    space |= {
        kind: getattr(lists, kind)
        for kind in ("LossCase", "MetricCase", "CalibratorCase")
    }
    found = []
    for code in blocks():
        if not _is_module(code) and not code.startswith('"'):
            *before, last = re.split(r"\n(?=\S+Case\()", "\n" + code)
            exec(compile("\n".join(before), "CONTRIBUTING.md", "exec"), space)
            found.append(eval(last, space))
    return found


def shaped_cases(names: dict[str, Any]) -> dict[str, Any]:
    """What the blocks that are entries add to `RECORDS`, by public name."""
    import shaped_records

    space = {**vars(shaped_records), "kc": SimpleNamespace(**names)}
    entries = (x for x in blocks() if x.startswith('"'))
    return eval("{" + "".join(entries) + "}", space)


def pytest_configure() -> None:
    import cases as lists
    import shaped

    names = defined()
    shaped.SHAPED.update(shaped_cases(names))
    for name, value in names.items():
        setattr(kc, name, value)
        PUBLIC[name] = value
    for case in cases(names):
        kind = type(case).__name__
        getattr(lists, _CASES.get(kind, "CALIBRATORS")).append(case)
        if kind == "MetricCase":
            import streams

            # The laws of metrics try one of each kind of state, and this one.
            streams.STATES.append(case)
