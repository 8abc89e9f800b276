"""What people read keeps to short, whole sentences."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import END, paragraphs
from paths import ROOT
from repository_files import parse

MAX_WORDS = 30
MAX_SENTENCES = 5
MAX_NUMBERS = 3
TEXTS = (".md", ".py")

# Openings that wait for their verb; pointers and words that say little.
TELEGRAM = re.compile(r"(Of|So that) |Where [^,]*$")
RIDDLE = re.compile(
    r"\b(of (that|the same) name|told apart|tells? (\S+ )*apart"
    r"|makes? a difference of|settles?)\b"
)

EXPLAINED = re.compile(r" {4}(\*{0,2}\w+(, \*{0,2}\w+)*|`[^`]+`)( \(.*?\))?:")
# Pages that record: what was run, printed, tested or proved.
RECORDS = {"results.md", "papers.md", "versions.md", "derivations.md"}
NUMBER = re.compile(r"(?<![\w.^-])\d[\d,]*(\.\d+)?(e-?\d+)?(?![\w-])")
# Not quantities: years, parts of a paper, versions and names.
NAMED = re.compile(
    r"\b(1[89]|20)\d\d\b|\b20 Newsgroups"
    r"|\b([Ss]ections?|[Tt]ables?|[Ee]qs?\.|[Ee]quations?|[Ff]igures?|Keras"
    r"|Python) \d[\d.]*( (and|to) \d[\d.]*)?"
)


def prose(docstring: str) -> str:
    """A docstring without formulas, examples and references."""
    kept, title = [], ""
    for line in inspect.cleandoc(docstring).splitlines():
        head = re.fullmatch(r"([A-Z][a-z]+):", line)
        title = head[1] if head else title
        left_out = title in ("Example", "Examples", "Reference")
        if head or left_out or not title and line.startswith("    "):
            line = ""
        elif title and EXPLAINED.match(line):
            line = "\n" + EXPLAINED.sub("", line)
        kept.append(line)
    return "\n".join(kept)


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Of a module and of what is public in it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                yield ast.get_docstring(node) or ""
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                yield from docstrings(node)


def texts(path: Path) -> Iterator[str]:
    if path.suffix == ".md":
        yield path.read_text(encoding="utf-8")
        return
    tree = parse(path)
    for docstring in (ast.get_docstring(tree) or "", *docstrings(tree)):
        yield prose(docstring)


def stumbles(text: str) -> Iterator[str]:
    """What a reader stumbles over."""
    for paragraph in paragraphs(text):
        sentences = END.split(paragraph)
        if len(sentences) > MAX_SENTENCES:
            yield f"{len(sentences)} sentences in: {paragraph[:70]}"
        for sentence in sentences:
            words = sum(any(map(str.isalnum, w)) for w in sentence.split())
            if words > MAX_WORDS:
                yield f"{words} words in: {sentence[:70]}"
            if TELEGRAM.match(sentence) or RIDDLE.search(sentence):
                yield f"say it whole: {sentence[:70]}"


def crowds(text: str) -> Iterator[str]:
    """Paragraphs with numbers that want a table."""
    for paragraph in paragraphs(text):
        found = [m[0] for m in NUMBER.finditer(NAMED.sub("", paragraph))]
        if len(found) > MAX_NUMBERS:
            yield f"{len(found)} numbers in: {paragraph[:70]}"


def faults() -> dict[str, list[str]]:
    """By file, for those that have any."""
    read = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    for folder in ("keras_calib", "examples"):
        read += [p for p in (ROOT / folder).rglob("*") if p.suffix in TEXTS]
    found = {
        path.relative_to(ROOT).as_posix(): [
            fault for text in texts(path) for fault in stumbles(text)
        ]
        for path in sorted(read)
    }
    return {name: rows for name, rows in found.items() if rows}


def test_sentences_and_paragraphs_are_short_and_whole():
    assert not faults()


def test_numbers_of_guides_have_their_home_in_tables():
    found = {
        page.name: [*crowds(page.read_text(encoding="utf-8"))]
        for page in (ROOT / "docs").glob("*.md")
        if page.name not in RECORDS
    }
    assert not {name: rows for name, rows in found.items() if rows}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1 of 20 with 95 %.", 0),
        ("1 of 20 with 95 %, in 0.5 s.", 1),
        ("Of 1e-6, 1,024 x 10, in 3 s.", 1),
        ("1 or 2 or 3, `4`, ResNet-50, float32, Keras 3, in 2020.", 0),
        ("1 or 2\n\n- 3 or 4\n- 5 or 6\n\n| 7 | 8 | 9 | 10 |", 0),
        ("Tables 4 and 7, eq. 13, of 1, 2 and 3.", 0),
    ],
)
def test_crowds_of_numbers_are_found(text, found):
    assert len([*crowds(text)]) == found


WORDS = "word " * 30


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{WORDS}\n\n{WORDS}", 0),
        (WORDS + "more", 1),
        (WORDS + "`some code` [page](index.md).", 1),
        ("One. Two, e.g. `x`. Three, of Guo et al. (2017). 4. Five!", 0),
        ("One. Two. Three. `x` is four. Five. Six.", 1),
        ("Of logits finite.", 1),
        ("Where labels are soft, the first class counts.", 0),
        ("- Where labels are soft.\n- So that it is finite.", 2),
        ("As in the class of that name.", 1),
        ("What a model tells apart. It is told apart by shape.", 2),
        (f"| {WORDS} more |\n<!-- Of tables. -->", 0),
        (prose(f"A sum.\n\n    x {WORDS}\n\nArgs:\n    x: Of it."), 1),
        (prose(f"A sum.\n\nReference:\n    Of {WORDS}"), 0),
    ],
)
def test_faults_are_found(text, found):
    assert len([*stumbles(text)]) == found
