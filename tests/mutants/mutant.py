"""One small fault of the library, and the test that must see it."""

from typing import NamedTuple

from paths import ROOT


class Mutant(NamedTuple):
    """One change of one line.

    Attributes:
        file: Path below `keras_calib`.
        line: Text that occurs once in it.
        change: What takes its place.
        test: Node that must fail, below `tests`.
    """

    file: str
    line: str
    change: str
    test: str


def lines_of(mutant: Mutant) -> int:
    """How often the file has the line, which must be once."""
    source = (ROOT / "keras_calib" / mutant.file).read_text(encoding="utf-8")
    return source.count(mutant.line)
