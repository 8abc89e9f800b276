"""Numbers of runs that pages name are what the runs of the repository say."""

import importlib
import random
import re

import pytest
from repository_files import ROOT

PAGE = ROOT / "docs" / "results.md"


@pytest.fixture(scope="module")
def checker():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("results_page")


@pytest.fixture(scope="module")
def text():
    return PAGE.read_text(encoding="utf-8")


def test_numbers_of_the_page_are_those_of_the_runs(checker, text):
    page = checker.Page(text)
    assert page.problems == []
    assert page.matched["cells"] >= 790
    assert page.matched["text"] >= 55


def test_numbers_of_training_methods_are_those_of_the_runs(checker):
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    own = [x for x in re.split(r"^(?=##)", text, flags=re.M) if "<!--" in x]
    page = checker.Page("".join(own))
    assert page.problems == []
    assert page.matched["cells"] >= 3 * 21 + 4 * 3


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))],
)
def test_a_wrong_digit_in_any_cell_is_found(checker, text, seed):
    """Each cell of each table has one digit changed, all at once.

    But names of methods: their numbers may be those of other options.
    """
    rng = random.Random(seed)
    wrong = []

    def changed(cell):
        digits = [m.start() for m in re.finditer(r"\d", cell)]
        if not digits:
            return cell
        place = rng.choice(digits)
        other = rng.choice([d for d in "0123456789" if d != cell[place]])
        wrong.append(cell[:place] + other + cell[place + 1 :])
        return wrong[-1]

    lines, before = [], ""
    for line in text.splitlines():
        body = line.startswith("| ") and before.startswith("|")
        before = line
        if body:
            _, name, *cells = line.split("|")
            line = "|".join(["", name, *map(changed, cells)])
        lines.append(line)
    problems = checker.Page("\n".join(lines)).problems
    cells = [p for p in problems if ", not " in p]
    assert len(wrong) > 740
    assert len(cells) == len(wrong)


def test_a_wrong_number_in_the_text_is_found_in_most_cases(checker, text):
    """Numbers with four decimals; shorter ones are often those of others."""
    rng = random.Random(0)
    numbers = set()
    for section in re.split(r"^(?=##)", text, flags=re.M):
        for block in checker._blocks(checker._without_code(section)):
            if not block.startswith(("|", "<!--")):
                found = re.findall(r"(?<![\w.])0\.0\d{3}(?!\d)", block)
                numbers |= {(section, number) for number in found}
    assert len(numbers) > 20
    found = 0
    for section, number in sorted(numbers):
        place = rng.randrange(3, 6)
        digit = rng.choice([d for d in "0123456789" if d != number[place]])
        other = number[:place] + digit + number[place + 1 :]
        tables = "\n".join(
            line
            if line.startswith(("|", "<!--"))
            else line.replace(number, other)
            for line in section.splitlines()
        )
        found += len(checker.Page(tables).problems) > 0
    assert found > 0.6 * len(numbers)


def test_tables_as_compare_prints_them_can_be_declared(checker):
    """With numbers of seeds and pairs, and what holds after Holm."""
    file = "file=camvid.csv; rows=acls | mbls; columns"
    lines = [
        "## A",
        f"<!-- table: {file}=seeds | ece -->",
        "| method | seeds | ece |",
        "|---|---|---|",
        "| acls | 3 | 0.0674 ± 0.0115 |",
        "| mbls | 3 | 0.0557 ± 0.0056 |",
        "",
        f"<!-- table: baseline=cross_entropy; {file}=pairs | ece -->",
        "| method | pairs | ece |",
        "|---|---|---|",
        "| acls | 3 | +0.0132 (p = 0.001)* holds |",
        "| mbls | 3 | +0.0016 (p = 0.798) |",
    ]
    page = checker.Page("\n".join(lines))
    assert page.problems == [] and page.matched["cells"] == 8
    lines[-1] = lines[-1].replace(")", ") holds")
    assert len(checker.Page("\n".join(lines)).problems) == 1


def test_a_row_may_have_pages_test_of_a_trend(checker):
    """All three seeds have one order, of six: p is 2 / 216."""
    lines = [
        "<!-- table: file=camvid.csv; columns=seeds | ece; "
        "rows=cross_entropy | acls | focal | trend -->",
        "| strength | seeds | ece |",
        "|---|---|---|",
        "| 0 | 3 | 0.0541 ± 0.0107 |",
        "| 0.1 | 3 | 0.0674 ± 0.0115 |",
        "| focal | 3 | 0.1280 ± 0.0207 |",
        "| trend | | rises, p = 0.009* |",
    ]
    assert checker.Page("\n".join(lines)).problems == []
    lines[-1] = lines[-1].replace("rises", "falls")
    assert len(checker.Page("\n".join(lines)).problems) == 1


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("## A\n\n| a | b |\n|---|---|\n| c | 0.1 |\n", "no comment before"),
        ("## A\n\nIt is 0.1234.\n", "0.1234 in the text is in no run"),
        (
            "## A\n\n<!-- text: 0.1: so -->\nNothing.\n",
            "is explained and not in the text",
        ),
        (
            "## A\n\n<!-- table: file=camvid.csv; rows=mbls; columns=ece -->\n"
            "| a | b | c |\n|---|---|---|\n| c | 0.1 | 0.2 |\n",
            "not 1 columns",
        ),
        (
            "## A\n\n<!-- table: file=camvid.csv; rows=none; columns=ece -->\n"
            "| a | b |\n|---|---|\n| c | 0.1 |\n",
            "no runs none",
        ),
        (
            "## A\n\n<!-- table: file=camvid.csv; rows=mbls; columns=ece -->\n"
            "| a | b |\n|---|---|\n| c | high |\n",
            "high, not 0.0557",
        ),
    ],
)
def test_what_cannot_be_recomputed_is_a_problem(checker, page, problem):
    assert any(problem in text for text in checker.Page(page).problems)
