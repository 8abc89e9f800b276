"""Runs the mutants: `python tests/mutants [NAME ...]`.

Each changes one line of the package in a copy of it and runs the test that
must fail then. A mutant that survives, or whose line is no longer there, is
told and makes the exit code 1.

What all tests import is imported once, and each mutant tried in a fork.
"""

import contextlib
import importlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import keras
import numpy  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
from paths import ROOT

from mutants import MUTANTS, Mutant, lines_of

_SHARED = ("pyproject.toml", "setup.cfg", "examples", "docs", "README.md")


def survives(mutant: Mutant) -> str | None:
    """What is wrong if its test does not see the mutant."""
    if (lines := lines_of(mutant)) != 1:
        return f"{lines} such lines in {mutant.file}"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("keras_calib", "tests"):
            copytree(ROOT / name, Path(folder, name))
        for name in _SHARED:
            Path(folder, name).symlink_to(ROOT / name)
        path = Path(folder, "keras_calib", mutant.file)
        source = path.read_text(encoding="utf-8")
        changed = source.replace(mutant.line, mutant.change)
        path.write_text(changed, encoding="utf-8")
        told = Path(folder, "told")
        child = os.fork()
        if child == 0:
            _test(folder, mutant.test, told)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        # 1 says that tests ran and failed; others that they did not run.
        return None if code == 1 else told.read_text()[-300:]


def _test(folder: str, test: str, told: Path) -> None:
    """Runs a test on the copy, in this process, and ends it."""
    code = 3
    with contextlib.suppress(BaseException), told.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        # Modules of the checkout are those of the copy from now on.
        for name in ("mutants", "paths"):
            for known in [x for x in sys.modules if x.split(".")[0] == name]:
                del sys.modules[known]
        sys.path[:] = [folder, *(p for p in sys.path if str(ROOT) not in p)]
        sys.path.extend(p for p in _PATH if ".venv" in p)
        code = pytest.main(["-q", "-x", f"tests/{test}"])
    os._exit(int(code))


_PATH = list(sys.path)


def main() -> int:
    names = sys.argv[1:] or list(MUTANTS)
    importlib.import_module(keras.backend.backend())
    alive = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda name: survives(MUTANTS[name]), names)
        for name, wrong in zip(names, found, strict=True):
            told = "is seen" if wrong is None else f"SURVIVES: {wrong}"
            print(name, told, flush=True)
            alive += wrong is not None
    print(f"{len(names) - alive} of {len(names)} are seen")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
