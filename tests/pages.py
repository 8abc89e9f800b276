"""The pages that people read: their sentences, and the code in them."""

import re
from collections.abc import Iterator

from paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\s*)?"
    r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```",
    re.DOTALL | re.MULTILINE,
)

_CODE = re.compile(r"(```|~~~).*?\1|<!--.*?-->|\$\$.*?\$\$", re.DOTALL)
_MARKUP = [
    (re.compile(r"``.+?``|`[^`]*`|\$[^$\n]+\$|\\\(.*?\\\)", re.DOTALL), "X"),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)|</?\w[^>]*>"), ""),
    (re.compile(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])"), r"\1"),
    (re.compile(r"https?://\S+"), "X"),
]
# Table, heading, list item, admonition and tab: each begins something new.
_NOT_PROSE = re.compile(r"\s*(\||#|---|!!!|\?\?\?|===)")
_ITEM = re.compile(r"\s*([-*+]|\d+\.|>) ")
# Where a sentence ends.
END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bal)(?<!\bvs)(?<!\bEq)(?<!\bSec)(?<!\bFig)"
    r"[.!?][\"')*_]*\s+(?=[\"'(*_]*[A-Z`\d])"
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


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items of Markdown, without what is not prose."""
    text = _CODE.sub("\n\n", text)
    for pattern, instead in _MARKUP:
        text = pattern.sub(instead, text)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = _ITEM.match(line)
        if begins or not line.strip() or _NOT_PROSE.match(line):
            if lines:
                yield " ".join(lines)
            lines = []
        if line.strip() and not _NOT_PROSE.match(line):
            lines.append(line[begins.end() if begins else 0 :].strip())
