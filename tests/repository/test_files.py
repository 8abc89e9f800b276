"""Files are well named, and speak of the library alone."""

import ast
import importlib
import re
from pathlib import Path

import mutants
import pytest
from frozen import SUBJECTS
from paths import ROOT, TESTS
from repository_files import (
    MODULES,
    module_name,
    parse,
    repository_files,
    text_files,
)

VAGUE_NAMES = {"common", "helpers", "misc", "tools", "util", "utils"}

# Put together here, so that this file does not contain what it looks for.
WORKING_PAPERS = re.compile(
    "|".join(
        (
            r"\b(API|EVIDENCE|HOUSE|LAYOUT|METHODS|OPERATIONS|PEERS|PERFORMANCE"
            r"|PLATFORM|POSTHOC|PROSE|REBUILD|REVIEW|SCORE_HISTOGRAM|STYLE)"
            + r"\.md",
            r"\." + r"library\b",
            r"(?<!\w)/wo" + r"rk/[\w.]",
        )
    )
)


# What one function does for all, and where else it may be done.
ONCE = {
    # A dtype may not hold the class: integers alone, or float64.
    r"[!=]= (self\.|data\.)?ignore_class": {
        "inputs/labels.py",
        "beam.py",
    },
    # `generator` refuses what is no seed; others have checked it.
    r"default_rng\((self\.|how\.)?seed\)": {
        "inputs/checks.py",
        "calibrators/local.py",
        "calibrators/parametrized.py",
    },
    # It has a gradient of NaN where all are ruled out; no score is trained.
    r"\bops\.logsumexp": {"formulas/scores.py"},
    # Families alone share delta.
    r"(?<![\w.])walk\(": {"selection/families.py"},
}


@pytest.mark.parametrize("pattern", ONCE)
def test_what_has_one_home_is_written_nowhere_else(pattern):
    found = {
        path.relative_to(ROOT / "keras_calib").as_posix()
        for path in MODULES
        if re.search(pattern, path.read_text(encoding="utf-8"))
    }
    assert found == ONCE[pattern]


def test_the_lines_that_mutants_change_are_there():
    for name, mutant in mutants.MUTANTS.items():
        assert mutants.lines_of(mutant) == 1, name
        file, _, test = mutant.test.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert f"def {test.partition('[')[0]}(" in text, name


def test_modules_raise_instead_of_asserting():
    # Only where the word is, may the statement be.
    with_word = [
        path for path in MODULES if "assert" in path.read_text(encoding="utf-8")
    ]
    for path in with_word:
        asserts = [
            node.lineno
            for node in ast.walk(parse(path))
            if isinstance(node, ast.Assert)
        ]
        assert not asserts, path


def test_module_names_say_what_is_inside_and_shadow_no_public_name():
    for path in MODULES:
        package, _, name = module_name(path).rpartition(".")
        assert not {*package.split("."), name} & VAGUE_NAMES, path
        if package:
            exported = getattr(importlib.import_module(package), "__all__", ())
            assert name not in exported, path


def test_files_speak_of_the_library_alone():
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in text_files()
        for match in WORKING_PAPERS.finditer(
            path.read_text(encoding="utf-8", errors="replace")
        )
    ]
    assert not found


def test_text_files_include_this_one():
    assert Path(__file__).resolve() in text_files()


def test_binary_files_are_the_reference_values_and_small_pictures():
    text = set(text_files())
    binary = [
        str(path.relative_to(ROOT))
        for path in repository_files()
        if path.is_file() and path not in text
    ]
    goldens = "tests/data/goldens.npz"
    values = {name for name in binary if name.startswith("tests/")}
    others = {f"tests/data/{x}.npz" for x in ("detections", "segmentation")}
    # Texts alone are frozen of errors.
    others |= {f"tests/frozen/{x}.npz" for x in SUBJECTS if x != "errors"}
    assert values == {goldens, *others}
    for name in {*binary} - {goldens}:
        assert name in others or re.fullmatch(
            r"docs/pictures/[\w/]+\.png", name
        )
        assert (ROOT / name).stat().st_size < 150_000, name
