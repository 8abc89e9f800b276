"""What the package adds to importing Keras, and how soon the command answers.

    python benchmarks/import_time.py --out=benchmarks/results/import_time.md

Every measurement is a new process that imports Keras, then keras_calib. Python
may keep what it compiled, as in an installation, and the first process of each
kind, which compiles, does not count. Backends are those that are installed
beside this Python; the command's help is compared with an empty program.
About a minute for each backend on 2 CPU cores.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np
from absl import app, flags
from reporting import machine, markdown_table, publish, quartiles

_REPEATS = flags.DEFINE_integer("repeats", 9, "Processes of each kind.")
_OUT = flags.DEFINE_string("out", None, "Markdown file to write.")

_BACKENDS = ("tensorflow", "jax", "torch")
_IMPORTS = """
import sys, time
start = time.perf_counter()
import keras
middle, before = time.perf_counter(), set(sys.modules)
import keras_calib
end = time.perf_counter()
others = {name.split(".")[0] for name in set(sys.modules) - before}
others -= {"keras_calib", *sys.stdlib_module_names}
print(middle - start, end - middle, *sorted(others))
"""


def python(*arguments: str, **variables: str) -> str:
    """Standard output of a new Python process."""
    environment = {**os.environ, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = subprocess.run(
        (sys.executable, *arguments),
        capture_output=True,
        check=True,
        env=environment,
        text=True,
    )
    return run.stdout


def repeated(function: Callable) -> list:
    """What it returns, the first call left out."""
    return [function() for _ in range(_REPEATS.value + 1)][1:]


def seconds(*arguments: str) -> float:
    start = time.perf_counter()
    python(*arguments)
    return time.perf_counter() - start


def import_rows() -> list[list[str]]:
    rows = []
    for backend in filter(find_spec, _BACKENDS):
        run = partial(python, "-c", _IMPORTS, KERAS_BACKEND=backend)
        words = [told.split() for told in repeated(run)]
        keras, ours = np.array([x[:2] for x in words], float).T
        others = ", ".join(words[-1][2:]) or "none"
        rows.append([backend, *quartiles(keras, 2), *quartiles(ours, 3)])
        rows[-1].append(others)
    return rows


def command_rows() -> list[list[str]]:
    programs = {
        "an empty program": ("-c", "pass"),
        "`keras-calib --help`": ("-m", "keras_calib", "--help"),
    }
    return [
        [name, *quartiles(np.array(repeated(partial(seconds, *words))), 3)]
        for name, words in programs.items()
    ]


def main(_) -> None:
    header = ["backend", "import keras s", "quartiles"]
    header += ["keras_calib in addition s", "quartiles", "other packages"]
    parts = [
        f"{machine()}. Medians of {_REPEATS.value} new processes.",
        "What `import keras_calib` adds; other packages are those that it "
        "loads and Keras did not:",
        markdown_table(header, import_rows()),
        "From the start of the process to its end:",
        markdown_table(["program", "s", "quartiles"], command_rows()),
    ]
    publish("\n\n".join(parts), _OUT.value)


if __name__ == "__main__":
    app.run(main)
