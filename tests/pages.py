"""The pages that people read, and the code in them."""

import re

from paths import ROOT

__all__ = ["PAGES", "blocks", "section"]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\s*)?"
    r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def blocks(text, kind):
    """Code that is run, in order."""
    found = [m for m in _BLOCK.finditer(text) if m["kind"] == kind]
    return [m["code"] for m in found if not m["reason"]]


def section(page, title):
    """Text under a heading, up to the next of its level."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    marks, rest = re.search(
        rf"^(#+) {re.escape(title)}\n(.*)", text, re.MULTILINE | re.DOTALL
    ).groups()
    return re.split(rf"^{marks} ", rest, flags=re.MULTILINE)[0]
