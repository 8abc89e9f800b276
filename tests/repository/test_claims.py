"""Guides name what shows that a property holds, beside its sentence.

A paragraph or list item whose sentences state that something is the same,
equal or exact, happens never or at most so often ends with a comment,

    <!-- shown: tests/training/test_resume.py::test_name -->

or links to a table of `benchmarks/results` or to a derivation.
"""

import functools
import re

import pytest
from pages import END, PAGES, paragraphs
from paths import ROOT
from repository_files import parse

# Pages that record: what was run, printed, tested or proved.
RECORDS = {"derivations.md", "papers.md", "results.md", "versions.md"}
CLAIM = re.compile(
    r"\b(same|never|at most|equals?|exact(ly)?)\b", re.IGNORECASE
)
# Uses that promise nothing: advice, definitions, pointers, other texts.
ORDINARY = re.compile(
    r"""(?x)
    does?\ the\ same | (fit|work)\ (in\ )?the\ same\ way
    | (cost|look)\ the\ same | takes?\ the\ same\ arrays
    | same\ (arguments|as\ pictures|calibrator|confidence|data|form|labels
      |model|network|NLL|number(s\ as\ pictures)?|options|prompt|rows?|rule
      |samples|script|seeds|sets|shares?|size|steps|streams|\d+\ random|X)\b
    | from\ the\ same\ state
    | (equal\ (accuracy|bins|mass|width)|practically\ equal
      |equals\ (cross\ entropy|one\ device))\b
    | exact\ (95|binomial|functions?|sums|test)\b
    | (how|what)\ exact(ly)?\b | not\ exact\b | exactly\ one\ label
    | never\ met | boxes\ at\ most
    """,
    re.IGNORECASE,
)
SHOWN = re.compile(r"\s*<!-- shown: (.*?) -->", re.DOTALL)
LINK = re.compile(r"\]\((\.\./)?(benchmarks/results/\w+\.md|derivations\.md#)")


def unshown(text):
    """Sentences that claim something where nothing is named."""
    text = LINK.sub(r" ⟦⟧\g<0>", SHOWN.sub(" ⟦⟧", text))
    for paragraph in paragraphs(text):
        if "⟦⟧" not in paragraph:
            for sentence in END.split(paragraph):
                if CLAIM.search(ORDINARY.sub("", sentence)):
                    yield sentence


@functools.cache
def functions_of(path):
    return {getattr(node, "name", None) for node in parse(path).body}


def exists(name):
    """Whether a test or a table is there."""
    path, _, test = name.partition("::")
    if not path.startswith(("tests/", "benchmarks/results/")):
        return False
    path = ROOT / path
    return path.is_file() and (not test or test in functions_of(path))


def test_sentences_that_promise_name_what_shows_it():
    found = {}
    for page in PAGES:
        if page.name not in RECORDS:
            text = page.read_text(encoding="utf-8")
            found[page.name] = list(unshown(text))
    assert not {name: rows for name, rows in found.items() if rows}


def test_what_is_named_exists():
    names = [
        name
        for page in PAGES
        for each in SHOWN.findall(page.read_text(encoding="utf-8"))
        for name in each.split()
    ]
    assert len(names) > 30
    assert not [name for name in names if not exists(name)]
    assert not exists("tests/training/test_resume.py::test_nothing")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It ends with the same bits.", 1),
        ("It ends with the same bits.\n<!-- shown: tests/x.py -->", 0),
        ("It never fails. It is at most 2 %.", 2),
        ("Sums are exact ([why](derivations.md#sums)).", 0),
        ("- Equal inputs give equal files.\n- Others. <!-- shown: x -->", 1),
        ("Compare on the same rows, by the exact functions.", 0),
        ("On the same rows it never fails.", 1),
        ("```python\nnever = 'the same'\n```", 0),
    ],
)
def test_promises_are_found(text, found):
    assert len([*unshown(text)]) == found
