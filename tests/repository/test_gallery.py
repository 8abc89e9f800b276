"""Pictures of the guides are those of the code above them."""

import ast
import builtins
import importlib
import re

import pytest
from paths import ROOT
from public_names import PUBLIC

# Bytes of a picture, at most.
LARGEST = 40_000


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "pictures")
        yield importlib.import_module("make_displays")


def test_the_gallery_shows_every_display(script):
    shown = [
        name
        for page, code, _ in script.drawn_blocks()
        if page.name == "seeing.md"
        for name in re.findall(r"keras_calib\.(?:\w+\.)?(\w+Display)\(", code)
    ]
    displays = [x for x in PUBLIC if x.endswith("Display")]
    assert sorted(shown) == sorted(displays)


def test_code_makes_the_displays_that_are_drawn(script):
    for page, code, pictures in script.drawn_blocks():
        made = {
            node.id
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        assert {*pictures} <= made, page.name


def test_blocks_that_are_drawn_use_what_they_have(script):
    made = {}
    for page, code, _ in script.drawn_blocks():
        known = made.setdefault(page.name, {*script.GIVEN, *dir(builtins)})
        nodes = [*ast.walk(ast.parse(code))]
        names = [n for n in nodes if isinstance(n, ast.Name)]
        known |= {n.id for n in names if isinstance(n.ctx, ast.Store)}
        imported = [x for n in nodes for x in getattr(n, "names", ())]
        known |= {x.asname or x.name for x in imported}
        assert {n.id for n in names} <= known, page.name


def test_pictures_are_small_drawn_by_code_and_say_nothing_else(script):
    drawn = [name for *_, names in script.drawn_blocks() for name in names]
    files = [*(script.DOCS / script.FOLDER).iterdir()]
    assert sorted(drawn) == sorted(path.stem for path in files)
    for path in files:
        content = path.read_bytes()
        assert len(content) < LARGEST, path
        assert not re.search(rb"tEXt|iTXt|zTXt|tIME|eXIf", content), path
