"""Small faults that tests must see, a module of them for each package."""

from importlib import import_module
from pathlib import Path

from mutants.mutant import Mutant, lines_of

__all__ = ["MUTANTS", "Mutant", "lines_of"]

MUTANTS = {
    name: mutant
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))
    if path.stem != "mutant"
    for name, mutant in import_module(f"mutants.{path.stem}").MUTANTS.items()
}
