"""Runs the mutants: `python tests/mutants [NAME ...]`.

Each changes one line of the package in a copy of the checkout and runs the
tests that must fail then. A mutant that survives, or whose line is no longer
there, is told and makes the exit code 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paths import ROOT  # noqa: E402

from mutants import MUTANTS  # noqa: E402
from mutants import Mutant  # noqa: E402
from mutants import lines_of  # noqa: E402


def survives(mutant: Mutant) -> str | None:
    """What is wrong if the tests do not see the mutant."""
    if (lines := lines_of(mutant)) != 1:
        return f"{lines} such lines in {mutant.file}"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("keras_calib", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name))
        for name in ("pyproject.toml", "setup.cfg"):
            shutil.copy(ROOT / name, folder)
        path = Path(folder, "keras_calib", mutant.file)
        source = path.read_text(encoding="utf-8")
        changed = source.replace(mutant.line, mutant.change)
        path.write_text(changed, encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
            ]
            + [f"tests/{mutant.test}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    # 1 says that tests ran and failed; others that they did not run.
    return None if done.returncode == 1 else done.stdout[-300:]


def main() -> int:
    names = sys.argv[1:] or list(MUTANTS)
    alive = 0
    for name in names:
        wrong = survives(MUTANTS[name])
        print(name, "is seen" if wrong is None else f"SURVIVES: {wrong}")
        alive += wrong is not None
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
