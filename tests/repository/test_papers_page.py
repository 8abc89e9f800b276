"""docs/papers.md names what exists, and what each row waits for."""

import re

import keras
from public_names import PUBLIC
from repository_files import ROOT

PAPERS = ROOT / "examples" / "papers"
# Columns of a run, which files of results of the repository have or not.
COLUMN = re.compile(
    r"(cal_)?(ece|aece|ar|ap|temperature|inactive|prediction|objectness|seconds"
    r"|norm)\w*|_\w+"
)


def table_rows():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines()]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) == 5]
    return [row for row in rows if row[0] not in ("row", "---")]


def exists(name):
    if name.startswith("--"):
        return name.split("=")[0][2:] in flags_of_scripts()
    if name.endswith((".md", ".csv", ".png")):
        return True
    script = re.match(r"(?:benchmarks/|tests/papers/)?(\w+\.py)", name)
    if script:
        return bool(list(ROOT.glob(f"[!.]*/**/{script[1]}")))
    if name.endswith(".flags") and "/" in name:
        return bool(list(PAPERS.glob(f"recipes/{name}")))
    own = re.match(r"(?:keras\.losses\.)?(\w+)(?:\.\w+)?(?:\(.*\))?$", name)
    if own and (own[1] in PUBLIC or hasattr(keras.losses, own[1])):
        return True
    stems = {path.stem for path in PAPERS.glob("recipes/*/*.flags")}
    pattern = name.replace("*", r"\w*")
    return any(re.fullmatch(pattern, stem) for stem in stems) or bool(
        COLUMN.fullmatch(name)
    )


def flags_of_scripts():
    text = "".join(path.read_text() for path in PAPERS.rglob("*.py"))
    return set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", text))


def test_the_page_names_what_exists():
    found = table_rows()
    assert len(found) > 110
    missing = [
        (row[0], name)
        for row in found
        for cell in row[1:]
        for part in re.findall(r"`([^`]+)`", cell)
        for name in re.split(r" (?=--)", part)
        if not exists(name)
    ]
    assert not missing
    assert not any(map(exists, ("acls_rankin", "ACLSS", "trainer.py", "--onn")))


def test_every_row_works_or_says_what_it_waits_for():
    for row in table_rows():
        status = row[3]
        assert status.startswith("works") or re.match(
            r"partial: .*(waits for|as table|trains another)", status
        ), row
